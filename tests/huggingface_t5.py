"""Tiny random T5 models of the original (transformers), in every variant, and the same models here."""

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

from seqgen.addons.huggingface.architecture import JSONConfig
from seqgen.addons.huggingface.t5 import ARCHITECTURE
from seqgen.models.t5 import T5Model
from tests.commands import sentences
from tests.huggingface_original import make_original

VOCAB, SENTINELS = 40, 4
_SHAPE: dict[str, Any] = {
    **{"vocab_size": VOCAB, "d_model": 24, "d_kv": 6, "d_ff": 36, "num_layers": 2, "num_heads": 3},
    **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10, "decoder_start_token_id": 0},
}
_SECOND = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

VARIANTS: dict[str, dict[str, Any]] = {
    "t5": {"model_type": "t5"},
    "t5_v1_1": {"model_type": "t5", **_SECOND},
    "mt5": {"model_type": "mt5"},
    "byt5": {"model_type": "t5", **_SECOND, "num_layers": 3, "num_decoder_layers": 1},
    "umt5": {"model_type": "umt5", "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
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
    model = make_original("Seq2SeqLM", {**_SHAPE, **VARIANTS[variant], **changes}, seed)
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
    functional, plain = torch.nn.functional, torch.nn.functional.softmax
    monkeypatch.setattr(functional, "softmax", lambda x, dim=-1, dtype=None: plain(x, dim, dtype=x.dtype))

    def normalize(norm: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)

    for kind in ("T5", "MT5", "UMT5"):
        module = getattr(transformers.models, kind.lower())
        modeling = getattr(module, f"modeling_{kind.lower()}")
        monkeypatch.setattr(getattr(modeling, f"{kind}LayerNorm"), "forward", normalize)


def save(original: Any, folder: Path, generation: dict[str, Any] | None = None, **saving: Any) -> Path:
    """Save a model as transformers does.

    Args:
        original: the model.
        folder: where to write.
        generation: values of ``generation_config.json``.
        saving: arguments of ``PreTrainedModel.save_pretrained``.

    Returns:
        The folder.
    """
    for name, value in (generation or {}).items():
        setattr(original.generation_config, name, value)
    original.save_pretrained(folder, **saving)
    return folder


def tiny_folder(
    folder: Path,
    variant: str,
    seed: int = 0,
    generation: dict[str, Any] | None = None,
    tokenizer: bool = True,
    **changes: Any,
) -> Path:
    """Save the original and, unless ``tokenizer`` is false, a tokenizer of ``VOCAB - 2`` ids as transformers does.

    The other arguments are those of ``tiny_model`` and ``save``.
    """
    save(tiny_model(variant, seed, **changes), folder, generation)
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
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "minloglevel": 2},
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
    model = T5Model(replace(cfg), padding_idx=original.config.pad_token_id).to(original.dtype)
    ours, theirs = dict(model.named_parameters(remove_duplicate=False)), original.state_dict()
    with torch.no_grad():
        for name, piece in ARCHITECTURE.layout(cfg).pieces.items():
            piece.of(ours[piece.parameter]).copy_(theirs[name])
    return model.eval()


def change_config(folder: Path, name: str = "config.json", **values: Any) -> None:
    path = folder / name
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))
