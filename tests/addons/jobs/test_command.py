"""``seqgen-generate`` with a job: as a user types it."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.addons.jobs import command as job_module
from seqgen.addons.jobs.command import CommandDecoder
from seqgen.addons.jobs.folder import JOURNAL, JobFolder
from seqgen.checkpoints.serialization import digest, fingerprint
from seqgen.config import GenerateConfig
from seqgen.config.compose import compose
from seqgen.system.files import disk_errors, run_lock
from seqgen.text.text_decoding import TextDecoding
from seqgen.text.translator import Translator
from tests.addons.jobs.decoders import Capitals, InlineWorkers
from tests.addons.jobs.models import COMPONENT, FAST, texts, train
from tests.commands import Outcome, command, refused
from tests.text_models import text_model

LINES = texts(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and ``in.txt`` with 60 lines."""
    root = tmp_path_factory.mktemp("job")
    train(root)
    (root / "in.txt").write_text("".join(line + "\n" for line in LINES))
    return root


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``in.txt`` without a model: what is refused before a model is read."""
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in LINES))
    return tmp_path


def job(folder: Path, *arguments: str) -> Outcome:
    return command("generate", f"path={folder}/run", f"input={folder}/in.txt", *FAST, *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["job.workers=2"], "a job needs a folder for its parts; set job.folder=FOLDER or output=FILE"),
        (["job.folder=J", "input=-"], "a job reads its input more than once"),
        (["job.folder=J", "input=nothing.txt"], "there is no such file"),
        (["job.folder=J", "reference=x"], "reference cannot be used in a job"),
        (["job.folder=J", "record=x.json"], "record cannot be used in a job"),
        (["ray.gpus=1", "job.folder=J"], "ray.gpus needs engine=ray"),
        (["job.folder=J", "print_alignment=true"], "print_alignment=true needs format=fairseq"),
        (["job.folder=J", "output=no/such/folder/out.txt"], "does not exist"),
    ],
)
def test_what_cannot_be_used(arguments: list[str], words: str, place: Path) -> None:
    refused(job(place, *(argument.replace("=J", f"={place}/J") for argument in arguments)), words)


def test_places_that_cannot_be_used(place: Path) -> None:
    folder, tmp_path = place, place / "other"
    refused(job(folder, f"job.folder={folder}/in.txt"), "is a file; give a folder")
    refused(job(folder, "job.workers=1", f"output={folder}/in.txt"), "would overwrite the input")
    refused(
        job(folder, f"input={folder}", f"output={folder}/o.txt", f"job.folder={tmp_path}/K"),
        "would be part of input=",
    )
    refused(job(folder, f"input={folder}/*.txt", f"output={folder}/o.txt", "job.workers=1"), "would be part of")
    refused(job(folder, f"input={folder}", f"job.folder={folder}"), "would be part of input=")
    with run_lock(tmp_path / "J", "job.folder"):
        refused(job(folder, f"job.folder={tmp_path}/J"), "in use by another process", "or choose another job.folder")
    refused(job(folder, f"job.folder={tmp_path}/J"), "there is no such file or folder")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder in which nobody can create files")
def test_a_place_that_cannot_be_written_is_found_before_the_models_are_loaded(place: Path) -> None:
    refused(job(place, "output=/proc/o", f"job.folder={place}/J"), "cannot write output=/proc/o:")


def test_without_the_addon_a_job_is_refused_in_one_sentence(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.import_module

    def without(name: str) -> Any:
        if name.startswith("seqgen.addons.jobs"):
            raise ModuleNotFoundError(name="seqgen.addons.jobs")
        return found(name)

    monkeypatch.setattr("seqgen.registry.importlib.import_module", without)
    outcome = job(place, "job.workers=2", f"output={place}/out")
    keys = "(engine=ray, job.*)"
    refused(outcome, f"a job {keys} belongs to the add-on jobs, which is not installed")


MODELS = {"model 1 (model.safetensors)": "a"}


@pytest.fixture
def capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of any model are done by workers that need none."""

    def workers(cfg: GenerateConfig, given: dict[str, Any], files: Sequence[str]) -> InlineWorkers:
        digests = {name: digest(Path(name)) for name in files}
        return InlineWorkers(Capitals(fingerprint=fingerprint({**MODELS, **digests})))

    monkeypatch.setattr(job_module, "models_fingerprint", lambda paths: MODELS)
    monkeypatch.setattr(job_module, "_workers", workers)


