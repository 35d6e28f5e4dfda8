"""Traces: they change no output, their steps lead to the hypotheses, and damaged ones are refused in one sentence."""

from __future__ import annotations

import gzip
import json
import math
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.papers.exact_search.exact import ExactSearch
from seqgen.addons.traces.page import Fate, page_of, reference_path
from seqgen.addons.traces.recorder import next_ranks
from seqgen.addons.traces.trace import SentenceTrace, Trace, TracedOutput
from seqgen.addons.traces.writer import TraceWriter
from seqgen.config import TraceConfig
from seqgen.core.errors import ConfigError, DataError, UserError
from seqgen.text.results import Details, Translation
from seqgen.text.translator import Translator
from tests.commands import SMALL_TRANSFORMER, command, corpus, refused, training_arguments
from tests.step_traces import step_of
from tests.text_models import TEXTS, text_model

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
    if single:
        for item in models:
            item.model.float()
    return Translator(models, max_len_b=7, max_len_a=0, batch_size=4)


def traced(
    models: Translator, path: Path, lines: Sequence[str] = LINES, references: Sequence[str] | None = None,
    options: TraceConfig | None = None, **settings: Any,
) -> list[Translation]:  # fmt: skip
    decoding = models.prepare(**settings)
    plain = models.prepare(**settings).generator.can_merge
    with TraceWriter(path, decoding, options, references, ["m"]) as trace:
        assert decoding.generator.can_merge == plain, "a trace must not turn continuous batching off"
        found = []
        for translation in decoding.translate(trace.lines(lines)):
            trace.add(translation)
            found.append(translation)
    return found


def assert_equal(one: Sequence[Translation], other: Sequence[Translation]) -> None:
    """The same texts, tokens and scores, bit by bit."""
    assert len(one) == len(other)
    for first, second in zip(one, other, strict=True):
        assert (first.id, first.source, len(first.hypotheses)) == (second.id, second.source, len(second.hypotheses))
        for a, b in zip(first.hypotheses, second.hypotheses, strict=True):
            assert (a.text, a.score) == (b.text, b.score)
            assert torch.equal(a.tokens, b.tokens)
            assert torch.equal(a.positional_scores, b.positional_scores)


QUICK = ("beam", "huggingface", "sampling", "beam_sampling")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.nightly) for name in SETTINGS]
)
def test_a_trace_changes_nothing(name: str, tmp_path: Path) -> None:
    settings = {"nbest": min(3, SETTINGS[name].get("beam", 3)), **SETTINGS[name]}
    settings["nbest"] = 1 if name in ("contrastive", "prompt_lookup") else settings["nbest"]
    models = translator(single=name in ("beam", "huggingface", "sampling"))
    plain = models.translate(LINES, **settings)
    path = tmp_path / "t.jsonl"
    assert_equal(traced(models, path, **settings), plain)
    trace = Trace(path)
    assert sum(len(sentence.steps) for sentence in trace) > len(LINES)
    page_of(trace)
    for sentence in trace:
        finished = {
            (tuple(sentence.tokens(number, rank)), score)
            for number, step in enumerate(sentence.steps)
            for rank, score in step.finished.items()
        }
        if name == "mbr":  # ranks hypotheses again after the search
            assert {tuple(item.tokens) for item in sentence.hypotheses} <= {tokens for tokens, _ in finished}
        else:
            assert {(tuple(item.tokens), item.score) for item in sentence.hypotheses} <= finished


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
    assert_equal(traced(models, path, **settings), plain)
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


def test_lines_of_a_decode_that_begins_later(tmp_path: Path) -> None:
    decoding = translator().prepare(beam=2)
    with TraceWriter(tmp_path / "t.jsonl", decoding, TraceConfig(sentences=2)) as trace:
        for translation in decoding.translate(trace.lines(LINES[:4], 10), first_number=10):
            trace.add(translation)
    assert [sentence.id for sentence in Trace(tmp_path / "t.jsonl")] == [10, 11]


def test_how_far_a_reference_was_below_the_beam() -> None:
    """By hand: in the second step it has -4.5, and the worst survivor -3."""
    first = step_of([5, 6, 7], [-1.0, -1.5, -2.0])
    second = step_of([8, 9, 7], [-2.0, -3.0, -4.5])
    reference = TracedOutput("", [5, 7], -2.25, [-1.0, -3.5])
    names = dict(enumerate("abcdefghij"))
    fate = reference_path(SentenceTrace(0, "", [], [first, second], [], names, reference))
    assert fate is not None
    assert (fate.fate, fate.step, fate.score, fate.gap) == (Fate.BELOW_BEAM, 1, -4.5, 1.5)
    reference = TracedOutput("", [5, 3], -2.25, [-1.0, -6.0])
    fate = reference_path(SentenceTrace(0, "", [], [first, second], [], names, reference))
    assert fate is not None
    assert (fate.fate, fate.step, fate.score, fate.gap) == (Fate.BELOW_BEAM, 1, -7.0, 4.0)


