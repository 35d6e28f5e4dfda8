"""Mask-predict (Ghazvininejad, Levy, Liu and Zettlemoyer 2019, "Mask-Predict: Parallel Decoding of Conditional Masked
Language Models"): decoding of a model that does not predict from left to right; mask_predict_model.py trains it.

At first, all N tokens are masked. Iteration t = 0, ..., T - 1 masks the n_t tokens of which the model is least certain,
and predicts them at once; the other tokens keep their values and probabilities::

    n_t = N (T - t) / T
    y_i = argmax_w p(y_i = w | X, Y_observed),   p_i = max_w p(y_i = w | X, Y_observed)   for each masked i

This is done for the ``generation.beam`` most probable lengths N; the output with the largest mean of log p_i is chosen.

``seqgen-generate common.user_dir=[examples/papers/mask_predict_model.py,examples/papers/mask_predict.py] path=runs/cmlm
input=- search.iterations=10 generation.beam=1``

Expect repeated words with one iteration, since each token is predicted without knowing the others, and fewer of them
with 4 to 10. The members of an ensemble are combined at each position. Components that read an output from left to
right are refused; of the built-in processors, the length limits and ``generation.suppress`` work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from seqgen.extend import (
    ConfigError,
    DecodingError,
    DecodingRequest,
    DecodingSetup,
    Forbid,
    ForceEndAtMaximum,
    ForcePrefix,
    Hypothesis,
    MinimumLength,
    Resources,
    Search,
    Session,
    option,
    register_search,
)


class MaskPredictSession(Session):
    """Decodes a batch; a row is a sentence with one of its ``beam`` lengths.

    Args:
        setup: see ``Session``; its search is a ``MaskPredict``.
        request: see ``Session``.

    Raises:
        ConfigError: a model is not a conditional masked language model, or a component works from left to right.
    """

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        super().__init__(setup, request)
        assert isinstance(setup.search, MaskPredict)
        self.iterations, self.mask = setup.search.iterations, setup.search.mask
        self.min_len, self.forbidden = 0, {setup.eos, setup.pad, self.mask}
        refused = [type(part).__name__ for part in (*setup.stopping, *setup.observers)]
        for processor in setup.processors:
            for part in processor.parts if isinstance(processor, ForcePrefix) else [processor]:
                if isinstance(part, MinimumLength):
                    self.min_len = max(self.min_len, part.min_len)
                elif isinstance(part, Forbid):
                    self.forbidden |= set(part.tokens)
                elif not isinstance(part, ForceEndAtMaximum):
                    refused.append(type(part).__name__)
        refused += ["a prefix"] * (request.prefix_tokens is not None)
        refused += sorted(setup.needs) + ["end_symbols"] * (len(setup.end_tokens) > 1)
        if refused:
            raise ConfigError(f"mask-predict does not decode from left to right; remove {', '.join(refused)}")
        if not all(hasattr(member.encoder_out, "length_logits") for member in self.members):
            raise ConfigError("generation.search=mask_predict needs models that were trained as model=mask_predict")

    def run(self) -> list[list[Hypothesis]]:
        """Decode all sentences; see ``Session.run``."""
        lengths, possible = self.choose_lengths()
        tokens, lprobs = self.predict(lengths.flatten())
        if bool(lprobs.isnan().any()):
            raise DecodingError("a model's scores are NaN; its weights are damaged or its dtype overflows")
        scores = self.setup.ranking.score(lprobs.sum(1).view_as(lengths), lengths.clamp(min=1))
        tokens, lprobs, end = tokens.cpu(), lprobs.cpu(), torch.tensor([self.setup.eos])
        for row, length in enumerate(lengths.flatten().tolist()):
            sentence, place = divmod(row, self.beam)
            if possible[sentence, place]:  # end-of-sentence is certain, given the length
                positional = torch.cat([lprobs[row, :length], lprobs.new_zeros(1)])
                output = torch.cat([tokens[row, :length], end])
                self.results[sentence].append(Hypothesis(output, float(scores[sentence, place]), positional))
        return [sorted(found, key=lambda hypothesis: -hypothesis.score) for found in self.results]

    def choose_lengths(self) -> tuple[Tensor, Tensor]:
        """The most probable lengths ``(sentences, beam)`` int64 within the limits, and which of them exist."""
        logits = [(member.model, member.encoder_out.length_logits[:: self.beam]) for member in self.members]
        lprobs = self.scoring.combination([model.get_normalized_probs(output) for model, output in logits], None)
        sizes = torch.arange(lprobs.size(1), device=lprobs.device)
        longest = self.sentences.max_lengths.unsqueeze(1)
        shortest = longest.clamp(max=self.min_len)
        lprobs = lprobs.masked_fill((sizes < shortest) | (sizes > longest), -torch.inf)
        if self.beam > lprobs.size(1):
            raise ConfigError(f"generation.beam={self.beam} is more than the {lprobs.size(1)} lengths of the model")
        best, lengths = lprobs.topk(self.beam, dim=1)
        possible = best > -torch.inf
        return torch.where(possible, lengths, shortest), possible

    def predict(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens ``(rows, T)`` of outputs of ``lengths`` ``(rows,)``, and log-probabilities, which are 0 at padding."""
        inside = torch.arange(max(1, int(lengths.max())), device=lengths.device) < lengths.unsqueeze(1)
        tokens = torch.full_like(inside, self.mask, dtype=torch.int64).masked_fill(~inside, self.setup.pad)
        lprobs = torch.zeros_like(inside, dtype=torch.float32)
        for iteration in range(self.iterations):
            certainty = lprobs.masked_fill(~inside, torch.inf)
            ranks = certainty.argsort(dim=1, stable=True).argsort(dim=1)  # 0 for the least certain token
            masked = ranks < (lengths * (self.iterations - iteration) // self.iterations).unsqueeze(1)
            best, predicted = self.distribution(tokens.masked_fill(masked, self.mask)).max(-1)
            tokens, lprobs = torch.where(masked, predicted, tokens), torch.where(masked, best, lprobs.to(best))
        return tokens, lprobs

    def distribution(self, tokens: Tensor) -> Tensor:
        """Log-probabilities ``(rows, T, V)`` of the token at each position of partly masked ``tokens``."""
        each = []
        for member in self.members:
            logits = member.model.decoder(tokens, member.encoder_out).logits
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.setup.temperature
            each.append(member.model.get_normalized_probs(logits))
        forbidden = torch.tensor(sorted(self.forbidden), device=tokens.device)
        return self.scoring.combination(each, None).index_fill(-1, forbidden, -torch.inf)


@dataclass
class MaskPredictConfig:
    """Configuration of mask-predict; its fields are the keys ``search.FIELD``."""

    iterations: int = option(10, "T, the number of iterations", minimum=1)


@register_search("mask_predict", config=MaskPredictConfig)
class MaskPredict(Search):
    """Decodes a conditional masked language model.

    Args:
        iterations: number of iterations.
        mask: id of the mask.
    """

    session_class = MaskPredictSession

    def __init__(self, iterations: int = 10, mask: int = 0):
        self.iterations, self.mask = iterations, mask

    @classmethod
    def build(cls, cfg: MaskPredictConfig, resources: Resources) -> Self:
        """See ``Component.build``; the mask is the begin-of-sentence token."""
        return cls(cfg.iterations, resources.dictionary.bos() or 0)
