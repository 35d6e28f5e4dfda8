"""Small random models with a vocabulary of words, ready to translate text."""

from __future__ import annotations

from typing import Any

import torch

import seqgen.models  # noqa: F401  # declares the built-in models
from seqgen.checkpoints.loaders import DecodingConfig, DecodingTask
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.registry import MODELS
from seqgen.text.members import ModelInMemory
from tests.model_zoo import small_config
from tests.scripted_model import dictionary

WORDS = 19
TEXTS = ["w1 w5 w8", "w2", "w3 w3 w17 w3 w5 w9 w11", "w4 w5 w6", "w0 w18 w2 w7 w1"]


def task_of(tokenizer: Tokenizer | None = None, words: Dictionary | None = None) -> DecodingTask:
    """A task over the words ``w0``, ``w1``, ..."""
    tokenizer = tokenizer or WhitespaceTokenizer(words or dictionary(WORDS))
    return DecodingTask(DecodingConfig(), tokenizer, tokenizer)


def text_model(
    name: str = "transformer_tiny", seed: int = 0, task: Any = None, sharpness: float = 1.5, **changes: Any
) -> ModelInMemory:
    """A registered model in float64 with scaled random weights, so that hypotheses differ and some end early."""
    task = task or task_of()
    torch.manual_seed(seed)
    model = MODELS.entry(name).component.build_model(small_config(name, **changes), task).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(sharpness)
    return ModelInMemory(task, model)