def test_forbidden_tokens(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    traced(translator(), path, no_repeat_ngram_size=1, suppress=["w3"])
    found = {
        (item.by, sentence.piece(item.token))
        for sentence in Trace(path)
        for step in sentence.steps
        for item in step.forbidden
    }
    assert {by for by, _ in found} >= {"NoRepeatNgram", "Forbid"}, found
    assert {piece for by, piece in found if by == "Forbid"} <= {"w3", "<pad>", "<s>"}


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
            reference, fate = sentence.reference, reference_path(sentence)
            assert reference is not None
            assert fate is not None
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


def test_a_reference_that_a_rule_forbids(tmp_path: Path) -> None:
    models, path = translator(), tmp_path / "t.jsonl"
    references = [item.text for item in models.translate(LINES)]
    words = [text.split()[0] for text in references if text]
    traced(models, path, LINES, references, suppress=[words[0]])
    fate = reference_path(Trace(path)[0])
    assert fate is not None
    assert (fate.fate, fate.step, fate.by) == (Fate.FORBIDDEN, 0, "Forbid")


def test_fewer_candidates(tmp_path: Path) -> None:
    models, path = translator(), tmp_path / "t.jsonl"
    traced(models, path, options=TraceConfig(candidates=1), beam=4)
    trace = Trace(path)
    assert all(set(step.outcomes[1:]) <= set("CF") for sentence in trace for step in sentence.steps)
    page_of(trace)


def test_a_trace_that_was_cut_says_so(tmp_path: Path) -> None:
    for options in (TraceConfig(sentences=3), TraceConfig(max_megabytes=1e-9), TraceConfig(sentences=len(LINES))):
        decoding = translator().prepare(beam=1)
        with TraceWriter(tmp_path / "t.jsonl", decoding, options) as trace:
            for translation in decoding.translate(trace.lines(LINES)):
                trace.add(translation)
        key = "sentences=3" if options.sentences == 3 else "max_megabytes=1e-09"
        if options.sentences == len(LINES):
            assert (trace.notes, Trace(tmp_path / "t.jsonl").complete) == ([], True)
        else:
            assert f"of {len(LINES)} lines: it reached trace_options.{key}" in trace.notes[0]
    only = LINES[:1]
    traced(translator(), tmp_path / "t.jsonl", only, options=TraceConfig(max_megabytes=1e-9), beam=1)
    assert Trace(tmp_path / "t.jsonl").complete, "the limit was reached by the last line"


def test_attention(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    decoding = translator().prepare(Details(attention=True))
    with TraceWriter(path, decoding) as trace:
        for translation in decoding.translate(trace.lines(LINES)):
            trace.add(translation)
    for sentence in Trace(path):
        for item in sentence.hypotheses[:1]:
            assert item.attention is not None
            assert [len(row) for row in item.attention] == [len(sentence.source_pieces)] * len(item.tokens)
            assert all(sum(row) == pytest.approx(1, abs=0.01) for row in item.attention)


def test_strategies_without_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"generation\.search=exact has a loop of its own"):
        traced(translator(), tmp_path / "t.jsonl", search=ExactSearch(), beam=1, max_len=3)


def _records(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


DAMAGES: dict[str, Any] = {
    "incomplete": lambda r: r[:-1],
    r"o.jsonl is a trace of version 1; this seqgen reads version 2; decode again, or use": (
        lambda r: [{**r[0], "version": 1}, *r[1:]]
    ),
    "a trace of version None": lambda r: [{k: v for k, v in r[0].items() if k != "version"}, *r[1:]],
    "not a trace": lambda r: [{}, *r[1:]],
    "its checksum is not that": lambda r: [*r[:3], *r[4:]],
    "damaged: its checksum": lambda r: [r[0], {**r[1], "pieces": {}}, *r[2:]],
}


def test_damaged_traces(tmp_path: Path) -> None:
    path, other = tmp_path / "t.jsonl", tmp_path / "o.jsonl"
    traced(translator(), path, beam=3)
    records = _records(path)
    for words, damage in DAMAGES.items():
        other.write_text("".join(json.dumps(record) + "\n" for record in damage(records)))
        with pytest.raises(DataError, match=words):
            Trace(other)
    for content, words in (
        (b"", "not a trace"),
        (b"\x00\xff\n", "not a trace"),
        (path.read_bytes()[:-9], "incomplete"),
        (gzip.compress(path.read_bytes())[:-20], "gzip"),
        (gzip.compress(path.read_bytes() + b" " * (1 << 23)), "unpacks to more than 4194304 bytes"),
    ):
        other.write_bytes(content)
        with pytest.raises(DataError, match=words):
            Trace(other)
    for nowhere in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            Trace(nowhere)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r[0].pop("beam"),
        lambda r: r[0]["ranking"].update(len_penalty=1e9),
        lambda r: r[1].update(steps=3),
        lambda r: r[1]["hypotheses"][0].update(score=math.inf),
    ],
)
def test_wrong_values_with_the_right_checksum(change: Callable[[list[Any]], Any], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    traced(translator(), path, beam=3)
    *records, end = _records(path)
    change(records)
    body = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(body + json.dumps({**end, "crc32": zlib.crc32(body.encode())}) + "\n")
    refused(command("show", f"{path}"), "t.jsonl is damaged: it has values that seqgen-generate does not write")


@pytest.mark.nightly
def test_random_damage_raises_nothing_else(tmp_path: Path) -> None:
    path, other = tmp_path / "t.jsonl", tmp_path / "o.jsonl"
    traced(translator(2), path, LINES[:3], ["w1 w2"] * 3, beam=2, no_repeat_ngram_size=1)
    content, rng, messages = path.read_bytes(), random.Random(0), []
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 3))):
            damaged[rng.randrange(len(damaged))] = rng.choice(b'0123456789,.[]{}":-enulCFBI')
        other.write_bytes(bytes(damaged))
        try:
            trace = Trace(other)
            page_of(trace)
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert all(len(message) < 600 and "\n" not in message for message in messages)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    data = corpus(folder / "data")
    outcome = command(
        "train", *training_arguments(data, folder / "a"), *SMALL_TRANSFORMER, "optimization.max_update=10"
    )
    assert outcome.code == 0, outcome.err
    return folder


