"""Random numbers as a function of what they are for, and the strategies that draw by them."""

import itertools
import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from seqgen.decoding.processors.warpers import TopP
from seqgen.decoding.search import sampling as randomness
from seqgen.decoding.search.sampling import BeamSampling, Sampling, draw, random_bits, uniform
from seqgen.extend import Scores, Search
from tests.step_contexts import batch_info, step_context


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """Pearson's statistic in standard deviations of its distribution (approximately normal for many classes)."""
    wanted = probabilities * counts.sum()
    kept = wanted > 0
    assert (counts[~kept] == 0).all()
    statistic, freedom = ((counts - wanted)[kept] ** 2 / wanted[kept]).sum(), int(kept.sum()) - 1
    return float((statistic - freedom) / math.sqrt(2 * freedom))


# Random numbers


def split_mix(state: int) -> tuple[int, int]:
    """SplitMix64 in Python's whole numbers."""
    mask = 2**64 - 1
    state = (state + 0x9E3779B97F4A7C15) & mask
    mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return state, mixed ^ (mixed >> 31)


def test_arithmetic_wraps_around() -> None:
    """Against whole numbers of any size; 0xE220A8397B1DCDAF is the first number of SplitMix64 with seed 0."""
    assert split_mix(0)[1] == 0xE220A8397B1DCDAF
    for seed, counter in itertools.product((0, 1, 2**63, 2**64 - 1, 12345678901234567890), (0, 1, 2**40, 2**63 - 1)):
        wanted = split_mix((split_mix(seed)[1] + counter) % 2**64)[1]
        assert int(random_bits(seed, torch.tensor([counter]))[0]) % 2**64 == wanted


def test_numbers_are_uniform() -> None:
    numbers = uniform(7, torch.arange(400).view(-1, 1), torch.arange(500))
    assert numbers.shape == (400, 500)
    assert 0 < numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    even = torch.full((100,), 0.01)
    assert abs(chi_square((numbers * 100).long().flatten().bincount(minlength=100), even)) < 4


def test_the_extremes_are_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomness, "random_bits", lambda seed, *counters: torch.tensor([0, 2**52 - 1, -1, -(2**63)]))
    numbers = uniform(0, torch.zeros(1))
    assert ((numbers > 0) & (numbers < 1)).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_gives_the_same_numbers() -> None:
    counters = torch.arange(10000)
    assert torch.equal(uniform(3, 2, counters), uniform(3, 2, counters.cuda()).cpu())


# Draws


def test_draws_invert_the_cumulative_distribution_of_what_is_left() -> None:
    """Against a plain loop, over more entries than a block has."""
    generator = torch.Generator().manual_seed(0)
    lprobs = torch.randn(6, 700, generator=generator, dtype=torch.float64) * 3 - 100
    lprobs[1, 5:] = lprobs[2, :690] = lprobs[3] = -torch.inf
    lprobs[4, 300] = 0.0  # with nearly everything
    numbers = uniform(0, torch.arange(6).unsqueeze(1), torch.arange(8))
    drawn, left = draw(lprobs, numbers)
    for row in range(6):
        weights = (lprobs[row] - lprobs[row].clamp(min=-1e9).max()).exp().tolist()
        for place in range(8):
            total = math.fsum(weights)
            if total == 0:
                assert left[row, place] == -torch.inf
                continue
            target = total * float(numbers[row, place])
            sums = list(itertools.accumulate(weights))
            entry = next(entry for entry, reached in enumerate(sums) if reached > target)
            assert drawn[row, place] == entry
            assert float(left[row, place]) == pytest.approx(math.log(total) + float(lprobs[row].max()), abs=1e-10)
            weights[entry] = 0.0
    assert [int((row > -torch.inf).sum()) for row in left] == [8, 5, 8, 0, 8, 8]


@pytest.mark.parametrize("number", [2.0**-53, 0.5, 1 - 2.0**-53])
def test_rounding_draws_nothing_forbidden(number: float) -> None:
    generator = torch.Generator().manual_seed(1)
    lprobs = torch.randn(2000, 300, generator=generator)
    lprobs[torch.rand(lprobs.shape, generator=generator) < 0.98] = -torch.inf
    drawn, left = draw(lprobs, torch.full((2000, 1), number, dtype=torch.float64))
    possible = left[:, 0] > -torch.inf
    assert possible.sum() > 1900
    assert (lprobs.gather(1, drawn)[possible] > -torch.inf).all()


# Strategies, one step at a time


def begun(search: Search, sentences: int, beam: int, first: int = 0) -> Search:
    return search.begin(batch_info(sentences, beam, ids=torch.arange(first, first + sentences)))


LPROBS = torch.tensor([0.05, 0.0, 0.3, 0.1, 0.2, 0.05, 0.3]).log()


def test_draws_are_distributed_as_the_cut_distribution() -> None:
    cut = TopP(0.75)(LPROBS.unsqueeze(0), step_context(0)).log_softmax(-1)
    assert cut.exp()[0].tolist() == pytest.approx([0, 0, 0.375, 0, 0.25, 0, 0.375])
    found = begun(Sampling(3), 20000, 2).step(step_context(4), Scores(cut.expand(20000, 2, -1), torch.zeros(20000, 2)))
    assert found.beams.tolist()[:2] == [[0, 1], [0, 1]]
    torch.testing.assert_close(found.scores, cut[0][found.tokens])
    assert abs(chi_square(found.tokens.flatten().bincount(minlength=7), cut[0].exp())) < 4
    both = found.tokens[:, 0] * 7 + found.tokens[:, 1]  # the beams are independent
    assert abs(chi_square(both.bincount(minlength=49), cut[0].exp().outer(cut[0].exp()).flatten())) < 4


def test_draws_differ_by_seed_step_sentence_and_beam() -> None:
    def drawn(seed: int, step: int = 0, first: int = 0) -> Tensor:
        lprobs = torch.full((200, 3, 50), 1 / 50).log()
        return begun(Sampling(seed), 200, 3, first).step(step_context(step), Scores(lprobs, torch.zeros(200, 3))).tokens

    base = drawn(1)
    assert torch.equal(base, drawn(1))
    for other in (drawn(2), drawn(1, step=1), drawn(1, first=200), base.roll(1, 0), base.roll(1, 1)):
        assert (base == other).float().mean() < 0.06


# Beam sampling


def without_replacement(probabilities: list[float], draws: int) -> dict[tuple[int, ...], float]:
    """The probability of every order in which so many can be drawn."""
    found = {}
    for order in itertools.permutations(range(len(probabilities)), draws):
        chance, left = 1.0, 1.0
        for one in order:
            chance, left = chance * probabilities[one] / left, left - probabilities[one]
        found[order] = chance
    return found


def test_candidates_are_drawn_without_replacement() -> None:
    lprobs = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.5, 0.3]]).log()
    scores, sentences = torch.tensor([0.6, 0.4]).log(), 30000
    given = Scores(lprobs.expand(sentences, -1, -1), scores.expand(sentences, -1))
    found = begun(BeamSampling(2), sentences, 2).step(step_context(1), given)
    counts = Counter(tuple(row) for row in (found.beams * 3 + found.tokens).tolist())
    wanted = without_replacement([0.3, 0.3, 1e-300, 0.08, 0.2, 0.12], 4)
    likely = {order: chance for order, chance in wanted.items() if chance > 1e-9}
    assert set(counts) <= set(likely)
    observed, chances = (torch.tensor([each[order] for order in likely]).double() for each in (counts, likely))
    assert abs(chi_square(observed, chances)) < 4
