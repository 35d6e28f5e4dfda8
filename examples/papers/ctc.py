"""Connectionist temporal classification (Graves, Fernandez, Gomez and Schmidhuber 2006) of text, with a prefix beam
search and an n-gram language model (Hannun, Maas, Jurafsky and Ng 2014).

The encoder predicts ``frames`` distributions for each source token, over the target vocabulary and a blank, for which
the begin-of-sentence token is used. An output ``y`` has the probability of all its alignments ``a``; ``B(a)`` merges
equal neighbours and then removes blanks::

    p(y | x) = sum over a with B(a) = y of product over t of p_t(a_t | x)

Prefix beam search follows, from frame to frame, the ``K = generation.beam`` prefixes with the largest score, and
continues each with the ``K`` most probable tokens of the next frame::

    log p(y | x) + weight log p_LM(y) + bonus |y|

The language model is made from ``search.text``, with the interpolation of Witten and Bell (1991): after a context ``h``
that was seen ``c(h)`` times, before ``t(h)`` different tokens, where ``h'`` is ``h`` without its first token, ::

    p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h))

``seqgen-train common.user_dir=examples/papers/ctc.py model=ctc model.encoder_embed_dim=128 criterion=ctc
generation.search=ctc task=translation task.source_lang=en task.target_lang=de task.train=DATA/train task.valid=DATA/val
run_dir=runs/ctc``
``seqgen-generate common.user_dir=examples/papers/ctc.py path=runs/ctc input=test.en search.text=DATA/train.de
search.weight=0.3 generation.length_penalty=0``

The whole score of an output is that of its last token. A target that needs more frames than there are has no loss, and
is counted as ``impossible``.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from torch import Tensor, nn, tensor

from seqgen import extend


@dataclass
class CTCConfig(extend.TransformerConfig):
    """The keys of the transformer's encoder, and those below."""

    frames: int = extend.option(3, "number of distributions for each source token", minimum=1)


class CTCEncoder(extend.TransformerEncoder):
    """Returns log-probabilities ``(N, S * frames, V)`` as its features."""

    def __init__(self, cfg: CTCConfig, task: extend.Vocabularies):
        super().__init__(cfg, extend.TransformerModel.build_model(cfg, task).encoder.embed_tokens)
        self.frames, size = cfg.frames, cfg.frames * len(task.target_dictionary)
        self.output = nn.Linear(cfg.encoder_embed_dim, size)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> extend.EncoderOut:  # type: ignore[override]
        """Encode a batch."""
        logits = self.output(super().forward(src_tokens, src_lengths).encoder_out).unflatten(-1, (self.frames, -1))
        padding = src_tokens.eq(self.padding_idx).repeat_interleave(self.frames, 1)
        return extend.EncoderOut(logits.flatten(1, 2).log_softmax(-1), padding)


class NoDecoder(extend.Decoder):
    """There is no pass from left to right."""

    def forward(self, *inputs: object, **named: object) -> extend.DecoderOut:
        """Refuse it."""
        raise extend.ConfigError("model=ctc has no left-to-right pass; set criterion=ctc and generation.search=ctc")


@extend.register_model("ctc", config=CTCConfig)
class CTCModel(extend.EncoderDecoderModel):
    """An encoder alone."""

    @classmethod
    def build_model(cls, cfg: CTCConfig, task: extend.Vocabularies) -> Self:
        """Build the model; see ``TransformerModel.build_model``."""
        return cls(CTCEncoder(cfg, task), NoDecoder())


@extend.register_criterion("ctc")
class CTC(extend.Criterion):
    """The negative log-likelihood of targets without end-of-sentence."""

    def __call__(self, model: extend.EncoderDecoderModel, batch: extend.Batch) -> extend.CriterionOut:
        """Compute the loss of a batch with targets ``(N, T)``."""
        words, target, source = self.task.target_dictionary, batch.target, batch.source
        if target is None or not isinstance(model.encoder, CTCEncoder):
            raise extend.ConfigError("criterion=ctc needs targets, and model=ctc")
        lprobs = model.encoder(source.src_tokens, source.src_lengths).encoder_out.transpose(0, 1)
        sizes = source.src_lengths * model.encoder.frames, ((target != words.pad()) & (target != words.eos())).sum(1)
        losses = nn.functional.ctc_loss(lprobs, target, *sizes, words.bos(), "none", zero_infinity=True)
        loss, logged = losses.sum(), dict[str, Any](ntokens=batch.ntokens, impossible=(losses == 0).sum())
        return extend.CriterionOut(loss, batch.ntokens, {**logged, "nll_loss": loss.detach()})


