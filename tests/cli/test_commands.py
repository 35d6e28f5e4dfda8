"""The commands as a user types them: normal use, every format, and the messages for bad input."""

import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from seqgen import GenerationConfig, save_generation
from seqgen.checkpoints.run_checkpoints import Checkpoints, numbered_checkpoints, read_training_state, read_weights
from seqgen.cli import command as seqgen_command, end_now
from seqgen.cli.generate import line_progress
from seqgen.cli.output import check_output, open_output
from seqgen.config import GenerateConfig, JobConfig
from seqgen.extend import TextDecoding, Translation, UserError, load_model, run_lock
from tests.commands import SMALL_FCONV, command, done, refused, sentences, training_arguments

LOSING = """
import sys
sys.argv = ["seqgen-train"]
import os, signal, seqgen.cli.start
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:  # as some imports do
    print("lost")
"""


def test_ctrl_c_is_not_lost_before_the_work_begins() -> None:
    ended = subprocess.run([sys.executable, "-c", LOSING], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "seqgen-train: interrupted\n")


def test_ctrl_c_is_an_exception_as_soon_as_the_work_begins(data: Path) -> None:
    before = signal.signal(signal.SIGINT, end_now)
    try:
        assert command("score", f"hypothesis={data}/test.de", f"reference={data}/test.de").code == 0
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_folder_can_be_moved_and_has_no_path_to_itself(runs: Path, data: Path, tmp_path: Path) -> None:
    before = command("generate", f"path={runs}/fconv", f"input={data}/test.en")
    shutil.copytree(runs / "fconv", tmp_path / "elsewhere")
    after = command("generate", f"path={tmp_path}/elsewhere", f"input={data}/test.en")
    assert (before.code, after.code) == (0, 0)
    assert before.out == after.out
    for file in (tmp_path / "elsewhere").rglob("*"):
        if file.is_file():
            assert str(runs).encode() not in file.read_bytes(), file
    assert not [file for file in (runs / "fconv").rglob("*") if file.suffix in (".pt", ".pkl", ".pickle")]


def test_text_gives_line_n_for_line_n(runs: Path, tmp_path: Path) -> None:
    """Also where a line is empty, has other ends of lines, or text that is not in the vocabulary."""
    lines = [pair[0] for pair in sentences(400, 9)]
    lines[3:3] = ["", "the dog\u2028sees 🐕", "   ", "\x00"]
    source, model = tmp_path / "source.en", f"path={runs}/transformer"
    source.write_bytes("\n".join(lines).encode())  # the last line has no \n
    outcome = done("generate", model, f"input={source}", f"output={tmp_path}/out.de")
    written = (tmp_path / "out.de").read_bytes().decode().split("\n")
    assert len(written) == len(lines) + 1
    assert (written[3], written[5], written[-1]) == ("", "", "")
    assert "lines 4, 6: the line is empty" in outcome.err
    assert "lines 5, 7: the model reads an unknown token in place of text that is not in its vocab" in outcome.err
    assert r": 🐕 \x00" in outcome.err
    alone = command("generate", model, "input=-", stdin=(lines[7] + "\n").encode())
    assert alone.out == written[7] + "\n"


def test_scores_end_the_report(runs: Path, data: Path, tmp_path: Path) -> None:
    files = (f"input={data}/test.en", f"reference={data}/test.de")
    to_file = command("generate", f"path={runs}/fconv", *files, f"output={tmp_path}/h.de")
    to_stdout = command("generate", f"path={runs}/fconv", *files)
    assert not [word for word in ("bleu = ", "chrf = ", "exact_match = ", "version:", "sentences/s")
                if word not in to_file.out]  # fmt: skip
    assert "bleu = " in to_stdout.err
    assert to_stdout.out == (tmp_path / "h.de").read_text()
    scored = command("score", f"hypothesis={tmp_path}/h.de", f"reference={data}/test.de")
    assert [line for line in to_file.out.splitlines() if " = " in line] == scored.out.splitlines()
    split = command("generate", f"path={runs}/fconv", f"output={tmp_path}/split.de")
    assert (tmp_path / "split.de").read_text() == to_stdout.out
    assert [line for line in split.out.splitlines() if " = " in line] == scored.out.splitlines()
    lines = command("generate", f"path={runs}/fconv", *files, "format=fairseq").out.splitlines()
    assert lines[1] == "T-0\t" + sentences(400, 1)[0][1]


