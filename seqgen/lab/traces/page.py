"""Writes a trace as one HTML page that needs no network and no server."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

from seqgen.lab.traces.line_trace import StepTrace
from seqgen.lab.traces.reference import reference_path
from seqgen.lab.traces.sentence import LETTERS, SentenceTrace, TracedOutput, next_ranks
from seqgen.lab.traces.trace import Trace

_DIGITS = 4
"""Decimals of scores in the page."""


def page_of(trace: Trace, title: str = "") -> str:
    """The page of a trace.

    Args:
        trace: the trace.
        title: title of the page; the name of the trace's file by default.

    Returns:
        The HTML text.
    """
    data = {
        "title": title or trace.path.name,
        "header": dataclasses.asdict(trace.header),
        "complete": trace.complete,
        "sentences": [_sentence(sentence) for sentence in trace],
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    packed = base64.b64encode(gzip.compress(text.encode("utf-8", "backslashreplace"), 9, mtime=0)).decode()
    folder = resources.files(__package__)
    page = (folder / "page.html").read_text(encoding="utf-8")
    # the data comes last, since its text is not searched for the other marks
    for mark, part in (
        ("/*STYLE*/", (folder / "page.css").read_text(encoding="utf-8")),
        ("/*SCRIPT*/", "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)),
        ("DATA", packed),
    ):
        before, _, after = page.partition(mark)
        page = before + part + after
    return page


SCRIPTS = ("dom.js", "model.js", "tree.js", "panels.js", "page.js")
"""The parts of the page's script, in their order."""


def _sentence(sentence: SentenceTrace) -> dict[str, Any]:
    """A sentence with short keys: its tokens are indices into its list of pieces."""
    known: dict[int, int] = {}

    def index(token: int) -> int:
        return known.setdefault(token, len(known))

    path = reference_path(sentence)
    reference = sentence.reference
    found: dict[str, Any] = {
        "id": sentence.id,
        "source": sentence.source,
        "sourcePieces": list(sentence.source_pieces),
        "steps": [_step(step, index) for step in sentence.steps],
        "hypotheses": [_output(item, index) for item in sentence.hypotheses],
        "reference": None if reference is None else _output(reference, index),
        "fate": None if path is None else {**dataclasses.asdict(path), "fate": str(path.fate)},
        "notes": list(sentence.notes),
    }
    found["pieces"] = [sentence.piece(token) for token in known]
    return found


def _step(step: StepTrace, index: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "s": _numbers(step.scores.tolist()),
        "t": [index(token) for token in step.tokens.tolist()],
        "b": step.beams.tolist(),
        "o": "".join(map(LETTERS.__getitem__, step.outcomes.tolist())),
        "n": next_ranks(step),
    }
    finals = {rank: round(x, _DIGITS) for rank, x in enumerate(step.hypothesis_scores.tolist()) if math.isfinite(x)}
    if finals:
        record["f"] = finals
    if step.members is not None:
        record["m"] = [_numbers(member) for member in step.members.tolist()]
    if step.forbidden:
        record["x"] = [[item.beam, index(item.token), round(item.lprob, _DIGITS), item.by] for item in step.forbidden]
    return record


def _output(item: TracedOutput, index: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": item.text,
        "t": [index(token) for token in item.tokens],
        "s": _numbers(item.scores),
        "score": _number(item.score),
    }
    if item.search_scores:
        record["q"] = _numbers(item.search_scores)
    if item.members:
        record["m"] = [_numbers(member) for member in item.members]
    if item.attention is not None:
        record["a"] = [[round(100 * weight) for weight in row] for row in item.attention]
    return record


def _numbers(values: Sequence[float]) -> list[float | None]:
    return [_number(value) for value in values]


def _number(value: float) -> float | None:
    return round(value, _DIGITS) if math.isfinite(value) else None
