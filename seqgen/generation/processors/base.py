"""The base class of logits processors: small changes to the next-token scores. They know nothing of models or search.

Each kind has a file of its own: ``tokens``, ``length``, ``repetition``, ``bias``, ``prefix``, ``prefix_trie``,
``scaling`` and ``warpers``. ``setup`` makes those that a configuration asks for; the rules put them in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from seqgen.flags import Flags
from seqgen.generation.component import Component, Composite
from seqgen.generation.context import StepContext


class LogitsProcessor(Component):
    """Changes the scores of the next token; a subclass implements ``__call__``.

    One that is registered with ``@register_logits_processor`` can be chosen by name (``generation.processors``).
    """

    flags: ClassVar[Flags] = {"shift_invariant": ("__call__",), "can_merge": ("__call__",)}

    shift_invariant: bool = False
    """Whether a constant added to a row before gives the same as the constant added after. Then the session may hand
    over logits and subtract their log-sum-exp later, which saves a pass over the vocabulary."""

    can_merge: bool = False
    """Whether it is right where sentences have joined a running batch: it reads neither tokens nor sources, and counts
    steps by ``context.steps``."""

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """Change the scores of the next token.

        Args:
            lprobs: ``(rows, V)`` log-probabilities, which may be changed in place; by Hugging Face's rules, logits in
                greedy search and sampling.
            context: the step.

        Returns:
            ``(rows, V)`` scores; ``-inf`` forbids a token.
        """
        raise NotImplementedError


def apply_all(processors: Sequence[LogitsProcessor], lprobs: Tensor, context: StepContext) -> Tensor:
    """Apply processors one after the other."""
    for processor in processors:
        lprobs = processor(lprobs, context)
        if context.watch is not None:
            context.watch(processor, lprobs)
    return lprobs


class ProcessorList(Composite, LogitsProcessor):
    """Several processors, one after the other, as one.

    Args:
        processors: in the order in which they are applied.
    """

    def __init__(self, processors: Sequence[LogitsProcessor] = ()):
        self.parts: list[LogitsProcessor] = list(processors)

    @property
    def processors(self) -> list[LogitsProcessor]:
        """The processors, in their order."""
        return self.parts

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        """Whether all of them are."""
        return all(processor.shift_invariant for processor in self.processors)

    @property
    def can_merge(self) -> bool:  # type: ignore[override]
        """Whether all of them do."""
        return all(processor.can_merge for processor in self.processors)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor``."""
        return apply_all(self.processors, lprobs, context)
