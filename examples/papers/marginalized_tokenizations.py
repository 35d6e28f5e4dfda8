"""Marginal probabilities of texts (Chirkova, Kruszewski, Rozen and Dymetman 2023, "Should you marginalize over possible
tokenizations?").

A model gives probabilities to sequences of tokens, and many sequences ``T`` spell the same text ``y``. The probability
of the text is the sum over all of them. One term is known exactly, that of the tokenizer's own ``T0``; the others are
estimated by importance sampling from a proposal ``Q``, which is the model, restricted at each step to the tokens after
which the rest of the text can still be spelled::

    p(y | x) = p(T0 | x) + sum over T != T0 of p(T | x)
             ~ p(T0 | x) + 1/K sum over k of [T_k != T0] p(T_k | x) / Q(T_k),             T_1 ... T_K drawn from Q
    Q(T)     = product over t of  p(t_i | x, t_<i) / sum over allowed v of p(v | x, t_<i)

The estimate is unbiased and at least ``p(T0 | x)``. The proposal of the paper scores blocks of text, this one tokens.
The n-best list is ranked by the log of the estimate; ``reranker.samples=0`` ranks by ``log p(T0 | x)``::

    seqgen-generate common.user_dir=examples/papers/marginalized_tokenizations.py path=runs/a input=test.en
        generation.beam=5 generation.rerank=marginal reranker.samples=8

Expect small differences, larger for long and rare words. Sums of log-probabilities prefer short outputs. A temperature
of ``Q`` above 1 finds spellings that begin with unlikely tokens. In Python, ``estimate`` scores given texts. Members of
an ensemble have equal weights here. Spellings by bytes are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from seqgen import Translator
from seqgen.extend import (
    Dictionary,
    LogitsProcessor,
    ModelInMemory,
    Reranker,
    Resources,
    StepContext,
    TextHypothesis,
    Translation,
    option,
    register_reranker,
)


@dataclass(frozen=True)
class Estimate:
    """Log-probabilities of a text in nats, end-of-sentence included: of one tokenization, and of the text."""

    one_best: float
    marginal: float


def next_tokens(text: str, words: Dictionary) -> dict[int, list[int]]:
    """For each position in ``text``, the joined symbols of a tokenization, find the tokens that can follow there.

    Returns:
        By position, the ids of the tokens that agree with the text and after which its rest can be spelled.
    """
    silent = {words.pad(), words.eos(), words.bos()}
    longest = max(map(len, words.symbols))
    found: dict[int, list[int]] = {}
    for start in reversed(range(len(text))):
        ends = [end for end in range(start + 1, len(text) + 1) if end in found or end == len(text)]
        pieces = [text[start:end] for end in ends if end - start <= longest]
        if tokens := [words.index(piece) for piece in pieces if piece in words and words.index(piece) not in silent]:
            found[start] = tokens
    return found


class Spelling(LogitsProcessor):
    """Forbids the tokens after which an output can no longer be the text of its line, given as joined symbols."""

    shift_invariant = True  # it only forbids tokens

    def __init__(self, texts: Sequence[str], words: Dictionary):
        self.words = words
        self.choices = [next_tokens(text, words) for text in texts]

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """Change the ``(rows, V)`` scores of the next token."""
        allowed = torch.zeros_like(lprobs, dtype=torch.bool)
        rows = zip(context.sentence_ids.tolist(), context.tokens.tolist(), strict=True)
        for row, (sentence, tokens) in enumerate(rows):
            position = sum(len(self.words.symbol(token)) for token in tokens)
            allowed[row, self.choices[sentence].get(position, [self.words.eos()])] = True
        return lprobs.masked_fill(~allowed, -torch.inf)


@dataclass
class MarginalConfig:
    """Configuration of the reranker; its fields are the keys ``reranker.FIELD``."""

    samples: int = option(8, "tokenizations that are drawn for each output; 0 for the tokenizer's own only", minimum=0)
    seed: int = option(1, "seed of the random numbers, to which the line number is added", minimum=0)
    temperature: float = option(1.0, "of the proposal; larger values draw unlikely tokens more often", minimum=1e-6)


def estimate(
    translator: Translator, sources: Sequence[str], texts: Sequence[str], cfg: MarginalConfig, **languages: Any
) -> list[Estimate]:
    """Estimate the probability of each text, given its source.

    Args:
        translator: the models, without decoding settings.
        sources: the source of each text; for a language model the prompt, which may be empty.
        texts: the texts.
        cfg: the settings; random numbers depend on its seed and on the place of a text in the list.
        languages: ``source_lang`` and ``target_lang``, if they are chosen.
    """
    task, words = translator.task, translator.task.target_dictionary
    best = list(translator.score(sources, texts, normalize_scores=False, **languages))
    if not cfg.samples:
        return [Estimate(item.score, item.score) for item in best]
    spelled = ["".join(map(words.symbol, item.tokens[:-1].tolist())) for item in best]
    settings: dict[str, Any] = {"sampling": True, "beam": cfg.samples, "nbest": cfg.samples, "seed": cfg.seed}
    settings |= {"temperature": cfg.temperature, "renormalize": True, "normalize_scores": False}
    settings |= {"max_len_a": 0.0, "max_len_b": max(map(len, spelled)), "processors": [Spelling(spelled, words)]}
    drawn = translator.translate(sources, return_scores=True, **settings, **languages)
    estimates = []
    for known, found in zip(best, drawn, strict=True):
        terms = [known.score]
        for item in found.hypotheses:  # score is log Q, model_score is log p
            same_text = task.decode(item.tokens) == task.decode(known.tokens)
            if same_text and item.tokens.tolist() != known.tokens.tolist() and item.model_score is not None:
                terms.append(item.model_score - item.score - math.log(cfg.samples))
        estimates.append(Estimate(known.score, float(torch.tensor(terms, dtype=torch.float64).logsumexp(0))))
    return estimates


@register_reranker("marginal", config=MarginalConfig)
class Marginal(Reranker):
    """Ranks by the log-probability of the text, which ``estimate`` finds."""

    def __init__(self, translator: Translator, cfg: MarginalConfig):
        self.translator, self.cfg = translator, cfg

    @classmethod
    def build(cls, cfg: MarginalConfig, resources: Resources) -> Self:
        """Score with the models that decode, without their decoding settings."""
        models = [ModelInMemory(item.task, item.model) for item in resources.models]
        return cls(Translator(models, **resources.ensemble), cfg)

    def __call__(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> list[float]:
        """Score the hypotheses of one line; equal texts have equal scores."""
        texts = list(dict.fromkeys(item.text for item in hypotheses))
        cfg = replace(self.cfg, seed=self.cfg.seed + translation.id)
        found = estimate(self.translator, [translation.source] * len(texts), texts, cfg, **translation.languages)
        scores = {text: result.marginal for text, result in zip(texts, found, strict=True)}
        return [scores[item.text] for item in hypotheses]
