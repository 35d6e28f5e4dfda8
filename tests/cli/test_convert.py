"""A checkpoint of another toolkit becomes a run that decodes as it did and can be trained further."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from seqgen.checkpoints.loading import load_model
from seqgen.cli import convert
from seqgen.cli.record import model_digests
from seqgen.cli.train import with_checkpoint
from tests.commands import command, done, refused
from tests.fairseq_checkpoints import FCONV, TRANSFORMER, dictionary, in_dict, options_of, random_model, write


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write(tmp_path / "theirs", random_model(FCONV), in_dict(options_of(FCONV)))


def decode(path: Path, tmp_path: Path, *further: str) -> str:
    source = tmp_path / "source.txt"
    source.write_text("w1 w2 w3\nw4 w5\n")
    return done("generate", f"path={path}", f"input={source}", "format=json", "generation.max_len_b=12", *further).out


@pytest.mark.parametrize(
    "config", [FCONV, TRANSFORMER, replace(TRANSFORMER, share_all_embeddings=True)], ids=["fconv", "plain", "shared"]
)
def test_the_run_decodes_as_the_checkpoint_does(config: object, tmp_path: Path) -> None:
    path = write(tmp_path / "theirs", random_model(config), in_dict(options_of(config)))
    run = tmp_path / "run"
    done("convert", f"path={path}", f"output={run}")
    expected = decode(path, tmp_path)
    assert decode(run, tmp_path) == expected
    shutil.rmtree(tmp_path / "theirs")
    run.rename(tmp_path / "moved")
    assert decode(tmp_path / "moved", tmp_path) == expected


def test_separate_dictionaries(tmp_path: Path) -> None:
    source = dictionary(15, "s")
    path = write(tmp_path / "theirs", random_model(FCONV, source, dictionary()), in_dict(options_of(FCONV)))
    source.save(path.parent / "dict.en.txt")
    outcome = done("convert", f"path={path}", f"output={tmp_path / 'run'}")
    printed = shlex.split(next(line for line in outcome.out.splitlines() if line.startswith("fine-tune: ")))[2:]
    assert "task.joined_dictionary=false" in with_checkpoint(printed)
    assert decode(tmp_path / "run", tmp_path) == decode(path, tmp_path)


def test_a_checkpoint_that_does_not_name_its_languages(tmp_path: Path) -> None:
    options = in_dict({**options_of(FCONV), "source_lang": None})
    silent = write(tmp_path / "silent", random_model(FCONV), options, name="m.pt")
    arguments = (f"path={silent}", f"output={tmp_path / 'run'}")
    refused(command("convert", *arguments), "source_lang", "set source_lang=")
    done("convert", *arguments, "source_lang=en")


def test_the_folder_in_which_a_command_runs(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    assert command("convert", f"path={checkpoint}", f"output={run}").code == 0
    expected = decode(run, tmp_path)
    for folder in (run, run / "checkpoints" / "best"):
        monkeypatch.chdir(folder)
        assert decode(Path("."), tmp_path) == expected


@pytest.mark.parametrize("form", ["run", "trie"])
def test_of_two_that_write_one_output_the_second_fails(
    form: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "allowed.txt").write_text("w1 w2\n")
    output = tmp_path / ("new.safetensors" if form == "trie" else "new")
    allowed = [f"input={tmp_path / 'allowed.txt'}"] * (form == "trie")
    arguments = [f"path={checkpoint}", f"output={output}", f"format={form}", *allowed]

    def load_while_another_writes(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(convert, "load_model", load_model)
        assert command("convert", *arguments).code == 0
        (tmp_path / "allowed.txt").write_text("w3\n")
        return load_model(*given, **options)

    monkeypatch.setattr(convert, "load_model", load_while_another_writes)
    outcome = command("convert", *arguments)
    refused(outcome, f"cannot write {output}: ", "another process may have written it; give another name")
    assert output.is_dir() or len(load_file(output)["tokens"]) == 4  # the root, w1, w2 and the end
    assert not list(tmp_path.glob(".new*"))


def test_a_checkpoint_is_known_by_its_dictionaries_too(checkpoint: Path) -> None:
    """A record of outputs has the hash of every file that they depend on."""
    before = model_digests(checkpoint)
    dictionaries = [path for path in before if path.suffix == ".txt"]
    assert len(dictionaries) == len(before) - 1 > 0
    words = dictionaries[0].read_text().splitlines()
    dictionaries[0].write_text("\n".join([*words[1:], words[0]]) + "\n")
    assert model_digests(checkpoint) != before
