"""What a user is told of traces: keys, decodes without steps, and files that are damaged."""

import gzip
import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.papers.exact_search.exact import ExactSearch
from seqgen.addons.traces import Trace, page_of
from tests.addons.traces.test_trace import traced, translator
from tests.refusals import Row, refusals


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    traced(translator(), path, beam=3)
    return path


TRACE = "generate path={runs}/fconv input={data}/test.en trace=e.jsonl "
test_keys = refusals(
    ("generate path=a input={trace} trace=t.txt", "must end in .jsonl or .jsonl.gz"),
    ("generate path=a input={trace} trace_options.sentences=3", "has no effect without trace=FILE"),
    (TRACE + "trace_options.reference_scores=true", "trace_options.reference_scores has no effect without references"),
    ("show {trace} {trace}", "a page shows one trace, but", "were given"),
    ("show {trace} sort=bleu", "sort=bleu has no effect on a trace"),
    ("diff", "path is missing: set path=RUN_FOLDER"),
    ("diff path=x input=y other.path=z", "only keys of these groups can be set for one decode: generation, fast"),
    ("diff path=x input=y other.generation.length_penlty=2", "did you mean 'generation.length_penalty'"),
    ("diff path=x input=y generation.input_split=sentences", "cannot be compared step by step"),
    ("diff path=x input=y generation.nbest=2", "generation.nbest has no effect"),
    (
        lambda tmp_path: traced(translator(), tmp_path / "t.jsonl", search=ExactSearch(), beam=1, max_len=3),
        "generation.search=exact has a loop of its own",
    ),
)


def damaged(change: Callable[[bytes], bytes], *words: str) -> Row:
    def read(trace: Path) -> None:
        other = trace.with_name("o.jsonl")
        other.write_bytes(change(trace.read_bytes()))
        page_of(Trace(other))

    return read, *words


def edited(change: Callable[[list[Any]], Any], *words: str, checksum: bool = False) -> Row:
    """With other records; perhaps with the checksum of these."""

    def edit(content: bytes) -> bytes:
        records = [json.loads(line) for line in content.splitlines()]
        change(records)
        if checksum:
            body = "".join(json.dumps(record) + "\n" for record in records[:-1])
            records[-1]["crc32"] = zlib.crc32(body.encode())
        return "".join(json.dumps(record) + "\n" for record in records).encode()

    return damaged(edit, *words)


WRONG = "o.jsonl is damaged: it has values that seqgen-generate does not write"

test_files = refusals(
    damaged(lambda content: b"", "not a trace"),
    damaged(lambda content: b"\x00\xff\n", "not a trace"),
    damaged(lambda content: content[:-9], "incomplete"),
    damaged(lambda content: gzip.compress(content)[:-20], "gzip"),
    damaged(lambda content: gzip.compress(content + b" " * (1 << 23)), "unpacks to more than 4194304 bytes"),
    (lambda tmp_path: Trace(tmp_path / "none"), "cannot be read"),
    (lambda trace: Trace(trace.parent), "cannot be read"),
    edited(lambda records: records.pop(), "incomplete"),
    edited(lambda records: records[0].update(version=1), "a trace of version 1; this seqgen reads version 2; decode"),
    edited(lambda records: records[0].pop("version"), "a trace of version None"),
    edited(lambda records: records[0].clear(), "not a trace"),
    edited(lambda records: records.pop(3), "its checksum is not that"),
    edited(lambda records: records[1].update(pieces={}), "damaged: its checksum"),
    # wrong values with the right checksum
    edited(lambda records: records[0].pop("beam"), WRONG, checksum=True),
    edited(lambda records: records[0]["ranking"].update(len_penalty=1e9), WRONG, checksum=True),
    edited(lambda records: records[1].update(steps=3), WRONG, checksum=True),
    edited(lambda records: records[1]["hypotheses"][0].update(score=math.inf), WRONG, checksum=True),
)
