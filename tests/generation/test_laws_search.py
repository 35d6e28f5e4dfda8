"""Invariants of every registered search strategy, by fairseq's and by Hugging Face's rules, and degenerate inputs.

A new strategy needs one entry in ``STRATEGIES`` (strategy_zoo.py); a test fails for a registered one without it.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from seqgen.addons.checks.checking import check
from seqgen.addons.checks.kinds import DecodingCheckConfig, component_subject
from seqgen.addons.checks.strategies import STRATEGY
from seqgen.extend import Batch, DecodingError, GenerationConfig, map_tensors
from seqgen.registry import SEARCHES
from tests.covering import covering, mostly_slow
from tests.scripted_model import Rule, batch_of, random_rule
from tests.strategy_zoo import STRATEGIES, Readable, decode

EOS, PAD = 2, 1
SEMANTICS = ["fairseq", "huggingface"]


def test_every_registered_strategy_has_an_entry() -> None:
    own = {entry.name for entry in SEARCHES.entries() if entry.component.__module__.startswith("seqgen.")}
    assert own == set(STRATEGIES)


# -- invariants --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "semantics"),
    mostly_slow(covering([*STRATEGIES], ["huggingface", "fairseq"]), "constrained", "diverse_beam"),
)
def test_invariants_of_the_checks(name: str, semantics: str) -> None:
    """As ``seqgen-check search=NAME`` tests them; Marian's outputs end without end-of-sentence by fairseq's rules."""
    values: dict[str, Any] = {"semantics": "huggingface"} if name == "marian" else {"semantics": semantics}
    subject = component_subject("search", DecodingCheckConfig(generation=GenerationConfig(search=name), **values))
    assert [str(outcome) for outcome in check(subject, STRATEGY) if outcome.violation] == []


@pytest.mark.parametrize("name", ["beam", "beam_sampling", "diverse_siblings"])
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_wide_beam_finds_everything(semantics: str, name: str) -> None:
    """A beam that covers all prefixes finds every output, with the score of the model."""
    rule, longest, vocab = random_rule(6, seed=5), 3, 6
    ends_truncated = semantics == "huggingface"  # the last token may be any; by fairseq's rules it is end-of-sentence
    tokens = [t for t in range(vocab) if t != EOS and (ends_truncated or t != PAD)]
    outputs = [
        (*history, EOS)
        for length in range(longest if ends_truncated else longest + 1)
        for history in itertools.product(tokens, repeat=length)
    ]
    if ends_truncated:
        outputs += list(itertools.product(tokens, repeat=longest))
    size = longest if ends_truncated else longest + 1
    options = {"normalize_scores": False, "semantics": semantics, "early_stopping": "never", "max_len": size}
    found = decode(name, [Readable(rule)], batch_of([(4, 2)]), vocab - 4, beam_size=len(outputs), **options)[0]
    assert {tuple(h.tokens.tolist()) for h in found} == set(outputs)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    if STRATEGIES[name].scores_are_the_models:
        for h in found:
            assert h.score == pytest.approx(sum(model_scores(rule, (4, 2), h.tokens.tolist())), abs=1e-10)


def model_scores(rule: Rule, source: tuple[int, ...], output: Sequence[int]) -> list[float]:
    return [float(rule(source, tuple(output[:i])).log_softmax(-1)[token]) for i, token in enumerate(output)]


# -- degenerate cases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "semantics", "skip_log_softmax"),
    covering(list(STRATEGIES), [math.nan, math.inf, -math.inf], SEMANTICS, [True, False], times=2),
)
def test_nan_and_infinity_are_errors_with_the_step(
    name: str, value: float, semantics: str, skip_log_softmax: bool
) -> None:
    def rule(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        logits = torch.zeros(9, dtype=torch.float64)
        logits[EOS] = -8.0
        if len(history) == 2 and source == (6, 2):
            logits[slice(None) if value == -math.inf else 5] = value
        return logits

    options = {"semantics": semantics, "skip_log_softmax": skip_log_softmax, "min_len": 3}
    with pytest.raises(DecodingError, match=r"step 2 in sentence 1\b"):
        decode(name, [Readable(rule)], batch_of([(4, 5, 2), (6, 2)]), 5, **options)


@pytest.mark.parametrize(("name", "semantics"), covering(list(STRATEGIES), SEMANTICS))
def test_an_empty_batch(name: str, semantics: str) -> None:
    empty: Batch = map_tensors(batch_of([(4, 2)]), lambda tensor: tensor[:0])
    assert decode(name, [Readable(random_rule(9, 0))], empty, 5, semantics=semantics) == []


# -- random options ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_options_are_respected(data: st.DataObject) -> None:
    """No forbidden token, the expected number of hypotheses, and the expected scores."""
    draw, some = data.draw, lambda *values: data.draw(st.sampled_from(values))
    name, rules = some(*STRATEGIES), some("fairseq", "huggingface")
    vocab, longest = draw(st.integers(6, 9)), draw(st.integers(1, 6))
    beam = 2 * draw(st.integers(1, 3)) if name == "diverse_beam" else draw(st.integers(1, 6))
    rule = random_rule(vocab, draw(st.integers(0, 50)), some(0.5, 2.0, 6.0))
    sources = draw(st.lists(st.sampled_from([(4, 5, 2), (2,), (4, 4, 5, 4, 2)]), min_size=1, max_size=3))
    min_len, repeats = draw(st.integers(0, longest)), some(0, 0, 2)
    suppressed = draw(st.lists(st.sampled_from(["w0", "w1", "<unk>"]), max_size=1))
    prefix = draw(st.lists(st.integers(3, 5), max_size=longest - 1))
    phrases = draw(st.lists(st.lists(st.integers(3, 5), min_size=1, max_size=2), max_size=2))
    options: dict[str, Any] = {
        **{"beam_size": beam, "max_len": longest, "min_len": min_len, "tokens_to_suppress": suppressed},
        **{"no_repeat_ngram_size": repeats, "len_penalty": some(-1.0, 0.0, 1.0, 2.0), "semantics": rules},
        "early_stopping": some("true", "false", "never") if rules == "huggingface" else "false",
        **{"use_cache": some(True, False), "prefix_tokens": torch.tensor([prefix] * len(sources)) if prefix else None},
    }
    given_phrases = [phrases] * len(sources) if STRATEGIES[name].phrases else None
    found = decode(name, [Readable(rule)], batch_of(sources), vocab - 4, given_phrases, **options)
    assert len(found) == len(sources)
    special = {"w0": 4, "w1": 5, "<unk>": 3}
    for source, hypotheses in zip(sources, found, strict=True):
        assert len(hypotheses) <= beam
        for h in hypotheses:
            tokens = h.tokens.tolist()
            assert tokens[: len(prefix)] == prefix
            assert 1 <= len(tokens) <= longest
            assert EOS not in tokens[:-1]
            cut = name == "marian" and rules == "fairseq" and len(tokens) == longest - 1 and tokens[-1] != EOS
            assert tokens[-1] == EOS or cut or (rules == "huggingface" and len(tokens) == longest)
            assert not {special[token] for token in suppressed} & set(tokens[len(prefix) :])
            assert rules != "fairseq" or PAD not in tokens
            if (len(tokens) < longest and not cut) or (rules == "huggingface" and tokens[-1] == EOS):
                assert len(tokens) - 1 >= min_len
            pairs = list(itertools.pairwise(tokens[len(prefix) :]))
            assert not repeats or len(pairs) == len(set(pairs))
            if STRATEGIES[name].scores_are_the_models and rules not in STRATEGIES[name].renormalized_by:
                own = model_scores(rule, source, tokens)
                assert h.positional_scores.tolist() == pytest.approx(own, abs=1e-9)
                assert h.score == pytest.approx(sum(own) / len(own) ** options["len_penalty"], abs=1e-9)
        if STRATEGIES[name].differ:
            assert len({tuple(h.tokens.tolist()) for h in hypotheses}) == len(hypotheses)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
