"""Downloads, which are given up when a server sends too little.

The time limits of libraries are for one read from a connection: a server that sends a byte a second keeps them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

WATCH_SECONDS = 300.0
LEAST_BYTES = 1 << 20
"""A download is given up if fewer bytes arrive within ``WATCH_SECONDS``."""


def watch_download(work: Callable[[], T], received: Callable[[], int]) -> T:
    """Download in a thread, which is abandoned if too little arrives; it does not keep the process alive.

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
