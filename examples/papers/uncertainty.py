"""Uncertainty of ensembles (Malinin and Gales 2021, "Uncertainty Estimation in Autoregressive Structured Prediction").

The members 1..M are samples of a posterior over models. With the distribution p_m of member m over the next token after
a prefix, the mean p of these, and the entropy H, the token-level measures, in nats, are

    total      H[p]                          what the ensemble does not know about the next token
    data       1/M sum_m H[p_m]              of this, what no member knows either: there are several good tokens
    knowledge  total - data                  mutual information: the members disagree
    reverse    1/M sum_m KL(p || p_m)        reverse mutual information: the same disagreement, seen from the mean

A hypothesis y of L tokens has the means of these over its tokens (the chain rule), and two joint measures of y itself,
with p(y) as the product of the p of its tokens (products of expectations):

    sequence_total    -1/L log p(y)
    sequence_reverse  1/L 1/M sum_m (log p(y) - log p_m(y))

A sentence has the means over its hypotheses, weighted by p(y)^(1/T), with the temperature T.

``seqgen-generate common.user_dir=examples/papers/uncertainty.py path=[runs/a,runs/b] input=test.en generation.beam=5
generation.observers=[uncertainty] observer.uncertainty.file=uncertainty.jsonl``

Expect one JSON line for each sentence: its measures, and for each hypothesis its tokens, its measures and those of each
token. ``knowledge`` and ``reverse`` are large for inputs unlike the training data; ``data`` is large if there are many
good translations. All members count equally, whatever the combination; with ``guidance_scale``, also those with an
empty source. The distributions are those of the models, with ``generation.temperature`` and without processors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from seqgen.extend import (
    MEMBER_LOGITS,
    BatchInfo,
    ConfigError,
    Hypothesis,
    Observer,
    Outcome,
    Resources,
    StepRecord,
    gather_beams,
    option,
    register_observer,
)

MEASURES = ("total", "data", "knowledge", "reverse")
JOINT = ("sequence_total", "sequence_reverse")


@dataclass
class UncertaintyConfig:
    """Configuration of the observer; its fields are the keys ``observer.uncertainty.FIELD``."""

    file: str = option("uncertainty.jsonl", "JSON lines are appended to this file", role="output_path")
    temperature: float = option(1.0, "T: above 1, hypotheses count more equally in a sentence", minimum=1e-3)


@register_observer("uncertainty", config=UncertaintyConfig)
class UncertaintyObserver(Observer):
    """Follows the measures of all beams, and writes those of the hypotheses of each sentence.

    Args:
        file: JSON lines are appended to it, one for each sentence.
        temperature: ``T``.
        symbols: the target vocabulary.
    """

    needs = frozenset({MEMBER_LOGITS})
    sentence_state = ("history",)  # not `beam_state`: `observe` itself reorders it with the beams
    history: Tensor  # (sentences, beam, L, 6): MEASURES, log p and the members' mean log-probability of each token
    found: dict[tuple[int, ...], Tensor]  # (L, 6) by sentence number and tokens of a finished hypothesis

    def __init__(self, file: str, temperature: float, symbols: Sequence[str]):
        self.file, self.temperature, self.symbols = Path(file), temperature, symbols

    @classmethod
    def build(cls, cfg: UncertaintyConfig, resources: Resources) -> Self:
        """Make the observer; it needs the vocabulary, so the default ``build`` is not enough."""
        return cls(cfg.file, cfg.temperature, resources.dictionary.symbols)

    def begin(self, batch: BatchInfo) -> Self:
        """Return a copy for this batch, in which no token has been generated."""
        observer = super().begin(batch)
        observer.history = torch.zeros(batch.num_sentences, batch.beam_size, 0, 6, device=batch.device)
        observer.found = {}
        return observer

    def observe(self, record: StepRecord) -> None:
        """Measure the next-token distributions of all beams; extend the history of beams and finished hypotheses."""
        context, candidates, active = record.context, record.candidates, record.active
        logits = context.outputs.member_logits or []
        if len(logits) < 2:
            raise ConfigError("observer uncertainty compares the members of an ensemble; give path=[A,B,...]")
        lprobs = torch.stack([member.log_softmax(-1) for member in logits])  # (M, rows, V)
        mean = lprobs.logsumexp(0) - math.log(len(logits))
        measures = context.by_sentence(token_measures(lprobs, mean))  # (sentences, beam, 4)
        scores = context.by_sentence(torch.stack([mean, lprobs.mean(0)], dim=-1))  # (sentences, beam, V, 2)

        def extended(beams: Tensor, tokens: Tensor) -> Tensor:
            """The history ``(sentences, K, L + 1, 6)`` of continuations ``(sentences, K)``."""
            rows = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
            newest = torch.cat([gather_beams(measures, beams), scores[rows, beams, tokens]], dim=-1)
            return torch.cat([gather_beams(self.history.to(newest), beams), newest.unsqueeze(2)], dim=2)

        histories = extended(candidates.beams, candidates.tokens)
        generated = context.by_sentence(context.tokens)
        for sentence, place in (record.outcomes == Outcome.FINISHED).nonzero().tolist():
            prefix = generated[sentence, candidates.beams[sentence, place]].tolist()
            key = (int(context.sentences.ids[sentence]), *prefix, int(candidates.tokens[sentence, place]))
            self.found[key] = histories[sentence, place].cpu()
        self.history = extended(active.beams, active.tokens)

    def end(self, sentence: int, hypotheses: Sequence[Hypothesis]) -> None:
        """Write the line of a sentence."""
        each = [self.found[(sentence, *hypothesis.tokens.tolist())] for hypothesis in hypotheses]
        log_probabilities = torch.tensor([float(history[:, 4].sum()) for history in each], dtype=torch.float64)
        weights = (log_probabilities / self.temperature).softmax(0).tolist()
        outputs = [self.of_hypothesis(*pair) for pair in zip(hypotheses, each, strict=True)]
        line = {
            name: sum(weight * output[name] for weight, output in zip(weights, outputs, strict=True))
            for name in (*MEASURES, *JOINT)
        }
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"sentence": sentence, **line, "hypotheses": outputs}, ensure_ascii=False) + "\n")

    def of_hypothesis(self, hypothesis: Hypothesis, history: Tensor) -> dict[str, Any]:
        """The measures of a hypothesis, from its ``(L, 6)`` history."""
        mean, of_members = history[:, 4].mean(), history[:, 5].mean()
        return {
            **dict(zip(MEASURES, history[:, :4].mean(0).tolist(), strict=True)),
            **dict(zip(JOINT, [float(-mean), float(mean - of_members)], strict=True)),
            "tokens": [self.symbols[token] for token in hypothesis.tokens.tolist()],
            **{f"token_{name}": history[:, column].tolist() for column, name in enumerate(MEASURES)},
        }


def token_measures(lprobs: Tensor, mean: Tensor) -> Tensor:
    """``MEASURES`` of next-token distributions, ``(rows, 4)``.

    Args:
        lprobs: ``(M, rows, V)`` log-probabilities of each member.
        mean: ``(rows, V)`` log-probabilities of their mean.
    """
    total = torch.special.entr(mean.exp()).sum(-1)
    data = torch.special.entr(lprobs.exp()).sum(-1).mean(0)
    terms = mean.exp() * (mean - lprobs.mean(0))  # 0 for a token that no member can generate
    reverse = terms.masked_fill(mean == -torch.inf, 0.0).sum(-1)
    return torch.stack([total, data, total - data, reverse], dim=-1)
