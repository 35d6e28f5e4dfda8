"""Random valid ``config.json`` files: each gives the logits of transformers, or is refused by the name of a key."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.checkpoints.loading import load_model
from seqgen.core.errors import UserError
from tests.huggingface_bart import write_tokenizer
from tests.huggingface_fields import DECODING, FIELDS, random_config

transformers = pytest.importorskip("transformers")


def original_of(config: dict[str, Any], seed: int) -> Any:
    """The original with random weights, or ``None`` if transformers cannot make it."""
    values = {key: value for key, value in config.items() if key not in DECODING}
    kind = values.pop("model_type")
    torch.manual_seed(seed)
    try:
        cfg = transformers.AutoConfig.for_model(kind, **values)
        auto = transformers.AutoModelForCausalLM if kind == "gpt2" else transformers.AutoModelForSeq2SeqLM
        model = auto.from_config(cfg, attn_implementation="eager", torch_dtype=torch.float32).float()
    except Exception:  # whatever transformers raises
        return None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name or "bart" in kind:
                parameter.add_(torch.randn_like(parameter) * 0.4)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    model.tie_weights()  # those that are copies, with torchscript
    return model.eval()


def write(folder: Path, config: dict[str, Any], original: Any) -> Path:
    """Save the weights as transformers does, the values as they are, and a tokenizer."""
    original.generation_config = transformers.GenerationConfig()
    original.save_pretrained(folder)
    (folder / "generation_config.json").unlink()  # so that the settings in config.json count
    (folder / "config.json").write_text(json.dumps({"transformers_version": "4.53.3", **config}))
    pad = config.get("pad_token_id", 0)
    write_tokenizer(folder, original.config.vocab_size, pad, 8)
    return folder


def inputs(pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sources of unequal lengths, their mask, and target prefixes."""
    sources = torch.tensor([[8, 9, 11, 16, 6, 8], [7, 13, 8, pad, pad, pad]])
    mask = torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 0]])
    return sources, mask, torch.tensor([[3, 10, 6, 11], [3, 12, 17, 14]])


def logits_of_both(original: Any, ours: Any, pad: int) -> tuple[Tensor, Tensor]:
    """Logits of the original and of the model here."""
    sources, mask, prefixes = inputs(pad)
    with torch.no_grad():
        if original.config.model_type == "gpt2":
            tokens = torch.cat([sources[:1], prefixes[:1]], dim=1)[:, :8]
            theirs = original(input_ids=tokens, return_dict=True).logits[:, 5:]
            # the first input of the decoder stands for the end of the prompt
            further = torch.cat([tokens[:, :1], tokens[:, 6:]], dim=1)
            return theirs, ours(tokens[:, :6], torch.tensor([6]), further).logits
        theirs = original(input_ids=sources, attention_mask=mask, decoder_input_ids=prefixes, return_dict=True).logits
        return theirs, ours(sources, mask.sum(1), prefixes).logits


def refused(message: str, keys: Collection[str], case: str) -> str:
    """Check that a refusal is one sentence that names a key; returns ``refused``."""
    assert "\n" not in message, case
    assert any(key in message for key in keys), f"{case}: {message}"
    return "refused"


def outcomes(case: Callable[[str, int, Path], str], kind: str, count: int, folder: Path) -> list[str]:
    """Run random cases; an error names the seed of its case."""
    found = []
    for seed in range(count):
        try:
            found.append(case(kind, seed, folder / str(seed)))
        except Exception as error:
            error.add_note(f"{kind}, seed {seed}")
            raise
    return found


def outcome(kind: str, seed: int, folder: Path) -> str:
    """Compare one random case.

    Returns:
        ``same``, ``refused``, or ``impossible`` if transformers cannot compute the case either.

    Raises:
        AssertionError: the logits differ, or the refusal does not name a drawn key.
    """
    rng = random.Random(f"{kind} {seed}")
    config, drawn = random_config(kind, rng)
    original = original_of(config, seed)
    case = f"model_type {kind}, seed {seed}: { ({key: config[key] for key in drawn}) }"
    if original is None:
        return "impossible"
    write(folder, config, original)
    try:
        loaded = load_model(folder, dtype=torch.float32)
    except UserError as error:
        return refused(str(error), drawn, case)
    try:
        theirs, ours = logits_of_both(original, loaded.model, config.get("pad_token_id", 0))
    except RuntimeError:
        assert config.get("reorder_and_upcast_attn"), case  # an error of transformers with masks
        return "impossible"
    assert theirs.shape == ours.shape, case
    if not torch.isfinite(theirs).all():  # normalization of a single number without a constant
        return "impossible"
    assert (theirs - ours).abs().max() < 1e-4 * max(1.0, theirs.abs().max().item()), f"{case}: {loaded.notes}"
    unknown = "a_key_of_nobody" in drawn and config["a_key_of_nobody"] != 0
    assert unknown == any("a_key_of_nobody" in note for note in loaded.notes), f"{case}: {loaded.notes}"
    return "same"


@pytest.mark.parametrize("kind", sorted(FIELDS))
def test_random_configs(kind: str, tmp_path: Path) -> None:
    outcomes(outcome, kind, 2, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", sorted(FIELDS))
def test_many_random_configs(kind: str, tmp_path: Path) -> None:
    found = outcomes(outcome, kind, 60, tmp_path)
    assert found.count("same") >= 20
    assert found.count("refused") >= 2
