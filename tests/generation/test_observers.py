"""Observers are told what becomes of every candidate, and change nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.core.candidates import Candidates
from seqgen.core.component import FORBIDDEN
from seqgen.core.context import StepContext
from seqgen.core.observers import Observer, Outcome, StepRecord
from seqgen.core.structures import Hypothesis
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, sharp
from tests.reference_search import EOS, Settings, next_scores
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule
from tests.strategy_zoo import ENDS, PHRASES, STRATEGIES, decode, lines

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
Row = tuple[tuple[int, ...], str]
"""A candidate, and what becomes of it."""


class Recorder(Observer):
    """Writes down candidates, outcomes and replaced hypotheses of each sentence, and the results."""

    needs = frozenset({FORBIDDEN})

    def __init__(self) -> None:
        self.steps: dict[int, list[tuple[list[Row], list[float]]]] = {}
        self.results: dict[int, list[Hypothesis]] = {}

    def observe(self, record: StepRecord) -> None:
        context, c = record.context, record.candidates
        histories = context.by_sentence(context.tokens)
        for row, sentence in enumerate(context.sentences.ids.tolist()):
            outcomes = [Outcome(value).name for value in record.outcomes[row].tolist()]
            places = zip(c.beams[row].tolist(), c.tokens[row].tolist(), outcomes, strict=True)
            found = [
                (
                    (*histories[row, beam].tolist(), token) if outcome not in ("IMPOSSIBLE", "SENTENCE_DONE") else (),
                    outcome,
                )
                for beam, token, outcome in places
            ]
            lost = record.before.scores[row][record.replaced[row]].tolist()
            self.steps.setdefault(sentence, []).append((found, lost))
        assert record.forbidden is not None

    def end(self, sentence: int, hypotheses: Any) -> None:
        assert sentence not in self.results
        self.results[sentence] = list(hypotheses)


def best_candidates(beams: list[tuple[float, tuple[int, ...]]], scores: Any, count: int) -> Iterator[Any]:
    """The best continuations, those that are impossible last."""
    found = [
        (total + score, (*history, token)) for total, history in beams for token, score in enumerate(scores(history))
    ]
    found = sorted((pair for pair in found if pair[0] > -math.inf), key=lambda pair: -pair[0])[:count]
    yield from found
    yield from [(-math.inf, ())] * (count - len(found))


def plain_fairseq(rule: Rule, source: tuple[int, ...], cfg: Settings) -> list[tuple[list[Row], list[float]]]:
    """What becomes of each candidate, by fairseq's rules; nothing is ever replaced."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished, steps = 0, []
    while beams and finished < cfg.beam and len(steps) <= cfg.max_len:
        rows: list[Row] = []
        active = []
        candidates = best_candidates(beams, lambda h: next_scores(rule, source, h, cfg), 2 * cfg.beam)
        for place, (total, history) in enumerate(candidates):
            if total == -math.inf:
                rows.append(((), "IMPOSSIBLE"))
            elif history[-1] == EOS:
                taken = place < cfg.beam and finished < cfg.beam
                finished += taken
                rows.append((history, "FINISHED" if taken else "ENDED_TOO_LOW"))
            else:
                rows.append((history, "CONTINUES" if len(active) < cfg.beam else "BELOW_BEAM"))
                active += [(total, history)] if len(active) < cfg.beam else []
        steps.append((rows, []))
        beams = active
    return steps


