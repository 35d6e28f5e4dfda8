"""Decoding speed of seqgen beside other toolkits that decode the same weights with the same outcome.

    python -m benchmarks.decode a|b|c|d [--rounds 3] [--threads 2] [--huggingface PYTHON] [--ctranslate2 PYTHON]
        [--formats float32 bfloat16 int8] [--json FILE] [--plot FOLDER]

a: a T5 of the shape of t5-small with random weights, source 32, exactly 64 tokens: 1 sentence greedy; 1, 8, 32 and 128
   sentences with beam 5. Beside it stands the time of the matrix products alone.
b: the shapes of fairseq's fconv_iwslt_de_en and transformer_iwslt_de_en, and ensembles of two: vocabulary 8,000, 200
   sentences of natural lengths, exactly 41 steps, beam 5, batches of 1, 16 and 64 (ensembles: 16).
c: trained models by the commands, text in and text out: the 1,000 sentences of Multi30k test_2016_flickr by a T5
   (--t5) and by the fairseq checkpoints of the shared folder.
d: growth with the length of the output, the beam and the length of the source, for T5 and transformer, beside seqgen's
   own plain path.

A toolkit is given by the Python of an environment that has it; see docs/benchmarks.md. All do a work by turns, so that
a slow moment of the machine meets all alike. In float32 their outputs must be the same up to ties.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.decoding import report
from benchmarks.decoding.models import save_random_t5
from benchmarks.decoding.plots import plot
from benchmarks.decoding.process import WorkerError
from benchmarks.decoding.texts import measure_texts
from benchmarks.decoding.work import Contest, Measured, Toolkit, Work
from benchmarks.decoding.workers import Workers

FAIRSEQ = {
    ("transformer", 1): 106.0,
    ("transformer", 16): 420.0,
    ("transformer", 64): 459.0,
    ("fconv", 1): 289.0,
    ("fconv", 16): 1628.0,
    ("fconv", 64): 2336.0,
    ("transformer + transformer", 16): 189.0,
    ("fconv + fconv", 16): 734.0,
}
"""Tokens a second of work b by fairseq on another machine: 2 cores of a Xeon with 315 GFLOP/s in float32."""

PLAIN = {"beam_table": "off", "skip_log_softmax": False, "lazy_compaction": False}
"""Switches of ``SequenceGenerator`` that turn off what makes it fast, but for the cache."""

Outcome: TypeAlias = tuple[list[Measured], list[str]]
"""Figures, and sentences on outputs that are not the same."""


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What the user wants measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("a", "b", "c", "d"))
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--formats", nargs="+", default=["float32"], help="float32 first; bfloat16, float16, int8")
    parser.add_argument("--huggingface", metavar="PYTHON", help="an environment with torch and transformers")
    parser.add_argument("--ctranslate2", metavar="PYTHON", help="one with ctranslate2, torch and transformers")
    parser.add_argument("--t5", metavar="PATH", help="c: a run or a Hugging Face folder")
    parser.add_argument("--prefix", default="", help="c: what the T5 wants before every line")
    parser.add_argument("--quick", action="store_true", help="d: part of the grid, for a few minutes")
    parser.add_argument("--tiny", action="store_true", help="a, b, d: small models, to see whether everything works")
    parser.add_argument("--inside", action="store_true", help="seqgen in this process, for profilers")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--plot", type=Path, help="folder to write plots to; needs matplotlib")
    options = parser.parse_args(argv)
    if options.formats[0] != "float32" or options.rounds < 1:
        parser.error("--formats begins with float32, which the others are compared with, and --rounds is at least 1")
    if options.plot and options.work == "c":
        parser.error("--plot is for a, b and d; in c nothing varies")
    if options.plot and not (options.json and importlib.util.find_spec("matplotlib")):
        parser.error(
            "--plot needs --json FILE and matplotlib; without it here, make the plots afterwards where it is, by "
            "python -m benchmarks.decoding.plots FILE FOLDER"
        )
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    return options


def outcome(contest: Contest, rounds: int) -> Outcome:
    """Run a contest."""
    return contest.run(rounds), contest.disagreements


def measure_a(options: argparse.Namespace, folder: Path) -> Iterator[Outcome]:
    """T5 with random weights."""
    preset, vocabulary = ("t5_tiny", 200) if options.tiny else ("t5_small", 32128)
    t5 = folder / preset
    save_random_t5(preset, vocabulary, t5)
    sizes = (
        [(2, 1, 1), (2, 1, 5), (4, 4, 5)]
        if options.tiny
        else [(4, 1, 1), (4, 1, 5), *((n, n, 5) for n in (8, 32, 128))]
    )
    source, length = (6, 5) if options.tiny else (32, 64)
    works = [Work(preset, *size, source, length, "huggingface") for size in sizes]
    with Workers(options) as workers:
        toolkits = [*workers.seqgen([str(t5)]), *workers.peers(t5), *workers.limits(t5)]
        yield outcome(Contest(works, toolkits, vocabulary), options.rounds)


def measure_b(options: argparse.Namespace, folder: Path) -> Iterator[Outcome]:
    """The shapes that fairseq was measured with."""
    ending, vocabulary = ("tiny", 200) if options.tiny else ("iwslt_de_en", 8000)
    count, length, batches = (4, 5, [1, 4]) if options.tiny else (200, 41, [1, 16, 64])
    ensembles = [["transformer"] * 2, ["fconv"] * 2, ["fconv", "transformer"]]
    for names in (["transformer"], ["fconv"], *ensembles):
        name = " + ".join(names)
        sizes = batches if len(names) == 1 else batches[1:2]
        works = [Work(name, count, size, 5, 0, length, "fairseq") for size in sizes]
        with Workers(options) as workers:
            toolkits = workers.seqgen([f"{part}_{ending}" for part in names], vocabulary)
            measured, disagreements = outcome(Contest(works, toolkits, vocabulary), options.rounds)
        known = {} if options.tiny else {work: FAIRSEQ.get((name, work.batch)) for work in works}
        elsewhere = [
            Measured(work, "fairseq, elsewhere", "float32", elsewhere=speed) for work, speed in known.items() if speed
        ]
        yield sorted([*measured, *elsewhere], key=lambda one: one.work.batch), disagreements


def measure_d(options: argparse.Namespace, folder: Path) -> Iterator[Outcome]:
    """Growth."""
    for preset, semantics in (("t5_small", "huggingface"), ("transformer_iwslt_de_en", "fairseq")):
        vocabulary = 200 if options.tiny else 32128 if semantics == "huggingface" else 8000
        model = ("t5_tiny" if semantics == "huggingface" else "transformer_tiny") if options.tiny else preset
        works = [Work(model, 1, 1, *size, semantics) for size in grid(options)]
        with Workers(options) as workers:
            if semantics == "huggingface":
                save_random_t5(model, vocabulary, folder / model)
                toolkits = [*workers.seqgen([str(folder / model)]), *workers.peers(folder / model)]
            else:
                toolkits = workers.seqgen([model], vocabulary)
            toolkits.append(Toolkit("seqgen, plain", "float32", toolkits[0].worker, {"switches": PLAIN}))
            yield outcome(Contest(works, toolkits, vocabulary), options.rounds)


def grid(options: argparse.Namespace) -> list[tuple[int, int, int]]:
    """Beams, sources and lengths of outputs, the shortest work first; a transformer takes no more than 1,024 tokens."""
    beams = [2, 5] if options.tiny else [1, 5, 20] if options.quick else [1, 2, 5, 10, 20, 50]
    lengths = [2, 4] if options.tiny else [16, 32, 64, 128, 256, 512, 1024]
    source, length = (4, 4) if options.tiny else (32, 64)
    works = [(beam, source, steps) for steps in lengths for beam in beams]
    if options.quick:
        works = [(beam, source, steps) for beam, source, steps in works if steps <= 256 or beam == 5]
    return works + [(5, width, length) for width in lengths if width != source]


def measure_works(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Works a, b and d."""
    outcomes = list({"a": measure_a, "b": measure_b, "d": measure_d}[options.work](options, folder))
    measured = [one for figures, _ in outcomes for one in figures]
    print(report.table(measured))
    if options.work == "d":
        print("\n" + report.growth(measured))
    return {"rows": report.records(measured), "disagreements": [line for _, lines in outcomes for line in lines]}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print a table, write it as JSON and plot it."""
    options = arguments(argv)
    torch.set_num_threads(options.threads)
    machine = report.machine(options.threads)
    speeds = ", ".join(f"{speed:.0f} GFLOP/s in {name}" for name, speed in machine["gflops"].items())
    print(f"{machine['machine']}, {options.threads} threads, {speeds}; fairseq's machine: 315 in float32\n")
    measure = measure_texts if options.work == "c" else measure_works
    try:
        with tempfile.TemporaryDirectory() as folder:
            results = measure(options, Path(folder))
    except WorkerError as error:
        sys.exit(str(error))
    if options.json:
        options.json.write_text(json.dumps({"work": options.work, **machine, **results}, indent=1) + "\n")
    if options.plot:
        print(*plot(options.json, options.plot), sep="\n")
    if results["disagreements"]:
        sys.exit("\n".join(["not the same work, so that its figures do not compare:", *results["disagreements"]]))


if __name__ == "__main__":
    main()
