"""Unlikelihood training (Welleck et al. 2020): tokens that the model should not repeat become less probable.

Token level. The negative candidates at position ``t`` of a target are its earlier
tokens other than the current one, ``C_t = {y_1, ..., y_(t-1)} - {y_t}``; the loss of the position is ::

    -log p(y_t | y_<t, x) - alpha * sum over c in C_t of log(1 - p(c | y_<t, x))

``seqgen-train common.user_dir=examples/objectives/unlikelihood.py criterion=unlikelihood criterion.alpha=1.0
run_dir=runs/unlikelihood``

Sequence level. The model decodes greedily, and the loss of its output ``y`` is ::

    -sum over t in R of log(1 - p(y_t | y_<t, x))

where ``R`` has the positions of each n-gram that occurs earlier in the output; the two occurrences may overlap. In both
losses, ``1 - p`` is at least 1e-5. The paper alternates at random between this loss and the likelihood, of which
``criterion.token_loss`` is the weight here.

``seqgen-train common.user_dir=examples/objectives/unlikelihood.py criterion=sequence_unlikelihood criterion.ngram=4
checkpoint.finetune_from=runs/base run_dir=runs/unlikelihood``
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.extend import (
    Batch,
    Criterion,
    CriterionOut,
    EncoderDecoderModel,
    GenerationConfig,
    SequenceConfig,
    SequenceCriterion,
    TargetPositions,
    decode_option,
    option,
    register_criterion,
)


@dataclass
class UnlikelihoodConfig:
    """Options of token-level unlikelihood."""

    alpha: float = option(1.0, "weight of the unlikelihood; 0 for cross-entropy", minimum=0)


@register_criterion("unlikelihood", config=UnlikelihoodConfig)
class Unlikelihood(Criterion):
    """Cross-entropy plus the unlikelihood of earlier target tokens."""

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
        """Compute the loss; see ``Criterion``."""
        kept = TargetPositions(batch, self.task.target_dictionary.pad())
        logits, target = kept.logits(model, kept.features(model)), kept.target  # (M, V), (M,)
        lprobs = model.get_normalized_probs(logits)
        nll = -lprobs.gather(1, target.unsqueeze(1)).sum()
        assert batch.target is not None
        examples = None if batch.segments is None else batch.segments.target
        negative = negative_candidates(batch.target, examples).flatten(0, 1)[kept.kept]  # (N, T, T) -> (M, T)
        tokens = batch.target[kept.kept // batch.target.size(1)]  # (M, T)
        unlikelihood = -(log_complement(lprobs.gather(1, tokens)) * negative).sum()
        logging: dict[str, Tensor | float] = {"nll_loss": nll.detach(), "unlikelihood": unlikelihood.detach()}
        logging |= {"correct": (logits.argmax(1) == target).sum(), "ntokens": target.numel()}
        logging["nsentences"] = batch.ids.numel()
        return CriterionOut(nll + self.cfg.alpha * unlikelihood, target.numel(), logging)


@dataclass
class SequenceUnlikelihoodConfig(SequenceConfig):
    """Options of sequence-level unlikelihood."""

    decode: GenerationConfig = decode_option(beam=1)
    token_loss: float = option(0.5, "weight of the cross-entropy; the unlikelihood has the rest", minimum=0, maximum=1)
    ngram: int = option(4, "tokens of an n-gram that should not be repeated", minimum=1)


@register_criterion("sequence_unlikelihood", config=SequenceUnlikelihoodConfig)
class SequenceUnlikelihood(SequenceCriterion):
    """The unlikelihood of repeated n-grams in the best output; ``repeated`` is the proportion of such n-grams."""

    def sequence_loss(self, model: EncoderDecoderModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See ``SequenceCriterion.sequence_loss``."""
        outputs, n = [row[:1] for row in self.decode(model, batch)], self.cfg.ngram
        lprobs = self.rescore(model, batch, outputs).token_lprobs.squeeze(1)  # (N, T)
        negative, proportion = torch.zeros_like(lprobs, dtype=torch.bool), 0.0
        for row, (best,) in enumerate(outputs):
            starts = repeated_ngrams(best.tokens.tolist(), n)
            for start in starts:
                negative[row, start : start + n] = True
            proportion += len(starts) / max(len(best.tokens) - n + 1, 1)
        return -(log_complement(lprobs) * negative).sum(), {"repeated": proportion}


def log_complement(lprobs: Tensor) -> Tensor:
    """``log(1 - p)`` of log-probabilities ``log p``."""
    return (-lprobs.expm1()).clamp(min=1e-5).log()


def negative_candidates(target: Tensor, examples: Tensor | None = None) -> Tensor:
    """``(N, T, T)`` bool, true at ``[n, t, j]`` if ``C_t`` has token ``j``, which is the first of its kind.

    In a row with several examples, ``examples`` ``(N, T)`` says which one a token belongs to.
    """
    columns = torch.arange(target.size(1), device=target.device)
    equal = target.unsqueeze(2) == target.unsqueeze(1)
    earlier = columns < columns.unsqueeze(1)
    if examples is not None:
        earlier = earlier & (examples.unsqueeze(2) == examples.unsqueeze(1))
    return earlier & ~equal & ~(equal & earlier).any(2).unsqueeze(1)


def repeated_ngrams(tokens: list[int], n: int) -> list[int]:
    """The starts of the n-grams that occur earlier in an output."""
    ngrams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return [start for start, ngram in enumerate(ngrams) if ngrams.index(ngram) < start]
