"""The ensemble: one or several members, and the combination of their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from seqgen.core.combinations import Combination, ProbabilityMean
from seqgen.core.contract import check_returned, contract_error
from seqgen.core.errors import ConfigError
from seqgen.core.member import INPUT, MemberSpec, ModelOrMember
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Batch, Source


class Ensemble:
    """Models that share the target vocabulary, and the combination of their scores.

    Args:
        members: one or more models, of any architectures; ``MemberSpec`` gives a model a role.
        combination: combines their scores; by default the mean of probabilities.
    """

    def __init__(self, members: Sequence[ModelOrMember], combination: Combination | None = None):
        if not members:
            raise ConfigError("an ensemble needs at least one model")
        self.members = [item if isinstance(item, MemberSpec) else MemberSpec(item) for item in members]
        self.combination = combination or ProbabilityMean()
        weights = self.combination.attention_weights(len(self.members))  # raises where weights and members do not match
        if len(check_returned(self.combination, "attention_weights", weights, Sequence)) != len(self.members):
            what = f"must return a weight for each of {len(self.members)} members but returns {weights}"
            raise contract_error(self.combination, "attention_weights", what)

    @property
    def models(self) -> list[EncoderDecoderModel]:
        """The models of all members except companions: each of these models has a source in a batch."""
        return [member.model for member in self.members if not member.companion]

    @property
    def normalizes_by_softmax(self) -> bool:
        """True if the probabilities of every member are the softmax of its logits."""
        models = [member.model for member in self.members]
        return all(model.normalizes_by_softmax and model.decoder.normalizes_by_softmax for model in models)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put all models into evaluation mode, and restore their modes afterwards.

        Raises:
            UserError: a check of a model fails, before or afterwards; see ``EncoderDecoderModel.checks``.
        """
        training = [model for model in self.models if model.training]
        for model in self.models:
            for check in model.checks:
                check(model)
        for model in self.models:
            if any(module.training for module in model.modules()):
                model.eval()
        try:
            yield
        finally:
            for model in training:
                model.train()
            for model in self.models:
                for check in model.checks:
                    check(model)  # what was computed from other weights is not returned

    def sources(self, sample: Batch) -> list[Source]:
        """The source of a batch as each member reads it.

        Raises:
            ConfigError: the batch has one encoder output, and there are several encoders.
        """
        models = self.models
        if sample.member_sources is None:
            if sample.source.encoder_out is not None and len(models) > 1:
                raise ConfigError(
                    f"the encoder output of one model is given to an ensemble of {len(models)}; give one for each "
                    "model in member_sources, or decode with one model"
                )
            given = [sample.source] * len(models)
        elif len(sample.member_sources) != len(models):
            raise ValueError(f"the batch has {len(sample.member_sources)} sources for {len(models)} models")
        else:
            given = sample.member_sources
        by_model = {id(model): source for model, source in zip(models, given, strict=True)}
        remaining = iter(given)
        return [
            member.source_of(by_model[id(member.model)] if member.companion else next(remaining))
            for member in self.members
        ]

    def read_alike(self, sources: Sequence[Source]) -> list[bool]:
        """True for members that read the same tokens as the first member, so that their attention can be averaged."""
        return [
            member.source == INPUT and (source is sources[0] or torch.equal(source.src_tokens, sources[0].src_tokens))
            for member, source in zip(self.members, sources, strict=True)
        ]

    def combine_attention(self, attention: Sequence[Tensor | None]) -> Tensor | None:
        """Average the attention weights of the members that have some.

        Args:
            attention: ``(..., S)`` of each member; ``None`` for a member without attention or with another source.
        """
        weights = self.combination.attention_weights(len(self.members))
        given = [
            (weight, values)
            for weight, values in zip(weights, attention, strict=True)
            if values is not None and values.shape == next(a for a in attention if a is not None).shape
        ]
        if not given:
            return None
        total = sum(weight for weight, _ in given) or 1.0
        return torch.stack([values * (weight / total) for weight, values in given]).sum(0)
