"""Jobs without models: parts, continuing, refusals, faults of lines, workers and disks."""

import errno
import gzip
import io
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from seqgen.addons.jobs.folder import MAX_NOTES, JobFolder, counted, manifest_of, merged_notes
from seqgen.addons.jobs.processes import LocalWorkers
from seqgen.addons.jobs.source import Source, cut, find_source, plan_parts, text_digest
from seqgen.addons.jobs.workers import Answers, Builder, Piece, answer, start_error
from seqgen.extend import CheckpointError, ConfigError, DataError, LineProgress, ResourceError, UserError, duration
from tests.addons.jobs.decoders import TOKENS, Bench, Capitals, InlineWorkers, capitals, expected, numbered, outputs

LINES = numbered(47)


def ledger(bench: Bench) -> list[dict[str, Any]]:
    file = bench.root / "job" / "errors.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_output_n_is_that_of_line_n(bench: Bench) -> None:
    assert bench.run() == expected(LINES)
    assert bench.messages == ["a note on the model"]
    records = [json.loads(line) for line in (bench.root / "job" / "done.jsonl").read_text().splitlines()]
    assert {note["note"] for record in records for note in record["notes"]} == {"the line is empty"}
    assert sum(known.tokens for known in bench.job().folder.done.values()) == TOKENS * len(LINES)


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20])
def test_any_number_of_lines(count: int, tmp_path: Path) -> None:
    bench, lines = Bench(tmp_path), numbered(count)
    bench.write(lines)
    assert bench.run() == expected(lines)


def test_a_finished_part_is_not_decoded_again(bench: Bench) -> None:
    bench.run()
    assert bench.job().undone() == []
    file = bench.root / "job" / "parts" / "part-00000002.txt"
    content = file.read_bytes()
    for damage in (file.unlink, lambda: file.write_bytes(content[:-1]), lambda: file.write_bytes(content + b"x")):
        damage()
        workers = InlineWorkers()
        assert bench.run(workers) == expected(LINES)
        assert {piece.part for piece in workers.given} == {2}
        assert file.read_bytes() == content
    job = bench.job()
    file.write_bytes(b"shorter")
    with pytest.raises(DataError, match=r"part-00000002.txt has changed since it was written; delete it"):
        job.folder.merge(io.BytesIO(), lambda: None)


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b'{"part": 1, "lines'])
def test_a_damaged_journal_counts_for_nothing(damage: bytes, bench: Bench) -> None:
    bench.run()
    journal = bench.root / "job" / "done.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:3]) + damage)
    workers = InlineWorkers()
    assert bench.run(workers) == expected(LINES)
    assert len({piece.part for piece in workers.given}) == 2
    assert bench.job().undone() == []


def test_a_folder_with_files_of_the_user_is_refused(bench: Bench) -> None:
    (bench.root / "job").mkdir()
    mine = bench.root / "job" / "done.jsonl"
    mine.write_bytes(b"mine, without an end of line")
    with pytest.raises(ConfigError, match=r"has done.jsonl, but no manifest.json of a job"):
        bench.run()
    assert mine.read_bytes() == b"mine, without an end of line"


def test_a_file_name_that_is_not_utf_8(tmp_path: Path) -> None:
    name = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    name.write_bytes(b"one\ntwo\n")
    plan = plan_parts(Source((name,)), 10)
    for _ in range(2):  # written, then compared
        JobFolder(tmp_path, ".txt").open(manifest_of({}, {}, 10, plan, {}), plan.parts)
    assert "caf\\\\udce9" in (tmp_path / "manifest.json").read_text()


