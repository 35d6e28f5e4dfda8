"""Logits processors and cut-offs against those of transformers, and the laws that each of them keeps."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from seqgen.decoding.combinations import Guidance
from seqgen.decoding.processors import length as lengths, tokens as penalties, warpers as cutoffs
from seqgen.extend import LogitsProcessor, ProbabilityMean, StepContext
from tests.step_contexts import batch_info, step_context

PAD, EOS, UNK, VOCAB = 0, 1, 2, 11
SOURCE_LENGTHS = [5, 7, 2]
BEAM = 2


def context(
    step: int, seed: int = 0, *, padded: bool = True, start: bool = True, maximum: int = 9, prefix: Tensor | None = None
) -> StepContext:
    """Three sentences of two beams with random histories over few tokens, so that much is repeated."""
    generator = torch.Generator().manual_seed(seed)
    rows = len(SOURCE_LENGTHS) * BEAM
    tokens = torch.randint(3, 7, (rows, step), generator=generator)
    source = torch.randint(3, 7, (len(SOURCE_LENGTHS), max(SOURCE_LENGTHS)), generator=generator)
    padding = torch.arange(source.size(1)) >= torch.tensor(SOURCE_LENGTHS).unsqueeze(1)
    source = source.masked_fill(padding, PAD) if padded else source
    begun = torch.cat([torch.full((rows, 1), PAD), tokens], dim=1)
    known = {
        **{"max_lengths": torch.full((rows,), maximum), "prefix_tokens": prefix, "eos": EOS, "pad": PAD},
        **{"src_tokens": source.repeat_interleave(BEAM, 0), "ids": torch.arange(3).repeat_interleave(BEAM)},
        "src_padding": padding.repeat_interleave(BEAM, 0) if padded else None,
    }
    return step_context(step, tokens, begun if start else tokens, maximum, **known)


def scores(seed: int, rows: int = 6, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 3


def allowed(sentence: int, written: Tensor) -> list[int]:
    """What may follow depends on the sentence and on the newest token."""
    return [(sentence + int(written[-1])) % VOCAB, 5] if len(written) else [sentence]


BIASES = {(4,): 1.5, (5,): -2.0, (3, 4): 0.75, (4, 5): -1.0, (3, 4, 5): 2.5, (5, 5, 5): -3.0, (6, 3): 0.5}
BIASES |= {(PAD, 4): 9.0}  # no sequence begins with the start token
BAD_WORDS = [[4], [3, 5], [5, 6, 3], [EOS], [6, 6], [PAD, 3, 6], [PAD, 5]]

NO = -torch.inf
"""The score that their cut-offs give; the argument before the number of tokens to keep."""

SOURCE = "source"
"""Stands for the source of each row: with beams, some of theirs take row i for sentence i."""

# name: ours; theirs, and its arguments
ORACLES: dict[str, tuple[LogitsProcessor, str, *tuple[Any, ...]]] = {
    "repetition": (penalties.RepetitionPenalty(1.7), "RepetitionPenaltyLogitsProcessor", 1.7),
    "repetition below 1": (penalties.RepetitionPenalty(0.6), "RepetitionPenaltyLogitsProcessor", 0.6),
    "source": (penalties.EncoderRepetitionPenalty(1.7), "EncoderRepetitionPenaltyLogitsProcessor", 1.7, SOURCE),
    "unigrams": (penalties.NoRepeatNgram(1), "NoRepeatNGramLogitsProcessor", 1),
    "bigrams": (penalties.NoRepeatNgram(2), "NoRepeatNGramLogitsProcessor", 2),
    "trigrams": (penalties.NoRepeatNgram(3), "NoRepeatNGramLogitsProcessor", 3),
    "unigrams of the source": (penalties.EncoderNoRepeatNgram(1), "EncoderNoRepeatNGramLogitsProcessor", 1, SOURCE),
    "bigrams of the source": (penalties.EncoderNoRepeatNgram(2), "EncoderNoRepeatNGramLogitsProcessor", 2, SOURCE),
    # their lengths count the start token
    "minimum length": (lengths.MinimumLength(4, [6], yields=False), "MinLengthLogitsProcessor", 5, [EOS, 6]),
    "minimum of new tokens": (lengths.MinimumLength(4, yields=False), "MinNewTokensLengthLogitsProcessor", 1, 4, EOS),
    "bad words": (penalties.BadWords(BAD_WORDS, [EOS]), "NoBadWordsLogitsProcessor", BAD_WORDS, EOS),
    "sequence bias": (penalties.SequenceBias(BIASES), "SequenceBiasLogitsProcessor", BIASES),
    "bias of one": (penalties.SequenceBias({(4,): 1.5}), "SequenceBiasLogitsProcessor", {(4,): 1.5}),
    "first": (lengths.ForceFirst(5), "ForcedBOSTokenLogitsProcessor", 5),
    "last": (lengths.ForceLast(4), "ForcedEOSTokenLogitsProcessor", 11, 4),
    "suppressed": (penalties.Forbid([3, 6]), "SuppressTokensLogitsProcessor", [3, 6]),
    "suppressed first": (penalties.ForbidFirst([3, 6]), "SuppressTokensAtBeginLogitsProcessor", [3, 6], 1),
    "suppressed second": (penalties.ForbidFirst([3, 6], step=1), "SuppressTokensAtBeginLogitsProcessor", [3, 6], 2),
    "decay": (lengths.ExponentialDecay(2, 1.3, [6]), "ExponentialDecayLengthPenalty", (2, 1.3), [EOS, 6], 1),
    "decay below 1": (lengths.ExponentialDecay(0, 0.8), "ExponentialDecayLengthPenalty", (0, 0.8), EOS, 1),
    "temperature": (cutoffs.Temperature(0.7), "TemperatureLogitsWarper", 0.7),
    "renormalize": (cutoffs.Renormalize(), "LogitNormalization"),
    "constraint": (penalties.PrefixConstraint(allowed), "PrefixConstrainedLogitsProcessor", allowed, BEAM),
    "top k": (cutoffs.TopK(3), "TopKLogitsWarper", 3),
    "top k, 4 at least": (cutoffs.TopK(3, keep=4), "TopKLogitsWarper", 3, NO, 4),
    "top k beyond the vocabulary": (cutoffs.TopK(99), "TopKLogitsWarper", 99),
    "top p": (cutoffs.TopP(0.8), "TopPLogitsWarper", 0.8),
    "top p of 0, 2 at least": (cutoffs.TopP(0.0, keep=2), "TopPLogitsWarper", 0.0, NO, 2),
    "min p": (cutoffs.MinP(0.1), "MinPLogitsWarper", 0.1),
    "min p, 3 at least": (cutoffs.MinP(0.9, keep=3), "MinPLogitsWarper", 0.9, NO, 3),
    "typical": (cutoffs.Typical(0.7), "TypicalLogitsWarper", 0.7),
    "typical, 3 at least": (cutoffs.Typical(0.1, keep=3), "TypicalLogitsWarper", 0.1, NO, 3),
    "epsilon": (cutoffs.Epsilon(0.05), "EpsilonLogitsWarper", 0.05),
    "epsilon, 2 at least": (cutoffs.Epsilon(0.9, keep=2), "EpsilonLogitsWarper", 0.9, NO, 2),
    "eta": (cutoffs.Eta(0.05), "EtaLogitsWarper", 0.05),
    "eta, 2 at least": (cutoffs.Eta(0.3, keep=2), "EtaLogitsWarper", 0.3, NO, 2),
}


def of_transformers(name: str, source: Tensor) -> Any:
    """The original of a processor, for rows with these sources."""
    theirs = pytest.importorskip("transformers.generation.logits_process")
    _, kind, *arguments = ORACLES[name]
    return getattr(theirs, kind)(*(source if one is SOURCE else one for one in arguments))


@pytest.mark.parametrize("name", list(ORACLES))
def test_equals_transformers(name: str) -> None:
    ours, changed = ORACLES[name][0], False
    for seed, step in itertools.product(range(6), range(10)):
        now, given = context(step, seed, padded=False), scores(100 * seed + step)
        got = ours(given.clone(), now)
        wanted = of_transformers(name, now.src_tokens)(now.generated, given.clone())
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
        changed |= not torch.equal(got, given)
    assert changed or name == "top k beyond the vocabulary"


@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0])
def test_cutoffs_of_a_large_vocabulary_equal_transformers(spread: float) -> None:
    """Where a few hundred tokens are enough, and where they are not."""
    theirs = pytest.importorskip("transformers.generation.logits_process")
    given = torch.randn(5, 3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * spread
    for mass, keep in itertools.product((0.1, 0.6, 0.95), (1, 3)):
        for ours, oracle in (
            (cutoffs.TopP(mass, keep), theirs.TopPLogitsWarper(mass, min_tokens_to_keep=keep)),
            (cutoffs.Typical(mass, keep), theirs.TypicalLogitsWarper(mass, min_tokens_to_keep=keep)),
            (cutoffs.TopK(int(600 * mass), keep), theirs.TopKLogitsWarper(int(600 * mass))),
        ):
            assert torch.equal(ours(given.clone(), context(0)), oracle(torch.zeros(5, 1), given))


@pytest.mark.parametrize("name", ["source", "unigrams of the source", "bigrams of the source"])
def test_padding_of_the_source_does_not_count(name: str) -> None:
    """Each sentence with its own source alone, as transformers would do it, is what all of them give together."""
    for seed in range(12):
        now, given = context(4, seed), scores(seed)
        together = ORACLES[name][0](given.clone(), now)
        for sentence, length in enumerate(SOURCE_LENGTHS):
            rows = slice(sentence * BEAM, (sentence + 1) * BEAM)
            original = of_transformers(name, now.src_tokens[rows, :length])
            alone = original(now.generated[rows], given[rows].clone())
            torch.testing.assert_close(together[rows], alone, atol=1e-6, rtol=0)


def test_without_a_start_token_the_first_token_is_free_to_repeat_it() -> None:
    """fairseq's histories hold no start token: padding, which is T5's, was not written before."""
    given = scores(0)
    here, there = (penalties.NoRepeatNgram(1)(given.clone(), context(0, start=start)) for start in (False, True))
    assert torch.equal(here, given)
    assert (there[:, PAD] == -torch.inf).all()


def guided(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    return Guidance(ProbabilityMean(), scale)([conditional, unconditional], None)


def test_guidance_equals_transformers() -> None:
    theirs = pytest.importorskip("transformers.generation.logits_process")
    conditional, unconditional = scores(1), scores(2)
    model = lambda *_, **__: type("Out", (dict,), {"logits": unconditional.unsqueeze(1)})()  # noqa: E731
    for scale in (0.5, 1.5, 3.0):
        oracle = theirs.UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, model)
        wanted = oracle(torch.zeros(6, 1, dtype=torch.int64), conditional.clone())
        got = guided(conditional.log_softmax(-1), unconditional.log_softmax(-1), scale)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
    conditional = torch.tensor([[0.0, NO, -1.0, NO]])
    unconditional = torch.tensor([[-1.0, -2.0, NO, NO]])
    assert guided(conditional, unconditional, 2.0).tolist() == [[1.0, NO, -1.0, NO]], "not NaN"


def test_invalid_scores_are_replaced_but_forbidden_tokens_stay_so() -> None:
    largest = torch.finfo(torch.float32).max
    given = torch.tensor([[torch.nan, torch.inf, -torch.inf, 1.5]])
    got = cutoffs.RemoveInvalid()(given.clone(), context(0)).tolist()
    assert got == [[0.0, largest, -torch.inf, 1.5]]
    theirs = pytest.importorskip("transformers.generation.logits_process").InfNanRemoveLogitsProcessor()
    assert theirs(torch.zeros(1, 1), given).tolist() == [[0.0, largest, -largest, 1.5]]  # the one difference


@pytest.mark.parametrize("keep_score", [False, True])
def test_each_sentence_has_its_forced_first_token(keep_score: bool) -> None:
    tokens, rows = torch.tensor([3, 5, 4]), torch.tensor([3, 3, 5, 5, 4, 4])
    lprobs = scores(3)
    batch = batch_info(3, 2, first_tokens=tokens)
    shared = lengths.ForceFirst(7, keep_score)
    now = replace(context(0), sentences=batch, rows_per_sentence=2)
    got = shared.begin(batch)(lprobs.clone(), now)
    assert got.argmax(1).tolist() == rows.tolist()
    assert got.isfinite().sum() == 6
    kept = lprobs.gather(1, rows.unsqueeze(1)) if keep_score else torch.zeros(6, 1)
    assert torch.equal(got.gather(1, rows.unsqueeze(1)), kept)
    later = shared.begin(replace(batch, first_tokens=None))(lprobs.clone(), now)
    assert later.argmax(1).tolist() == [7] * 6  # the component of a batch does not change the shared one


def test_the_last_token_is_forced_where_a_sentence_ends() -> None:
    now = context(4, maximum=4)
    now.max_lengths[2:] = 6
    given = scores(4)
    got = lengths.ForceLast(7)(given.clone(), now)
    assert (got[:2, 7] == 0).all()
    assert (got[:2].isfinite().sum(1) == 1).all()
    assert torch.equal(got[2:], given[2:])


def test_a_sequence_does_not_begin_with_the_first_token_of_a_prompt() -> None:
    """As in transformers; padding on the left of a shorter prompt is not its first token."""
    prompts = torch.tensor([[PAD, PAD, 5], [5, 6, 5]])
    known = {"src_tokens": prompts, "src_padding": prompts == PAD, "continues_source": True, "counts_start": True}
    whole = torch.full((2, 1), EOS)
    now = StepContext(0, batch_info(2, 1, pad=PAD, eos=EOS, **known), 1, 99, lambda: whole)
    got = penalties.SequenceBias({(5, 7): 4.0, (PAD, 5, 4): 8.0, (6, 5, 4): 2.0})(torch.zeros(2, VOCAB), now)
    assert got.nonzero().tolist() == [[1, 4], [1, 7]]
    assert got[1, [4, 7]].tolist() == [2.0, 4.0]


PROCESSORS: dict[str, LogitsProcessor] = {
    **{name: ours for name, (ours, *_) in ORACLES.items()},
    "unknown": penalties.UnknownPenalty(UNK, 1.5),
    "end at maximum": lengths.ForceEndAtMaximum(),
    "minimum that yields": lengths.MinimumLength(12),
    "prefix": penalties.ForcePrefix(otherwise=[lengths.MinimumLength(3), penalties.Forbid([5])]),
    "prefix before a penalty": penalties.ForcePrefix(otherwise=[penalties.RepetitionPenalty(1.5)]),
    "first, keeping its score": lengths.ForceFirst(5, keep_score=True),
    "remove invalid": cutoffs.RemoveInvalid(),
}
NOT_INVARIANT = {
    "repetition", "repetition below 1", "source", "first", "last", "decay", "decay below 1", "temperature",
    "renormalize", "prefix before a penalty", "remove invalid",
}  # fmt: skip
FORCING = {"first", "last"}
"""These give a token a score of their own, also one that was forbidden."""


def everywhere(seed: int, step: int) -> StepContext:
    """A context in which every processor has something to do at some step."""
    prefix = torch.tensor([[4, 5], [4, PAD], [6, 6], [PAD, PAD], [3, 3], [8, 9]])
    return context(step, seed, prefix=prefix)


@pytest.mark.parametrize("name", list(PROCESSORS))
def test_shift_invariance_is_as_declared(name: str) -> None:
    processor, differs = PROCESSORS[name], False
    assert processor.shift_invariant == (name not in NOT_INVARIANT)
    for seed, step in itertools.product(range(3), range(11)):
        now, given = everywhere(seed, step), scores(seed, dtype=torch.float64)
        shift = torch.linspace(-5, 5, len(given), dtype=torch.float64).unsqueeze(1)
        before, after = processor(given + shift, now), processor(given.clone(), now) + shift
        if processor.shift_invariant:
            torch.testing.assert_close(before, after, atol=1e-10, rtol=0)
        differs |= not torch.allclose(before, after)
    assert differs != processor.shift_invariant or name == "remove invalid"


@pytest.mark.parametrize("name", list(PROCESSORS))
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_nan_and_nothing_forbidden_comes_back(name: str, data: st.DataObject) -> None:
    step, seed = data.draw(st.integers(0, 10)), data.draw(st.integers(0, 1000))
    size, share = data.draw(st.sampled_from([1e-3, 1.0, 50.0, 300.0])), data.draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    given = (scores(seed) * size).to(dtype)
    forbidden = torch.rand(given.shape, generator=torch.Generator().manual_seed(seed + 1)) < share
    given = given.masked_fill(forbidden, NO)
    got = PROCESSORS[name](given.clone(), everywhere(seed, step))
    assert got.dtype == dtype
    assert not got.isnan().any()
    assert name in FORCING or (got[forbidden] == NO).all()
    assert (got < torch.inf).all()


def test_the_minimum_length_counts_the_tokens_of_each_sentence() -> None:
    """At step 4, sentences that joined at steps 0, 2 and 3 have 4, 2 and 1 tokens; the last one ends at step 4."""
    offsets, limits = torch.tensor([0, 2, 3, 3]), torch.tensor([9, 9, 9, 4])
    ctx = step_context(4, torch.zeros(4, 4, dtype=torch.int64), max_lengths=limits, start_offsets=offsets)
    allowed = lengths.MinimumLength(2)(torch.zeros(4, 7), ctx)[:, 2].isfinite()
    assert allowed.tolist() == [True, True, False, True]
    assert lengths.MinimumLength(2, yields=False)(torch.zeros(4, 7), ctx)[3, 2] == -torch.inf
