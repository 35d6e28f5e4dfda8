"""Decoding on one GPU: first whether it gives the outputs of the CPU, then what a step costs. It takes four minutes.

    python -m benchmarks.gpu [--device cuda|simulated] [--seconds 240]

1. Small models in float64 decode the cases of ``tests/generation/test_gpu.py`` on the CPU, on the GPU, and where steps
   can be captured, on the GPU with captured steps. Hypotheses must be the same.
2. T5-small, a Marian base (transformer), an fconv and T5-base with random weights decode sources of 32 tokens to
   outputs of exactly 64: one sentence greedy, and 1, 8, 32 and 128 sentences with beam 5, in float32 and bfloat16, with
   and without captured steps, beside transformers and CTranslate2 if they are installed here.

The table has, for each: milliseconds of a whole decode for each step (the best of two), the number of times that a step
waits for the GPU, and the memory of tensors besides the weights, with that of recordings. What has no time left is left
out, with a note. ``--device simulated`` runs the same with small models on the simulated GPU of the tests: times mean
nothing there, and the table has the launches of a step as well. Exit code 1 if outputs differ or a row failed.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch

from benchmarks.decoding.models import SHAPES, save_random_t5, save_random_transformer
from benchmarks.decoding.worker import Worker, parser
from benchmarks.decoding.workload import SEQGEN, Workload
from seqgen.addons.cuda_graphs import captured
from seqgen.addons.cuda_graphs.captured import CapturedStep
from seqgen.core.errors import ConfigError, listing
from seqgen.system.devices import find_device
from seqgen.system.switches import MAPPED_WEIGHTS
from tests.addons.cuda_graphs.recording_gpu import recording_gpu
from tests.addons.cuda_graphs.test_captured_steps import CAPTURED
from tests.generation.test_gpu import CASES, FAST, FURTHER, OPTIONS, assert_equal, decode
from tests.simulated_gpu import Counts

KITS = {SEQGEN: "seqgen_worker.Seqgen", "transformers": "huggingface_worker.HuggingFace"}
KITS |= {"ctranslate2": "ctranslate2_worker.CTranslate2"}
"""Workers, by the packages that they need."""

DTYPES = ("float32", "bfloat16")

CORRECTNESS = 0.3
"""The share of the time in which outputs are compared."""


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        models: T5 presets, names of ``SHAPES``, or other presets, which only seqgen decodes.
        vocabulary: vocabulary size of presets.
        sizes: sentences and beam of each workload, the most important ones first.
        source: tokens of each source.
        length: tokens of each output.
        cases: the cases whose outputs are compared.
    """

    models: tuple[str, ...]
    vocabulary: int
    sizes: tuple[tuple[int, int], ...]
    source: int
    length: int
    cases: Sequence[tuple[str, str]]


def plan_of(device: str) -> Plan:
    """The plan of a device."""
    others = [case for case in CASES if case not in FAST]
    cases = [*sorted(FAST), *random.Random(1).sample(others, len(others))]
    if device == "simulated":
        return Plan(("t5_tiny", "marian_tiny", "fconv_tiny"), 200, ((2, 2),), 6, 4, sorted(FAST)[::9])
    models = ("t5_small", "marian_base", "fconv_iwslt_de_en", "t5_base")
    return Plan(models, 32128, ((1, 1), (1, 5), (32, 5), (8, 5), (128, 5)), 32, 64, cases)


@contextmanager
def replays() -> Iterator[mock.Mock]:
    """Count the replayed steps in the ``with`` block: ``call_count`` of what is yielded."""
    with mock.patch.object(CapturedStep, "replay", autospec=True, side_effect=CapturedStep.replay) as replay:
        yield replay


def waits_of(call: Callable[[], Any], counts: Counts | None) -> int:
    """How often the host waits for the device in a call: on CUDA, the warnings of PyTorch."""
    if counts is not None:
        counts.clear()
        call()
        return counts.waits.total()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(each.message) for each in found)


def in_short(error: Exception) -> str:
    """An error in a line that fits into a cell of a table."""
    return " ".join(f"{type(error).__name__}: {error}".replace("|", "/").split())[:150]


def compare_outputs(plan: Plan, device: str, end: float) -> bool:
    """Compare outputs of the CPU and the device until a time, and print how many differ; true if none does."""
    failures, done, replayed = [], 0, 0
    for name, option in plan.cases:
        if time.monotonic() > end:
            break
        options = {**OPTIONS, **FURTHER}[option]
        for captures in (False, True) if name in CAPTURED else (False,):
            small = mock.patch.multiple(captured, _SMALLEST_SOURCE=4, _SMALLEST_WINDOW=4)
            try:
                with small, replays() as replay:
                    found = decode(name, device, {**options, "cuda_graphs": captures})
                assert_equal(found, decode(name, "cpu", options))
                replayed += replay.call_count > 0
            except Exception as error:
                failures.append(f"- {name}, {option}, {'captured' if captures else 'eager'}: {in_short(error)}")
        done += 1
    left = f", {len(plan.cases) - done} cases are left out for lack of time" if done < len(plan.cases) else ""
    print(
        f"Outputs of the CPU: {done} cases, {replayed} of them also with captured steps, {len(failures)} failed{left}\n"
    )
    print("\n".join([*failures, ""]) if failures else "", flush=True)
    return not failures