def plain_huggingface(
    rule: Rule, source: tuple[int, ...], beam: int, longest: int
) -> list[tuple[list[Row], list[float]]]:
    """The same by Hugging Face's rules, without a length penalty: the worst finished hypothesis is replaced."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    steps: list[tuple[list[Row], list[float]]] = []
    while beams:
        scores = lambda h: rule(source, h).log_softmax(-1).tolist()  # noqa: E731
        candidates = list(best_candidates(beams, scores, 2 * beam))
        ended = {h for s, h in candidates if h and (h[-1] == EOS or len(h) == longest)}
        new = [(s, h) for s, h in candidates[:beam] if h in ended]
        kept = sorted([*finished, *new], key=lambda pair: -pair[0])[:beam]
        lost = sorted(s for s, h in finished if (s, h) not in kept)
        active = [(s, h) for s, h in candidates if h and h not in ended][:beam]
        rows: list[Row] = []
        for s, h in candidates:
            if h in ended:
                rows.append((h, "FINISHED" if (s, h) in kept else "ENDED_TOO_LOW"))
            else:
                rows.append((h, "IMPOSSIBLE" if not h else "CONTINUES" if (s, h) in active else "BELOW_BEAM"))
        steps.append((rows, lost))
        finished = kept
        beams = [] if len(finished) == beam and active and active[0][0] <= finished[-1][0] else active
    return steps


def assert_recorded(recorder: Recorder, wanted: list[list[tuple[list[Row], list[float]]]]) -> None:
    """The steps of each sentence are those of the reference; then the sentence is done."""
    for sentence, steps in enumerate(wanted):
        got = recorder.steps[sentence]
        for (rows, lost), (wanted_rows, wanted_lost) in zip(got, steps, strict=False):
            assert rows == wanted_rows
            assert sorted(lost) == pytest.approx(wanted_lost, abs=1e-9)
        assert len(got) >= len(steps)
        for rows, lost in got[len(steps) :]:
            assert {outcome for _, outcome in rows} == {"SENTENCE_DONE"}
            assert lost == []


@pytest.mark.parametrize("lazy", [True, False])
def test_outcomes_by_fairseqs_rules(lazy: bool) -> None:
    seen = set()
    for seed in range(6):
        rule, cfg = random_rule(8, seed, 2.5), Settings(beam=3, max_len=4, min_len=0)
        recorder = Recorder()
        generator = make_generator(
            [ScriptedModel(rule)], dictionary(4), beam_size=3, max_len_b=4, min_len=0, observers=[recorder],
            lazy_compaction=lazy,
        )  # fmt: skip
        results = generator.generate(batch_of([*SOURCES, *((word, 2) for word in range(10, 30))]))
        assert_same([recorder.results[sentence] for sentence in range(24)], results)
        assert_recorded(recorder, [plain_fairseq(rule, source, cfg) for source in SOURCES])
        seen |= {name for steps in recorder.steps.values() for rows, _ in steps for _, name in rows}
    assert seen == {outcome.name for outcome in Outcome} - (set() if lazy else {"SENTENCE_DONE"})


def test_outcomes_by_huggingfaces_rules() -> None:
    seen, replaced = set(), 0
    for seed in range(20):
        rule, recorder = random_rule(6, seed, 1.2), Recorder()
        generator = make_generator(
            [ScriptedModel(rule)], dictionary(2), beam_size=3, max_len=5, min_len=0, observers=[recorder],
            semantics="huggingface", early_stopping="never", len_penalty=0.0,
        )  # fmt: skip
        generator.generate(batch_of(SOURCES))
        assert_recorded(recorder, [plain_huggingface(rule, source, 3, 5) for source in SOURCES])
        seen |= {name for steps in recorder.steps.values() for rows, _ in steps for _, name in rows}
        replaced += sum(len(lost) for steps in recorder.steps.values() for _, lost in steps)
    assert {"FINISHED", "ENDED_TOO_LOW", "BELOW_BEAM", "CONTINUES"} <= seen
    assert replaced >= 3


def test_an_observer_of_one_call_has_its_needs_and_fields() -> None:
    class Fields(Recorder):
        def token_fields(self, candidates: Candidates, context: StepContext) -> Mapping[str, Tensor]:
            return {"beam": candidates.beams}

    rule, recorders = random_rule(8, 1), [Fields(), Fields()]
    options: dict[str, Any] = {"beam_size": 3, "max_len_b": 4}
    always = make_generator([ScriptedModel(rule)], dictionary(4), observers=[recorders[0]], **options)
    found = [always.generate(batch_of(SOURCES))]
    once = make_generator([ScriptedModel(rule)], dictionary(4), **options)
    found.append(once.generate(batch_of(SOURCES), observers=[recorders[1]]))
    assert_same(*found, tolerance=0)
    assert recorders[0].steps == recorders[1].steps
    beams = [[one.fields["beam"].tolist() for hypotheses in each for one in hypotheses] for each in found]
    assert beams[0] == beams[1]
    assert len(always.setup.observers) == 1
    assert len(once.setup.observers) == 0


@pytest.mark.parametrize("name", list(STRATEGIES))
@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_an_observer_changes_nothing(name: str, semantics: str) -> None:
    models, phrases = [sharp("transformer_tiny", factor=1.6)], PHRASES if STRATEGIES[name].phrases else None
    options: dict[str, Any] = {"semantics": semantics, "end_tokens": ENDS, "min_len": 2}
    plain = decode(name, models, lines(), VOCAB - 4, phrases, **options)
    recorder = Recorder()
    watched = decode(name, models, lines(), VOCAB - 4, phrases, **options, observers=[recorder])
    for first, second in zip(plain, watched, strict=True):
        assert len(first) == len(second)
        for h, k in zip(first, second, strict=True):
            assert torch.equal(h.tokens, k.tokens)
            assert torch.equal(h.positional_scores, k.positional_scores)
            assert h.score == k.score
    assert_same([recorder.results[sentence] for sentence in range(4)], watched, tolerance=0)
    outcomes = [outcome for steps in recorder.steps.values() for rows, _ in steps for _, outcome in rows]
    # Marian's search cuts what has no end at the maximum length
    finished = [one for one in chain.from_iterable(watched) if name != "marian" or int(one.tokens[-1]) in ENDS]
    assert outcomes.count("FINISHED") >= len(finished)
