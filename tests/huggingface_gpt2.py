"""Tiny random GPT-2 models of the original (transformers) and their tokenizer."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.commands import sentences
from tests.huggingface_t5 import save

VOCAB = 300
END_OF_TEXT = "<|endoftext|>"
_SHAPE: dict[str, Any] = {"vocab_size": VOCAB, "n_positions": 48, "n_embd": 24, "n_layer": 2, "n_head": 3}


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """The original, random everywhere, in evaluation mode.

    Its attention is computed as the configuration says (``eager``): the fused kernel ignores some keys.

    Args:
        seed: seed of the weights.
        dtype: dtype of the weights.
        changes: further values of its configuration.
    """
    transformers = pytest.importorskip("transformers")
    values = {**_SHAPE, "bos_token_id": None, "eos_token_id": None, **changes}
    last = values["vocab_size"] - 1
    values |= {name: last for name in ("bos_token_id", "eos_token_id") if values[name] is None}
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**values, attn_implementation="eager"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # biases and norms begin as constants
            parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.dim() == 1 or "wpe" in name else 0.3))
    return model.to(dtype).eval()


@functools.lru_cache(maxsize=1)
def tiny_tokenizer() -> Any:
    """The original's tokenizer of at most ``VOCAB`` ids, all bytes among them."""
    transformers = pytest.importorskip("transformers")
    pipeline = Tokenizer(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - 1, initial_alphabet=alphabet, show_progress=False)
    pipeline.train_from_iterator([text for pair in sentences(0, 60) for text in pair], trainer)
    return transformers.GPT2TokenizerFast(tokenizer_object=pipeline)  # it adds <|endoftext|>


def tiny_folder(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Save the original with some values changed and its tokenizer as transformers does."""
    save(tiny_model(**changes), folder, generation)
    tiny_tokenizer().save_pretrained(folder)
    return folder