def test_the_scorer_command_combines_as_the_first_model_is_combined(runs: Path, data: Path, tmp_path: Path) -> None:
    def scores(first: Path, *keys: str) -> list[float]:
        files = (f"source={data}/test.en", f"reference={data}/test.de")
        outcome = command("score", f"path=[{first},{runs}/transformer]", *files, *keys)
        return [json.loads(line)["score"] for line in outcome.out.splitlines()]

    own = Path(shutil.copytree(runs / "fconv", tmp_path / "own"))
    save_generation(own, GenerationConfig(combination="log"))
    plain = runs / "fconv"
    assert scores(own) == pytest.approx(scores(plain, "generation.combination=log"), abs=1e-6)
    assert scores(own) != pytest.approx(scores(plain), abs=1e-3)
    assert scores(plain, "combination.weights=[3,1]") != pytest.approx(scores(plain), abs=1e-3)
    assert scores(own, "generation.combination=probability") == pytest.approx(scores(plain), abs=1e-6)


def test_average_looks_for_checkpoints_when_it_has_the_lock(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "fconv", run)

    @contextlib.contextmanager
    def training_ends_meanwhile(folder: Path) -> Iterator[None]:
        newest = numbered_checkpoints(folder / "checkpoints", "epoch")[-1]
        weights, state = read_weights(newest), read_training_state(newest)
        Checkpoints(folder).save(["epoch_99"], weights, {**state, "update": 1000})
        Checkpoints(folder).prune("epoch", 2)
        with run_lock(folder):
            yield

    monkeypatch.setattr("seqgen.training.averaging.run_lock", training_ends_meanwhile)
    average = ("convert", "format=average", f"path={run}", "last=2")
    outcome = done(*average, f"output={tmp_path}/average")
    assert "epoch_99" in outcome.out
    with run_lock(run):
        monkeypatch.undo()
        refused(command(*average, f"output={tmp_path}/another"), "in use by another process")


