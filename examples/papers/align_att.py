"""AlignAtt: a token is emitted unless its attention points to the source tokens that were read last.

Papi, Turchi and Negri 2023, "AlignAtt: Using Attention-based Audio-Translation Alignments as a Guide for Simultaneous
Speech Translation", here for text. After each source token, a model that was trained on whole sentences continues the
emitted tokens by greedy search. With ``g`` tokens of the source ``x`` read, ``y_t`` is aligned to the source position

    a_t = argmax over j = 1..g of A(t, j),

where ``A`` is the cross-attention that the model reports, averaged over heads. Tokens are emitted up to the first one
that has ``a_t > g - f`` or is end-of-sentence; then one more source token is read. After the last one, all are emitted.

``seqgen-generate common.user_dir=examples/papers/align_att.py path=runs/transformer input=test.en
generation.search=align_att generation.max_len_b=40 search.f=2 search.latency=align_att.jsonl``
``python examples/papers/latency.py path=runs/transformer latency=align_att.jsonl reference=test.de`` prints lags.

Expect better outputs and a larger lag for larger f; with f above all lengths, this is greedy search.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqgen.extend import (
    ATTENTION,
    ConfigError,
    DecodingRequest,
    DecodingSetup,
    Greedy,
    Member,
    MemberOutput,
    MemberSpec,
    PlannedMember,
    Scores,
    Session,
    Source,
    StepContext,
    option,
    register_search,
)


class PrefixMember(PlannedMember):
    """A member that reads the first tokens of each source, with one row for each sentence; see ``Member``."""

    def __init__(self, spec: MemberSpec, source: Source, *arguments: Any):
        super().__init__(spec.model, source, *arguments)
        self.width, sizes = source.src_tokens.size(1), source.src_lengths.tolist()
        self.first = [self.width - size if spec.model.left_pad_source else 0 for size in sizes]
        rows = zip(source.src_tokens, self.first, sizes, strict=True)
        self.sources = [row[first : first + size] for row, first, size in rows]
        self.read, self.encoded = [0] * len(sizes), [self.encoder_out] * len(sizes)  # no prefix is encoded yet

    def encode(self, read: list[int]) -> None:
        """Encode the prefixes that have changed; ``read`` tokens of each source, end-of-sentence included."""
        for row, (old, new) in enumerate(zip(self.read, read, strict=True)):
            if old != new:
                prefix = self.sources[row][:new].unsqueeze(0)
                self.encoded[row] = self.model.encoder(prefix, torch.tensor([new], device=prefix.device))
        if read != self.read:  # prefixes are padded on the right, on whichever side the sources are
            self.read, self.encoder_out = read, reduce(self.model.encoder.merge_encoder_outs, self.encoded)

    def next_output(self, tokens: Tensor, *args: Any, **options: Any) -> MemberOutput:
        """Decode, and return attention over the whole sources, ``(rows, S)``; see ``Member.next_output``."""
        out = super().next_output(tokens, *args, **options)
        if out.attention is None:
            return out
        found = out.attention.new_zeros(len(self.read), self.width)
        for row, (first, read) in enumerate(zip(self.first, self.read, strict=True)):
            found[row, first : first + read] = out.attention[row, :read]
        return replace(out, attention=found)

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Member.select_sentences``."""
        super().select_sentences(keep)
        for values in (self.first, self.sources, self.read, self.encoded):
            values[:] = [values[row] for row in keep.tolist()]  # type: ignore[index]


class AlignAttSession(Session):
    """Decodes a batch from growing prefixes, without a key/value cache; see ``Session``."""

    members: list[PrefixMember]  # type: ignore[assignment]
    search: AlignAtt

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        if request.sample.source.encoder_out is not None:
            raise ConfigError("search=align_att encodes parts of the source, not known encoder outputs; give the text")
        super().__init__(replace(setup, fast=replace(setup.fast, use_cache=False)), request)
        if not all(self.reads_alike) or setup.ensemble.models[0].continues_source:
            raise ConfigError("search=align_att needs models with encoders which all read the input as the same tokens")
        # |x| and g of each sentence of the batch, and the values of g at which its tokens were emitted
        self.words = [len(source) - 1 for source in self.members[0].sources]
        self.read, self.delays = [min(1, size) for size in self.words], [list[int]() for _ in self.words]

    def new_member(self, spec: MemberSpec, source: Source, start_token: int | None) -> Member:
        """See ``Session.new_member``."""
        return PrefixMember(spec, source, self.beam, start_token, self.setup.fast)

    def score(self, step: int) -> tuple[StepContext, Scores]:
        """Read until each sentence can emit its next token, and score that token; see ``Session.score``."""
        while True:
            for member in self.members:  # end-of-sentence is read with the last token
                member.encode([self.read[i] + (self.read[i] == self.words[i]) for i in self.live.tolist()])
            context, scores = super().score(step)
            if not (waiting := self.waiting(context, scores)):
                break
            for sentence in waiting:
                self.read[sentence] += 1
        for sentence in self.live.tolist():
            self.delays[sentence].append(self.read[sentence])
        return context, scores

    def waiting(self, context: StepContext, scores: Scores) -> list[int]:
        """The sentences of the batch whose next token is not emitted yet."""
        if (attention := context.outputs.attention) is None:
            raise ConfigError("search=align_att needs the attention of the model, which it does not return")
        aligned, tokens = attention.argmax(-1).tolist(), scores.best_of_each().tokens[:, 0].tolist()
        found = []
        for row, sentence in enumerate(self.live.tolist()):
            g, position = self.read[sentence], aligned[row] - self.members[0].first[row]  # position from 0
            if g < self.words[sentence] and (position >= g - self.search.f or tokens[row] in self.setup.end_tokens):
                found.append(sentence)
        return found

    def collect(self, rows: Tensor) -> list[int]:
        """Append the delays of the outputs to the file; see ``Session.collect``."""
        sentences = super().collect(rows)
        for sentence in sentences if self.search.latency else []:
            tokens = self.results[sentence][0].tokens.tolist() if self.results[sentence] else []
            delays = self.delays[sentence][: sum(token not in self.setup.end_tokens for token in tokens)]
            line = {"line": int(self.ids[sentence]), "source": self.words[sentence], "delays": delays}
            with Path(self.search.latency).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return sentences


@dataclass
class AlignAttConfig:
    """Configuration of AlignAtt; its fields are the keys ``search.FIELD``."""

    f: int = option(2, "f: a token aligned to one of the last f source tokens is not emitted yet", minimum=1)
    latency: str = option(
        "", "JSON lines with the delays of each output's tokens are appended to this file", role="output_path"
    )


@register_search("align_att", config=AlignAttConfig)
class AlignAtt(Greedy):
    """Greedy search over prefixes of the source; see ``AlignAttConfig``."""

    needs = frozenset({ATTENTION})
    session_class = AlignAttSession

    def __init__(self, f: int = 2, latency: str = ""):
        self.f, self.latency = f, latency