class CTCSession(extend.Session):
    """Decodes a batch; see ``Session``."""

    search: CTCSearch

    def __init__(self, setup: extend.DecodingSetup, request: extend.DecodingRequest):
        super().__init__(setup, request)
        parts: list[Any] = [part for one in setup.processors for part in getattr(one, "parts", [one])]
        self.shortest = max((getattr(part, "min_len", 0) for part in parts), default=0)
        never = {setup.eos, setup.pad, self.search.blank}.union(*(getattr(part, "tokens", ()) for part in parts))
        self.allowed = np.setdiff1d(range(setup.vocab_size), [*never])
        used = {type(self.members[0].model), *map(type, (*parts, *setup.stopping, *setup.observers, *self.members[1:]))}
        used -= {CTCModel, extend.MinimumLength, extend.Forbid, extend.ForceEndAtMaximum}
        if used or setup.needs or setup.end_tokens[1:] or request.prefix_tokens is not None:
            raise extend.ConfigError("generation.search=ctc needs one model=ctc, and nothing that reads left to right")
        self.prior = functools.cache(self.search.prior)

    def run(self) -> list[list[extend.Hypothesis]]:
        """Decode all sentences; see ``Session.run``."""
        out, rank = self.members[0].encoder_out.map(lambda one: one[:: self.beam].cpu()), self.setup.ranking.score
        for row, longest in enumerate(self.sentences.max_lengths.tolist()):
            frames = out.encoder_out[row, ~out.encoder_padding_mask[row]].double() / self.setup.temperature
            if bool(frames.isnan().any()):
                raise extend.DecodingError("a model's scores are NaN; its weights are damaged or its dtype overflows")
            for output, total in self.prefixes(frames.log_softmax(-1).numpy(), longest).items():
                each = tensor([0.0] * (len(output) - 1) + [total])
                self.results[row].append(extend.Hypothesis(tensor(output), float(rank(each.sum(), len(output))), each))
        return [sorted((h for h in found if h.score > -np.inf), key=lambda h: -h.score) for found in self.results]

    def prefixes(self, frames: Any, longest: int) -> dict[tuple[int, ...], float]:
        """The outputs in the beam after all frames, ``(T, V)``, and their scores."""
        # log-probabilities of the alignments of each prefix that end in a blank, and in its last token
        beam, blank, eos = dict[Any, Any]({(): np.array([0.0, -np.inf])}), self.search.blank, self.setup.eos
        for frame in frames:
            best = self.allowed[np.argsort(-frame[self.allowed], kind="stable")[: self.beam]].tolist()
            found: defaultdict[tuple[int, ...], Any] = defaultdict(lambda: np.full(2, -np.inf))
            for prefix, ends in beam.items():
                total, last = np.logaddexp(*ends), (blank, *prefix)[-1]
                found[prefix] = np.logaddexp(found[prefix], [total + frame[blank], ends[1] + frame[last]])
                for token in best if len(prefix) < longest else ():
                    ended = (ends[0] if token == last else total) + frame[token]
                    found[*prefix, token] = np.logaddexp(found[*prefix, token], [-np.inf, ended])
            beam = dict(sorted(found.items(), key=lambda one: -np.logaddexp(*one[1]) - self.prior(one[0]))[: self.beam])
        return {(*p, eos): np.logaddexp(*beam[p]) + self.prior((*p, eos)) for p in beam if len(p) >= self.shortest}


@dataclass
class CTCSearchConfig:
    """Configuration of prefix beam search; its fields are the keys ``search.FIELD``."""

    text: str = extend.option("", "text for the language model; empty for no language model", role="input_path")
    order: int = extend.option(3, "the language model has n-grams of up to this many tokens", minimum=1)
    weight: float = extend.option(0.5, "weight of the language model", minimum=0)
    bonus: float = extend.option(0.0, "added to the score for each token, end-of-sentence included")


@extend.register_search("ctc", config=CTCSearchConfig)
class CTCSearch(extend.Search):
    """Prefix beam search with a language model."""

    session_class = CTCSession

    def __init__(self, cfg: CTCSearchConfig, resources: extend.Resources):
        self.cfg, self.words, self.blank = cfg, resources.dictionary, resources.dictionary.bos()
        self.after: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)  # -1 counts all tokens
        for line in extend.read_lines(extend.find_files([cfg.text], "search.text")) if cfg.text else ():
            tokens = (self.blank, *resources.ids(line), self.words.eos())
            for i, j in ((a, b) for b in range(1, len(tokens)) for a in range(max(0, b - cfg.order + 1), b + 1)):
                self.after[tokens[i:j]].update((tokens[j], -1))

    @classmethod
    def build(cls, cfg: CTCSearchConfig, resources: extend.Resources) -> Self:
        """See ``Component.build``."""
        return cls(cfg, resources)

    def lprob(self, context: tuple[int, ...], token: int) -> float:
        """The language model's log-probability of a token after others, of which the first one is the blank."""
        p = 1 / len(self.words)
        for n in range(min(self.cfg.order, len(context) + 1)):
            if seen := self.after.get(context[len(context) - n :]):
                p = (seen[token] + (len(seen) - 1) * p) / (seen[-1] + len(seen) - 1)
        return float(np.log(p))

    def prior(self, output: tuple[int, ...]) -> float:
        """The part of the score that does not depend on the source."""
        tokens, weight = (self.blank, *output), self.cfg.weight if self.after else 0.0
        return sum(weight * self.lprob(tokens[:i], tokens[i]) + self.cfg.bonus for i in range(1, len(tokens)))