@pytest.mark.parametrize(
    "change", [lambda lines: lines[:-1], lambda lines: [*lines, "more"], lambda lines: [*lines[:25], "x", *lines[26:]]]
)
def test_data_or_models_that_change_under_a_running_job(change: Callable[[list[str]], list[str]], bench: Bench) -> None:
    job = bench.job()
    bench.write(change(LINES))
    with pytest.raises(DataError, match=r"in.txt has changed while the job was running"):
        bench.run(job=job)
    bench.write(LINES)
    with pytest.raises(DataError, match="the models have changed while the job was running"):
        bench.run(InlineWorkers(Capitals(fingerprint="another")))
    assert bench.run() == expected(LINES)


def test_a_line_that_fails_is_in_the_ledger_alone_until_it_is_decoded(bench: Bench) -> None:
    """A part is decoded again if its file is gone."""
    lines = [*LINES[:17], "a nan here", *LINES[18:30], "large", *LINES[31:]]
    bench.write(lines)
    assert bench.run() == expected(lines, 17, 30)
    entries = [
        {"number": 18, "text": "a nan here", "reason": "DecodingError: the scores are NaN"},
        {"number": 31, "text": "large", "reason": "memory ran out, also in a batch of this line alone"},
    ]
    assert ledger(bench) == entries
    for part, left in ((1, entries[1:]), (3, [])):
        (bench.root / "job" / "parts" / f"part-{part:08d}.txt").unlink()
        with mock.patch.object(Capitals, "decode", lambda _, some, first, divisor: Answers(outputs(some, first))):
            bench.run()
        assert ledger(bench) == left
    assert bench.run() == expected(lines)
    assert not (bench.root / "job" / "errors.jsonl").exists()


@pytest.mark.parametrize(
    ("error", "stops", "words"),
    [
        (CheckpointError("the weights were changed"), ResourceError, "the weights were changed; remove the cause"),
        (OSError(errno.ENOSPC, "No space left on device"), ResourceError, "No space left .* same command again"),
        (RuntimeError("CUDA error: unspecified launch failure"), SystemExit, "CUDA error"),
    ],
)
def test_no_line_is_given_up_for_the_failure_of_a_machine(
    error: Exception, stops: type[BaseException], words: str, bench: Bench
) -> None:
    """The same command decodes the lines when the failure is gone."""
    workers = InlineWorkers()
    with mock.patch.object(Capitals, "decode", side_effect=error), pytest.raises(stops, match=words):
        bench.run(workers)
    assert ledger(bench) == []
    assert bench.run() == expected(LINES)


