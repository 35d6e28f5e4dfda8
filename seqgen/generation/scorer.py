"""The scorer: the log-probabilities that models give to known targets."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from seqgen.errors import ConfigError
from seqgen.generation.ensemble import Ensemble
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Batch, Hypothesis


class SequenceScorer:
    """Scores the targets of a batch by teacher forcing.

    Temperature and penalties play no part. With these neutral in the generator, an output's score is the same in both.

    Args:
        models: one or more models over one target vocabulary.
        pad: id of padding in it.
        eos: id of end-of-sentence in it.
        normalize_scores: whether a score is the mean over tokens rather than the sum.
        ensemble_average: see ``Ensemble``.
        ensemble_weights: see ``Ensemble``.
        need_attention: whether hypotheses carry attention and alignment.
    """

    def __init__(
        self,
        models: Sequence[EncoderDecoderModel],
        pad: int,
        eos: int,
        normalize_scores: bool = True,
        ensemble_average: str = "probability",
        ensemble_weights: Sequence[float] = (),
        need_attention: bool = False,
    ):
        self.ensemble = Ensemble(models, ensemble_average, ensemble_weights)
        self.pad, self.eos = pad, eos
        self.normalize_scores = normalize_scores
        self.need_attention = need_attention

    @torch.inference_mode()
    def generate(self, sample: Batch) -> list[list[Hypothesis]]:
        """Score a batch.

        Args:
            sample: the batch, with targets.

        Returns:
            For each sentence a list of one hypothesis: its target.

        Raises:
            ConfigError: the batch has no targets.
        """
        if sample.target is None or sample.prev_output_tokens is None:
            raise ConfigError("there is no target to score; give one")
        lprobs, weights = [], []
        with self.ensemble.evaluating():
            for model, source in zip(self.ensemble.models, self.ensemble.sources(sample), strict=True):
                decoder_input = sample.prev_output_tokens.clone()
                decoder_input[:, 0] = model.start_symbol(self.eos)
                out = model(source.src_tokens, source.src_lengths, decoder_input, need_attention=self.need_attention)
                lprobs.append(model.get_normalized_probs(out.logits, log_probs=True))
                weights.append(out.attention)
        positional = self.ensemble.combine(lprobs).gather(-1, sample.target.unsqueeze(-1)).squeeze(-1).cpu()
        attention = self.ensemble.combine_attention(weights) if self.need_attention else None
        results = []
        for row, target in enumerate(sample.target.cpu()):
            length = int((target != self.pad).sum())
            scores = positional[row, :length]
            score = float(scores.sum()) / (length if self.normalize_scores else 1)
            hypothesis = Hypothesis(target[:length], score, scores)
            if attention is not None:
                hypothesis.attention = attention[row, :length].cpu()
                hypothesis.alignment = hypothesis.attention.argmax(-1)
            results.append([hypothesis])
        return results
