"""The base class of logits processors, which change the scores of the next token. They do not use models or searches.

Those of a configuration are in ``seqgen/decoding/processors/``; its rules determine their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from seqgen.core.component import Component
from seqgen.core.context import StepContext
from seqgen.core.contract import Flags, check_returned_tensor


class LogitsProcessor(Component):
    """Changes the scores of the next token; a subclass implements ``__call__``.

    A processor registered with ``@register_logits_processor`` is selected by its name (``generation.processors``).
    """

    setting = "processors"

    flags: ClassVar[Flags] = {
        "shift_invariant": ("__call__",),
        "can_merge": ("__call__", "token_fields"),
        "certifiable": ("__call__",),
        "token_attributes": ("__call__",),
    }

    shift_invariant: bool = False
    """True if adding a constant to a row before the processor equals adding it after. If all processors are shift
    invariant, they get logits, and the log-sum-exp is subtracted later, which saves a pass over the vocabulary."""

    can_merge: bool = False
    """True if it supports continuous batching: it must then not read tokens or source ids, and must use
    ``context.steps`` instead of ``context.step``."""

    token_attributes: tuple[str, ...] | None = None
    """The names of its attributes that have ids of tokens (an id, a list or a tensor), if it treats all other tokens
    alike, reads no generated tokens, and has no state. With a shortlist, it then gets columns in place of ids, also as
    ``context.eos`` and ``context.pad``, and the scores of these columns only. ``None`` if it needs all scores."""

    forces_end: bool = False
    """True if it forces the last token of an output of the maximum length."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """Change the scores of the next token.

        Args:
            lprobs: ``(rows, V)`` log-probabilities, which may be changed in place; under Hugging Face's rules, logits
                in greedy search and sampling.
            context: the step context.

        Returns:
            ``(rows, V)`` scores; ``-inf`` forbids a token.
        """
        raise NotImplementedError

    def forced(self, context: StepContext) -> Tensor | None:
        """The token that it forces in each row, which ``StepContext.forced`` shows to combinations; by default none.

        Returns:
            ``(rows,)`` int64, -1 where it forces none; ``None`` if it forces none at all.
        """
        return None

    def defer(self) -> LogitsProcessor | None:
        """A processor that gives the scores of few tokens, by ``narrow``, after all processors; by default none.

        It is called at each step, of the last processor. ``__call__`` of the processor that it returns is not called,
        or changes nothing.
        """
        return None

    def narrow(self, lprobs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The scores of the allowed tokens alone; see ``defer``.

        Args:
            lprobs: ``(rows, V)``.

        Returns:
            ``(rows, W)`` scores and ``(rows, W)`` int64 tokens; or the scores of all tokens, and ``None``.
        """
        raise NotImplementedError


def apply_all(processors: Sequence[LogitsProcessor], lprobs: Tensor, context: StepContext) -> Tensor:
    """Apply processors one after the other, and check what each returns."""
    like = lprobs.shape, lprobs.dtype, lprobs.device
    for processor in processors:
        lprobs = processor(lprobs, context)
        check_returned_tensor(processor, "__call__", lprobs, *like)
        if context.watch is not None:
            context.watch(processor, lprobs)
    return lprobs
