"""Small random models with a vocabulary of words, ready to translate text."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the built-in models
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.extend import MODELS, DecodingConfig, DecodingTask, Dictionary, ModelInMemory, PromptTask
from tests.model_zoo import LANGUAGE_MODELS, small_config
from tests.scripted_model import dictionary

WORDS = 19
TEXTS = ["w1 w5 w8", "w2", "w3 w3 w17 w3 w5 w9 w11", "w4 w5 w6", "w0 w18 w2 w7 w1"]


class Pieces(WhitespaceTokenizer):
    """A tokenizer whose tokens are given strings, some of which may be equal; ``"\\udcc3"`` is the byte ``0xc3``."""

    def __init__(self, pieces: Sequence[str]):
        super().__init__(Dictionary())
        self.pieces = ["", "", "", "", *pieces]
        for number, piece in enumerate(pieces):
            self.dictionary.add_symbol(f"{number} {piece}" if piece in pieces[:number] else piece)

    def encode(self, text: str) -> list[int]:
        fitting = [i for i, piece in enumerate(self.pieces) if piece and text.startswith(piece)]
        if not fitting:
            return []
        longest = max(fitting, key=lambda i: len(self.pieces[i]))
        return [longest, *self.encode(text[len(self.pieces[longest]) :])]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.token_bytes()[i] or b"" for i in ids).decode()

    def token_bytes(self) -> list[bytes | None]:
        return [piece.encode(errors="surrogateescape") or None for piece in self.pieces]


def task_of(tokenizer: Tokenizer | None = None, words: Dictionary | None = None) -> DecodingTask:
    """A task over the words ``w0``, ``w1``, ..."""
    tokenizer = tokenizer or WhitespaceTokenizer(words or dictionary(WORDS))
    return DecodingTask(DecodingConfig(), tokenizer, tokenizer)


def task_for(name: str, tokenizer: Tokenizer) -> Any:
    """The task of a model: a language model reads prompts."""
    return PromptTask(None, tokenizer, tokenizer) if name.startswith(LANGUAGE_MODELS) else task_of(tokenizer)


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


def next_scores(model: ModelInMemory, text: str, longest: int = 3) -> Callable[[tuple[int, ...]], Tensor]:
    """The log-probabilities ``(V,)`` of the token after up to ``longest`` tokens, by one pass over all outputs."""
    source, size = model.task.encode_source(text), len(model.task.target_dictionary)
    start = torch.tensor([model.model.start_token(model.task.target_dictionary.eos())])
    outputs = torch.cartesian_prod(start, *[torch.arange(size)] * longest)
    with torch.no_grad():
        logits = model.model(
            source.expand(len(outputs), -1), torch.tensor([len(source)]).expand(len(outputs)), outputs
        ).logits
    lprobs = logits.log_softmax(-1).view(*[size] * longest, longest + 1, size)
    return lambda tokens: lprobs[(*tokens, *[0] * (longest - len(tokens)), len(tokens))]
