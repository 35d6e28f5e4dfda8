"""Decoding speed of seqgen, compared with other toolkits that decode the same weights and give the same outputs.

    python -m benchmarks.decode a|b|c|d|e|f [--quick] [--rounds 3] [--threads 2] [--formats float32 bfloat16 int8]
        [--huggingface PYTHON] [--ctranslate2 PYTHON] [--fairseq PYTHON] [--against COMMIT] [--json FILE]
        [--plot FOLDER]

a: a T5 of the shape of t5-small with random weights, sources of 32 tokens, outputs of exactly 64 tokens: 1 sentence
   greedy; 1, 8, 32 and 128 sentences with beam 5. The matrix products alone are measured too.
b: the shapes of fairseq's fconv_iwslt_de_en and transformer_iwslt_de_en, and ensembles of two: vocabulary 8,000, 200
   sentences of natural lengths, exactly 41 steps, beam 5, batches of 1, 16 and 64 (ensembles: 16).
c: whole commands with trained models, from text to text: the 1,000 sentences of Multi30k test_2016_flickr, with a T5
   (--t5) and with the fairseq checkpoints of the shared folder.
d: outputs of 16 to 1,024 tokens, beams of 1 to 50, sources of 16 to 1,024 tokens, for T5 and transformer, compared
   with seqgen without its optimizations.
e: large vocabularies: a Marian base (58,101 tokens) and the decoder of NLLB-600M (256,206 tokens) with random weights,
   sources of 32 tokens, outputs of exactly 64 tokens: 1 sentence greedy; 1, 8 and 32 sentences with beam 5. seqgen and
   CTranslate2 are also measured with a shortlist. A second table has the share of each part of seqgen in its time.
f: a language model of the shape of Qwen 2.5 0.5B with random weights (24 layers, 151,936 tokens), prompts of 128
   tokens, outputs of exactly 32 tokens: 1 sentence greedy; 1 and 8 sentences with beam 4.

Another toolkit is given by the Python of its environment, and an older seqgen by a commit; see docs/results.md.
In each round, all toolkits run one workload before the next begins, so that slow phases of the machine affect all of
them. In float32, their outputs must be the same up to ties.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.decoding import report
from benchmarks.decoding.models import (
    SHAPES,
    save_random_llama,
    save_random_map,
    save_random_t5,
    save_random_transformer,
)
from benchmarks.decoding.plots import plot
from benchmarks.decoding.process import ROOT, WorkerError
from benchmarks.decoding.texts import measure_texts
from benchmarks.decoding.workers import Workers, fairseq_checkpoints
from benchmarks.decoding.workload import SEQGEN, Comparison, Measured, Toolkit, Workload

PLAIN = {"beam_indirection": "off", "skip_log_softmax": False, "lazy_compaction": False}
"""Fields of ``FastConfig`` that turn off optimizations, except the cache."""

Outcome: TypeAlias = tuple[list[Measured], list[str]]
"""Figures, and messages on outputs that differ."""


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", metavar="a|b|c|d|e|f", choices=tuple("abcdef"), help="the benchmark; see above")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each workload; the median counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--formats", nargs="+", default=["float32"], help="float32 first; bfloat16, float16, int8")
    parser.add_argument("--huggingface", metavar="PYTHON", help="Python of an environment with torch and transformers")
    parser.add_argument(
        "--ctranslate2", metavar="PYTHON", help="Python of one with ctranslate2, torch and transformers"
    )
    parser.add_argument("--fairseq", metavar="PYTHON", help="b: Python of an environment with fairseq")
    parser.add_argument("--against", metavar="COMMIT", help="a, b, d, e, f: also measure seqgen at this commit")
    parser.add_argument("--t5", metavar="PATH", help="c: a run or a Hugging Face folder")
    parser.add_argument("--prefix", default="", help="c: text that the T5 expects before each line")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a, b, d, e, f: a few of the workloads, in a few minutes")
    size.add_argument("--tiny", action="store_true", help="a, b, d, e, f: small models, to test the benchmark itself")
    parser.add_argument("--inside", action="store_true", help="not c: seqgen runs in this process, for profilers")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--plot", type=Path, help="folder to write plots to; needs matplotlib")
    options = parser.parse_args(argv)
    if problem := problem_of(options):
        parser.error(problem)
    return options


def problem_of(options: argparse.Namespace) -> str | None:
    """What is wrong with the options as a sentence; ``None`` if nothing is."""
    without = ["t5", "prefix"] if options.kind != "c" else ["quick", "tiny", "inside", "against", "plot"]
    without += ["huggingface", "ctranslate2"] if options.kind == "b" else ["fairseq"]
    without += ["ctranslate2"] if options.kind == "f" else []
    if unused := [name for name in without if getattr(options, name)]:
        return f"benchmark {options.kind} does not use --{unused[0].replace('_', '-')}; leave it out"
    if options.formats[0] != "float32" or options.rounds < 1:
        return "--formats must begin with float32, which the others are compared with, and --rounds must be at least 1"
    if options.plot and not (options.json and importlib.util.find_spec("matplotlib")):
        return (
            "--plot needs --json FILE and matplotlib; where matplotlib is installed, make the plots with "
            "python -m benchmarks.decoding.plots FILE FOLDER"
        )
    if options.json and not options.json.parent.is_dir():
        return f"--json: there is no folder {options.json.parent}"
    if options.fairseq and options.tiny:
        return "--fairseq is for the shapes that fairseq has; leave out --tiny"
    if options.against and options.inside:
        return "--against compares two processes; leave out --inside"
    return None


@contextmanager
def checkout(commit: str | None) -> Iterator[Path | None]:
    """The files of a commit of this repository in a temporary folder; ``None`` without a commit.

    Raises:
        WorkerError: there is no such commit, or it has no such worker.
    """
    if commit is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit]
        packed = subprocess.run(command, capture_output=True, check=False)
        if packed.returncode:
            raise WorkerError(f"--against {commit}: {packed.stderr.decode().strip().splitlines()[0]}")
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
            files.extractall(folder, filter="data")
        worker = "benchmarks/decoding/seqgen_worker.py"
        if not (Path(folder) / worker).is_file():
            raise WorkerError(f"--against {commit}: that commit has no {worker}")
        yield Path(folder)


def outcome(comparison: Comparison, rounds: int) -> Outcome:
    """Run a comparison."""
    return comparison.run(rounds), comparison.disagreements


def measure_a(options: argparse.Namespace, folder: Path) -> Iterator[Outcome]:
    """Measure a T5 with random weights."""
    preset, vocabulary = ("t5_tiny", 200) if options.tiny else ("t5_small", 32128)
    t5 = folder / preset
    save_random_t5(preset, vocabulary, t5)
    if options.tiny:
        sizes = [(2, 1, 1), (2, 1, 5), (4, 4, 5)]
    elif options.quick:
        sizes = [(2, 1, 1), (2, 1, 5), (8, 8, 5), (32, 32, 5)]
    else:
        sizes = [(4, 1, 1), (4, 1, 5), (8, 8, 5), (32, 32, 5), (128, 128, 5)]
    source, length = (6, 5) if options.tiny else (32, 64)
    workloads = [Workload(preset, *size, source, length, "huggingface") for size in sizes]
    with Workers(options) as workers:
        toolkits = [*workers.seqgen([str(t5)]), *workers.others(t5), *workers.limits(t5)]
        yield outcome(Comparison(workloads, toolkits, vocabulary), options.rounds)


def measure_b(options: argparse.Namespace, folder: Path) -> Iterator[Outcome]:
    """Measure the shapes of fairseq."""
    ending, vocabulary = ("tiny", 200) if options.tiny else ("iwslt_de_en", 8000)
    # sentences and size of each batch
    sizes = (
        [(4, 1), (4, 4)] if options.tiny else [(8, 1), (32, 16)] if options.quick else [(200, 1), (200, 16), (200, 64)]
    )
    length = 5 if options.tiny else 41
    ensembles = [["transformer"] * 2, ["fconv"] * 2, ["fconv", "transformer"]]
    for names in (["transformer"], ["fconv"], *ensembles):
        name = " + ".join(names)
        used = sizes if len(names) == 1 else sizes[1:2]
        workloads = [Workload(name, count, batch, 5, 0, length, "fairseq") for count, batch in used]
        models = [f"{part}_{ending}" for part in names]
        with Workers(options) as workers:
            if options.fairseq:
                models = fairseq_checkpoints(options.fairseq, folder / name, models, vocabulary)
            toolkits = [*workers.seqgen(models, vocabulary), *workers.fairseq(models)]
            yield outcome(Comparison(workloads, toolkits, vocabulary), options.rounds)


def measure_d(options: argparse.Namespace, folder: Path) -> Iterator[Outcome]:
    """Measure how speed depends on the beam and on the lengths of source and output."""
    for preset, semantics in (("t5_small", "huggingface"), ("transformer_iwslt_de_en", "fairseq")):
        vocabulary = 200 if options.tiny else 32128 if semantics == "huggingface" else 8000
        model = ("t5_tiny" if semantics == "huggingface" else "transformer_tiny") if options.tiny else preset
        workloads = [Workload(model, 1, 1, *size, semantics) for size in grid(options)]
        with Workers(options) as workers:
            if semantics == "huggingface":
                save_random_t5(model, vocabulary, folder / model)
                toolkits = [*workers.seqgen([str(folder / model)]), *workers.others(folder / model)]
            else:
                toolkits = workers.seqgen([model], vocabulary)
            toolkits.append(Toolkit("seqgen, plain", "float32", toolkits[0].worker, {"switches": PLAIN}))
            yield outcome(Comparison(workloads, toolkits, vocabulary), options.rounds)


def measure_e(options: argparse.Namespace, folder: Path) -> Iterator[Outcome]:
    """Measure models with large vocabularies."""
    sizes = [(2, 1, 1), (2, 1, 5), (4, 4, 5)] if options.tiny else [(4, 1, 1), (4, 1, 5), (8, 8, 5), (32, 32, 5)]
    sizes = sizes[1:3] if options.quick else sizes
    source, length = (6, 5) if options.tiny else (32, 64)
    for name in ("marian_tiny", "nllb_tiny") if options.tiny else ("marian_base", "nllb_600m"):
        shape = SHAPES[name]
        workloads = [Workload(name, *size, source, length, "huggingface", shape.special[1]) for size in sizes]
        sources = workloads[-1].request(shape.words)["sources"]  # the sources of the others are among them
        save_random_transformer(name, folder / name)
        save_random_map(folder / name, sources, 4 if options.tiny else 100, range(4, shape.words))
        with Workers(options) as workers:
            toolkits = [*workers.seqgen([str(folder / name)]), *workers.others(folder / name)]
            toolkits += [
                replace(kit, name=f"{kit.name}, shortlist", options={"shortlist": True}, decodes=False)
                for kit in toolkits
                if kit.name in (SEQGEN, "ctranslate2")
            ]
            comparison = Comparison(workloads, toolkits, shape.words)
            found = outcome(comparison, options.rounds)
            print(report.shares(comparison.shares(options.rounds)), end="\n\n")
            yield found


def measure_f(options: argparse.Namespace, folder: Path) -> Iterator[Outcome]:
    """Measure a language model."""
    name = "qwen_tiny" if options.tiny else "qwen_0.5b"
    vocabulary = save_random_llama(name, folder / name)
    sizes = [(1, 1, 1), (8, 8, 4)] if options.quick else [(2, 1, 1), (2, 1, 4), (8, 8, 4)]
    source, length = (6, 5) if options.tiny else (128, 32)
    workloads = [Workload(name, *size, source, length, "huggingface", 2) for size in sizes]
    with Workers(options) as workers:
        toolkits = [*workers.seqgen([str(folder / name)]), *workers.others(folder / name)]
        yield outcome(Comparison(workloads, toolkits, vocabulary), options.rounds)


def grid(options: argparse.Namespace) -> list[tuple[int, int, int]]:
    """Beams, source lengths and output lengths, short ones first; the transformer has at most 1,024 positions."""
    if options.quick:
        return [(1, 32, 64), (5, 32, 64), (20, 32, 64), (5, 32, 1024), (5, 512, 64), (5, 1024, 64)]
    beams = [2, 5] if options.tiny else [1, 2, 5, 10, 20, 50]
    lengths = [2, 4] if options.tiny else [16, 32, 64, 128, 256, 512, 1024]
    source, length = (4, 4) if options.tiny else (32, 64)
    workloads = [(beam, source, steps) for steps in lengths for beam in beams]
    return workloads + [(5, width, length) for width in lengths if width != source]


MEASURES = {"a": measure_a, "b": measure_b, "d": measure_d, "e": measure_e, "f": measure_f}


def measure_workloads(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run a benchmark other than c, and print its table."""
    outcomes = list(MEASURES[options.kind](options, folder))
    measured = [one for figures, _ in outcomes for one in figures]
    print(report.table(measured))
    if options.kind == "d":
        print("\n" + report.growth(measured))
    if options.against:
        print("\n" + report.now_to_before(measured))
    return {"rows": report.records(measured), "disagreements": [line for _, lines in outcomes for line in lines]}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print a table, write it as JSON and plot it; exit code 1 if outputs differ by more than ties."""
    options = arguments(argv)
    torch.set_num_threads(options.threads)
    machine = report.machine(options.threads)
    speeds = ", ".join(f"{speed:.0f} GFLOP/s in {name}" for name, speed in machine["gflops"].items())
    print(f"{machine['machine']}, {options.threads} threads, {speeds}\n")
    measure = measure_texts if options.kind == "c" else measure_workloads
    try:
        with tempfile.TemporaryDirectory() as folder, checkout(options.against) as options.before:
            results = measure(options, Path(folder))
    except WorkerError as error:
        sys.exit(str(error))
    if options.json:
        options.json.write_text(json.dumps({"work": options.kind, **machine, **results}, indent=1) + "\n")
    if options.plot:
        print(*plot(options.json, options.plot), sep="\n")
    if results["disagreements"]:
        sys.exit("\n".join(["outputs differ, so that these figures cannot be compared:", *results["disagreements"]]))


if __name__ == "__main__":
    main()
