"""Small random language models with a vocabulary of words, ready to continue prompts."""

from typing import Any

from seqgen.extend import ModelInMemory, Tokenizer, WhitespaceTokenizer
from tests.model_zoo import _NARROW_DECODER, _NARROW_LLAMA
from tests.scripted_model import dictionary
from tests.text_models import task_for, text_model

WORDS = 19
PROMPTS = ["w1 w5 w8", "", "w3 w3 w17 w3 w5 w9 w11", "w4", "w0 w18 w2 w7 w1 w1"]
KIND = "transformer_lm"
"""The registered model; tests/models/test_language_models.py also sets ``llama``."""
LLAMA_KEYS = {"max_target_positions": "max_position_embeddings", "decoder_layers": "num_hidden_layers"}
"""Some keys of ``transformer_lm``, and those of ``llama``."""


def language_model(
    seed: int = 0, tokenizer: Tokenizer | None = None, sharpness: float = 2.5, **changes: Any
) -> ModelInMemory:
    """A language model in float64 with scaled random weights, so that hypotheses differ and some end early."""
    tokenizer = tokenizer or WhitespaceTokenizer(dictionary(WORDS))
    changes = {"max_target_positions": 24, **changes}
    if KIND == "llama":
        renamed = {LLAMA_KEYS[key]: value for key, value in changes.items() if key in LLAMA_KEYS}
        changes, sharpness = {**_NARROW_LLAMA, "sliding_window": 5, **renamed}, 3 * sharpness
    else:
        changes = _NARROW_DECODER | changes
    return text_model(KIND, seed, task_for(KIND, tokenizer), sharpness, **changes)
