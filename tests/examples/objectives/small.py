"""A small model in float64 and a batch for the tests of criteria, and plain computations that they have in common."""

from typing import Any

import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the built-in models
from seqgen.addons.checks.kinds import new_model, small_transformer
from seqgen.addons.checks.subject import randomize_
from seqgen.extend import Batch, EncoderDecoderModel, Task, WhitespaceTokenizer
from tests.scripted_model import dictionary as tiny_dictionary

WORDS = tiny_dictionary()
TASK = Task(None, WhitespaceTokenizer(WORDS), WhitespaceTokenizer(WORDS))
EOS = WORDS.eos()

PAIRS = [
    ([4, 5, 6, EOS], [7, 4, 7, 7, 5, 4, EOS]),  # repeated tokens, one of them next to itself
    ([8, EOS], [EOS]),
    ([9, 9, 4, 5, 6, 7, EOS], [5, 6, 5, 6, 5, 6, EOS]),
    ([10, 11, EOS], [12, EOS]),
]
"""Sources and targets of unequal lengths, with end-of-sentence."""


def student(seed: int = 0, factor: float = 1.5, **changes: Any) -> EncoderDecoderModel:
    """A random transformer, in evaluation mode."""
    config = small_transformer()
    for name, value in changes.items():
        setattr(config, name, value)
    return randomize_(new_model(config, WORDS, seed), seed, factor=factor)


def batch_of(model: EncoderDecoderModel, rows: list[int] | None = None) -> Batch:
    """The pairs as a batch."""
    chosen = range(len(PAIRS)) if rows is None else rows
    return TASK.collate([(row, torch.tensor(PAIRS[row][0]), torch.tensor(PAIRS[row][1])) for row in chosen], model)


def plain_logits(model: EncoderDecoderModel, source: list[int], previous: list[int]) -> Tensor:
    """``(T, V)`` logits of one sentence alone, without padding."""
    found: Tensor = model(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([previous])).logits[0]
    return found


def plain_lprobs(model: EncoderDecoderModel, source: list[int], target: list[int]) -> Tensor:
    """``(T, V)`` log-probabilities of one sentence alone, after the target's own prefix."""
    return plain_logits(model, source, [model.start_token(EOS), *target[:-1]]).log_softmax(-1)


def plain_nll(model: EncoderDecoderModel, targets: list[list[int]] | None = None) -> Tensor:
    """The negative log-likelihood of the pairs, or of other targets of their sources."""
    pairs = PAIRS if targets is None else [(source, own) for (source, _), own in zip(PAIRS, targets, strict=True)]
    return -torch.stack([plain_lprobs(model, *pair)[range(len(pair[1])), pair[1]].sum() for pair in pairs]).sum()


def same_gradients(model: EncoderDecoderModel, got: Tensor, wanted: Tensor) -> None:
    """Two losses are equal, and so are their gradients."""
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(loss, list(model.parameters()), allow_unused=True) for loss in (got, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)