def test_preparing_then_training_encodes_nothing_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no folder but the run appears."""
    monkeypatch.chdir(tmp_path)
    arguments = [*training_arguments(data, Path("run")), *SMALL_FCONV]
    outcome = done("train", "prepare_only=true", *arguments)
    assert "train: 300 pairs" in outcome.out
    assert "prepare_only" not in (tmp_path / "run" / "config.yaml").read_text()
    stores = {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "cache").rglob("*") if file.is_file()}
    assert stores
    assert command("train", *arguments, "optimization.max_update=2").code == 0
    assert all(file.stat().st_mtime_ns == time for file, time in stores.items())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_gives_its_model_its_tokenizer_and_its_task_to_a_new_one(runs: Path, tmp_path: Path) -> None:
    """The new text is too small for a vocabulary of its own."""
    for language, text in (("en", "the dog sees a man\n"), ("de", "der Hund sieht einen Mann\n")):
        (tmp_path / f"few.{language}").write_text(text)
    keys = [f"task.train={tmp_path}/few", f"task.valid={tmp_path}/few", "optimization.max_update=1", "common.threads=1"]
    keys += [f"checkpoint.finetune_from={runs}/fconv", "model.dropout=0.3"]
    old = load_model(runs / "fconv")
    for name, further in (("new", []), ("config", [f"config={runs}/fconv/config.yaml"])):
        done("train", f"run_dir={tmp_path / name}", *keys, *further)
        new = load_model(tmp_path / name)
        assert new.config.model == replace(old.config.model, dropout=0.3)
        assert new.task.target_tokenizer.fingerprint() == old.task.target_tokenizer.fingerprint()
        assert new.config.task.source_lang == "en"
    refused(command("train", f"run_dir={tmp_path / 'x'}", *keys, "model=transformer_tiny"),
            "these are the weights of a model=fconv, and the model here is a TransformerModel")  # fmt: skip


class TestRefused:
    """Input that cannot be used gives one sentence and exit code 2."""

    def test_the_built_in_example_is_not_trained_without_a_word(self, data: Path) -> None:
        said = "no task is given, so the built-in example is trained: task=number_names\n"
        assert said in command("train", f"run_dir={data}/test.en").err
        assert said not in command("train", "task=number_names", f"run_dir={data}/test.en").err

    def test_an_older_file_that_cannot_be_written_over(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        old = tmp_path / "old"
        old.write_text("kept")
        check_output("output", str(old), in_place=True)
        monkeypatch.setattr(Path, "open", mock.Mock(side_effect=PermissionError(13, "Permission denied")))
        with pytest.raises(UserError, match=r"cannot write output=.*old: Permission denied"):
            check_output("output", str(old), in_place=True)
        check_output("json", str(old))
        monkeypatch.undo()
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old": "kept"}, "nothing is left behind"

    @pytest.mark.parametrize("decoded", [0, 2])
    def test_an_interrupted_decode_keeps_what_is_written(
        self, runs: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: int
    ) -> None:
        """An older output stays until the first new one is there."""

        def interrupted(*arguments: Any, **keys: Any) -> Iterator[Translation]:
            yield from itertools.islice(translate(*arguments, **keys), decoded)
            raise KeyboardInterrupt

        keys = (f"path={runs}/fconv", f"input={data}/test.en", f"output={tmp_path}/out.de")
        assert command("generate", *keys).code == 0
        before, translate = (tmp_path / "out.de").read_text().splitlines(), TextDecoding.translate
        monkeypatch.setattr(TextDecoding, "translate", interrupted)
        outcome = command("generate", *keys)
        said = f"{decoded} lines are decoded, and their outputs written"
        assert (outcome.code, outcome.err.splitlines()[-2]) == (130, said)
        assert (tmp_path / "out.de").read_text().splitlines() == before[: decoded or None]

    def test_lines_of_progress_without_a_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        cfg = GenerateConfig(input="in", job=JobConfig(progress=1e-9))
        with line_progress(cfg, 4) as advance:
            advance()
        assert capsys.readouterr().err.startswith("1 of 4 lines (25 %)")

    def test_a_full_disk(self) -> None:
        message = "cannot write standard output: No space"
        with open("/dev/full", "w") as full, mock.patch("sys.stdout", full):  # noqa: SIM117
            with pytest.raises(UserError, match=message), open_output("-") as file:
                file.write("text")

    def test_what_was_decoded_before_a_bad_line_is_kept(self, runs: Path, tmp_path: Path) -> None:
        text = b"the dog sees a man\nthe tree has a ball\nb\xffd\n"
        common = (f"path={runs}/fconv", f"output={tmp_path}/out.de", "generation.buffer_size=1")
        refused(command("generate", *common, "input=-", stdin=text), "line 3", "UTF-8")
        assert len((tmp_path / "out.de").read_text().splitlines()) == 2

    def test_vocabularies_that_do_not_fit(self, runs: Path, data: Path, tmp_path: Path) -> None:
        """To the other member of an ensemble, with a search that has one vocabulary; and to the model itself."""
        other = [*training_arguments(data, tmp_path / "other"), "task.vocab_size=40", *SMALL_FCONV]
        assert command("train", *other, "optimization.max_update=1").code == 0
        path = f"path=[{runs}/fconv,{tmp_path}/other]"
        refused(command("generate", path, "input=-", "generation.sampling=true"), "generation.sampling", "vocabularies")
        (tmp_path / "other" / "checksums.json").unlink()
        shutil.rmtree(tmp_path / "other" / "tokenizer")
        shutil.copytree(runs / "fconv" / "tokenizer", tmp_path / "other" / "tokenizer")
        refused(command("generate", f"path={tmp_path}/other", "input=-"), "vocabulary")


def test_an_installed_plugin_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed_plugin.py").write_text(
        "from seqgen.registry import register_criterion\nfrom seqgen.training.criteria import Criterion\n\n"
        "@register_criterion('of_an_installed_plugin')\nclass Plugin(Criterion):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugin = EntryPoint("good", "installed_plugin", "seqgen.plugins")
    broken = EntryPoint("broken", "no_such_module", "seqgen.plugins")
    monkeypatch.setattr(seqgen_command, "entry_points", lambda group: [plugin] if group == "seqgen.plugins" else [])
    assert "criterion=of_an_installed_plugin" in command("train", "--help", "all").out
    monkeypatch.setattr(seqgen_command, "entry_points", lambda group: [broken])
    refused(command("train", "--help"), "'broken'", "no_such_module")
