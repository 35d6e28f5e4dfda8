"""Random numbers as a function of what they are for, and the strategies that draw by them."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from seqgen.errors import ConfigError
from seqgen.generation import sampling
from seqgen.generation.cutoffs import TopP
from seqgen.generation.logits_processors import DecodingContext
from seqgen.generation.randomness import gumbel, random_bits, uniform
from seqgen.generation.sampling import BeamSampling, Greedy, Sampling, StochasticBeam, with_maximum
from seqgen.generation.search import Search, SearchBatch
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.registry import SEARCHES
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule, table_rule

EOS = 2


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """Pearson's statistic in standard deviations of its distribution (approximately normal for many classes)."""
    wanted = probabilities * counts.sum()
    kept = wanted > 0
    assert (counts[~kept] == 0).all()
    statistic = ((counts - wanted)[kept] ** 2 / wanted[kept]).sum()
    freedom = int(kept.sum()) - 1
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
    # pairs of neighbours, in either direction
    for first, second in ((numbers[:, ::2], numbers[:, 1::2]), (numbers[::2], numbers[1::2])):
        pairs = (first * 10).long() * 10 + (second * 10).long()
        assert abs(chi_square(pairs.flatten().bincount(minlength=100), even)) < 4


@pytest.mark.parametrize("bit", range(64))
def test_every_bit_is_even(bit: int) -> None:
    ones = int(((random_bits(3, torch.arange(20000)) >> bit) & 1).sum())
    assert abs(ones - 10000) < 4 * math.sqrt(5000)


def test_every_counter_and_its_place_matter() -> None:
    one = torch.arange(2, 52)
    seen = [
        uniform(1, 0, one), uniform(2, 0, one), uniform(1, 1, one), uniform(1, one, 0), uniform(1, one),
        uniform(1, 0, 0, one),
    ]  # fmt: skip
    for first, second in itertools.combinations(seen, 2):
        assert not (first == second).any()


