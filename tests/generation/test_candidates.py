"""Candidates without a full top-k, and the normalizer without a full log-softmax, against the plain ones."""

import pytest
import torch

from seqgen.core import candidates
from seqgen.core.candidates import best_continuations, log_sum_exp


@pytest.mark.parametrize("beam", [1, 3, 5])
@pytest.mark.parametrize("vocab", [1, 7, 64, 640, 8000, 8063])
@pytest.mark.parametrize("dead", [False, True])
def test_two_stages_find_what_a_plain_top_k_finds(beam: int, vocab: int, dead: bool) -> None:
    generator = torch.Generator().manual_seed(vocab + beam)
    lprobs = torch.randn(4, beam, vocab, generator=generator, dtype=torch.float64)
    lprobs[2, :, -9:] += 4  # entries after the last whole block are among the best
    lprobs[:, :, torch.randperm(vocab, generator=generator)[: vocab // 3]] = -torch.inf
    scores = torch.randn(4, beam, generator=generator, dtype=torch.float64)
    if dead:
        scores[0, 1:] = scores[1] = -torch.inf
    count = 2 * beam
    found = best_continuations(lprobs, scores, count)
    totals = (lprobs + scores.unsqueeze(-1)).flatten(1)
    best, entries = totals.topk(min(count, totals.size(1)), dim=1)
    assert found.scores.shape == (4, count)
    torch.testing.assert_close(found.scores[:, : best.size(1)], best, atol=0, rtol=0)
    assert (found.scores[:, best.size(1) :] == -torch.inf).all()
    alive = best > -torch.inf  # random sums have no ties
    assert torch.equal((found.beams * vocab + found.tokens)[:, : best.size(1)][alive], entries[alive])


def test_normalizer(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(9, 50, dtype=torch.float64) * 20
    logits[2, 7:] = -torch.inf
    for size in (1, 120, 10_000):
        monkeypatch.setattr(candidates, "_CACHED", size)
        torch.testing.assert_close(log_sum_exp(logits), logits.logsumexp(1, keepdim=True), atol=1e-12, rtol=0)
    for damage in (torch.nan, torch.inf):
        logits[4, 3] = damage
        assert log_sum_exp(logits).isnan().squeeze(1).tolist() == [row == 4 for row in range(9)]
