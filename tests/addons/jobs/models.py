"""A very small trained run and its lines of text, for jobs of the command line."""

from collections.abc import Sequence
from pathlib import Path

from tests.commands import SMALL_TRANSFORMER, corpus, done, sentences, training_arguments

FAST = ("generation.beam=1", "generation.max_len_b=3", "common.threads=1")
"""Keys with which the model decodes some thousand lines per second."""


def train(folder: Path) -> Path:
    """Train a model for three updates; its run folder."""
    keys = training_arguments(corpus(folder / "data"), folder / "run")
    done("train", *keys, *SMALL_TRANSFORMER, "optimization.max_update=3")
    return folder / "run"


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines))


def texts(count: int) -> list[str]:
    """Lines that the model can read, no two of them equal where ``count`` is not too large."""
    return [f"{english} {number}" for number, (english, _) in enumerate(sentences(0, count))]
