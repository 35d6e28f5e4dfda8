"""What tests of objectives share: pairs over seven tokens, all outputs, and plain log-probabilities and utilities."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sacrebleu.metrics import CHRF
from torch import Tensor

from seqgen.addons.checks.kinds import new_model, small_transformer
from seqgen.addons.checks.subject import Ids
from seqgen.extend import Batch, GenerationConfig, Hypothesis, Task, WhitespaceTokenizer
from tests.scripted_model import dictionary as tiny_dictionary

WORDS = tiny_dictionary(3)
EOS, PAD = WORDS.eos(), WORDS.pad()
SOURCES, TARGETS = [4, 1, 3], [2, 3, 1]
SAMPLING = {"sampling": True, "seed": 3}

Gradient = dict[str, Tensor]


def task() -> Task:
    tokenizer = WhitespaceTokenizer(WORDS)
    return Task(None, tokenizer, tokenizer)


def decoding(**keys: Any) -> GenerationConfig:
    return GenerationConfig(**{"mbr": "chrf", "max_len": 3, "min_len": 0, **keys})


def model(seed: int = 0) -> Any:
    """A model in float64 that never predicts padding, which decoding forbids."""
    made: Any = new_model(small_transformer(), WORDS, seed).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(0.8)
    made.get_normalized_probs = without_padding
    return made


def without_padding(logits: Tensor, log_probs: bool = True) -> Tensor:
    assert log_probs
    return logits.index_fill(-1, torch.tensor([PAD]), -1e9).log_softmax(-1)


def pairs(of: Any, rows: Sequence[int] | None = None) -> Batch:
    return Ids.of(of, WORDS, len(WORDS)).batch(SOURCES, rows, TARGETS, seed=3)


def outputs(longest: int) -> list[list[int]]:
    """All outputs of at most this many tokens, end-of-sentence included."""
    words = [token for token in range(len(WORDS)) if token not in (EOS, PAD)]
    shorter = outputs(longest - 1) if longest > 1 else []
    return [[EOS], *([word, *rest] for word in words for rest in shorter)]


def token_lprobs(of: Any, batch: Batch, row: int, tokens: Sequence[int]) -> Tensor:
    """The log-probability of each token, from one row without padding."""
    source, length = batch.source, int(batch.source.src_lengths[row])
    previous = torch.tensor([[EOS, *tokens[:-1]]])
    logits = of(source.src_tokens[row, None, :length], torch.tensor([length]), previous).logits[0]
    return without_padding(logits)[range(len(tokens)), tokens]


def drawn_lprobs(of: Any, batch: Batch, row: int, tokens: Sequence[int], longest: int) -> Tensor:
    """The same without the end that is forced at the maximum length."""
    return token_lprobs(of, batch, row, tokens)[: longest - 1]


def utility(criterion: Any, batch: Batch, row: int, tokens: Sequence[int]) -> float:
    return chrf(text(tokens), text(criterion.references(batch)[row].tolist()))


def text(tokens: Sequence[int]) -> str:
    return task().decode(torch.tensor(tokens))


@functools.cache
def chrf(output: str, reference: str) -> float:
    return float(CHRF().sentence_score(output, [reference]).score)


def giving(rows: Sequence[Sequence[Sequence[int]]], longest: int = 3) -> Callable[..., list[list[Hypothesis]]]:
    """In place of ``decode``: these outputs for each sentence, as they are sampled; the score of a forced end is 0."""

    def hypothesis(tokens: Sequence[int]) -> Hypothesis:
        forced = len(tokens) == longest
        scores = torch.tensor([-1.0] * (len(tokens) - forced) + [0.0] * forced, dtype=torch.float64)
        return Hypothesis(torch.tensor(tokens), 0.0, scores, forced_end=forced)

    return lambda *_, **__: [[hypothesis(tokens) for tokens in row] for row in rows]


def gradient(of: Any, loss: Tensor) -> Gradient:
    """The gradient of a loss, by parameter."""
    names, values = zip(*of.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, values, allow_unused=True, materialize_grads=True), strict=True))


def assert_equal(got: Gradient, wanted: Gradient, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)


def tokens_of(found: Sequence[Sequence[Hypothesis]]) -> list[list[list[int]]]:
    return [[one.tokens.tolist() for one in row] for row in found]
