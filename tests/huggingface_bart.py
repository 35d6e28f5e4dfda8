"""Tiny random models of BART's family by the original (transformers), and the same models here."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.huggingface_original import make_original
from tests.huggingface_t5 import save

VOCAB = 33
_SHAPE: dict[str, Any] = {
    **{"vocab_size": VOCAB, "d_model": 12, "max_position_embeddings": 26, "encoder_layers": 2, "decoder_layers": 1},
    **{"encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_ffn_dim": 14, "decoder_ffn_dim": 10},
}
_MARIAN = {"model_type": "marian", "pad_token_id": VOCAB - 1, "decoder_start_token_id": VOCAB - 1}

VARIANTS: dict[str, dict[str, Any]] = {
    "bart": {"model_type": "bart", "pad_token_id": 1},
    "bart_odd_pad": {"model_type": "bart", "pad_token_id": 5, "scale_embedding": True, "activation_function": "relu"},
    "mbart": {"model_type": "mbart", "scale_embedding": True, "decoder_start_token_id": 7},
    "pegasus": {"model_type": "pegasus", "scale_embedding": True, "activation_function": "relu"},
    "pegasus_untied": {"model_type": "pegasus", "tie_word_embeddings": False},
    "marian": {**_MARIAN, "activation_function": "swish", "scale_embedding": True},
    "marian_separate": {**_MARIAN, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCAB},
    "marian_untied": {**_MARIAN, "tie_word_embeddings": False},
    "m2m_100": {"model_type": "m2m_100"},
    "m2m_100_odd": {"model_type": "m2m_100", "pad_token_id": 4, "d_model": 18, "scale_embedding": False},
}
"""What a variant's ``config.json`` says, besides its shape."""

KINDS = [name for name, values in VARIANTS.items() if name == values["model_type"]]


def tiny_model(variant: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """The original, random everywhere, in evaluation mode.

    Args:
        variant: one of ``VARIANTS``.
        seed: seed of the weights.
        dtype: dtype of the weights.
        changes: further values of its configuration.
    """
    model = make_original("Seq2SeqLM", {**_SHAPE, **VARIANTS[variant], **changes}, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name or "bart" in variant:
                parameter.add_(torch.randn_like(parameter) * 0.3)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model.to(dtype).eval()


def words(size: int, pad: int, eos: int) -> list[str]:
    """The tokens of the vocabulary: ``w0``, ``w1``, ... but for special ones."""
    return [{pad: "<pad>", eos: "</s>", 3: "<unk>"}.get(index, f"w{index}") for index in range(size)]


def write_tokenizer(folder: Path, size: int, pad: int, eos: int) -> None:
    """A tokenizer whose tokens are ``words``; it has the class of T5's, which reads any ``tokenizer.json``."""
    tokens = words(size, pad, eos)
    pipeline = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<unk>"))
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.save(str(folder / "tokenizer.json"))
    special = {"pad_token": tokens[pad], "eos_token": "</s>", "unk_token": "<unk>", "extra_ids": 0}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5TokenizerFast", **special}))


def tiny_folder(folder: Path, variant: str, model: Any = None, **changes: Any) -> Path:
    """Save ``model``, or else the original with some values changed, as transformers does, and a tokenizer."""
    model = model or tiny_model(variant, **changes)
    save(model, folder)
    write_tokenizer(folder, model.config.vocab_size, model.config.pad_token_id, model.config.eos_token_id)
    return folder
