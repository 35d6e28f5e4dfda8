"""Small random language models with a vocabulary of words, ready to continue prompts."""

from __future__ import annotations

from typing import Any

from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.task import PromptTask
from seqgen.text.members import ModelInMemory
from tests.model_zoo import _NARROW_DECODER
from tests.scripted_model import dictionary
from tests.text_models import text_model

WORDS = 19
PROMPTS = ["w1 w5 w8", "", "w3 w3 w17 w3 w5 w9 w11", "w4", "w0 w18 w2 w7 w1 w1"]


def language_model(
    seed: int = 0, tokenizer: Tokenizer | None = None, sharpness: float = 2.5, **changes: Any
) -> ModelInMemory:
    """A language model in float64 with scaled random weights, so that hypotheses differ and some end early."""
    tokenizer = tokenizer or WhitespaceTokenizer(dictionary(WORDS))
    changes = {**_NARROW_DECODER, "max_target_positions": 24, **changes}
    return text_model("transformer_lm", seed, PromptTask(None, tokenizer, tokenizer), sharpness, **changes)
