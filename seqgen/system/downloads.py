"""Downloads, which are given up when a server sends too little.

The time limits of libraries are for one read from a connection: a server that sends a byte a second keeps them.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from seqgen.errors import DataError, library_errors
from seqgen.system.reading import MAX_BYTES

T = TypeVar("T")

WATCH_SECONDS = 300.0
LEAST_BYTES = 1 << 20
"""A download is given up if fewer bytes arrive within ``WATCH_SECONDS``."""

READ_SECONDS = 60.0
"""The time limit of one read from a connection."""


def watched(work: Callable[[], T], received: Callable[[], int]) -> T:
    """Download in a thread, which is left alone if too little arrives; it does not keep the process alive.

    Args:
        work: downloads.
        received: the number of bytes that have arrived.

    Returns:
        What ``work`` returns.

    Raises:
        TimeoutError: fewer than ``LEAST_BYTES`` have arrived within ``WATCH_SECONDS``.
    """
    result: Future[T] = Future()

    def download() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    before = received()
    threading.Thread(target=download, daemon=True).start()
    while not wait([result], WATCH_SECONDS).done:
        before, earlier = received(), before
        if before - earlier < LEAST_BYTES:
            raise TimeoutError(
                f"only {before - earlier} bytes have arrived in {WATCH_SECONDS:g} seconds; run the same command again, "
                "or use another network"
            )
    return result.result()


def download(address: str, limit: int = MAX_BYTES) -> bytes:
    """Read the content at an address.

    Args:
        address: the address.
        limit: maximum size of the content in bytes.

    Returns:
        The content.

    Raises:
        DataError: it cannot be read completely, is larger than the limit, or arrives too slowly.
    """
    content = bytearray()

    def read() -> None:
        with urllib.request.urlopen(address, timeout=READ_SECONDS) as answer:
            while part := answer.read1(1 << 16):
                content.extend(part)
                if len(content) > limit:
                    raise DataError(f"{address} has more than {limit} bytes")
            if answer.length:
                raise DataError(f"{address} ends {answer.length} bytes too early; try again")

    with library_errors(f"{address} cannot be read"):
        try:
            watched(read, lambda: len(content))
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError as error:
            raise DataError(f"{address} cannot be read: {error.reason}; check the network") from None
    return bytes(content)
