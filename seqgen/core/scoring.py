"""Scoring: the members' logits become the scores that the search receives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqgen.core.candidates import log_sum_exp, normalized
from seqgen.core.combinations import Combination, combine
from seqgen.core.component import (
    ATTENTION,
    FORBIDDEN,
    LAYER_LOGITS,
    MEMBER_LOGITS,
    MEMBER_LPROBS,
    BatchInfo,
    Composite,
    begin_component,
)
from seqgen.core.context import LayerLogits, StepContext, StepOutputs
from seqgen.core.contract import check_returned_tensor
from seqgen.core.errors import ConfigError
from seqgen.core.member import Member, MemberOutput
from seqgen.core.observers import Forbidden
from seqgen.core.processors import LogitsProcessor, apply_all
from seqgen.core.scores import Scores
from seqgen.core.setup import DecodingSetup


class Scoring(Composite):
    """Makes the scores of a batch from the members' logits: combines them, and lets the processors change them.

    ``DecodingSetup.scoring`` may be a subclass that computes the scores of fewer tokens.

    Args:
        setup: how to decode.
        batch: the properties of the batch.

    Attributes:
        parts: the combination, then the processors, and what a subclass adds.
        num_tokens: size of the last dimension of the members' logits; -1 for any size.
        tokens: ``(W,)`` int64, the tokens that the logits have; ``None`` for all tokens.
        processes_logits: whether processors see logits rather than log-probabilities.
        adds_logits: whether the log-softmax can be skipped.
        renormalizes: whether scores are renormalized after the processors.
    """

    tokens: Tensor | None = None

    def __init__(self, setup: DecodingSetup, batch: BatchInfo):
        self.setup, ensemble, search = setup, setup.ensemble, setup.search
        self.parts = [begin_component(part, batch) for part in (ensemble.combination, *setup.processors)]
        self.num_tokens = setup.vocab_size
        self.narrows = setup.fast.narrowed_scores and batch.prefix_tokens is None and not search.applies_processors
        single = len(ensemble.members) == 1 and ensemble.combination.keeps_single
        self.processes_logits = single and setup.rules.processes_logits(search)
        self.adds_logits = (
            setup.fast.skip_log_softmax
            and single
            and ensemble.normalizes_by_softmax
            and all(processor.shift_invariant for processor in setup.processors)
        )
        self.renormalizes = setup.rules.renormalizes(search)

    @property
    def combination(self) -> Combination:
        """The combination for this batch."""
        combination: Combination = self.parts[0]
        return combination

    @property
    def processors(self) -> list[LogitsProcessor]:
        """The logits processors for this batch."""
        return self.parts[1 : 1 + len(self.setup.processors)]

    def attach(self, members: Sequence[Member]) -> None:
        """Tell the members what to compute; called when they are made, and after sentences joined. Nothing by default.

        Args:
            members: the members of the session.
        """

    def restrict(self, logits: Tensor) -> Tensor:
        """Change the logits ``(rows, W)`` of a member before they are normalized; by default not at all."""
        return logits

    def read(self, outputs: Sequence[MemberOutput], alike: Sequence[bool]) -> tuple[list[Tensor], StepOutputs]:
        """Read the outputs of the members for the newest token of each row.

        Args:
            outputs: those of each member.
            alike: for each member whether it reads the same source as the first one.

        Returns:
            The logits ``(rows, W)`` of each member, in float32 or wider, and what components need besides.
        """
        setup, logits = self.setup, []
        for out in outputs:
            wide = out.logits if out.logits.dtype == torch.float32 else _widened(out.logits)
            wide = wide / setup.temperature if setup.temperature != 1.0 else wide
            logits.append(self.restrict(wide))
        attention = None
        if ATTENTION in setup.needs:
            weights = [out.attention if same else None for out, same in zip(outputs, alike, strict=True)]
            attention = setup.ensemble.combine_attention(weights)
        kept = [values.clone() for values in logits] if MEMBER_LOGITS in setup.needs else None
        exits = self._layer_logits(outputs[0]) if LAYER_LOGITS in setup.needs else None
        return logits, StepOutputs(outputs[0].features, attention, kept, exits)

    def check(self, outputs: Sequence[MemberOutput], beams: Tensor) -> None:
        """Check what the members computed: logits ``(rows, W)``, and attention ``(rows, S)`` if there is any.

        Args:
            outputs: those of each member.
            beams: ``(live, beam)`` cumulative scores.

        Raises:
            ContractError: a tensor has another shape or is on another device.
        """
        rows, on = beams.numel(), beams.device
        for spec, out in zip(self.setup.ensemble.members, outputs, strict=True):
            model = spec.model
            owner: Any = model if model.adjusts_logits else model.decoder
            method = "adjust_logits_during_generation" if model.adjusts_logits else "forward"
            check_returned_tensor(owner, method, out.logits, (rows, self.num_tokens), None, on, "the newest logits ")
            if (found := out.attention) is not None:
                check_returned_tensor(model.decoder, "forward", found, (rows, -1), None, on, "the newest attention ")

    def _layer_logits(self, output: MemberOutput) -> LayerLogits:
        """The logits of each layer; a session that does not record layers cannot compute them."""
        setup = self.setup
        if output.layers is None:
            what = setup.needing(LAYER_LOGITS)
            raise ConfigError(
                f"{what} needs the logits of each layer, which {type(setup.search).__name__} does not compute; "
                f"remove {what} or choose another search"
            )
        decoder: Any = setup.ensemble.members[0].model.decoder
        return LayerLogits(output.layers, lambda hidden: _widened(decoder.early_exit(hidden)) / setup.temperature)

    def __call__(self, context: StepContext, logits: Sequence[Tensor], beams: Tensor) -> tuple[StepContext, Scores]:
        """The scores of a step.

        Args:
            context: the step context.
            logits: ``(rows, W)`` of each member, in float32 or wider.
            beams: ``(live, beam)`` cumulative scores.

        Returns:
            The context, with what the search, stopping rules and observers need besides, and the scores.
        """
        forbids = bool(self.setup.processors)
        if self.renormalizes and forbids:  # a processor may forbid all tokens of a row; a model may not
            nothing = logits[0].amax(1) == -torch.inf
            beams = torch.where(nothing.view_as(beams), torch.nan, beams)
        if self.processes_logits or self.adds_logits:
            values = logits[0]
        else:
            context, values = self._combine(context, logits)
        # before the processors, since they work in place
        log_sum = log_sum_exp(values) if self.adds_logits and not self.renormalizes else None
        last = self.processors[-1].defer() if self.narrows and forbids else None
        context, values = self.process(context, values, log_sum)
        values, tokens = (values, self.tokens) if last is None else last.narrow(values)
        if self.renormalizes and self.adds_logits:
            largest = values.amax(1, keepdim=True)
            log_sum = log_sum_exp(values, largest)
            if forbids:
                log_sum.masked_fill_(largest == -torch.inf, 0.0)  # everything is forbidden
        elif self.renormalizes:
            values = normalized(values)
        return context, Scores(
            context.by_sentence(values),
            beams,
            None if log_sum is None else context.by_sentence(log_sum),
            context.by_sentence(tokens) if tokens is not None and tokens.dim() == 2 else tokens,
            self.setup.vocab_size,
            self.renormalizes,
            self.setup.fast.two_stage_candidates,
        )

    def _combine(self, context: StepContext, logits: Sequence[Tensor]) -> tuple[StepContext, Tensor]:
        """Normalize and combine the members' logits, ``(rows, W)`` each."""
        each = []
        for spec, values in zip(self.setup.ensemble.members, logits, strict=True):
            found, like = spec.model.get_normalized_probs(values), (tuple(values.shape), values.dtype, values.device)
            each.append(check_returned_tensor(spec.model, "get_normalized_probs", found, *like))
        lprobs = combine(self.combination, each, context)
        if MEMBER_LPROBS not in self.setup.needs:
            return context, lprobs
        outputs = replace(context.outputs, member_lprobs=each)
        # a copy, since processors work in place, and a combination may return a member's scores
        return replace(context, outputs=outputs), lprobs.clone()

    def process(
        self, context: StepContext, lprobs: Tensor, log_sum: Tensor | None = None
    ) -> tuple[StepContext, Tensor]:
        """Apply the logits processors to ``(rows, W)`` scores, whose log-sum-exp ``(rows, 1)`` may be known."""
        if FORBIDDEN in self.setup.needs:
            context = replace(context, watch=Forbidden(lprobs, 2 * context.rows_per_sentence, log_sum))
        if not self.setup.search.applies_processors:
            return context, apply_all(self.processors, lprobs, context)

        def process(scores: Tensor) -> Tensor:
            return apply_all(self.processors, scores.flatten(0, 1), context).view_as(scores)

        return replace(context, process=process), lprobs


def _widened(logits: Tensor) -> Tensor:
    """Logits in float32 or wider."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