@dataclass(frozen=True)
class Subject:
    """A model, and what decodes it.

    Attributes:
        load: a workload without its sizes.
        vocabulary: the size of its vocabulary.
        argument: the model as workers take it.
        kits: the toolkits.
    """

    load: Workload
    vocabulary: int
    argument: str
    kits: Sequence[str]

    @classmethod
    def made(cls, model: str, plan: Plan, folder: Path) -> Subject:
        """Write a model with random weights to a folder, unless seqgen's preset is used."""
        shape = SHAPES.get(model)
        load = Workload(model, 0, 0, 0, plan.source, plan.length, "huggingface", shape and shape.special[1])
        if shape is not None:
            save_random_transformer(model, folder / model)
        elif model.startswith("t5"):
            save_random_t5(model, plan.vocabulary, folder / model)
        else:
            return cls(replace(load, semantics="fairseq"), plan.vocabulary, model, [SEQGEN])
        kits = [name for name in KITS if importlib.util.find_spec(name)]
        if not torch.cuda.is_available():  # CTranslate2 knows no simulated GPU
            kits = [name for name in kits if name != "ctranslate2"]
        return cls(load, shape.words if shape else plan.vocabulary, str(folder / model), kits)

    def worker(self, kit: str, dtype: str, device: str) -> Worker:
        """A toolkit that has loaded the model, in this process."""
        module, name = KITS[kit].split(".")
        given = [self.argument, "--format", dtype, "--device", device, "--vocabulary", str(self.vocabulary)]
        made: Worker = getattr(importlib.import_module(f"benchmarks.decoding.{module}"), name)(
            parser().parse_args(given)
        )
        return made

    def figures(self, worker: Any, sentences: int, beam: int, captures: bool, counts: Counts | None) -> list[str]:
        """Milliseconds, waits and launches of a step, and megabytes.

        Raises:
            RuntimeError: steps should be captured, and none is replayed.
        """
        captured._STEPS.clear()
        gc.collect()
        if counts is None:
            torch.cuda.empty_cache()
        load = replace(self.load, sentences=sentences, batch=sentences, beam=beam)
        request = {**load.request(self.vocabulary), "switches": {"cuda_graphs": captures}}
        first = worker.answer(request)  # its memory includes that of recordings
        with replays() as replay:
            waits: float | str = round(waits_of(lambda: worker.answer(request), counts) / load.length, 1)
        if captures and not replay.call_count:
            raise RuntimeError(f"no step was replayed: {listing(sorted(worker.notes))}")
        launches = [] if counts is None else [f"{counts.launches.total() / load.length:.0f}"]
        seconds = min(sum(worker.answer(request)["seconds"]) for _ in range(2 if counts is None else 1))
        memory: float | str = round(first["used_bytes"] / 2**20)
        if worker.version.startswith("ctranslate2"):
            waits = memory = "unknown"  # it does not use PyTorch
        return [f"{1000 * seconds / load.length:.2f}", str(waits), *launches, str(memory)]


def measure(subject: Subject, plan: Plan, device: str, counts: Counts | None, end: float) -> tuple[int, int]:
    """Print the rows of a model until a time; returns the numbers of those that failed and that are left out."""
    failed = left = 0
    for dtype, kit in product(DTYPES, subject.kits):
        ways = (False, True) if kit == SEQGEN else (False,)
        worker: Worker | Exception | None = None
        for (sentences, beam), captures in product(plan.sizes, ways):
            if time.monotonic() > end:
                left += 1
                continue
            try:
                worker = worker or subject.worker(kit, dtype, device)
                if isinstance(worker, Exception):
                    raise worker
                cells = subject.figures(worker, sentences, beam, captures, counts)
            except Exception as error:
                worker = worker or error  # a worker that does not start is not tried again
                failed += 1
                cells = [f"failed: {in_short(error)}"]
            name = f"{kit} {version(kit)}" if kit != SEQGEN else f"{kit}, captured" if captures else kit
            print_row(subject.load.model, str(sentences), str(beam), dtype, name, *cells)
        del worker
    return failed, left


def print_row(*cells: str) -> None:
    """Print a row of a Markdown table."""
    print(f"| {' | '.join(cells)} |", flush=True)


@contextmanager
def device_of(name: str) -> Iterator[tuple[str, str, Counts | None]]:
    """The device, its description, and the counts of a simulated one.

    Raises:
        ConfigError: it is not available.
    """
    if name == "simulated":
        with recording_gpu() as counts, MAPPED_WEIGHTS.off():
            yield "gpu", "a simulated GPU, whose times mean nothing", counts
        return
    device = find_device(name)
    if device.type != "cuda":
        raise ConfigError(f"--device={name} is no GPU; choose cuda or simulated")
    yield name, f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}", None


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, measure, print a table; returns the exit code."""
    begin = time.monotonic()
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", default="cuda", help="cuda or simulated")
    arguments.add_argument("--seconds", type=float, default=240, help="the time of the whole command")
    options = arguments.parse_args(argv)
    plan = plan_of(options.device)
    failed = left = 0
    try:
        with device_of(options.device) as (device, description, counts), TemporaryDirectory() as folder:
            print(f"{description}, torch {torch.__version__}\n")
            equal = compare_outputs(plan, device, begin + CORRECTNESS * options.seconds)
            columns = ["model", "sentences", "beam", "dtype", "toolkit", "ms a step", "waits a step"]
            columns += [*(() if counts is None else ("launches a step",)), "MB besides weights"]
            print_row(*columns)
            print_row(*("---" for _ in columns))
            start = time.monotonic() - begin
            for number, model in enumerate(plan.models, start=1):
                end = begin + start + (options.seconds - start) * number / len(plan.models)
                one = measure(Subject.made(model, plan, Path(folder)), plan, device, counts, end)
                failed, left = failed + one[0], left + one[1]
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"\n{failed} rows failed; {left} rows are left out, as there was no time for them")
    return 0 if equal and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
