"""Downloads of examples/firefox.py from servers that are slow, break off, or answer with something else."""

from __future__ import annotations

import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from examples import firefox
from seqgen.core.errors import DataError
from seqgen.system import downloads

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


def drip(connection: socket.socket, head: bytes = HEAD + b"1000\r\n\r\n") -> None:
    connection.sendall(head)
    for _ in range(1000):
        connection.sendall(b"x")
        time.sleep(0.05)


def test_the_content_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 1000
    with server(lambda connection: connection.sendall(HEAD + b"%d\r\n\r\n" % len(content) + content)) as address:
        assert firefox.read(address) == content
        monkeypatch.setattr(firefox, "LARGEST", len(content))
        assert firefox.read(address) == content
        monkeypatch.setattr(firefox, "LARGEST", 9999)
        with pytest.raises(DataError, match=r"/list cannot be read: .* has more than 9999 bytes"):
            firefox.read(address)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reset, "cannot be read: .*reset"),
        (lambda connection: time.sleep(1), "cannot be read: .*timed out"),
        (lambda connection: connection.sendall(HEAD + b"9\r\n\r\nabc"), "cannot be read: it breaks off"),
        (lambda connection: None, "cannot be read: Remote end closed"),
        (lambda connection: connection.sendall(b"hello\r\n\r\n"), "cannot be read: hello"),
        (lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70000), "cannot be read: got more"),
        (
            lambda connection: connection.sendall(HEAD + b"x\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n"),
            "cannot be read",
        ),
        (lambda connection: connection.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n"), "cannot be read: Not Found"),
        (
            lambda connection: connection.sendall(b"HTTP/1.1 302 x\r\nLocation: file:///etc/passwd\r\n\r\n"),
            "not allowed",
        ),
        (lambda connection: connection.sendall(b"HTTP/1.1 302 x\r\nLocation: http://[\r\n\r\n"), "cannot be read"),
        (
            lambda connection: connection.sendall(b"HTTP/1.1 302 x\r\nLocation: /list\r\n\r\n"),
            "cannot be read: The HTTP server",
        ),
    ],
)
def test_a_broken_answer_is_one_sentence(
    answer: Callable[[socket.socket], None],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(firefox, "READ_SECONDS", 0.2)
    monkeypatch.setattr(sys, "argv", ["firefox.py", "en-de", str(tmp_path / "model")])
    with server(answer) as address:
        monkeypatch.setattr(firefox, "RECORDS", address)
        assert firefox.main() == 2
    assert re.search(words, said := capsys.readouterr().err)
    assert said.startswith(f"firefox.py: en-de: {address} ")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("head", [HEAD + b"1000\r\n\r\n", b"HTTP/1.1 200 OK\r\nName: "])
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time for the limit of one read, in the headers too."""
    monkeypatch.setattr(downloads, "WATCH_SECONDS", 0.3)
    start = time.monotonic()
    with (
        server(lambda connection: drip(connection, head)) as address,
        pytest.raises(DataError, match=r"only \d bytes have arrived in 0\.3 seconds; run the same command again"),
    ):
        firefox.read(address)
    assert time.monotonic() - start < 5


def test_a_slow_server_that_sends_enough_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "WATCH_SECONDS", 0.3)
    monkeypatch.setattr(downloads, "LEAST_BYTES", 2)

    def slow(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"16\r\n\r\n")
        for _ in range(16):
            time.sleep(0.05)
            connection.sendall(b"x")

    with server(slow) as address:
        assert firefox.read(address) == b"x" * 16


def test_an_unreachable_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(DataError, match=r"cannot be read: .*refused; check the network"):
        firefox.read(f"http://127.0.0.1:{port}/list")
