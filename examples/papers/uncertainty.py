"""Uncertainty of ensembles (Malinin and Gales 2021, "Uncertainty Estimation in Autoregressive Structured Prediction").

The members 1..M are samples of a posterior over models. With the distribution p_m of member m over the next token after
a prefix, the mean p of these, and the entropy H, the token-level measures, in nats, are

    total      H[p]                          what the ensemble does not know about the next token
    data       1/M sum_m H[p_m]              of this, what no member knows either: there are several good tokens
    knowledge  total - data                  mutual information: the members disagree
    reverse    1/M sum_m KL(p || p_m)        reverse mutual information: the same disagreement, seen from the mean

A hypothesis y of L tokens has the means of these over its tokens (the chain rule), two joint measures of y itself, with
p(y) as the product of the p of its tokens (products of expectations), and two of Fomicheva et al. 2020 ("Unsupervised
Quality Estimation for Neural Machine Translation"), which predict the quality of a translation

    sequence_total    -1/L log p(y)
    sequence_reverse  1/L 1/M sum_m (log p(y) - log p_m(y))
    d_tp              1/M sum_m TP_m,  TP_m = 1/L log p_m(y)      (a large value says that the translation is good)
    d_var             the variance of TP_m over the members

A sentence has the means over its hypotheses, weighted by p(y)^(1/T), with the temperature T.

``seqgen-generate common.user_dir=examples/papers/uncertainty.py path=[runs/a,runs/b] input=test.en generation.beam=5
generation.observers=[uncertainty] observer.uncertainty.file=uncertainty.jsonl format=json``

Expect one JSON line in the file for each sentence: its measures and those of each hypothesis. The ``fields`` of each
hypothesis in the output have the token-level measures and ``member_lprobs``, each member's log-probability of each
token. ``knowledge`` and ``reverse`` are large for inputs unlike the training data; ``data`` is large if there are many
good translations. All members count equally, whatever the combination. The distributions are those of the models, with
``generation.temperature`` and without processors. mc_dropout.py makes an ensemble of a single model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from seqgen.extend import (
    MEMBER_LPROBS,
    Candidates,
    ConfigError,
    Hypothesis,
    Observer,
    StepContext,
    gather_beams,
    option,
    register_observer,
)

MEASURES = ("total", "data", "knowledge", "reverse")


@dataclass
class UncertaintyConfig:
    """Configuration of the observer; its fields are the keys ``observer.uncertainty.FIELD``."""

    file: str = option("", "JSON lines with measures of sentences are appended to this file", role="output_path")
    temperature: float = option(1.0, "T: above 1, hypotheses count more equally in a sentence", minimum=1e-3)


@register_observer("uncertainty", config=UncertaintyConfig)
class UncertaintyObserver(Observer):
    """Gives the measures of each token to the hypotheses, and writes those of the hypotheses of each sentence.

    Args:
        file: JSON lines are appended to it, one for each sentence; empty for none.
        temperature: ``T``.
    """

    can_merge = True
    needs = frozenset({MEMBER_LPROBS})

    def __init__(self, file: str = "", temperature: float = 1.0):
        self.file, self.temperature = file, temperature

    def token_fields(self, candidates: Candidates, context: StepContext) -> Mapping[str, Tensor]:
        """Measure the next-token distribution of the beam that each candidate continues."""
        if context.outputs.member_lprobs is None:
            raise ConfigError("observer uncertainty compares the members of an ensemble; set path=[A,B,...]")
        lprobs = torch.stack(context.outputs.member_lprobs)  # (M, rows, V)
        measures = context.by_sentence(token_measures(lprobs))  # (sentences, beam, 4)
        each = context.by_sentence(lprobs.movedim(0, -1))  # (sentences, beam, V, M)
        rows = torch.arange(len(each), device=each.device).unsqueeze(1)
        values = gather_beams(measures, candidates.beams).unbind(-1)
        own = each[rows, candidates.beams, candidates.tokens]
        return {**dict(zip(MEASURES, values, strict=True)), "member_lprobs": own}

    def end(self, sentence: int, hypotheses: Sequence[Hypothesis]) -> None:
        """Write the line of a sentence."""
        if not self.file or not hypotheses:
            return
        outputs = [of_hypothesis(hypothesis.fields) for hypothesis in hypotheses]
        scores = [-output["sequence_total"] * len(one.tokens) for output, one in zip(outputs, hypotheses, strict=True)]
        weights = (torch.tensor(scores, dtype=torch.float64) / self.temperature).softmax(0).tolist()
        line = {
            name: sum(weight * output[name] for weight, output in zip(weights, outputs, strict=True))
            for name in outputs[0]
        }
        with Path(self.file).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"sentence": sentence, **line, "hypotheses": outputs}) + "\n")


def of_hypothesis(fields: Mapping[str, Tensor]) -> dict[str, float]:
    """The measures of a hypothesis, from its fields."""
    lprobs = fields["member_lprobs"]  # (L, M)
    mean, of_members = float((lprobs.logsumexp(1) - math.log(lprobs.size(1))).mean()), lprobs.mean(0)
    d_tp, d_var = float(of_members.mean()), float(of_members.var(correction=0))
    joint = {"sequence_total": -mean, "sequence_reverse": mean - d_tp, "d_tp": d_tp, "d_var": d_var}
    return {name: float(fields[name].mean()) for name in MEASURES} | joint


def token_measures(lprobs: Tensor) -> Tensor:
    """``MEASURES`` of next-token distributions, ``(rows, 4)``, from those of the members, ``(M, rows, V)``."""
    mean = lprobs.logsumexp(0) - math.log(len(lprobs))
    total = torch.special.entr(mean.exp()).sum(-1)
    data = torch.special.entr(lprobs.exp()).sum(-1).mean(0)
    terms = mean.exp() * (mean - lprobs.mean(0))  # 0 for a token that no member can generate
    reverse = terms.masked_fill(mean == -torch.inf, 0.0).sum(-1)
    return torch.stack([total, data, total - data, reverse], dim=-1)
