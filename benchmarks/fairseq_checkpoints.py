"""Decoding speed with trained checkpoints of fairseq: sentences per second, from raw text to text.

    python -m benchmarks.fairseq_checkpoints [--threads 2] [--rounds 3] [--json FILE]

The workload is that of fairseq's figures: the two small checkpoints in the shared folder and their ensemble, the 1,000
sentences of test_2016_flickr, beam 5, float32, natural lengths. On a machine with other load, compare CPU times, and
use one thread. fairseq's figures were measured on another machine (2 cores of a Xeon with AVX-512).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch

import seqgen.models  # noqa: F401  # declares the checkpoint loaders
from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import load_models
from seqgen.config import GenerationConfig
from seqgen.config.values import to_dict
from seqgen.text.translator import Translator

SHARED = Path(os.environ.get("SEQGEN_SHARED", Path(__file__).resolve().parents[2] / "shared"))
WORK = [
    # paths, search, changes of the configuration, sentences per second of fairseq if known
    ("fconv", "beam 5", {}, "263"),
    ("transformer", "beam 5", {}, "150-186"),
    ("fconv:transformer", "beam 5", {}, "83-95"),
    ("fconv", "3 groups, beam 6", {"beam": 6, "search": "diverse_beam", "components": {"search.groups": 3}}, ""),
    ("fconv", "siblings, beam 5", {"search": "diverse_siblings", "components": {"search.rate": 0.5}}, ""),
    ("fconv", "one constraint, beam 5", {"constraints": "unordered"}, "66-88"),
]


def read(language: str) -> list[str]:
    """The lines of the test set."""
    path = SHARED / "data" / "multi30k" / f"test_2016_flickr.{language}.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def with_constraints(sources: list[str], references: list[str]) -> list[str]:
    """Append a constraint to each source: the third word of the reference."""
    words = [reference.split()[2:3] for reference in references]
    return ["\t".join([source, *word]) for source, word in zip(sources, words, strict=True)]


def measure(members: list[LoadedModel], cfg: GenerationConfig, lines: list[str]) -> tuple[float, float]:
    """Decode all lines; return wall time and CPU time in seconds."""
    decoding = Translator(members, **to_dict(cfg)).prepare()
    wall, processor = time.perf_counter(), time.process_time()
    count = sum(1 for _ in decoding.translate(lines))
    assert count == len(lines)
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    """Measure, print a table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each search; the median counts")
    parser.add_argument("--json", default="", help="file to write the figures to")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sources, references = read("en"), read("de")
    folder = SHARED / "oracles" / "fairseq"
    loaded = {name: load_models([str(folder / f"{name}.pt")])[0] for name in ("fconv", "transformer")}
    times: dict[int, list[tuple[float, float]]] = {}
    for _ in range(options.rounds):  # alternating, so that slow phases of the machine affect all
        for number, (names, _, changes, _) in enumerate(WORK):
            lines = with_constraints(sources, references) if "constraints" in changes else sources
            members = [loaded[name] for name in names.split(":")]
            times.setdefault(number, []).append(measure(members, GenerationConfig(**changes), lines))
    print(f"{platform.processor() or platform.machine()}, {options.threads} threads; sentences per second")
    print(f"{'model':<20} {'search':<24} {'wall time':>10} {'CPU time':>10} {'fairseq':>9}")
    rows = []
    for number, (names, what, _, fairseq) in enumerate(WORK):
        wall, processor = (len(sources) / statistics.median(column) for column in zip(*times[number], strict=True))
        print(f"{names:<20} {what:<24} {wall:>10.0f} {processor:>10.0f} {fairseq:>9}")
        rows.append({"model": names, "search": what, "wall": wall, "processor": processor, "fairseq": fairseq})
    if options.json:
        Path(options.json).write_text(json.dumps({"threads": options.threads, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
