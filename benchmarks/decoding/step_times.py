"""The share of each part of decoding in its time, measured by wrappers around the session's methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self
from unittest import mock

import torch

from seqgen.core.model import EncoderDecoderModel
from seqgen.core.session import Session

PARTS = ("encoder", "decoder", "output layer", "scores", "candidates", "rest")
"""``encoder``: also the preparation of a batch, with a shortlist the copy of rows of the output layer; ``decoder``:
without its output layer; ``scores``: log-softmax and processors; ``candidates``: the search strategy; ``rest``:
hypotheses that finish, reordering of the decoding state, and everything else."""


class StepTimes:
    """Measures the parts of decoding; the wrappers take a few microseconds for each call.

    Args:
        models: the models, transformers or T5.
        device: the device on which they are; on a GPU, each measurement waits for it.
    """

    def __init__(self, models: Sequence[EncoderDecoderModel], device: str):
        self.models, self.device = models, device
        self.seconds = dict.fromkeys(("init", "member_outputs", "score", "choose", "output layer", "run"), 0.0)

    @property
    def shares(self) -> dict[str, float]:
        """The share of each of ``PARTS``; they sum to 1."""
        seconds = self.seconds
        parts = {
            "encoder": seconds["init"],
            "decoder": seconds["member_outputs"] - seconds["output layer"],
            "output layer": seconds["output layer"],
            "scores": seconds["score"] - seconds["member_outputs"],
            "candidates": seconds["choose"],
            "rest": seconds["run"] - seconds["score"] - seconds["choose"],
        }
        total = seconds["init"] + seconds["run"]
        return {part: parts[part] / total for part in PARTS}

    @contextmanager
    def measuring(self) -> Iterator[Self]:
        """Measure all decodes in the ``with`` block."""
        with ExitStack() as stack:
            for name in ("member_outputs", "score", "choose", "run"):
                timed = self._timed(name, getattr(Session, name))
                stack.enter_context(mock.patch.object(Session, name, timed))
            stack.enter_context(mock.patch.object(Session, "__init__", self._timed("init", Session.__init__)))
            for model in self.models:
                decoder: Any = model.decoder
                layer = self._timed("output layer", decoder.output_layer)
                stack.enter_context(mock.patch.object(decoder, "output_layer", layer))
                prepare = decoder.output_columns

                def columns(ids: torch.Tensor, prepare: Any = prepare) -> Any:
                    return self._timed("output layer", prepare(ids))

                stack.enter_context(mock.patch.object(decoder, "output_columns", columns))
            yield self

    def _timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **further: Any) -> Any:
            start = self._now()
            try:
                return work(*arguments, **further)
            finally:
                self.seconds[name] += self._now() - start

        return timed

    def _now(self) -> float:
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()
