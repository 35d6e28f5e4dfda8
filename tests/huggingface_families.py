"""The zoo of Hugging Face's models: a tiny random original of each variant, its folder, and one batch for both sides.

To add an architecture, write its file of originals and enter its variants into ``VARIANTS``.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.addons.huggingface.architecture import Architecture, JSONConfig
from seqgen.addons.huggingface.checkpoint import architecture_of
from tests import huggingface_bart, huggingface_gpt2, huggingface_llama, huggingface_t5
from tests.huggingface_bart import write_tokenizer
from tests.huggingface_decoding import sharp_model
from tests.huggingface_t5 import save

GPT2: dict[str, dict[str, Any]] = {"gpt2": {}, "gpt2_untied": {"tie_word_embeddings": False}}
ENCODER_DECODERS = [*huggingface_t5.VARIANTS, *huggingface_bart.VARIANTS]
LANGUAGE_MODELS = [*GPT2, *huggingface_llama.VARIANTS]
VARIANTS = [*ENCODER_DECODERS, *LANGUAGE_MODELS]
LANGUAGE_MODEL_TYPES = ("gpt2", *huggingface_llama.KINDS)
KINDS = ["t5", "mt5", "umt5", *huggingface_bart.KINDS, *LANGUAGE_MODEL_TYPES]
"""One variant of each ``model_type``, which has the same name."""

every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_kind = pytest.mark.parametrize("kind", KINDS)


def tiny_model(variant: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """The original of a variant with some values of its configuration changed, random everywhere."""
    if variant in GPT2:
        return huggingface_gpt2.tiny_model(seed, dtype, **{**GPT2[variant], **changes})
    family = next(one for one in (huggingface_t5, huggingface_llama, huggingface_bart) if variant in one.VARIANTS)
    return family.tiny_model(variant, seed, dtype, **changes)


def lively_model(variant: str, seed: int = 0, **changes: Any) -> Any:
    """An original in which some hypotheses end early, and beams are reordered."""
    if variant in huggingface_t5.VARIANTS:
        return sharp_model(variant, seed, **{"vocab_size": 18, **changes})
    if variant in GPT2:
        model = tiny_model(variant, seed, **{"vocab_size": 18, **changes})
        with torch.no_grad():
            model.transformer.ln_f.weight.mul_(-0.5)
            for layer in model.transformer.h:
                layer.attn.c_attn.weight.mul_(2.0)
        return model
    if variant in huggingface_llama.VARIANTS:
        model = tiny_model(variant, seed, **{"vocab_size": 18, **changes})
        with torch.no_grad():
            model.model.norm.weight.mul_(-0.5)
        return model
    model = tiny_model(variant, seed, **changes)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias[0, model.config.eos_token_id] = 2.5
    return model


def write_folder(folder: Path, original: Any, generation: dict[str, Any] | None = None, **saving: Any) -> Path:
    """Save an original with a tokenizer of words ``w0``, ``w1``, ...; see ``save``."""
    config = original.config
    save(original, folder, generation, **saving)
    pad = config.eos_token_id if config.pad_token_id is None else config.pad_token_id
    write_tokenizer(folder, config.vocab_size, pad, config.eos_token_id)
    return folder


def reread(folder: Path, **options: Any) -> Any:
    """The original's own reading of a folder."""
    transformers = pytest.importorskip("transformers")
    of_text = JSONConfig.read(folder / "config.json").get("model_type", "") in LANGUAGE_MODEL_TYPES
    auto = transformers.AutoModelForCausalLM if of_text else transformers.AutoModelForSeq2SeqLM
    return auto.from_pretrained(folder, attn_implementation="eager", **options).eval()


def architecture(folder: Path) -> Architecture:
    """How seqgen reads a folder."""
    return architecture_of(JSONConfig.read(folder / "config.json"))


def batch(pad: int, left: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Two sources of unequal lengths, their lengths, and target prefixes; the ids are below 18."""
    second = [*[pad] * 3, 7, 13, 8] if left else [7, 13, 8, *[pad] * 3]
    sources = torch.tensor([[8, 9, 11, 16, 6, 8], second])
    return sources, torch.tensor([6, 3]), torch.tensor([[3, 10, 6, 11], [3, 12, 17, 14]])


def original_logits(original: Any) -> Tensor:
    """The original's logits after the prefixes of the batch."""
    config = original.config
    sources, lengths, prefixes = batch(config.pad_token_id or 0, left=not config.is_encoder_decoder)
    if not config.is_encoder_decoder:
        mask = torch.arange(9) >= (6 - lengths).unsqueeze(1)
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        given: dict[str, Any] = {"input_ids": torch.cat([sources, prefixes[:, 1:]], dim=1), "position_ids": positions}
    else:
        mask = torch.arange(6) < lengths.unsqueeze(1)
        given = {"input_ids": sources, "decoder_input_ids": prefixes}
    logits: Tensor = original(**given, attention_mask=mask.long(), return_dict=True).logits
    return logits[:, -4:]


def our_logits(model: Any, config: Any) -> Tensor:
    """The logits of the model here after the same prefixes; ``config`` is the original's."""
    left = not config.is_encoder_decoder
    sources, lengths, prefixes = batch(config.pad_token_id or 0, left)
    if left:  # the first input of the decoder stands for the end of the prompt
        prefixes = torch.cat([sources[:, :1], prefixes[:, 1:]], dim=1)
    logits: Tensor = model(sources, lengths, prefixes).logits
    return logits


def assert_same_logits(model: Any, original: Any, tolerance: float = 1e-4) -> None:
    """Check that the model here computes what the original does."""
    with torch.no_grad():
        wanted = original_logits(original)
        torch.testing.assert_close(our_logits(model, original.config), wanted, rtol=0, atol=tolerance)
    assert wanted.std() > 0.2, "the logits are worth comparing"