def test_a_full_disk_names_the_file_and_the_lines_that_are_done(
    place: Path, capitals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = JobFolder._append

    def full(folder: JobFolder, line: str) -> int:
        with disk_errors(folder.path / JOURNAL):
            if len(folder.done) == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
        return append(folder, line)

    keys = (f"job.folder={place}/J", "job.part_lines=10", f"output={place}/out")
    with monkeypatch.context() as patch:
        patch.setattr(JobFolder, "_append", full)
        said = f"cannot write {place}/J/done.jsonl: No space left on device; free some space and run again; 20 lines"
        refused(job(place, *keys), f"{said} are done and kept in {place}/J")
    assert not (place / "out").exists()
    assert "20 of 60 lines were decoded before" in job(place, *keys).err
    assert len((place / "out").read_text().splitlines()) == 60


def test_a_job_is_continued_only_if_its_outputs_would_be_the_same(
    place: Path, tmp_path: Path, capitals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every key that can change an output, and the content of files; not by those that make it faster."""
    (place / "list").write_text("a\tb\n")
    groups = ("generation.search=diverse_beam", "search.groups=2", f"generation.shortlist={place}/list")
    keys = (*groups, f"job.folder={tmp_path}/J", "format=json", "generation.length_penalty=2")
    begun = job(place, *keys, "job.workers=1")
    assert begun.code == 0, begun.err
    assert "60 lines, 180 tokens" in begun.err
    for key in ("job.workers=3", "generation.batch_size=3", "generation.max_tokens=500", "generation.buffer_size=7"):
        again = job(place, *keys, key)
        assert (again.code, "60 of 60 lines were decoded before" in again.err) == (0, True), (key, again.err)
    changed = (
        "generation.length_penalty=1",
        "search.groups=4",
        "search.strength=0.3",
        "format=text",
        "fast.use_cache=false",
    )
    for key in changed:
        name = key.partition("=")[0]
        refused(job(place, *(old for old in keys if not old.startswith(f"{name}=")), key), f"was started with {name}=")
    refused(job(place, *keys, "job.part_lines=7"), "was started with job.part_lines=")
    (place / "list").write_text("a\tc\n")
    refused(job(place, *keys), f"was started with another {place}/list")
    (place / "list").write_text("a\tb\n")
    monkeypatch.setattr(job_module, "models_fingerprint", lambda paths: dict.fromkeys(MODELS, "b"))
    refused(job(place, *keys), "was started with another model 1")


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "available_cores", lambda: 8)
    monkeypatch.setattr(job_module, "LocalWorkers", lambda build, count: (count, build.threads))
    for keys, wanted in (
        ([], (1, 8)),
        (["job.workers=3"], (3, 2)),
        (["job.workers=20"], (20, 1)),
        (["job.workers=3", "common.threads=5"], (3, 5)),
    ):
        cfg = compose(GenerateConfig, ["path=x", *keys])
        assert job_module._workers(cfg, {}, ()) == wanted, keys


def test_a_worker_answers_in_smaller_batches_as_in_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = Translator(text_model(), max_len_b=6).prepare()
    monkeypatch.setattr(job_module, "prepare_decoding", lambda *_: ([], decoding))
    monkeypatch.setattr(job_module, "models_fingerprint", lambda paths: MODELS)
    decoder, limits = CommandDecoder(compose(GenerateConfig, ["path=x"]), {}, torch.device("cpu"), ()), []
    translate = TextDecoding.translate

    def recorded(self: TextDecoding, *args: Any) -> Any:
        limits.append((self.batcher.batch_size, self.batcher.max_tokens))
        return translate(self, *args)

    monkeypatch.setattr(TextDecoding, "translate", recorded)
    lines = ["w1 w2", "", *(f"w{i} w3" for i in range(6))]
    whole, quarter = decoder.decode(lines, 100, 1), decoder.decode(lines, 100, 4)
    assert whole == quarter
    assert (102, "the line is empty, and so is its output") in whole.notes
    best = [item.tokens for found in translate(decoding, lines) for item in found.hypotheses[:1]]
    assert whole.tokens == sum(map(len, best))
    (size, tokens), smaller = limits
    assert size > len(lines)
    assert smaller == (len(lines) // 4, tokens // 4)


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["text", "json", "fairseq"])
def test_a_job_writes_what_one_process_writes(output_format: str, folder: Path, tmp_path: Path) -> None:
    keys = (f"format={output_format}", "generation.bit_exact=true", "generation.sampling=true", "generation.beam=1")
    stream = job(folder, *keys)
    assert stream.code == 0, stream.err
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "out")
    outcome = job(folder, *keys, f"output={tmp_path}/out", "job.part_lines=25", "job.workers=2")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "disk" / "out").read_text() == stream.out
    assert "60 lines, " in outcome.out
    assert "the output has the maximum length" in outcome.err
    again = job(folder, *keys, "output=-", f"job.folder={tmp_path}/out.parts", "job.part_lines=25")
    assert (again.code, again.out) == (0, stream.out)
    assert "60 of 60 lines were decoded before" in again.err
    for key in ("generation.seed=2", "job.part_lines=20", "fast.use_cache=false", "generation.length_penalty=0.5"):
        other = job(folder, *keys, "job.part_lines=25", f"job.folder={tmp_path}/out.parts", key)
        refused(other, key.split("=")[0], f"and it is now {key.split('=')[1].capitalize()[0]}"[:-1], "as before")


@pytest.mark.slow
def test_faults_of_lines_go_to_the_ledger(folder: Path, tmp_path: Path) -> None:
    (folder / "faults.py").write_text(COMPONENT)
    lines = [
        "the dog sees a man",
        "the tree has a dog",
        "the boat sees a dog",
        "",
        "the dog has a ball",
        "the man has a dog",
    ]
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines * 2))
    stream = command("generate", f"path={folder}/run", f"input={tmp_path}/in.txt", *FAST)
    outcome = job(
        folder,
        f"input={tmp_path}/in.txt",
        f"common.user_dir={folder}/faults.py",
        "generation.processors=[faults]",
        f"output={tmp_path}/out.txt",
        "job.workers=2",
    )
    assert outcome.code == 3, outcome.err
    wanted = stream.out.splitlines()
    for bad in (1, 4, 7, 10):
        wanted[bad] = ""
    assert (tmp_path / "out.txt").read_text().splitlines() == wanted
    ledger = [json.loads(line) for line in (tmp_path / "out.txt.parts" / "errors.jsonl").read_text().splitlines()]
    assert [(entry["number"], entry["text"]) for entry in ledger] == [(i + 1, (lines * 2)[i]) for i in (1, 4, 7, 10)]
    assert ["NaN" in entry["reason"] for entry in ledger] == [True, False, True, False]
    assert "SIGKILL" in ledger[1]["reason"]
    assert "4 lines could not be decoded" in outcome.err


@pytest.mark.parametrize("kills", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_paragraphs_have_one_output_line_for_each_line(kills: bool, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentencex")
    (folder / "faults.py").write_text(COMPONENT)
    split = ("generation.input_split=sentences", "generation.input_split_lang=en", "format=json")
    lines = ["The dog sees a man.  The man has a dog!", "", " The dog.\tA man? ", "A man. The dog has a ball. A dog."]
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines * 2))
    stream = command("generate", f"path={folder}/run", f"input={tmp_path}/in.txt", *FAST, *split)
    faults = (f"common.user_dir={folder}/faults.py", "generation.processors=[faults]") if kills else ()
    place = (f"input={tmp_path}/in.txt", f"output={tmp_path}/out.txt", "job.part_lines=3")
    outcome = job(folder, *place, *split, *faults)
    assert outcome.code == (3 if kills else 0), outcome.err
    found = [json.loads(line) for line in (tmp_path / "out.txt").read_text().splitlines()]
    wanted = [json.loads(line) for line in stream.out.splitlines()]
    assert [line["source"] for line in found] == lines * 2 == [line["source"] for line in wanted]
    assert [len(line.get("sentences", [])) for line in found] == [2, 0, 2, 0 if kills else 3] * 2
    texts_found, texts_wanted = ([[item["text"] for item in line["hypotheses"]] for line in x] for x in (found, wanted))
    if kills:  # a line fails as a whole
        texts_wanted[3] = texts_wanted[7] = []
    assert texts_found == texts_wanted


@pytest.mark.slow
def test_a_job_with_a_glossary_says_the_same(folder: Path, tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("dog\tBall|Boot\n", encoding="utf-8")
    keys = (f"path={folder}/run", f"input={folder}/in.txt", f"generation.glossary={terms}", "generation.max_len_b=12")
    texts_found, said = [], []
    for name, further in (("plain", ()), ("job", ("job.workers=2", "job.part_lines=20"))):
        outcome = command("generate", *keys, f"output={tmp_path / name}", "format=json", *further)
        assert outcome.code == 0, outcome.err
        found = map(json.loads, (tmp_path / name).read_text(encoding="utf-8").splitlines())
        texts_found.append([([one["text"] for one in each["hypotheses"][:1]], each.get("terms")) for each in found])
        said += re.findall("terms: .*", outcome.err + outcome.out)
    assert texts_found[0] == texts_found[1]
    assert said[0] == said[1]


def start(folder: Path, place: Path, *arguments: str) -> subprocess.Popen[bytes]:
    keys = [f"path={folder}/run", f"input={place}/in.txt", f"output={place}/out.txt", "job.part_lines=100"]
    command_line = [sys.executable, "-m", "seqgen.cli.generate", *keys, "common.threads=1", *arguments]
    return subprocess.Popen(command_line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)]
)
def test_a_signal_stops_within_seconds(number: signal.Signals, whole_group: bool, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in texts(20000)))
    process = start(folder, tmp_path, "job.workers=2")
    journal = tmp_path / "out.txt.parts" / "done.jsonl"
    while not journal.exists():
        assert process.poll() is None
        time.sleep(0.01)
    (os.killpg if whole_group else os.kill)(process.pid, number)  # Ctrl-C reaches all processes
    begin = time.monotonic()
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - begin < 5
    assert process.returncode == 128 + number
    assert b"lines are done and kept in" in errors
    assert b"to continue, run the same command again" in errors
    assert b"Traceback" not in errors
    assert not list(tmp_path.rglob("*.tmp"))
    assert not (tmp_path / "out.txt").exists()
    while _group_exists(process.pid):  # the tracker of multiprocessing ends last
        assert time.monotonic() - begin < 10
        time.sleep(0.05)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_reader_that_closes_early(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in texts(12_000)))
    first = start(folder, tmp_path, "generation.max_len_b=3", "generation.beam=1")
    assert first.wait() == 0
    keys = ("generation.max_len_b=3", "generation.beam=1", "output=-", f"job.folder={tmp_path}/out.txt.parts")
    process = start(folder, tmp_path, *keys)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 141
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
