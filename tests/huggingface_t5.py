"""Tiny random T5 models of the original (transformers), in every variant, and the same models here."""

from __future__ import annotations

import atexit
import functools
import io
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from torch import Tensor

from seqgen.models.huggingface.architecture import JSONConfig
from seqgen.models.huggingface.t5 import ARCHITECTURE
from seqgen.models.t5 import T5Model
from tests.commands import command, sentences

VOCAB, SENTINELS = 40, 4
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 24,
    "d_kv": 6,
    "d_ff": 36,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "decoder_start_token_id": 0,
}
_SECOND = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

VARIANTS: dict[str, dict[str, Any]] = {
    "t5": {"model_type": "t5"},
    "t5_v1_1": {"model_type": "t5", **_SECOND},
    "mt5": {"model_type": "mt5"},
    "byt5": {"model_type": "t5", **_SECOND, "num_layers": 3, "num_decoder_layers": 1},
    "umt5": {"model_type": "umt5", "tie_word_embeddings": False},
    "umt5_tied": {"model_type": "umt5"},
}
"""What a variant's ``config.json`` says, besides its shape."""


def tiny_model(variant: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """The original, random everywhere, in evaluation mode.

    Args:
        variant: one of ``VARIANTS``.
        seed: seed of the weights.
        dtype: dtype of the weights.
        changes: further values of its configuration.
    """
    transformers = pytest.importorskip("transformers")
    values = {**_SHAPE, **VARIANTS[variant], **changes}
    kind = values.pop("model_type")
    config = transformers.AutoConfig.for_model(kind, **values)
    torch.manual_seed(seed)
    classes = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5"}
    model = getattr(transformers, f"{classes[kind]}ForConditionalGeneration")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms begin as ones
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif "relative_attention_bias" in name:
                parameter.normal_()
    return model.to(dtype).eval()


def without_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the original compute norms and softmax in float64 where its weights are, not in float32 as it does."""
    transformers = pytest.importorskip("transformers")
    cast = torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else cast(x))

    def normalize(norm: Any, x: torch.Tensor) -> torch.Tensor:
        normalized: torch.Tensor = (
            norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
        )
        return normalized

    for kind in ("T5", "MT5", "UMT5"):
        module = getattr(transformers.models, kind.lower())
        modeling = getattr(module, f"modeling_{kind.lower()}")
        monkeypatch.setattr(getattr(modeling, f"{kind}LayerNorm"), "forward", normalize)


def tiny_folder(
    folder: Path,
    variant: str,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    generation: dict[str, Any] | None = None,
    tokenizer: bool = True,
    max_shard_size: str = "5GB",
    safe_serialization: bool = True,
    **changes: Any,
) -> Path:
    """Save the original and a tokenizer of ``VOCAB - 2`` ids as transformers does.

    Args:
        folder: where to write.
        variant: one of ``VARIANTS``.
        seed: seed of the weights.
        dtype: dtype of the weights.
        generation: values of ``generation_config.json``.
        tokenizer: whether to write one.
        max_shard_size: see ``PreTrainedModel.save_pretrained``.
        safe_serialization: likewise.
        changes: further values of its configuration.

    Returns:
        The folder.
    """
    model = tiny_model(variant, seed, dtype, **changes)
    for name, value in (generation or {}).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder, max_shard_size=max_shard_size, safe_serialization=safe_serialization)
    if tokenizer:
        tiny_tokenizer().save_pretrained(folder)
    return folder


def _sentencepiece() -> bytes:
    """A model of 34 pieces over the sentences of the small corpus."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for pair in sentences(0, 60) for text in pair]),
        model_writer=content,
        vocab_size=VOCAB - 2 - SENTINELS,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return content.getvalue()


@functools.lru_cache(maxsize=1)
def tiny_tokenizer() -> Any:
    """The original's tokenizer with ``VOCAB - 2`` ids, ``SENTINELS`` of them at the top."""
    transformers = pytest.importorskip("transformers")
    folder = tempfile.mkdtemp(prefix="tiny-tokenizer-")  # saving copies the file that it was made from
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "spiece.model"
    path.write_bytes(_sentencepiece())
    return transformers.T5Tokenizer(str(path), extra_ids=SENTINELS, legacy=False)


def seqgen_model(original: Any) -> T5Model:
    """The same model here, by way of its names and values alone."""
    config = JSONConfig(Path("config.json"), json.loads(original.config.to_json_string(use_diff=False)))
    cfg = ARCHITECTURE.read_config(config)
    dtype = original.get_input_embeddings().weight.dtype
    model = T5Model(replace(cfg), padding_idx=original.config.pad_token_id).to(dtype)
    ours = dict(model.named_parameters(remove_duplicate=False))
    theirs = original.state_dict()
    with torch.no_grad():
        for name, piece in ARCHITECTURE.layout(cfg).pieces.items():
            piece.of(ours[piece.parameter]).copy_(theirs[name])
    return model.eval()


def change_config(folder: Path, name: str = "config.json", **values: Any) -> None:
    path = folder / name
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


def refusal(folder: Path) -> str:
    """What ``seqgen-generate`` says of a folder: one sentence, and exit code 2."""
    outcome = command("generate", f"path={folder}", "input=-", stdin=b"the dog\n")
    assert outcome.code == 2, outcome.err
    assert outcome.out == ""
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, outcome.err
    return lines[0]


def logits(model: Any) -> Tensor:
    """What a model here says of fixed tokens."""
    sources = torch.tensor([[5, 9, 20, 1], [7, 1, 0, 0]])
    with torch.no_grad():
        out: Tensor = model(sources, torch.tensor([4, 2]), torch.tensor([[0, 8, 3], [0, 1, 39]])).logits
    return out


def original_logits(model: Any) -> Tensor:
    """What the original says of them."""
    sources = torch.tensor([[5, 9, 20, 1], [7, 1, 0, 0]])
    prefixes = torch.tensor([[0, 8, 3], [0, 1, 39]])
    with torch.no_grad():
        out: Tensor = model(input_ids=sources, attention_mask=sources.ne(0), decoder_input_ids=prefixes).logits
    return out


def assert_near(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.float(), wanted.float(), rtol=0, atol=1e-4)
