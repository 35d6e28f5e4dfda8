"""Monte-Carlo dropout: an ensemble of one model, whose members keep other features.

Gal and Ghahramani 2016, "Dropout as a Bayesian Approximation"; Fomicheva et al. 2020, "Unsupervised Quality Estimation
for Neural Machine Translation". A mask ``z_m`` is a sample of a posterior over models ::

    p(y | x) = 1/M sum_m p(y | x, z_m),    features h of a layer become z_m h / (1 - q),    z_m ~ Bernoulli(1 - q)

with the dropout probability ``q`` of training, or ``search.rate``. uncertainty.py measures the members: the mutual
information of each token, and D-TP, the mean of the members' ``1/L log p(y | x, z_m)``, of a translation::

    seqgen-generate common.user_dir=[examples/papers/mc_dropout.py,examples/papers/uncertainty.py]
        path=[runs/a,runs/a,runs/a,runs/a,runs/a] input=test.en generation.search=mc_dropout format=json
        generation.observers=[uncertainty] observer.uncertainty.file=dropout.jsonl

The mask of a feature depends on ``search.seed``, the line number, the member and the place in the network, and is the
same for all positions of a sentence, so that each member is one function of prefixes. Neither the batch nor the cache
changes it. Features are dropped, but neither attention weights nor values inside feed-forward layers. An ensemble of
a model with itself is another model, so that ``seqgen-check`` finds the invariant ``[m, m] = m`` violated.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from seqgen.extend import (
    BeamSearch,
    ConfigError,
    DecodingRequest,
    DecodingSetup,
    Dropout,
    Member,
    MemberOutput,
    MemberSpec,
    MultiheadAttention,
    PlannedMember,
    Session,
    Source,
    option,
    register_search,
    uniform,
)

ENCODER, DECODER = 0, 1


class DropoutMember(PlannedMember):
    """A member with dropout.

    Args:
        search: has the seed and the rate.
        number: which of the members it is.
        ids: ``(sentences,)`` int64 line numbers.
        arguments: those of ``Member``.
    """

    def __init__(self, search: McDropout, number: int, ids: Tensor, *arguments: Any):
        self.search, self.number, self.ids = search, number, ids
        self.masks: dict[tuple[int, int], Tensor] = {}
        """``(sentences, C)`` by the part of the model and the number of the call in a pass of this part."""
        with self.dropping(arguments[0], ENCODER):
            super().__init__(*arguments)
        self.source = None  # what was encoded with dropout is not read without it

    @contextmanager
    def dropping(self, model: Any, part: int) -> Iterator[None]:
        """In the ``with`` block, a part of the model makes a pass with dropout."""
        owners = [module for module in model.modules() if not isinstance(module, MultiheadAttention)]
        found = [child for owner in owners for child in owner.children() if isinstance(child, Dropout)]
        rates, calls = [self.search.rate or module.p for module in found], count()
        if not any(rates):
            raise ConfigError("the model was trained without dropout of features; set search.rate, such as 0.1")
        for rate, module in zip(rates, found, strict=True):
            module.training, module.forward = True, partial(self.drop, rate, part, calls)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for module in found:
                module.training = False
                del module.forward

    def drop(self, p: float, part: int, calls: Iterator[int], x: Tensor) -> Tensor:
        """Drop features of ``x``, ``(rows, T, C)``."""
        place = part, next(calls)
        if place not in self.masks:
            features = torch.arange(x.size(-1), device=x.device)
            numbers = uniform(self.search.seed, self.number, *place, self.ids.unsqueeze(1), features)
            self.masks[place] = (numbers >= p).to(x.dtype) / (1 - p)
        mask = self.masks[place].unsqueeze(1)
        return (x.reshape(len(mask), -1, x.size(-1)) * mask).view_as(x)

    def compute(self, tokens: Tensor, needs: Set[str]) -> MemberOutput:
        """See ``Member.compute``."""
        with self.dropping(self.model, DECODER):
            return super().compute(tokens, needs)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Member.select_sentences``."""
        super().select_sentences(keep)
        self.ids = self.ids.index_select(0, keep)
        self.masks = {place: mask.index_select(0, keep) for place, mask in self.masks.items()}


class DropoutSession(Session):
    """Decodes a batch with dropout; see ``Session``."""

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        self.numbers = count()
        super().__init__(setup, request)

    def new_member(self, spec: MemberSpec, source: Source, start_token: int | None) -> Member:
        """See ``Session.new_member``."""
        search = self.setup.search
        assert isinstance(search, McDropout)
        ids, arguments = self.request.sample.ids, (spec.model, source, self.beam, start_token, self.setup.fast)
        return DropoutMember(search, next(self.numbers), ids.to(source.src_tokens.device), *arguments)


@dataclass
class McDropoutConfig:
    """Configuration of Monte-Carlo dropout; its fields are the keys ``search.FIELD``."""

    seed: int = option(1, "seed of the masks", minimum=0)
    rate: float = option(0.0, "q; 0 for the probabilities of training", minimum=0, maximum=0.99)


@register_search("mc_dropout", config=McDropoutConfig)
class McDropout(BeamSearch):
    """Beam search with dropout in all members.

    Args:
        seed: seed of the masks.
        rate: the dropout probability; 0 for those of training.
    """

    changes_scores = True  # those of the models with dropout
    session_class = DropoutSession

    def __init__(self, seed: int = 1, rate: float = 0.0):
        self.seed, self.rate = seed, rate