@pytest.mark.slow
def test_the_commands(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    of_decode = ("path=a", "generation.max_len_b=9", "generation.nbest=3", "format=json")
    plain = command("generate", *of_decode, "output=plain.json")
    outcome = command("generate", *of_decode, "output=o.json", "trace=t.jsonl.gz")
    assert (plain.code, outcome.code) == (0, 0), outcome.err
    assert (run / "o.json").read_text() == (run / "plain.json").read_text()
    for sentence, record in zip(Trace("t.jsonl.gz"), _records(run / "o.json"), strict=True):
        assert [item.text for item in sentence.hypotheses] == [item["text"] for item in record["hypotheses"]]
    many = (run / "data/test.en").read_text() * 2
    assert many.count("\n") > 33
    (run / "many.en").write_text(many)
    cleaned = ("path=a", "input=many.en", "generation.max_len_b=9", "detokenize=de")
    texts = command("generate", *cleaned, "trace=c.jsonl").out.splitlines()
    found = [sentence.hypotheses[0].text for sentence in Trace("c.jsonl")]
    assert found == texts, "also where lines are written together"
    outcome = command("generate", *cleaned, "trace=c.jsonl", "trace_options.sentences=3", "output=o.txt")
    assert "the trace has only the first 3 of 40 lines" in outcome.err
    assert "c.jsonl has only the first 3 lines" in command("show", "c.jsonl").err
    outcome = command("show", "t.jsonl.gz")
    assert (outcome.code, outcome.out.split(":")[0]) == (0, "wrote t.html"), outcome.err
    assert "http" not in (run / "t.html").read_text().replace("http://www.w3.org/2000/svg", "")


REFUSED = [
    ("generate", ("path=a", "trace=t.txt"), "must end in .jsonl or .jsonl.gz"),
    ("generate", ("path=a", "trace_options.sentences=3"), "has no effect without trace=FILE"),
    (
        "generate",
        ("path=a", "input=data/test.en", "trace=e.jsonl", "trace_options.reference_scores=true"),
        "trace_options.reference_scores has no effect without references",
    ),
    ("show", ("data/test.en",), "is not a trace"),
    ("show", ("data/test.en", "data/test.de"), "a page shows one trace, but data/test.en and data/test.de were given"),
    ("show", ("data/test.en", "sort=bleu"), "sort=bleu has no effect on a trace"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments", "words"), REFUSED)
def test_what_is_refused(
    name: str, arguments: tuple[str, ...], words: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    outcome = command(name, *arguments)
    assert outcome.code == 2, outcome.err
    assert words in outcome.err.splitlines()[-1], outcome.err
    assert "Traceback" not in outcome.err