def test_memory_that_runs_out() -> None:
    """The batch is halved."""
    decoder = Capitals(room=3)
    lines = [f"x{i}" for i in range(32)]
    found = answer(decoder, Piece(0, 5, lines))
    assert (found.outputs, found.failures) == (outputs(lines, 5), [])
    assert decoder.calls[:3] == [(32, 1), (16, 2), (8, 4)]
    assert len(decoder.calls) == 7  # the smaller batches are kept to within each half
    decoder = Capitals()
    assert len(answer(decoder, Piece(0, 0, [*"abcdefg", "nan"])).failures) == 1
    assert {divisor for _, divisor in decoder.calls} == {1}, "which fails for another reason"
    while_loading = start_error(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert (type(while_loading), "choose fewer workers" in str(while_loading)) == (ResourceError, True)
    assert isinstance(start_error(KeyError("x")), RuntimeError)


def test_notes_are_counted_by_their_text() -> None:
    first = [(2, "short"), (3, "long"), (4, "short"), *((10 + i, f"note {i}") for i in range(MAX_NOTES))]
    second = [(51, "new"), (52, "short"), (53, "long")]
    each = ([{"note": text, "lines": 1, "first_line": line} for line, text in some] for some in (first, second))
    notes = merged_notes({"notes": counted(some)} for some in each)
    assert notes[:3] == ["line 2 and 2 others: short", "line 3 and 1 others: long", "line 10: note 0"]
    assert notes[MAX_NOTES:] == ["... and 3 further notes; format=json writes all of them"]


def test_a_job_in_which_everything_fails_is_stopped(bench: Bench) -> None:
    bench.write(["nan"] * 450)
    for _ in range(2):  # also when it is continued, after lines that have all failed
        with pytest.raises(ResourceError, match=r"the first 1\d\d lines all failed.*NaN"):
            bench.run()


@pytest.mark.parametrize("of_processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_line_that_kills_its_worker_is_given_up(of_processes: bool, tmp_path: Path) -> None:
    bench, lines = Bench(tmp_path, part_lines=100, piece_lines=50), numbered(200)
    lines[137] = "kill"
    bench.write(lines)
    inline = InlineWorkers(deaths=lambda piece: "kill" in piece.lines)
    with closing(LocalWorkers(capitals, 2) if of_processes else inline) as workers:
        assert bench.run(workers) == expected(lines, 137)
    (entry,) = ledger(bench)
    assert (entry["number"], entry["text"]) == (138, "kill")
    assert entry["reason"].startswith("2 workers died while they decoded it: was ended by SIGKILL")
    alone = [piece for piece in inline.given if len(piece.lines) == 1 and not piece.reason]
    assert len(alone) <= 5, "the others are not decoded one by one"


def test_workers_that_die_at_random_change_nothing(bench: Bench) -> None:
    rng = random.Random(1)
    workers = InlineWorkers(deaths=lambda piece: len(piece.lines) > 1 and rng.random() < 0.4)
    assert bench.run(workers) == expected(LINES)
    assert ledger(bench) == []
    assert any("smaller pieces" in message for message in bench.messages)


class KilledError(BaseException):
    """Stands for a kill."""


OPERATIONS = ("fsync", "replace", "chmod", "truncate", "unlink", "mkdir", "open", "write")
REAL = {name: getattr(os, name) for name in OPERATIONS}


@contextmanager
def failing(limit: int, error: Callable[[], BaseException], after: bool = False) -> Iterator[list[str]]:
    """Raise an error at file operation number ``limit``, before or after it; a killed process does nothing more."""
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:

            def wrapper(*args: Any, _name: str = name, _real: Any = REAL[name], **kwargs: Any) -> Any:
                seen.append(_name)
                dead = len(seen) > limit and error is KilledError
                if dead or (len(seen) == limit and not after):
                    raise error()
                result = _real(*args, **kwargs)
                if len(seen) == limit:
                    raise error()
                return result

            patch.setattr(os, name, wrapper)
        yield seen


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_every_file_operation(after: bool, tmp_path: Path) -> None:
    lines = numbered(11)
    limit, killed, seen = 0, 0, [""]
    while limit <= len(seen):
        limit += 1
        bench = Bench(tmp_path / str(limit), part_lines=6)
        bench.root.mkdir()
        bench.write(lines)
        with failing(limit, KilledError, after) as seen, suppress(KilledError):
            bench.run()
        killed += limit <= len(seen)
        assert bench.run() == expected(lines), limit
        assert not list(bench.root.rglob("*.tmp")), limit
    assert killed > 20


def test_a_full_disk_at_every_file_operation(tmp_path: Path) -> None:
    limit, errors, seen = 0, list[Exception](), [""]
    bench = Bench(tmp_path, part_lines=6)
    bench.write(numbered(12))
    while limit <= len(seen):
        limit += 1
        with failing(limit, lambda: OSError(errno.ENOSPC, "No space")) as seen:
            try:
                bench.run()
            except Exception as error:
                errors.append(error)
    assert len(errors) > 5
    assert all(isinstance(error, UserError) and "No space" in str(error) for error in errors)
    assert bench.run() == expected(numbered(12))


def test_progress_says_what_people_want_to_know() -> None:
    said: list[str] = []
    for total, before, seconds, lines in ((900, 100, 10, 400), (None, 0, 10, 40), (200, 0, 60, 1)):
        progress = LineProgress(total, before, 1, 1e-9, said.append)
        progress.start -= seconds
        progress.advance(lines, 2)
    known, unknown, first = said  # after the first line of a batch there is no speed
    assert known == "500 of 900 lines (55 %), 40.0 lines/s, 10 s left, 3 failed"
    assert (unknown, first) == ("40 lines, 4.0 lines/s, 3 failed", "1 of 200 lines (0 %), 3 failed")
    assert [duration(seconds) for seconds in (45, 720, 12000, 200000)] == ["45 s", "12 min", "3 h 20 min", "2 d 7 h"]


def test_files_of_every_format(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfone\n\ntwo\r x\nthree")
    (folder / "b.txt.gz").write_bytes(gzip.compress("vier\nfünf\u2028\n".encode()))
    (folder / "c.jsonl").write_text('{"text": "six", "id": 1}\n\n{"text": "se\\nven"}\n')
    (folder / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "eight"}'))
    (folder / ".hidden").write_text("no")
    (folder / "inner").mkdir()
    lines = ["one", "", "two\r x", "three", "vier", "fünf\u2028", "six", "se\nven", "eight"]
    assert list(find_source(str(folder)).lines()) == lines
    assert list(find_source(f"{folder}/[ab].*").lines()) == lines[:6]
    assert list(find_source(f"{folder}/b.txt").lines()) == lines[4:6], "as task.train finds a .gz"
    assert next(find_source(f"{folder}/c.jsonl", "text").lines()) == '{"text": "six", "id": 1}'
    plan = plan_parts(find_source(str(folder)), 4)
    assert [(part.first, part.lines) for part in plan.parts] == [(0, 4), (4, 4), (8, 1)]
    assert [count for _, count in plan.files] == [4, 2, 2, 1]
    assert [part.digest for part in plan.parts] == [text_digest(some) for some in cut(lines, 4)]
    assert text_digest(["a", "b"]) != text_digest(["ab"]) != text_digest(["a\nb"])


@pytest.mark.slow
def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def stored(table: dict[str, Any], column: str = "text", **options: Any) -> Iterator[str]:
        parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet", **options)
        return find_source(str(tmp_path / "a.parquet"), column=column).lines()

    rows = [f"line {i}" for i in range(9000)]
    assert list(stored({"text": rows, "n": list(range(9000))}, row_group_size=700)) == rows
    for table, column, words in (
        ({"text": rows}, "txt", "no column 'txt' .did you mean 'text'"),
        ({"n": [1, 2]}, "n", "the values of 'n' are not text but 'int64'"),
        ({"text": [*rows[:5000], None]}, "text", "row 5001: text is None"),
    ):
        with pytest.raises(DataError, match=words):
            list(stored(table, column))
    repeated = pyarrow.array(["x" * (1 << 22)] + [None] * 9).dictionary_encode().take(pyarrow.array([0] * 5000 + [1]))
    for with_schema in (True, False):  # whether the schema says that it is a dictionary
        lines = stored({"text": repeated}, compression="zstd", store_schema=with_schema)
        assert [len(next(lines)) for _ in range(16)] == [1 << 22] * 16
        assert pyarrow.total_allocated_bytes() < 1 << 26
        with pytest.raises(DataError, match=r"row 17: .* up to here has more than 67108864 characters, 1000 times"):
            next(lines)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match="is it a Parquet file"):
        list(find_source(str(tmp_path / "a.parquet")).lines())


def refuse(number: int) -> Capitals:
    raise ConfigError("no such model")


def die(number: int) -> Capitals:
    os._exit(7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "error", "words"),
    [(refuse, UserError, "no such model"), (die, ResourceError, "5 times in a row a worker ended with exit code 7")],
)
def test_workers_that_cannot_load_their_models(
    build: Builder, error: type[UserError], words: str, bench: Bench
) -> None:
    with closing(LocalWorkers(build, 1)) as workers, pytest.raises(error, match=words):
        bench.run(workers)
