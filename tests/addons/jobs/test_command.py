"""``seqgen-generate`` with a job: as a user types it."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from seqgen.addons.jobs import command as job_module
from seqgen.addons.jobs.command import CommandDecoder
from seqgen.checkpoints.serialization import digest, fingerprint
from seqgen.config import GenerateConfig
from seqgen.config.compose import compose
from seqgen.extend import TextDecoding, run_lock
from seqgen.text.translator import Translator
from tests.addons.jobs.decoders import Capitals, InlineWorkers
from tests.addons.jobs.models import FAST, texts, write_lines
from tests.addons.jobs.soak import Soak
from tests.commands import Outcome, command, refused
from tests.text_models import text_model


@pytest.fixture
def folder(runs: Path, place: Path) -> Path:
    """A run, and ``in.txt`` with 60 lines."""
    (place / "run").symlink_to(runs / "transformer")
    return place


def job(folder: Path, *arguments: str) -> Outcome:
    return command("generate", f"path={folder}/run", f"input={folder}/in.txt", *FAST, *arguments)


MODELS = {"model 1 (model.safetensors)": "a"}


@pytest.fixture
def capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of any model are done by workers that need none."""

    def workers(cfg: GenerateConfig, given: dict[str, Any], files: Sequence[str]) -> InlineWorkers:
        digests = {name: digest(Path(name)) for name in files}
        return InlineWorkers(Capitals(fingerprint=fingerprint({**MODELS, **digests})))

    monkeypatch.setattr(job_module, "models_fingerprint", lambda paths: MODELS)
    monkeypatch.setattr(job_module, "_workers", workers)


def test_a_job_is_continued_only_if_its_outputs_would_be_the_same(
    place: Path, tmp_path: Path, capitals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every key that can change an output, and the content of files; not by those that make it faster."""
    with run_lock(tmp_path / "J", "job.folder"):
        refused(job(place, f"job.folder={tmp_path}/J"), "in use by another process", "or choose another job.folder")
    (place / "list").write_text("a\tb\n")
    groups = ("generation.search=diverse_beam", "search.groups=2", f"generation.shortlist={place}/list")
    keys = (*groups, f"job.folder={tmp_path}/J", "format=json", "generation.length_penalty=2")
    begun = job(place, *keys, "job.workers=1")
    assert begun.code == 0, begun.err
    assert "60 lines, 180 tokens" in begun.err
    for key in ("job.workers=3", "generation.batch_size=3", "generation.max_tokens=500", "generation.buffer_size=7"):
        again = job(place, *keys, key)
        assert (again.code, "60 of 60 lines were decoded before" in again.err) == (0, True), (key, again.err)
    changed = ("search.groups=4", "search.strength=0.3", "format=text", "fast.use_cache=false")
    for key in ("generation.length_penalty=1", *changed):
        name = key.partition("=")[0]
        refused(job(place, *(old for old in keys if not old.startswith(f"{name}=")), key), f"was started with {name}=")
    refused(job(place, *keys, "job.part_lines=7"), "was started with job.part_lines=")
    (place / "list").write_text("a\tc\n")
    refused(job(place, *keys), f"was started with another {place}/list")
    (place / "list").write_text("a\tb\n")
    monkeypatch.setattr(job_module, "models_fingerprint", lambda paths: dict.fromkeys(MODELS, "b"))
    refused(job(place, *keys), "was started with another model 1")


def test_lines_that_fail_and_a_machine_that_fails(place: Path, capitals: None) -> None:
    write_lines(place / "in.txt", ["one", "nan", "three"])
    keys = (f"output={place}/out", "job.part_lines=1")
    outcome = job(place, *keys)
    assert (outcome.code, (place / "out").read_text()) == (3, "0 ONE\n\n2 THREE\n")
    assert f"1 line could not be decoded and got no answer; see {place}/out.parts/errors.jsonl" in outcome.err
    (place / "out.parts" / "parts" / "part-00000002.txt").unlink()
    with mock.patch.object(Capitals, "decode", side_effect=OSError(errno.ENOSPC, "No space left on device")):
        refused(job(place, *keys), "No space left on device", f"; 2 lines are done and kept in {place}/out.parts")


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "available_cores", lambda: 8)
    monkeypatch.setattr(job_module, "LocalWorkers", lambda build, count: (count, build.threads))
    for count, wanted in ((1, 8), (3, 2), (20, 1)):
        cfg = compose(GenerateConfig, ["path=x", f"job.workers={count}"])
        assert job_module._workers(cfg, {}, ()) == (count, wanted)


def test_a_worker_answers_in_smaller_batches_as_in_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = Translator(text_model(), max_len_b=6).prepare()
    monkeypatch.setattr(job_module, "prepare_decoding", lambda *_: ([], decoding))
    monkeypatch.setattr(job_module, "models_fingerprint", lambda paths: MODELS)
    decoder, in_json = (
        CommandDecoder(compose(GenerateConfig, ["path=x", *keys]), {}, torch.device("cpu"), ())
        for keys in ((), ("format=json",))
    )
    lines = ["w1 w2", "", *(f"w{i} w3" for i in range(6))]
    with mock.patch.object(TextDecoding, "translate", autospec=True, side_effect=TextDecoding.translate) as translate:
        whole, quarter = decoder.decode(lines, 100, 1), decoder.decode(lines, 100, 4)
    assert whole == quarter
    assert (102, "the line is empty, and so is its output") in whole.notes
    best = [item.tokens for found in decoding.translate(lines) for item in found.hypotheses[:1]]
    assert whole.tokens == sum(map(len, best))
    large, small = (call.args[0].batcher for call in translate.call_args_list)
    assert large.batch_size > len(lines)
    assert (small.batch_size, small.max_tokens) == (len(lines) // 4, large.max_tokens // 4)
    blank = json.loads(in_json.blank("w1", 7, "why"))
    wanted = {"id": 7, "source": "w1", "hypotheses": [], "notes": ["the line failed: why"]}
    assert blank.items() >= wanted.items()


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


def start(folder: Path, place: Path, *arguments: str) -> subprocess.Popen[bytes]:
    keys = [f"path={folder}/run", f"input={place}/in.txt", f"output={place}/out.txt", "job.part_lines=100"]
    command_line = [sys.executable, "-m", "seqgen.cli.generate", *keys, "common.threads=1", *arguments]
    return subprocess.Popen(command_line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)]
)
def test_a_signal_stops_within_seconds(number: signal.Signals, whole_group: bool, folder: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "in.txt", texts(20000))
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
    with suppress(ProcessLookupError):  # the tracker of multiprocessing ends last
        while True:
            os.killpg(process.pid, 0)
            assert time.monotonic() - begin < 10
            time.sleep(0.05)


@pytest.mark.slow
def test_a_reader_that_closes_early(folder: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "in.txt", texts(12_000))
    assert start(folder, tmp_path, *FAST).wait() == 0
    process = start(folder, tmp_path, *FAST, "output=-", f"job.folder={tmp_path}/out.txt.parts")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    _, errors = process.communicate()
    assert (process.returncode, b"Traceback" in errors) == (141, False)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
def test_after_twenty_kills_the_output_is_that_of_an_undisturbed_process(tmp_path: Path) -> None:
    soak = Soak(tmp_path, lines=4000, seed=1, window=6.0)
    soak.run(20)
    assert soak.kills.total() >= 20
    assert soak.kills.keys() == {"driver", "worker", "writing", "merging"}
    assert soak.outcomes >= 1
