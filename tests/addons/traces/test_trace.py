"""Traces: they change no output, their steps lead to the hypotheses, and damaged ones are refused in one sentence."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seqgen.addons.traces.page import Fate, page_of, reference_path
from seqgen.addons.traces.recorder import next_ranks
from seqgen.addons.traces.trace import SentenceTrace, StepTrace, Trace, TracedOutput
from seqgen.addons.traces.writer import TraceWriter
from seqgen.config import TraceConfig
from seqgen.text.results import Details, Translation
from seqgen.text.translator import Translator
from tests.commands import command, done
from tests.text_models import TEXTS, text_model


def step_of(
    tokens: list[int], scores: list[float], beams: list[int] | None = None, beam: int = 2, done: bool = False
) -> StepTrace:
    """A step of which the first ``beam`` candidates continue."""
    outcomes = "".join("C" if rank < beam else "B" for rank in range(len(tokens)))
    return StepTrace(scores, tokens, beams or [0] * len(tokens), outcomes, list(range(beam)), done)


LINES = [*TEXTS, "", *(f"w{i} w{(3 * i) % 19} w{i // 2}" for i in range(9))]
SETTINGS: dict[str, dict[str, Any]] = {
    "beam": {"beam": 3},
    "huggingface": {"semantics": "huggingface", "early_stopping": "never", "length_penalty": 0.5, "min_len": 2},
    "sampling": {"sampling": True, "beam": 3, "top_k": 5},
    "beam_sampling": {"search": "beam_sampling", "beam": 3},
    "diverse": {"search": "diverse_beam", "search.groups": 2, "beam": 4},
    "rules": {"no_repeat_ngram_size": 1, "repetition_penalty": 1.3, "suppress": ["w3"]},
    "prompt_lookup": {"prompt_lookup": 2, "beam": 1},
    "mbr": {"mbr": "chrf", "beam": 3},
    "contrastive": {"search": "contrastive", "beam": 1},
}


def translator(members: int = 1, single: bool = False) -> Translator:
    models = [text_model(seed=seed) for seed in range(members)]
    for item in models if single else ():
        item.model.float()
    return Translator(models, max_len_b=7, max_len_a=0, batch_size=4)


def traced(
    models: Translator, path: Path, lines: Sequence[str] = LINES, references: Sequence[str] | None = None,
    options: TraceConfig | None = None, details: Details | None = None, **settings: Any,
) -> list[Translation]:  # fmt: skip
    decoding = models.prepare(details, **settings)
    plain = models.prepare(details, **settings).generator.can_merge
    with TraceWriter(path, decoding, options, references, ["m"]) as trace:
        assert decoding.generator.can_merge == plain, "a trace must not turn continuous batching off"
        found = []
        for translation in decoding.translate(trace.lines(lines)):
            trace.add(translation)
            found.append(translation)
    return found


def contents(line: Translation) -> tuple[Any, ...]:
    """Its texts, tokens and scores, which are compared bit by bit."""
    hypotheses = [(h.text, h.score, h.tokens.tolist(), h.positional_scores.tolist()) for h in line.hypotheses]
    return line.id, line.source, hypotheses


QUICK = ("beam", "huggingface", "sampling", "beam_sampling")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.nightly) for name in SETTINGS]
)
def test_a_trace_changes_nothing(name: str, tmp_path: Path) -> None:
    settings = {"nbest": min(3, SETTINGS[name].get("beam", 3)), **SETTINGS[name]}
    models = translator(single=name in ("beam", "huggingface", "sampling"))
    plain = models.translate(LINES, **settings)
    path = tmp_path / "t.jsonl"
    assert list(map(contents, traced(models, path, **settings))) == list(map(contents, plain))
    trace = Trace(path)
    assert sum(len(sentence.steps) for sentence in trace) > len(LINES)
    page_of(trace)
    for sentence in trace:
        finished = {
            (tuple(sentence.tokens(number, rank)), score if name != "mbr" else None)
            for number, step in enumerate(sentence.steps)
            for rank, score in step.finished.items()
        }  # mbr ranks hypotheses again after the search
        assert {(tuple(item.tokens), item.score if name != "mbr" else None) for item in sentence.hypotheses} <= finished


@pytest.mark.parametrize(
    "switches", [{}, {"continuous_batching": False}, {"lazy_compaction": False, "continuous_batching": False}]
)
@pytest.mark.parametrize(
    "combination", ["probability", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("log", "fusion"))]
)
def test_ensembles(combination: str, switches: dict[str, bool], tmp_path: Path) -> None:
    models, path = translator(2), tmp_path / "t.jsonl.gz"
    settings = {f"fast.{key}": value for key, value in switches.items()}
    settings |= {"combination": combination, "beam": 3, "nbest": 3}
    settings |= {"combination.weight": 1.0} if combination == "fusion" else {}
    plain = models.translate(LINES, **settings)
    assert list(map(contents, traced(models, path, **settings))) == list(map(contents, plain))
    trace = Trace(path)
    for sentence in trace:
        for number, step in enumerate(sentence.steps):
            for rank in (rank for rank, letter in enumerate(step.outcomes) if letter != "I"):
                token_score = step.scores[rank] - sentence.before(number, step.beams[rank])
                both = [member[rank] for member in step.members]
                if combination == "probability":  # a forbidden end of sentence has no candidates
                    assert token_score == pytest.approx(math.log(sum(map(math.exp, both)) / 2), abs=1e-3)
                if combination == "fusion":
                    assert token_score == pytest.approx(sum(both), abs=1e-3)


def test_candidates_are_those_of_the_output(tmp_path: Path) -> None:
    """Along the path of each hypothesis the candidates' scores add up to its own."""
    models, path = translator(), tmp_path / "t.jsonl"
    found = traced(models, path, beam=3, nbest=3)
    trace = Trace(path)
    for translation in found:
        sentence = trace[translation.id]
        places = {
            tuple(sentence.tokens(number, rank)): (step, rank)
            for number, step in enumerate(sentence.steps)
            for rank, letter in enumerate(step.outcomes)
            if letter != "I"
        }
        for item in translation.hypotheses:
            tokens = item.tokens.tolist()
            for length, total in enumerate(item.positional_scores.cumsum(0).tolist(), start=1):
                step, rank = places[tuple(tokens[:length])]
                assert step.scores[rank] == pytest.approx(total, abs=1e-12)
                assert step.outcomes[rank] == ("F" if length == len(tokens) else "C")
            assert step.finished[rank] == pytest.approx(item.score, abs=1e-12)
    assert {*"".join(step.outcomes for sentence in trace for step in sentence.steps)} >= {*"CFB"}


