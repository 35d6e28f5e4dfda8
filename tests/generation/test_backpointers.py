"""Back-pointers by hand: two beams whose parents cross, batches that are merged, sentences that leave."""

from __future__ import annotations

import torch

from seqgen.core.backpointers import BackPointers
from seqgen.core.candidates import Candidates

START = 9
STEPS = [([1, 2], [0, 0]), ([3, 4], [1, 1]), ([5, 6], [0, 1]), ([7, 8], [1, 0])]
"""Tokens and parents of the two beams of a sentence; beam 0 has the tokens 2 4 6 7 at the end, beam 1 has 2 3 5 8."""

PATHS = [[[1], [2]], [[2, 3], [2, 4]], [[2, 3, 5], [2, 4, 6]], [[2, 4, 6, 7], [2, 3, 5, 8]]]
"""The tokens of each beam after each step."""


def after(steps: int, *starts: int) -> BackPointers:
    found = BackPointers(2, torch.tensor(starts or [START]))
    for tokens, parents in STEPS[:steps]:
        append(found, tokens, parents)
    return found


def append(found: BackPointers, tokens: list[int], parents: list[int]) -> None:
    count = len(found.start)
    scores = -torch.arange(2.0).repeat(count, 1) - found.length
    found.append(Candidates(scores, torch.tensor([tokens] * count), torch.tensor([parents] * count)))


def test_tokens_of_each_beam() -> None:
    """The matrix is built at any step, or at the first one and kept up to date."""
    kept = after(0)
    assert kept.matrix().tolist() == [[[START], [START]]]
    for number, (tokens, parents) in enumerate(STEPS):
        append(kept, tokens, parents)
        expected = [[START, *path] for path in PATHS[number]]
        assert kept.matrix().tolist() == [expected]
        assert after(number + 1).matrix().tolist() == [expected]
        assert kept.last_tokens().tolist() == [tokens]


def test_traced_hypotheses_of_unequal_lengths() -> None:
    beams, lengths = torch.tensor([[1, 0]]), torch.tensor([[4, 2]])
    (tokens,), (totals,), _ = after(4).trace(beams, lengths)
    assert tokens[0].tolist() == PATHS[3][1]
    assert tokens[1, :2].tolist() == PATHS[1][0]
    assert totals[0].tolist() == [-1.0, -1.0, -2.0, -4.0]


def test_batches_of_unequal_lengths_are_aligned_at_the_last_step() -> None:
    for mine, theirs in ((4, 2), (2, 4)):
        found, other = after(mine), after(theirs)
        found.matrix()
        found.merge(other)
        assert found.start_offsets.tolist() == [4 - mine, 4 - theirs]
        for row, length in enumerate((mine, theirs)):
            own = found.matrix()[row, :, 1 + 4 - length :]
            assert own.tolist() == PATHS[length - 1]
            one, _ = found.on_cpu(torch.tensor([row]), [])
            traced, _, _ = one.trace(torch.tensor([[0, 1]]), torch.tensor([[length, length]]))
            assert traced[0, :, :length].tolist() == PATHS[length - 1]


def test_start_tokens_follow_the_sentences_that_stay() -> None:
    found = after(2, 10, 11, 12)
    found.select(torch.tensor([2, 0]))
    assert found.matrix()[:, 0, 0].tolist() == [12, 10]
    other = after(2, 13)
    found.merge(other)
    assert found.matrix()[:, 0, 0].tolist() == [12, 10, 13]
