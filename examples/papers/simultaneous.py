"""Wait-k simultaneous translation: the output begins after k source tokens, and reads one more for each token.

Ma, Huang, Xiong et al. 2019, "STACL: Simultaneous Translation with Implicit Anticipation and Controllable Latency using
Prefix-to-Prefix Framework". Token ``y_t`` is predicted from a prefix of the source ``x``, here by a model that was
trained on whole sentences ("test-time wait-k"); encoder and decoder are computed anew for each prefix:

    p(y) = product of p(y_t | y_<t, x_<=g(t)),    g(t) = min(k + t - 1, |x|)

``|x|`` does not count end-of-sentence, which is read with the last token; until then, the output cannot end.

``seqgen-generate common.user_dir=examples/papers/simultaneous.py path=runs/a input=test.en generation.search=wait_k
generation.max_len_b=40 search.k=3 search.latency=latency.jsonl`` ``python examples/papers/latency.py path=runs/a
latency=latency.jsonl reference=test.de`` prints the average lagging.

Expect worse outputs and a smaller lag for smaller k; with k above all lengths, this is beam search.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqgen.extend import (
    BeamSearch,
    Candidates,
    ConfigError,
    DecodingRequest,
    DecodingSetup,
    Member,
    MemberOutput,
    MemberSpec,
    PlannedMember,
    Scores,
    Session,
    Source,
    StepContext,
    option,
    pad_rows,
    register_search,
)


class PrefixMember(PlannedMember):
    """A member that reads the first tokens of each source, by ``k``; see ``Member``."""

    k: int

    def __init__(self, spec: MemberSpec, source: Source, *arguments: Any):
        super().__init__(spec.model, source, *arguments)
        self.left, self.width = spec.model.left_pad_source, source.src_tokens.size(1)
        sizes = source.src_lengths.tolist()
        rows = zip(source.src_tokens, sizes, strict=True)
        self.sources = [row[self.width - size :] if self.left else row[:size] for row, size in rows]
        # of equally long sources, the prefixes are equally long as well, and none is padded
        self.pad = int(source.src_tokens[sizes.index(min(sizes)), 0 if self.left else -1])
        self.read: list[int] = []

    def unread(self, step: int) -> list[bool]:
        """Which sources are not read completely at a step."""
        return [tokens_read(self.k, step, len(source)) < len(source) for source in self.sources]

    def next_output(self, tokens: Tensor, *args: Any, **options: Any) -> MemberOutput:
        """Encode the prefixes, and decode all of ``tokens``, ``(rows, 1 + step)``; see ``Member.next_output``."""
        read = [tokens_read(self.k, tokens.size(1) - 1, len(source)) for source in self.sources]
        if read != self.read:
            self.read, prefixes = read, [source[:size] for source, size in zip(self.sources, read, strict=True)]
            encoder, lengths = self.model.encoder, torch.tensor(read, device=tokens.device)
            rows = torch.arange(len(read), device=tokens.device).repeat_interleave(self.beam_size)
            encoded = encoder(pad_rows(prefixes, self.pad, self.left), lengths)
            self.encoder_out = encoder.reorder_encoder_out(encoded, rows)
        out = super().next_output(tokens, *args, **options)
        return out if out.attention is None else replace(out, attention=self.over_sources(out.attention))

    def over_sources(self, attention: Tensor) -> Tensor:
        """Attention over the prefixes, ``(rows, S')``, as attention over the whole sources, ``(rows, S)``."""
        found = attention.new_zeros(len(attention), self.width)
        for row, weights in enumerate(attention):
            size, read = len(self.sources[row // self.beam_size]), self.read[row // self.beam_size]
            start, first = (self.width - size, len(weights) - read) if self.left else (0, 0)
            found[row, start : start + read] = weights[first : first + read]
        return found

    def select_sentences(self, keep: Tensor) -> None:
        """See ``Member.select_sentences``."""
        super().select_sentences(keep)
        self.sources, self.read = [self.sources[i] for i in keep.tolist()], [self.read[i] for i in keep.tolist()]


class WaitKSession(Session):
    """Decodes a batch from growing prefixes, without a key/value cache; see ``Session``."""

    members: list[PrefixMember]  # type: ignore[assignment]

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        if any(spec.model.continues_source for spec in setup.ensemble.members):
            raise ConfigError("search=wait_k needs a model with an encoder; choose another search for language models")
        if request.sample.source.encoder_out is not None:
            raise ConfigError("search=wait_k encodes parts of the source, not known encoder outputs; give the text")
        super().__init__(replace(setup, fast=replace(setup.fast, use_cache=False)), request)
        self.sizes = [len(source) - 1 for source in self.members[0].sources]

    def new_member(self, spec: MemberSpec, source: Source, start_token: int | None) -> Member:
        """See ``Session.new_member``."""
        member = PrefixMember(spec, source, self.beam, start_token, self.setup.fast)
        assert isinstance(self.setup.search, WaitK)
        member.k = self.setup.search.k
        return member

    def choose(self, context: StepContext, scores: Scores) -> Candidates:
        """Choose as beam search does; an output ends only if its source is read, or at the maximum length."""
        unread = torch.tensor([member.unread(context.step) for member in self.members], device=self.live.device).any(0)
        unread &= self.sentences.max_lengths > context.step
        forbidden = torch.zeros(len(unread), 1, scores.size, device=self.live.device)
        forbidden[:, 0, list(self.setup.end_tokens)] = torch.where(unread, -torch.inf, 0.0).unsqueeze(1)
        return super().choose(context, scores.plus(forbidden))

    def collect(self, rows: Tensor) -> list[int]:
        """Append the delays of the best hypotheses to the file; see ``Session.collect``."""
        sentences = super().collect(rows)
        assert isinstance(self.search, WaitK)
        for sentence in sentences if self.search.latency else []:
            for best in self.results[sentence][:1]:
                words = [token for token in best.tokens.tolist() if token not in self.setup.end_tokens]
                delays = [min(self.search.k + t, self.sizes[sentence]) for t in range(len(words))]
                line = {"line": int(self.ids[sentence]), "source": self.sizes[sentence], "delays": delays}
                with Path(self.search.latency).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        return sentences


@dataclass
class WaitKConfig:
    """Configuration of wait-k; its fields are the keys ``search.FIELD``."""

    k: int = option(3, "source tokens that are read before the first token is generated", minimum=1)
    latency: str = option(
        "", "JSON lines with the delays of each output's tokens are appended to this file", role="output_path"
    )


@register_search("wait_k", config=WaitKConfig)
class WaitK(BeamSearch):
    """Beam search over prefixes of the source; see ``WaitKConfig``."""

    session_class = WaitKSession

    def __init__(self, k: int = 3, latency: str = ""):
        super().__init__()
        self.k, self.latency = k, latency


def tokens_read(k: int, step: int, length: int) -> int:
    """The number of source tokens, of ``length`` with end-of-sentence, that are read before the token of a step."""
    return k + step if k + step < length - 1 else length