def test_each_beam_continues_a_candidate_of_its_own() -> None:
    """Two groups of beams may choose the same token after the same beam."""
    assert next_ranks("CCCB", [(0, 5), (0, 6), (0, 5), (1, 5)], [(0, 5), (0, 5), (0, 6)]) == [0, 2, 1]


@pytest.mark.parametrize(
    ("tokens", "scores", "total", "gap"), [([5, 7], [-1.0, -3.5], -4.5, 1.5), ([5, 3], [-1.0, -6.0], -7.0, 4.0)]
)
def test_how_far_a_reference_was_below_the_beam(
    tokens: list[int], scores: list[float], total: float, gap: float
) -> None:
    """By hand: in the second step the worst survivor has -3."""
    steps = [step_of([5, 6, 7], [-1.0, -1.5, -2.0]), step_of([8, 9, 7], [-2.0, -3.0, -4.5])]
    reference = TracedOutput("", tokens, -2.25, scores)
    fate: Any = reference_path(SentenceTrace(0, "", [], steps, [], dict(enumerate("abcdefghij")), reference))
    assert (fate.fate, fate.step, fate.score, fate.gap) == (Fate.BELOW_BEAM, 1, total, gap)


@pytest.mark.slow
def test_the_path_of_the_reference(tmp_path: Path) -> None:
    """References are hypotheses of a wider beam, so that they leave the narrow one at different steps."""
    models, path, fates = translator(), tmp_path / "t.jsonl", set()
    lines = [line for line in LINES if line]
    for rank in (0, 2, 5, 9):
        wide = models.translate(lines, beam=12, nbest=12, normalize_scores=False)
        references = [item.hypotheses[min(rank, len(item.hypotheses) - 1)].text for item in wide]
        options = TraceConfig(reference_scores=rank > 2)
        traced(models, path, lines, references, options, beam=2, nbest=2, normalize_scores=False)
        for sentence in Trace(path):
            reference: Any = sentence.reference
            fate: Any = reference_path(sentence)
            fates.add(fate.fate)
            kept = [
                {tuple(sentence.tokens(n, r)) for r in range(len(step.tokens)) if step.survives(r)}
                for n, step in enumerate(sentence.steps)
            ]
            inside = [tuple(reference.tokens[: n + 1]) in prefixes for n, prefixes in enumerate(kept)]
            if fate.fate is Fate.FOUND:
                assert list(sentence.hypotheses[fate.rank].tokens) == list(reference.tokens)
                if reference.scores:
                    assert reference.score == pytest.approx(sentence.hypotheses[fate.rank].score, abs=1e-6)
            elif fate.fate in (Fate.BELOW_BEAM, Fate.ENDED_TOO_LOW):
                assert inside.index(False) == fate.step == len(reference.search_scores) - 1
                total = reference.search_scores[fate.step]
                if reference.scores:
                    assert total == pytest.approx(sum(reference.scores[: fate.step + 1]), abs=1e-6)
                assert fate.score == pytest.approx(total, abs=1e-6)
                step = sentence.steps[fate.step]
                worst = min(score for rank, score in enumerate(step.scores) if step.survives(rank))
                assert fate.gap == pytest.approx(worst - total, abs=1e-6)
    assert {Fate.FOUND, Fate.BELOW_BEAM} <= fates


