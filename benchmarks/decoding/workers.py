"""Starts the workers of a benchmark, one for each toolkit and dtype."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import torch

from benchmarks.decoding.matrix_worker import MatrixProducts
from benchmarks.decoding.process import (
    ROOT,
    InProcessWorker,
    WorkerError,
    WorkerHandle,
    WorkerProcess,
    environment,
)
from benchmarks.decoding.seqgen_worker import Seqgen
from benchmarks.decoding.worker import Worker, parser
from benchmarks.decoding.workload import BEFORE, SEQGEN, Toolkit
from seqgen.config import FastConfig

OTHER_TOOLKITS = {"huggingface": "huggingface_worker", "ctranslate2": "ctranslate2_worker"}


def fairseq_checkpoints(python: str, folder: Path, architectures: Sequence[str], vocabulary: int) -> list[str]:
    """Let fairseq write a checkpoint with random weights of each architecture.

    Args:
        python: the Python of its environment.
        folder: where to write.
        architectures: fairseq's names; one can occur twice.
        vocabulary: vocabulary size.

    Returns:
        The files.

    Raises:
        WorkerError: it did not write them.
    """
    command = [python, "-m", "benchmarks.decoding.fairseq_models", str(folder), *architectures]
    command += ["--vocabulary", str(vocabulary)]
    try:
        done = subprocess.run(command, env=environment(1), capture_output=True, text=True, check=False)
    except OSError as error:
        raise WorkerError(f"cannot run {python}: {error.strerror or error}") from None
    if done.returncode:
        raise WorkerError(f"fairseq wrote no models: {done.stderr.strip().splitlines()[-1]}")
    return [str(folder / f"{name}.{seed}" / "model.pt") for seed, name in enumerate(architectures, start=1)]


INSIDE: dict[str, Callable[[argparse.Namespace], Worker]] = {"seqgen_worker": Seqgen, "matrix_worker": MatrixProducts}
"""Workers that can run in this process, by their modules."""


class Workers:
    """A context manager that starts workers and ends them on exit.

    Args:
        options: the options of the command.
    """

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def start(
        self,
        python: str,
        module: str,
        models: Sequence[str],
        name: str,
        vocabulary: int = 0,
        root: Path = ROOT,
    ) -> WorkerHandle:
        """Start a worker.

        Args:
            python: the Python of its environment.
            module: the worker's module.
            models: folders or presets; several are an ensemble.
            name: dtype.
            vocabulary: vocabulary size of presets.
            root: the checkout whose worker runs.

        Raises:
            WorkerError: the worker does not start.
        """
        given = [*models, "--format", name, "--device", self.options.device, "--vocabulary", str(vocabulary)]
        worker: WorkerHandle
        if self.options.inside and module in INSIDE:
            given += ["--threads", str(self.options.threads)]
            worker = InProcessWorker(partial(INSIDE[module], parser().parse_args(given)))
        else:
            worker = WorkerProcess(python, module, given, self.options.threads, root)
        self.stack.callback(worker.close)
        return worker

    def seqgen(self, models: Sequence[str], vocabulary: int = 0) -> list[Toolkit]:
        """seqgen in each dtype that it supports here, on a GPU with captured steps too, then ``--against``."""
        start = partial(self.start, sys.executable, "seqgen_worker", models, vocabulary=vocabulary)
        toolkits = [
            Toolkit(SEQGEN, "float32", start("float32")),
            *self.attempt(SEQGEN, start, self.options.formats[1:]),
        ]
        captured = {"switches": {"cuda_graphs": True}}
        if torch.device(self.options.device).type == "cuda" and hasattr(FastConfig, "cuda_graphs"):
            toolkits += [replace(kit, name=f"{SEQGEN}, captured", options=captured) for kit in toolkits]
        if (root := self.options.before) is not None:
            toolkits += [Toolkit(BEFORE, kit.format, start(kit.format, root=root)) for kit in toolkits]
        return toolkits

    def others(self, folder: Path) -> list[Toolkit]:
        """The other toolkits that the options name, in each dtype that they support."""
        toolkits = []
        for name, module in OTHER_TOOLKITS.items():
            if python := getattr(self.options, name):
                start = partial(self.start, python, module, [str(folder)])
                toolkits += self.attempt(name, start, self.options.formats)
        return toolkits

    def fairseq(self, files: Sequence[str]) -> list[Toolkit]:
        """fairseq with checkpoints, if the options name it."""
        if not (python := self.options.fairseq):
            return []
        return self.attempt("fairseq", partial(self.start, python, "fairseq_worker", files), ["float32"])

    def limits(self, folder: Path) -> list[Toolkit]:
        """The matrix products alone, once without and once with those of attention."""
        start = partial(self.start, sys.executable, "matrix_worker", [str(folder)])
        toolkits = self.attempt("matrix products", start, self.options.formats)
        with_attention = [
            replace(toolkit, name="... with attention", options={"attention": True}) for toolkit in toolkits
        ]
        return [replace(toolkit, decodes=False) for toolkit in [*toolkits, *with_attention]]

    def attempt(self, name: str, start: Callable[[str], WorkerHandle], formats: Sequence[str]) -> list[Toolkit]:
        """A toolkit in each dtype in which its worker starts; the others are skipped with a message."""
        toolkits = []
        for dtype in formats:
            try:
                toolkits.append(Toolkit(name, dtype, start(dtype)))
            except WorkerError as error:
                print(f"{name} in {dtype} is left out: {error}", file=sys.stderr)
        return toolkits
