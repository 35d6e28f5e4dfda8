"""Finished hypotheses by hand: the length penalty, equal scores, and sentences whose candidates have all ended."""

from collections.abc import Sequence

import torch

from seqgen.core.candidates import Candidates
from seqgen.core.finished import BestFinished, Ranking
from tests.step_contexts import batch_info

NEVER = -torch.inf


def candidates(*scores: Sequence[float]) -> Candidates:
    """Candidates of each sentence with these scores; candidate ``i`` has token ``10 + i`` and continues beam 0."""
    found = torch.tensor(scores, dtype=torch.float32)
    tokens = torch.arange(10, 10 + found.size(1)).expand_as(found).contiguous()
    return Candidates(found, tokens, torch.zeros_like(tokens))


def test_length_penalties() -> None:
    sums = torch.tensor([-6.0, -12.0])
    assert Ranking(False).score(sums, 3).tolist() == [-6.0, -12.0]
    assert Ranking(True, 2.0).score(sums, 2).tolist() == [-1.5, -3.0]
    assert Ranking(True, 1.0).score(sums, torch.tensor([3, 4])).tolist() == [-2.0, -3.0]
    assert Ranking(True, 1.0, "wu").score(sums, 1).tolist() == [-6.0, -12.0]  # (5 + 1) / 6
    assert Ranking(True, 2.0, "wu").score(sums, 7).tolist() == [-1.5, -3.0]  # ((5 + 7) / 6) ** 2


def test_of_equal_scores_the_hypothesis_that_finished_first_is_kept() -> None:
    found, ends = BestFinished(batch_info(1, 2), Ranking(False)), torch.tensor([[True, True, False, False]])
    found.finalize(candidates([-1.0, -2.0, -3.0, -3.0]), ends, 0, None)
    found.finalize(candidates([-1.0, -2.0, -3.0, -3.0]), ends, 1, None)
    assert found.lengths.tolist() == [[1, 2]]  # both hypotheses with -1: the shorter one first
    found.finalize(candidates([-1.0, -1.0, -3.0, -3.0]), ends, 2, None)
    assert found.lengths.tolist() == [[1, 2]]


def test_sentences_whose_candidates_have_all_ended_stay_so_when_others_leave() -> None:
    found = BestFinished(batch_info(3, 2), Ranking())
    ends = torch.tensor([[True, False, False, False], [True, True, True, True], [True, True, False, True]])
    active = found.finalize(candidates([-1, -2, -3, -4], [-1, -2, -3, -4], [-1, -2, NEVER, NEVER]), ends, 0, None)
    assert found.done(active, 0, torch.tensor([9, 9, 9])).tolist() == [False, True, True]
    keep = torch.tensor([2, 0])
    found.select_sentences(keep)
    assert found.done(active.select(keep), 0, torch.tensor([9, 9])).tolist() == [True, False]
    other = BestFinished(batch_info(1, 2), Ranking())
    other.finalize(candidates([-1, -2, -3, -4]), torch.ones(1, 4, dtype=torch.bool), 0, None)
    found.merge(other)
    assert found._all_ended.tolist() == [True, False, True]
