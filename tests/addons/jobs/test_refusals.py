"""What a user is told of the keys, the places, the input and the folder of a job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from seqgen.addons.jobs.source import Source, find_source, plan_parts
from seqgen.data.text import CHUNK_BYTES
from tests.addons.jobs.decoders import Bench, numbered
from tests.refusals import Row, refusals

JOB = "generate path={place}/run input={place}/in.txt "
HERE = JOB + "job.folder={place}/J "

test_keys = refusals(
    (JOB + "job.workers=2", "a job needs a folder for its parts; set job.folder=FOLDER or output=FILE"),
    (HERE + "input=-", "a job reads its input more than once"),
    (HERE + "input=nothing.txt", "there is no such file"),
    (HERE + "reference=x", "reference cannot be used in a job"),
    (HERE + "record=x.json", "record cannot be used in a job"),
    (HERE + "ray.gpus=1", "ray.gpus needs engine=ray"),
    (HERE + "print_alignment=true", "print_alignment=true needs format=fairseq"),
)

test_places = refusals(
    (HERE + "output=/proc/o", "cannot write output=/proc/o:"),  # before the models are loaded
    (HERE + "output=no/such/folder/out.txt", "does not exist"),
    (HERE, "there is no such file or folder"),
    (JOB + "job.folder={place}/in.txt", "is a file; give a folder"),
    (JOB + "job.workers=1 output={place}/in.txt", "would overwrite the input"),
    (JOB + "input={place} output={place}/o.txt job.folder={place}/K/L", "would be part of input="),
    (JOB + "input={place}/*.txt output={place}/o.txt job.workers=1", "would be part of"),
    (JOB + "input={place} job.folder={place}", "would be part of input="),
)


def changed(change: Callable[[Bench], object], *words: str) -> Row:
    """A job that is continued after a change."""

    def again(bench: Bench) -> None:
        bench.run()
        change(bench)
        bench.run()

    return again, *words, "another job.folder"


def manifest(content: bytes) -> Row:
    return changed(lambda bench: (bench.root / "job" / "manifest.json").write_bytes(content), "manifest.json")


LINES = numbered(47)

test_another_job = refusals(
    changed(lambda bench: bench.settings.update(beam=3), "beam=(not given), and it is now 3; give the same as before"),
    changed(lambda bench: bench.models.update(model="b"), "another model; give the same as before"),
    changed(lambda bench: bench.models.update(list="c"), "list, which is now new"),
    changed(lambda bench: bench.models.clear(), "model, which is now missing"),
    changed(lambda bench: setattr(bench, "part_lines", 5), "job.part_lines=10, and it is now 5"),
    changed(lambda bench: bench.write([*LINES, "more"]), "an input of 47 lines, and it now has 48"),
    changed(lambda bench: bench.write([*LINES[:30], "x", *LINES[31:]]), "an input whose lines 31 to 40 were different"),
    *map(manifest, (b"", b"{}", b"[1]", b'{"format": "seqgen-job", "version": 1}', b"\xff")),
)


def json_lines(content: bytes, *words: str) -> Row:
    def read(tmp_path: Path) -> Any:
        (tmp_path / "x.jsonl").write_bytes(content)
        return plan_parts(Source((tmp_path / "x.jsonl",)), 10)

    return read, *words


LONG = b'{"text": "%b"}\n' % (b"a" * (CHUNK_BYTES - 100))

test_input = refusals(
    (lambda place: find_source(f"{place}/inn.txt"), "no such file", "did you mean 'in.txt'"),
    (lambda place: find_source(str((place / "empty").mkdir() or place / "empty")), "the folder has no files"),
    *(json_lines(LONG * 3 + line, "x.jsonl, line 5") for line in (b"\ntext\n", b'\n{"text": "\xff"}', b"\n[]")),
    json_lines(
        b'\xef\xbb\xbf{"text": "a"}\r\n\r\n{"text": "b"}\r\n3\r\n',
        "line 4, job.column=text: the line is JSON but not an object",
    ),
    json_lines(b'{"txt": "a", "id": 3}\n', "line 1, job.column=text: there is no field", "the line has: txt, id"),
    json_lines(b'\n{"text": null}\n', "line 2, job.column=text: the field"),
)
