"""A run folder that somebody else made is safe to decode; docs/security.md names the tests that show what is safe."""

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from seqgen.checkpoints.run_config import save_generation
from seqgen.config.settings import Settings
from seqgen.core.errors import ConfigError, DataError, UserError
from seqgen.data import text
from seqgen.decoding.resolution import resolve, settings_of_model
from seqgen.extend import GenerationConfig, TrainConfig, TrainingRun, log, printable, read_bytes, stream_lines
from tests.commands import command
from tests.config.test_user_files import forget
from tests.fuzzing.readers import make_run

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    folder.mkdir()
    make_run(folder)
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.mark.parametrize("component", ["built-in", "own"])
def test_no_file_of_a_run_is_imported_without_the_users_word(component: str, run: Path, tmp_path: Path) -> None:
    """Not even if the run records it; the word is ``common.user_dir=FILE``, and the refusal says so."""
    canary, evil = tmp_path / "canary", run / "evil.py"
    evil.write_text(f"open({str(canary)!r}, 'w')\n")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["common"] |= {"user_dir": [str(evil)], "user_files": {"model.evil": str(evil)}}
    if component == "own":
        config["model"]["_name"] = "evil"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "checksums.json").unlink()
    arguments = (f"path={run}", "input=-", "generation.max_len=3")
    decoded = command("generate", *arguments, stdin=b"w1 w2\n")
    assert (decoded.code, canary.exists()) == (2 if component == "own" else 0, False), decoded.err
    said = "to run that file's code, if you trust it, set common.user_dir="
    assert (said in decoded.err) == (component == "own")
    command("generate", *arguments, f"common.user_dir={evil}", stdin=b"w1 w2\n")
    assert canary.exists()  # the same file is imported when the user asks for it


def test_a_lock_that_is_a_link_does_not_change_the_users_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for name in (".lock", "config.yaml"):
        content = (run / "config.yaml").read_text()
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(tmp_path / "file")
        with pytest.raises(UserError):
            save_generation(run, GenerationConfig(beam=3))
        assert (tmp_path / "file").read_text() == "mine"
        (run / name).unlink()
        (run / "config.yaml").write_text(content)


def test_a_models_own_settings_cannot_demand_all_memory() -> None:
    limits = {each.name: each.metadata["limit_from_files"] for each in dataclasses.fields(GenerationConfig)}
    assert [key for key, largest in limits.items() if largest] == ["beam", "nbest", "max_len_a", "max_len_b", "max_len"]
    for key, largest in ((key, largest) for key, largest in limits.items() if largest):
        own, given = {"beam": 1000, key: largest}, Settings().with_layer("user", {key: 1})
        assert getattr(resolve(Settings(), [own]).generation, key) == largest
        with pytest.raises(ConfigError, match=f"the model's own settings have generation.{key}=.* yourself"):
            resolve(Settings(), [{**own, key: largest + 1}])
        assert getattr(resolve(given, [{**own, key: largest + 1}]).generation, key) == 1


def test_settings_that_name_files_are_never_a_models_own() -> None:
    keys = [each.name for each in dataclasses.fields(GenerationConfig) if each.metadata["role"] == "input_path"]
    files: dict[str, Any] = dict.fromkeys(keys, "/etc/passwd")
    files |= {"draft": "hf:evil/model", "observers": ["evil"], "member_sources": ["evil"]}
    assert settings_of_model(GenerationConfig(beam=3, **files)) == {"beam": 3}


def test_a_line_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MAX_LINE_BYTES", 10)
    path = tmp_path / "text"
    for content in (b"a\n" + b"x" * 10 + b"\nb\n", b"x" * 10, b"a\r\n\x0b\n"):
        path.write_bytes(content)
        wanted = content.decode().removesuffix("\n").split("\n")
        for chunk_bytes in (1, 3, 1000):
            found = [line for chunk in text.read_chunks(path, chunk_bytes) for line in chunk.decode()]
            assert found == wanted
        with path.open("rb") as file:
            assert list(stream_lines(file, "standard input")) == wanted
    path.write_bytes(b"a\n" + b"x" * 11 + b"\nb\n")
    with pytest.raises(DataError, match="line 2 has more than 10 bytes"):
        list(text.read_chunks(path, 3))
    with path.open("rb") as file, pytest.raises(DataError, match="standard input, line 2 has more than 10 bytes"):
        list(stream_lines(file, "standard input"))


@pytest.mark.skipif(os.name == "nt", reason="names are Unicode there")
def test_names_that_are_not_utf_8(run: Path, tmp_path: Path) -> None:
    """They are refused as arguments, and shown where a folder has them."""
    place = tmp_path / "runs" / os.fsdecode(b"caf\xe9")
    shutil.copytree(run, place)
    for line in (f"generate path={place}", f"train run_dir={place}", f"show {place}", "score \udce9=1"):
        refused = command(*line.split())
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "\\udce9" in refused.err
    listed = command("show", f"{tmp_path}/runs", f"json={tmp_path}/a.json")
    assert (listed.code, "caf\\udce9" in listed.out) == (0, True), listed.err
    assert json.loads((tmp_path / "a.json").read_text("utf-8"))


@pytest.mark.parametrize("key", ["path", "input", "output", "trace", "job.folder", "common.user_dir", "config"])
def test_a_file_name_with_nul(key: str, run: Path, tmp_path: Path) -> None:
    """Such a name cannot be typed, but a configuration file can have it."""
    outcome = command("generate", f"path={run}", "input=-", f"{key}={tmp_path}/a\0b.jsonl")
    assert outcome.code == 2
    assert "a\\x00b" in outcome.err or f"{key} has the character NUL" in outcome.err
    with pytest.raises(OSError, match="NUL"):
        read_bytes(tmp_path / "a\0b")


def test_no_commands_for_a_terminal_are_shown(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In messages and in reports."""
    assert printable("a\x1b[2J é\u202e\ud800\n\tb") == "a\\x1b[2J é\\u202e\\ud800\n\tb"
    other = shutil.copytree(run, tmp_path / "other\x1b[2J")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"]["\x1b[31m"] = "\x9b1m"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "a").write_text("w1 \x1b[2J\n")
    (tmp_path / "b").write_text("w2\n")
    systems = f"hypothesis=[{tmp_path}/a,{tmp_path}/b]"
    for shown, name, *arguments in (
        ("\\x1b[31m", "generate", f"path={run}", "input=-"),
        ("\\x1b[2J", "generate", f"path={tmp_path}/\x1b[2J", "input=-"),
        ("\\x1b[2J", "show", f"{run}", f"{other}"),
        ("\\x1b[2J", "score", systems, f"reference={tmp_path}/b", "compare.tests=none", "metrics=[exact_match]"),
    ):
        outcome = command(name, *arguments)
        assert shown in outcome.out + outcome.err
        assert not {"\x1b", "\x9b"} & {*outcome.out, *outcome.err}
    trainer: Any = SimpleNamespace(group=SimpleNamespace(is_main=True))
    TrainingRun(TrainConfig(), trainer, tmp_path, trainer, trainer).message("valid \x1b[2J")
    log("read \x1b[2J")
    shown = capsys.readouterr().err
    assert "valid \\x1b[2J" in shown
    assert "read \\x1b[2J" in shown


def test_the_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) >= 20
    for file, name in named:
        assert re.search(rf"^def {name}\(|^{name} = refusals\(", (ROOT / file).read_text(), re.MULTILINE), (file, name)


@pytest.fixture(autouse=True)
def _forget_imports() -> None:
    forget()
