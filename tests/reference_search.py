"""Beam search by fairseq's rules as plain loops over one sentence: slow, and short enough to verify by reading."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.scripted_model import Rule

EOS, PAD, UNK = 2, 1, 3

Beam = tuple[float, tuple[int, ...]]
"""The sum of the scores of a prefix, and its tokens."""


@dataclass
class Settings:
    beam: int = 3
    max_len: int = 6
    min_len: int = 1
    length_penalty: float = 1.0
    normalize: bool = True
    unkpen: float = 0.0
    temperature: float = 1.0
    no_repeat_ngram: int = 0
    prefix: tuple[int, ...] = ()

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``make_generator`` but the longest output and the prefix."""
        return {
            **{"beam_size": self.beam, "min_len": self.min_len, "temperature": self.temperature},
            **{"len_penalty": self.length_penalty, "normalize_scores": self.normalize, "unk_penalty": self.unkpen},
            "no_repeat_ngram_size": self.no_repeat_ngram,
        }

    def prefixes(self, sentences: int) -> torch.Tensor | None:
        """The prefix of each sentence, ``(sentences, P)``; ``None`` without a prefix."""
        return torch.tensor([self.prefix] * sentences) if self.prefix else None


def next_scores(rule: Rule, source: tuple[int, ...], history: tuple[int, ...], cfg: Settings) -> list[float]:
    scores = (rule(source, history) / cfg.temperature).log_softmax(-1).tolist()
    step = len(history)
    scores[PAD] = -math.inf
    scores[UNK] -= cfg.unkpen
    if step >= cfg.max_len:
        scores = [s if token == EOS else -math.inf for token, s in enumerate(scores)]
    if step < len(cfg.prefix) and step < cfg.max_len:
        scores = [s if token == cfg.prefix[step] else -math.inf for token, s in enumerate(scores)]
    elif step < cfg.min_len and step < cfg.max_len:
        scores[EOS] = -math.inf
    n = cfg.no_repeat_ngram
    if n and step >= n:
        seen = {history[i : i + n] for i in range(step - n + 1)}
        for token in range(len(scores)):
            if (*history[step - n + 1 :], token) in seen:
                scores[token] = -math.inf
    return scores


def beam_search(
    rule: Rule, source: tuple[int, ...], cfg: Settings, choose: Callable[[list[Beam]], list[Beam | None]] | None = None
) -> list[tuple[tuple[int, ...], float]]:
    """The hypotheses with end-of-sentence, and their scores, best first.

    Args:
        rule: the model.
        source: ids of the source.
        cfg: the settings.
        choose: from all continuations, best first, to the candidates of a step, ``None`` in the place of a pruned one;
            by default the ``2 * beam`` best.
    """
    beams: list[Beam] = [(0.0, ())]
    finished: list[tuple[tuple[int, ...], float]] = []
    for _ in range(cfg.max_len + 1):
        candidates = [
            (total + score, (*history, token))
            for total, history in beams
            for token, score in enumerate(next_scores(rule, source, history, cfg))
            if total + score > -math.inf
        ]
        candidates = sorted(candidates, key=lambda c: -c[0])
        chosen = choose(candidates) if choose else candidates[: 2 * cfg.beam]
        for total, history in filter(None, chosen[: cfg.beam]):
            if history[-1] == EOS and len(finished) < cfg.beam:
                finished.append((history, total / len(history) ** cfg.length_penalty if cfg.normalize else total))
        beams = [c for c in chosen if c and c[1][-1] != EOS][: cfg.beam]
        if len(finished) == cfg.beam or not beams:
            break
    return sorted(finished, key=lambda f: -f[1])
