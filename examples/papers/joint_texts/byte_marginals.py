"""Exact probabilities of the next byte (Phan, Amos, Gat, Havasi, Muckley and Ullrich 2025, "Exact Byte-Level
Probabilities from Tokenized Language Models for FIM-Tasks and Model Ensembles"; Vieira et al. 2025, "From Language
Models over Tokens to Language Models over Characters").

The search generates bytes. A text ``x`` is a prefix of the output if the tokens ``t`` of a cover begin with ``x``, and
without their last token do not. The probability of the next byte is that of all covers::

    P(x) = sum over covers t of p(t)          p(b | x) = P(x b) / P(x)

Tokens without text are excluded, and the probabilities of the others are renormalized. The members' distributions of
the next byte are combined as usual (``combination.mean=probability|log``). ::

    seqgen-generate common.user_dir=examples/papers/joint_texts path=[runs/a,runs/bytes_lm] input=test.en
        generation.member_sources=[input,empty] generation.combination=bytes combination.covers=4
        generation.beam=2 generation.max_len_b=80

Of the tokenizations of each beam, the ``covers`` most probable ones are kept, each with a row of the model and the
distribution of its next token; a note says if there were more. With fewer than all, they are approximate.
Memory grows with sentences * beam * covers * vocabulary; a smaller ``generation.batch_size`` needs less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seqgen.addons.cross_vocabulary import END, AgreementMember, CrossVocabulary
from seqgen.extend import (
    Combination,
    ConfigError,
    DecodingSetup,
    LogProbabilityMean,
    MeanConfig,
    MemberOutput,
    MemberSpec,
    ProbabilityMean,
    Source,
    StepContext,
    option,
    register_combination,
)

from .joint import STEPS, Divider, JointRule, JointVocabulary


class ByteMember(AgreementMember):
    """A member that marginalizes over the tokenizations of each beam.

    Each beam has ``covers`` rows, the slots. A slot has tokens whose text is a prefix of the beam's text. It takes part
    in the sum as long as a token can follow that begins with the rest of the text.

    Args:
        covers: slots of each beam.
        divider: the member's vocabulary, and the joint one.
        before: for each sentence the text that it has before its first token: a space, or nothing.
        first_token: the token that its outputs begin with; ``None`` for none.
        spec: see ``AgreementMember``.
        source: see ``AgreementMember``.
        setup: how to decode.

    Attributes:
        rests: for each row the text of the beam after its tokens; ``None`` for a free slot.
        weights: ``(rows,)`` log-probability of the tokens of each row, up to a constant of each beam.
        next: ``(rows, V)`` log-probabilities of its next token.
    """

    def __init__(
        self,
        covers: int,
        divider: Divider,
        before: Sequence[str],
        first_token: int | None,
        spec: MemberSpec,
        source: Source,
        setup: DecodingSetup,
    ):
        self.setup, self.covers = setup, covers
        super().__init__(spec, source, replace(setup, beam_size=setup.beam_size * covers), divider.ends, 0)
        self.divider, texts = divider, divider.vocabulary.texts
        if first_token is not None:
            self.force(torch.full_like(self.lengths, first_token))
        free: list[str | None] = [None] * (covers - 1)
        self.rests = [
            rest for text in before for _ in range(setup.beam_size) for rest in (" ".removeprefix(text), *free)
        ]
        self.silent = torch.tensor([not text for text in texts], device=self.tokens.device)
        self.next = self._distribution(torch.ones_like(self.lengths, dtype=torch.bool))
        self.weights = self.next.new_tensor([-torch.inf if rest is None else 0.0 for rest in self.rests])
        self._bytes: dict[str | None, Tensor] = {}

    def _distribution(self, steps: Tensor) -> Tensor:
        """The log-probabilities of the next token, without tokens that have no text."""
        return self.next_lprobs(steps, 0).masked_fill(self.silent, -torch.inf).log_softmax(-1)

    def next_output(self, tokens: Tensor, needs: Any = frozenset()) -> MemberOutput:
        """See ``Member.next_output``; tokens and logits are those of the joint vocabulary."""
        if tokens.size(1) > 1:
            self._follow([self.divider.joint.texts[index] for index in tokens[:, -1].tolist()])
        scores = self._marginals().logsumexp(1)  # a member that cannot give the text does not vote
        return MemberOutput(scores.masked_fill((scores == -torch.inf).all(1, keepdim=True), 0.0))

    def _marginals(self) -> Tensor:
        """``(beams, covers, V)`` log-probability of each slot and each next byte, or end-of-sentence."""
        size, beams = len(self.divider.joint.texts), len(self.rests) // self.covers
        following = torch.stack([self._next_bytes(rest) for rest in self.rests])
        largest = self.next.amax(1, keepdim=True)
        sums = self.next.new_zeros(len(self.rests), size + 1).scatter_add(1, following, (self.next - largest).exp())
        return ((sums.log() + largest)[:, :size] + self.weights.unsqueeze(1)).view(beams, self.covers, size)

    def _next_bytes(self, rest: str | None) -> Tensor:
        """``(V,)`` int64 for each token the id of the byte after ``rest`` in its text; the number of ids for others."""
        if rest not in self._bytes:
            joint, texts = self.divider.joint, self.divider.vocabulary.texts
            fitting = [rest is not None and len(text) > len(rest) and text.startswith(rest) for text in texts]
            found = [
                joint.ids[text[len(rest or "")]] if fits else len(joint.texts)
                for text, fits in zip(texts, fitting, strict=True)
            ]
            self._bytes[rest] = torch.tensor(found, device=self.tokens.device)
        return self._bytes[rest]

    def _follow(self, texts: Sequence[str]) -> None:
        """Append a byte to each beam: slots stay while longer tokens fit; each token that fits exactly makes a slot."""
        goes_on = [text not in ("", END) for text in texts]  # other beams do not continue
        rests = [
            rest if rest is None or not goes_on[row // self.covers] else rest + texts[row // self.covers]
            for row, rest in enumerate(self.rests)
        ]
        fitting = torch.stack([self._next_bytes(rest) for rest in rests]) < len(self.divider.joint.texts)
        masses = (self.weights + self.next.masked_fill(~fitting, -torch.inf).logsumexp(1)).tolist()
        slots = list[tuple[float, int, int]]()  # the mass, the row, and the token that is appended or -1, of each slot
        for beam, goes in enumerate(goes_on):
            found, rows = [], range(beam * self.covers, (beam + 1) * self.covers)
            for row in rows:
                found.append((masses[row], row, -1))
                exact = self.divider.vocabulary.tokens.get(rests[row] or "", ()) if goes else ()
                found += [(float(self.weights[row] + self.next[row, token]), row, token) for token in exact]
            found = sorted((one for one in found if one[0] > -torch.inf), key=lambda one: -one[0])
            if len(found) > self.covers:
                some = f"a text had more than combination.covers={self.covers} tokenizations"
                self.setup.notes.add(f"probabilities of bytes are approximate: {some}")
            slots += [*found, *[(-torch.inf, (found or [(0.0, rows[0], -1)])[0][1], -1)] * self.covers][: self.covers]
        _, parents, tokens = zip(*slots, strict=True)
        device = self.tokens.device
        added, order = torch.tensor(tokens, device=device), torch.tensor(parents, device=device)
        lprobs = self.next[order, added.clamp(min=0)].masked_fill(added < 0, 0.0)
        super().reorder_beams(order.view(-1, self.beam_size) % self.beam_size)
        self.append(added, lprobs)
        kept = [mass > -torch.inf for mass, _, _ in slots]
        self.rests = [
            None if not keep else "" if token >= 0 else rests[row]
            for keep, (_, row, token) in zip(kept, slots, strict=True)
        ]
        self.weights = (self.weights + lprobs).masked_fill(~torch.tensor(kept, device=device), -torch.inf)
        if bool((added >= 0).any()):
            self.next = self._distribution(added >= 0).where((added >= 0).unsqueeze(1), self.next)

    def reorder_beams(self, parents: Tensor) -> None:
        """See ``Member.reorder_beams``; ``parents`` has beams, each of which has several rows."""
        slots = torch.arange(self.covers, device=parents.device)
        super().reorder_beams((parents.unsqueeze(-1) * self.covers + slots).flatten(1))

    def _select_rows(self, rows: Tensor) -> None:
        super()._select_rows(rows)
        self.rests = [self.rests[row] for row in rows.tolist()]
        self.weights, self.next = self.weights.index_select(0, rows), self.next.index_select(0, rows)


@dataclass
class BytesConfig(MeanConfig):
    """Configuration of the rule; its fields are the keys ``combination.FIELD``."""

    mean: str = option("probability", "what is averaged", choices=("probability", "log"))
    covers: int = option(16, "tokenizations of each beam that are kept", minimum=1, maximum=1024)


@register_combination("bytes", config=BytesConfig)
class Bytes(JointRule):
    """The mean of the members' probabilities of the next byte, or of their logarithms.

    Args:
        weights: weight of each member; empty for equal weights.
        mean: ``"probability"`` or ``"log"``.
        covers: tokenizations of each beam that are kept.
    """

    keys = (*STEPS, "constraints", "bad_words", "sequence_bias")
    note = "the search generates bytes, and each member adds up the probabilities of its tokenizations of the text"

    def __init__(self, weights: Sequence[float] = (), mean: str = "probability", covers: int = 16):
        self.inner: Combination = (LogProbabilityMean if mean == "log" else ProbabilityMean)(weights)
        self.covers = covers

    @classmethod
    def joint(cls, members: CrossVocabulary) -> JointVocabulary:
        """See ``JointRule.joint``; the bytes after the space that every output begins with."""
        return JointVocabulary(members.texts, list(map(chr, range(256))), " ")

    def new_member(self, divider: Divider, *arguments: Any) -> ByteMember:
        """See ``JointRule.new_member``."""
        return ByteMember(self.covers, divider, *arguments)

    def attention_weights(self, members: int) -> list[float]:
        """See ``Combination.attention_weights``."""
        return self.inner.attention_weights(members)

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """See ``Combination``."""
        if not self.members:
            raise ConfigError(
                "generation.combination=bytes is for members with different target vocabularies, and these have one; "
                "choose another combination"
            )
        among = self.among(lprobs, context)
        # the mean of logarithms is NaN where no byte is left
        return self.inner(among, context).masked_fill(among[0].amax(-1, keepdim=True) == -torch.inf, -torch.inf)