def test_numbers_depend_on_nothing_but_their_counters() -> None:
    rows, columns = torch.tensor([[3], [11], [4]]), torch.arange(6)
    together = uniform(5, 1, rows, columns)
    for row, number in enumerate((3, 11, 4)):
        for column in range(6):
            assert uniform(5, 1, torch.tensor(number), column) == together[row, column]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_extremes_are_inside(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqgen.generation import randomness

    monkeypatch.setattr(randomness, "random_bits", lambda seed, *counters: torch.tensor([0, 2**52 - 1, -1, -(2**63)]))
    numbers = uniform(0, torch.zeros(1), dtype=dtype)
    assert ((numbers > 0) & (numbers < 1)).all()
    assert gumbel(0, torch.zeros(1), dtype=dtype).isfinite().all()


def test_number_formats_differ_by_rounding_alone() -> None:
    counters = torch.arange(100000)
    torch.testing.assert_close(uniform(1, counters).float(), uniform(1, counters, dtype=torch.float32))
    assert (gumbel(1, counters).float() - gumbel(1, counters, dtype=torch.float32)).abs().max() < 5e-3


def test_gumbel_numbers_are_distributed_so() -> None:
    numbers = gumbel(9, torch.arange(200000))
    cells = ((-(-numbers).exp()).exp() * 50).long()
    assert abs(chi_square(cells.bincount(minlength=50), torch.full((50,), 0.02))) < 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_gives_the_same_numbers() -> None:
    counters = torch.arange(10000)
    assert torch.equal(uniform(3, 2, counters), uniform(3, 2, counters.cuda()).cpu())


# Strategies, one step at a time


def begun(search: Search, sentences: int, beam: int, first: int = 0, ids: Tensor | None = None) -> Search:
    ids = torch.arange(first, first + sentences) if ids is None else ids
    return search.begin(SearchBatch(len(ids), beam, EOS, torch.device("cpu"), ids=ids))


LPROBS = torch.tensor([0.05, 0.0, 0.3, 0.1, 0.2, 0.05, 0.3]).log()


def test_draws_are_distributed_as_the_cut_distribution() -> None:
    context = DecodingContext(0, torch.zeros(1, 0, dtype=torch.int64), torch.tensor([9]), 9, None, EOS, 1)
    cut = TopP(0.75)(LPROBS.unsqueeze(0), context).log_softmax(-1)
    assert cut.exp()[0].tolist() == pytest.approx([0, 0, 0.375, 0, 0.25, 0, 0.375])
    found = begun(Sampling(3), 20000, 2).step(4, cut.expand(20000, 2, -1), torch.zeros(20000, 2))
    assert found.beams.tolist()[:2] == [[0, 1], [0, 1]]
    torch.testing.assert_close(found.scores, cut[0][found.tokens])
    assert abs(chi_square(found.tokens.flatten().bincount(minlength=7), cut[0].exp())) < 4
    both = found.tokens[:, 0] * 7 + found.tokens[:, 1]  # the beams are independent
    assert abs(chi_square(both.bincount(minlength=49), cut[0].exp().outer(cut[0].exp()).flatten())) < 4


def test_draws_differ_by_seed_step_sentence_and_beam() -> None:
    lprobs = torch.full((200, 3, 50), 1 / 50).log()
    scores = torch.zeros(200, 3)
    base = begun(Sampling(1), 200, 3).step(0, lprobs, scores).tokens
    assert torch.equal(base, begun(Sampling(1), 200, 3).step(0, lprobs, scores).tokens)
    others = [
        begun(Sampling(2), 200, 3).step(0, lprobs, scores).tokens,
        begun(Sampling(1), 200, 3).step(1, lprobs, scores).tokens,
        begun(Sampling(1), 200, 3, first=200).step(0, lprobs, scores).tokens,
        base.roll(1, 0),
        base.roll(1, 1),
    ]
    for other in others:
        assert (base == other).float().mean() < 0.06


def test_what_is_forbidden_is_never_drawn() -> None:
    lprobs = torch.full((1000, 1, 4), -torch.inf)
    lprobs[..., 2] = -3.0  # not normalized, and alone
    found = begun(Sampling(), 1000, 1).step(0, lprobs, torch.zeros(1000, 1))
    assert (found.tokens == 2).all()
    dead = begun(Sampling(), 2, 1).step(0, torch.full((2, 1, 4), -torch.inf), torch.zeros(2, 1))
    assert (dead.scores == -torch.inf).all()


@pytest.mark.parametrize("make", [Sampling, BeamSampling, StochasticBeam])
def test_sentences_keep_their_numbers_when_others_leave(make: type[sampling.RandomSearch]) -> None:
    lprobs = torch.randn(4, 3, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(-1)
    scores = torch.zeros(4, 3, dtype=torch.float64)
    all_of_them, some = begun(make(5), 4, 3), begun(make(5), 4, 3)
    keep = torch.tensor([1, 3])
    some.select_sentences(keep)
    for step in range(3):
        one = all_of_them.step(step, lprobs, scores)
        two = some.step(step, lprobs[keep], scores[keep])
        assert torch.equal(one.tokens[keep], two.tokens)
        going = [found.gather(torch.arange(3).expand(len(found.scores), -1)) for found in (one, two)]
        all_of_them.advance(going[0])
        some.advance(going[1])


def test_greedy_takes_the_best() -> None:
    found = begun(Greedy(), 2, 1).step(
        0, torch.stack([LPROBS, LPROBS.flip(0)]).unsqueeze(1), torch.tensor([[1.0], [2.0]])
    )
    assert found.tokens.tolist() == [[2], [0]]
    assert found.scores.flatten().tolist() == pytest.approx([1 + math.log(0.3), 2 + math.log(0.3)])
    assert Greedy().rows(5) == 1


# Beam sampling


def test_candidates_are_those_that_torch_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch divides probabilities by exponential numbers and takes the largest quotients; with these, so do we."""
    beam, vocab = 3, 11
    generator = torch.Generator()
    for seed in range(20):
        lprobs = torch.randn(1, beam, vocab, generator=generator.manual_seed(seed)).log_softmax(-1)
        scores = torch.randn(1, beam, generator=generator)
        totals = (lprobs + scores.unsqueeze(-1)).flatten(1)
        wanted = torch.multinomial(totals.softmax(-1), 2 * beam, generator=generator.manual_seed(seed))
        noise = -torch.empty_like(totals).exponential_(1, generator=generator.manual_seed(seed)).log()
        monkeypatch.setattr(BeamSampling, "noise", lambda self, step, lprobs, noise=noise: noise.view(1, beam, vocab))
        found = begun(BeamSampling(), 1, beam).step(1, lprobs, scores)
        assert torch.equal(found.beams * vocab + found.tokens, wanted)
        torch.testing.assert_close(found.scores, totals.gather(1, wanted))


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
    scores = torch.tensor([0.6, 0.4]).log()
    search, sentences = begun(BeamSampling(2), 30000, 2), 30000
    found = search.step(1, lprobs.expand(sentences, -1, -1), scores.expand(sentences, -1))
    entries = found.beams * 3 + found.tokens
    wanted = without_replacement([0.3, 0.3, 1e-300, 0.08, 0.2, 0.12], 4)
    counts = Counter(tuple(row) for row in entries.tolist())
    likely = [order for order, chance in wanted.items() if chance > 1e-9]
    assert set(counts) <= set(likely)
    observed = torch.tensor([counts[order] for order in likely], dtype=torch.float64)
    assert abs(chi_square(observed, torch.tensor([wanted[order] for order in likely], dtype=torch.float64))) < 4


def test_at_first_all_beams_are_the_same() -> None:
    found = begun(BeamSampling(), 100, 3).step(0, LPROBS.expand(100, 3, -1), torch.zeros(100, 3))
    assert (found.beams == 0).all()
    assert found.tokens.shape == (100, 6)
    assert all(len(set(row)) == 6 for row in found.tokens.tolist())


# Stochastic beam search

TABLE = {
    (): {4: 0.5, 5: 0.3, EOS: 0.2},
    (4,): {EOS: 0.6, 4: 0.1, 5: 0.3},
    (5,): {EOS: 0.5, 5: 0.5},
    (4, 4): {EOS: 1.0},
    (4, 5): {EOS: 0.7, 5: 0.3},
    (5, 5): {EOS: 1.0},
    (4, 5, 5): {EOS: 1.0},
}
OUTPUTS = {
    (EOS,): 0.2,
    (4, EOS): 0.3,
    (5, EOS): 0.15,
    (4, 4, EOS): 0.05,
    (4, 5, EOS): 0.105,
    (5, 5, EOS): 0.15,
    (4, 5, 5, EOS): 0.045,
}


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("beam", [1, 2, 3])
def test_outputs_are_drawn_without_replacement(beam: int, semantics: str) -> None:
    """How often each set of outputs comes, against all orders in which its members can be drawn."""
    sentences = 1500
    generator = SequenceGenerator(
        [ScriptedModel(table_rule(TABLE, 6))], dictionary(2), beam_size=beam, search_strategy=StochasticBeam(11),
        min_len=0, max_len_b=8, normalize_scores=False, semantics=semantics,
    )  # fmt: skip
    found: Counter[frozenset[tuple[int, ...]]] = Counter()
    batch = batch_of([(4, EOS)] * sentences)
    for hypotheses in generator.generate(batch):
        outputs = [tuple(h.tokens.tolist()) for h in hypotheses]
        assert len(set(outputs)) == len(outputs) == beam
        for hypothesis, output in zip(hypotheses, outputs, strict=True):
            assert hypothesis.score == pytest.approx(math.log(OUTPUTS[output]), abs=1e-6)
        found[frozenset(outputs)] += 1
    names = list(OUTPUTS)
    wanted: Counter[frozenset[tuple[int, ...]]] = Counter()
    for order, chance in without_replacement(list(OUTPUTS.values()), beam).items():
        wanted[frozenset(names[i] for i in order)] += chance
    keys = list(wanted)
    observed = torch.tensor([found[key] for key in keys], dtype=torch.float64)
    assert abs(chi_square(observed, torch.tensor([wanted[key] for key in keys], dtype=torch.float64))) < 4


def test_all_outputs_when_there_are_no_more() -> None:
    generator = SequenceGenerator(
        [ScriptedModel(table_rule(TABLE, 6))], dictionary(2), beam_size=9, search_strategy=StochasticBeam(),
        min_len=0, max_len_b=8, normalize_scores=False,
    )  # fmt: skip
    (hypotheses,) = generator.generate(batch_of([(4, EOS)]))
    assert {tuple(h.tokens.tolist()) for h in hypotheses} == set(OUTPUTS)


def test_the_maximum_is_as_told() -> None:
    values = torch.tensor([[0.3, -torch.inf, 2.0, 1.0, -40.0]], dtype=torch.float64)
    for maximum in (-3.0, 0.0, 5.0):
        moved = with_maximum(values, torch.tensor([[maximum]], dtype=torch.float64))[0]
        assert moved.max() == moved[2] == pytest.approx(maximum)
        assert moved[1] == -torch.inf
        for i in (0, 3, 4):  # the formula as it stands in the paper
            plain = -math.log(math.exp(-maximum) - math.exp(-2.0) + math.exp(-float(values[0, i])))
            assert float(moved[i]) == pytest.approx(plain, abs=1e-10)
    assert (with_maximum(values, torch.tensor([[-torch.inf]])) == -torch.inf).all()
    assert (with_maximum(torch.full((1, 3), -torch.inf), torch.tensor([[1.0]])) == -torch.inf).all()


# Whole outputs


SOURCES = [(4, 5, EOS), (6, EOS), (4, 4, 4, 6, EOS), (EOS,)]


@pytest.mark.parametrize("name", ["sampling", "beam_sampling", "stochastic_beam", "greedy"])
@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_alone_equals_batched(name: str, semantics: str) -> None:
    entry = SEARCHES.entry(name)
    model = ScriptedModel(random_rule(9, seed=1))
    generator = SequenceGenerator(
        [model], dictionary(5), beam_size=3, search_strategy=entry.component.build(entry.config()),
        max_len_b=7, semantics=semantics,
    )  # fmt: skip
    together = generator.generate(batch_of(SOURCES))
    for i, source in enumerate(SOURCES):
        batch = batch_of([source])
        batch.ids = torch.tensor([i])
        (alone,) = generator.generate(batch)
        assert [h.tokens.tolist() for h in alone] == [h.tokens.tolist() for h in together[i]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[i]], abs=1e-10)
        assert len(alone) == (1 if name == "greedy" else 3)


def test_seeds_give_other_outputs() -> None:
    model = ScriptedModel(random_rule(9, seed=1))
    outputs = set()
    for seed in range(4):
        generator = SequenceGenerator([model], dictionary(5), beam_size=2, search_strategy=Sampling(seed), max_len_b=7)
        outputs.add(str([[h.tokens.tolist() for h in found] for found in generator.generate(batch_of(SOURCES))]))
    assert len(outputs) == 4


def test_constraints_are_refused() -> None:
    generator = SequenceGenerator([ScriptedModel(random_rule(9, 1))], dictionary(5), search_strategy=Sampling())
    with pytest.raises(ConfigError, match="Sampling does not take constraints"):
        generator.generate(batch_of([(4, EOS)]), constraints=[[[5]]])