def test_what_a_rule_forbids(tmp_path: Path) -> None:
    models, path = translator(), tmp_path / "t.jsonl"
    references = [item.text for item in models.translate(LINES)]
    word = references[0].split()[0]
    traced(models, path, LINES, references, no_repeat_ngram_size=1, suppress=[word])
    trace = Trace(path)
    fate: Any = reference_path(trace[0])
    assert (fate.fate, fate.step, fate.by) == (Fate.FORBIDDEN, 0, "Forbid")
    steps = [(sentence, item) for sentence in trace for step in sentence.steps for item in step.forbidden]
    assert {item.by for _, item in steps} >= {"NoRepeatNgram", "Forbid"}
    assert {sentence.piece(item.token) for sentence, item in steps if item.by == "Forbid"} <= {word, "<pad>", "<s>"}


@pytest.mark.parametrize(
    ("options", "lines", "key"),
    [
        ({"sentences": 3}, LINES, "sentences=3"),
        ({"max_megabytes": 1e-9}, LINES, "max_megabytes=1e-09"),
        ({"sentences": len(LINES)}, LINES, ""),
        ({"max_megabytes": 1e-9}, LINES[:1], ""),  # the limit was reached by the last line
    ],
)
def test_a_trace_that_was_cut_says_so(options: dict[str, Any], lines: list[str], key: str, tmp_path: Path) -> None:
    decoding = translator().prepare(beam=1)
    with TraceWriter(tmp_path / "t.jsonl", decoding, TraceConfig(**options)) as trace:
        for translation in decoding.translate(trace.lines(lines)):
            trace.add(translation)
    said = [f"of {len(LINES)} lines: it reached trace_options.{key}" in note for note in trace.notes]
    assert (said, Trace(tmp_path / "t.jsonl").complete) == (([True], False) if key else ([], True))


def test_attention_and_fewer_candidates(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    traced(translator(), path, options=TraceConfig(candidates=1), details=Details(attention=True), beam=4)
    page_of(Trace(path))
    for sentence in Trace(path):
        assert all(set(step.outcomes[1:]) <= set("CF") for step in sentence.steps)
        for item in sentence.hypotheses[:1]:
            assert [len(row) for row in item.attention] == [len(sentence.source_pieces)] * len(item.tokens)
            assert all(sum(row) == pytest.approx(1, abs=0.01) for row in item.attention)


@pytest.mark.slow
def test_the_commands(runs: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    of_decode = (f"path={runs}/transformer", "generation.max_len_b=9")
    keys = (*of_decode, "generation.nbest=3", "format=json")
    for further in (("output=plain.json",), ("output=o.json", "trace=t.jsonl.gz")):
        done("generate", *keys, *further)
    assert Path("o.json").read_text() == Path("plain.json").read_text()
    records = map(json.loads, Path("o.json").read_text().splitlines())
    for sentence, record in zip(Trace("t.jsonl.gz"), records, strict=True):
        assert [item.text for item in sentence.hypotheses] == [item["text"] for item in record["hypotheses"]]
    Path("many.en").write_text((data / "test.en").read_text() * 2)  # more lines than are written together
    cleaned = (*of_decode, "input=many.en", "detokenize=de", "trace=c.jsonl")
    texts = command("generate", *cleaned).out.splitlines()
    assert [sentence.hypotheses[0].text for sentence in Trace("c.jsonl")] == texts
    outcome = command("generate", *cleaned, "trace_options.sentences=3", "output=o.txt")
    assert "the trace has only the first 3 of 40 lines" in outcome.err
    assert "c.jsonl has only the first 3 lines" in command("show", "c.jsonl").err
    outcome = command("show", "t.jsonl.gz")
    assert (outcome.code, outcome.out.split(":")[0]) == (0, "wrote t.html"), outcome.err
    assert "http" not in re.sub("http(://www.w3.org/2000/svg|-equiv)", "", Path("t.html").read_text())
