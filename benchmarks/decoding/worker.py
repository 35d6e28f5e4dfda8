"""A worker: a process with a toolkit and a model, which reads requests and writes answers, one JSON line each.

A request is ``{"sources": [[id, ...], ...], "batch": 8, "beam": 5, "length": 64, "semantics": "huggingface"}``: decode
these sentences in batches of 8, each to an output of exactly 64 tokens. The answer has the seconds of each batch, the
best output of each sentence, and the memory used.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from benchmarks.decoding.memory import CudaMemory, ProcessMemory

Request = dict[str, Any]
Answer = dict[str, Any]


class Worker(ABC):
    """A toolkit that has loaded a model.

    Attributes:
        version: name and version of the library.
        memory: measures the memory that decoding uses.
    """

    version = ""
    memory: ProcessMemory | CudaMemory = ProcessMemory()

    @abstractmethod
    def decode(self, sources: list[list[int]], request: Request) -> list[list[int]]:
        """Decode a batch.

        Args:
            sources: ids of each sentence, end-of-sentence included.
            request: the request; see the module.

        Returns:
            The ids of each sentence's best output, without the start token.
        """

    def answer(self, request: Request) -> Answer:
        """Decode the sources of a request and measure time and memory.

        Args:
            request: the request; see the module.

        Returns:
            The answer: ``seconds``, ``processor_seconds``, ``outputs``, ``peak_bytes``, ``used_bytes``.
        """
        sources, size = request["sources"], request["batch"]
        batches = [sources[start : start + size] for start in range(0, len(sources), size)]
        outputs: list[list[int]] = []
        seconds: list[float] = []
        before = self.memory.start()
        processor = time.process_time()
        for batch in batches:
            start = time.perf_counter()
            outputs += self.decode(batch, request)
            seconds.append(time.perf_counter() - start)
        peak = self.memory.peak()
        return {
            "seconds": seconds,
            "processor_seconds": time.process_time() - processor,
            "outputs": outputs,
            "peak_bytes": peak,
            "used_bytes": max(peak - before, 0),
        }


def parser() -> argparse.ArgumentParser:
    """The command-line arguments of all workers."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("models", nargs="+", help="folder, or name of a preset")
    arguments.add_argument("--format", default="float32")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--vocabulary", type=int, default=8000, help="vocabulary size of presets")
    return arguments


def serve(make: Callable[[argparse.Namespace], Worker]) -> None:
    """Load a model, then answer requests until standard input ends.

    Args:
        make: makes the worker from its arguments.
    """
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print to standard output must not write between the answers

    def attempt(work: Callable[[], Answer]) -> bool:
        try:
            reply = work()
        except Exception as error:  # every error is reported to the measuring process
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
        channel.write(json.dumps(reply) + "\n")
        channel.flush()
        return "error" not in reply

    workers: list[Worker] = []

    def start() -> Answer:
        workers.append(make(parser().parse_args()))
        return {"ready": workers[0].version}

    if attempt(start):
        for line in sys.stdin:
            request = json.loads(line)
            attempt(lambda request=request: workers[0].answer(request))
