"""A key that changes how everything is decoded: it writes the seconds of each step to a file.

``seqgen-generate common.user_dir=examples/extending/timed.py path=runs/a input=test.en generation.timed=seconds.txt``
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from seqgen.extend import DecodingSetup, Resources, Session, option, register_options


@register_options("generation")
@dataclass
class TimingOptions:
    """The key, which names the function that changes the setup."""

    timed: str = option("", "file for the seconds of each step", setup="timed:timed_setup", role="output_path")


def timed_setup(setup: DecodingSetup, path: str, resources: Resources) -> DecodingSetup:
    """The setup with a clock around each step.

    Args:
        setup: the setup without it.
        path: the value of the key.
        resources: what a component can use.
    """

    @contextmanager
    def timed(session: Session, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        with open(path, "a", encoding="utf-8") as file:
            print(phase, time.perf_counter() - begin, file=file)

    return replace(setup, around_step=(*setup.around_step, timed))
