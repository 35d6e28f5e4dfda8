"""A toolkit with a model, as a process of its own that answers requests: JSON, one line each way.

A request is ``{"sources": [[id, ...], ...], "batch": 8, "beam": 5, "length": 64, "semantics": "huggingface"}``: decode
these sentences, so many at a time, each to exactly so many tokens. The answer has the seconds of each batch, the best
output of each sentence, and the memory.
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
    """A toolkit with a model that it has loaded.

    Attributes:
        version: of the toolkit.
        memory: measures what its work takes.
    """

    version = ""
    memory: ProcessMemory | CudaMemory = ProcessMemory()

    @abstractmethod
    def decode(self, sources: list[list[int]], request: Request) -> list[list[int]]:
        """Decode a batch.

        Args:
            sources: ids of each sentence, end-of-sentence included.
            request: says how.

        Returns:
            The ids of each sentence's best output; the start token not included.
        """

    def answer(self, request: Request) -> Answer:
        """Do what is asked for, and measure it."""
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
    """The arguments that all workers have."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("models", nargs="+", help="folder, or name of a preset")
    arguments.add_argument("--format", default="float32")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--vocabulary", type=int, default=8000, help="of presets")
    return arguments


def serve(make: Callable[[argparse.Namespace], Worker]) -> None:
    """Load a model and answer requests until there are no more.

    Args:
        make: makes the worker from its arguments.
    """
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get between the answers

    def attempt(work: Callable[[], Answer]) -> bool:
        try:
            reply = work()
        except Exception as error:  # whatever it is, the other side should know
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
