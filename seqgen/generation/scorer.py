"""The scorer: log-probabilities of given targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.errors import ConfigError
from seqgen.generation.ensemble.combinations import Combination
from seqgen.generation.ensemble.ensemble import Ensemble
from seqgen.generation.ensemble.member import INPUT, MemberSpec, check_features
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Batch, Hypothesis


@dataclass(frozen=True)
class ScoredTarget:
    """A target and its scores.

    Attributes:
        hypothesis: the target with the scores of the ensemble.
        member_scores: for each member that reads the input, ``(T,)`` log-probabilities of the tokens in nats.
    """

    hypothesis: Hypothesis
    member_scores: list[Tensor]


class SequenceScorer:
    """Scores the targets of a batch by teacher forcing.

    The scorer applies no temperature, processor or penalty. A generator without them gives an output the same score.

    Args:
        models: one or more models over one target vocabulary.
        pad: id of padding in it.
        eos: id of end-of-sentence in it.
        normalize_scores: whether a score is the mean over tokens; if not, it is the sum.
        combination: combines the members' scores; by default the mean of probabilities.
        need_attention: whether hypotheses have attention weights and alignments.
    """

    def __init__(
        self,
        models: Sequence[EncoderDecoderModel | MemberSpec],
        pad: int,
        eos: int,
        normalize_scores: bool = True,
        combination: Combination | None = None,
        need_attention: bool = False,
    ):
        self.ensemble = Ensemble(models, combination)
        self.pad, self.eos = pad, eos
        self.normalize_scores = normalize_scores
        self.need_attention = need_attention

    def generate(self, sample: Batch) -> list[list[Hypothesis]]:
        """Score a batch.

        Args:
            sample: the batch, with targets.

        Returns:
            For each sentence a list of one hypothesis, the target.

        Raises:
            ConfigError: the batch has no targets.
        """
        return [[scored.hypothesis] for scored in self.score(sample)]

    @torch.inference_mode()
    def score(self, sample: Batch, lengths: Sequence[int] | None = None) -> list[ScoredTarget]:
        """Score a batch by the ensemble and by each member.

        Args:
            sample: the batch, with targets.
            lengths: number of tokens of each target. By default the tokens that are not padding are counted; give it
                for outputs that contain the padding token (Hugging Face's rules allow it).

        Raises:
            ConfigError: the batch has no targets.
        """
        target, _ = _targets(sample)
        if lengths is None and sample.target_lengths is not None:
            lengths = sample.target_lengths.tolist()
        lprobs, weights = [], []
        with self.ensemble.evaluating():
            sources = self.ensemble.sources(sample)
            alike = self.ensemble.read_alike(sources)
            for spec, source, reads_alike in zip(self.ensemble.members, sources, alike, strict=True):
                model = spec.model
                decoder_input = self._decoder_input(model, sample)
                out = model(source.src_tokens, source.src_lengths, decoder_input, need_attention=self.need_attention)
                lprobs.append(model.get_normalized_probs(out.logits, log_probs=True))
                weights.append(out.attention if reads_alike else None)
        members = [_of_tokens(scores, target) for scores in lprobs]
        single = len(lprobs) == 1 and self.ensemble.combination.keeps_single
        positional = members[0] if single else _of_tokens(self.ensemble.combination(lprobs, None), target)
        members = [own for own, spec in zip(members, self.ensemble.members, strict=True) if spec.source == INPUT]
        attention = self.ensemble.combine_attention(weights) if self.need_attention else None
        results = []
        for row, tokens in enumerate(target.cpu()):
            length = int((tokens != self.pad).sum()) if lengths is None else lengths[row]
            scores = positional[row, :length]
            score = float(scores.sum()) / (length if self.normalize_scores else 1)
            own = None if attention is None else attention[row, :length].cpu()
            hypothesis = Hypothesis(tokens[:length], score, scores, own, None if own is None else own.argmax(-1))
            results.append(ScoredTarget(hypothesis, [member[row, :length] for member in members]))
        return results

    @torch.inference_mode()
    def features(self, sample: Batch) -> list[Tensor]:
        """The last hidden features of each member's decoder over the targets of a batch.

        Args:
            sample: the batch, with targets.

        Returns:
            For each member that reads the input, ``(sentences, T, C)`` on the CPU: position ``t`` has the features from
            which the decoder predicts token ``t``.

        Raises:
            ConfigError: the batch has no targets, or a decoder does not return features.
        """
        found = []
        with self.ensemble.evaluating():
            for spec, source in zip(self.ensemble.members, self.ensemble.sources(sample), strict=True):
                if spec.source != INPUT:
                    continue
                model = spec.model
                check_features([model], "return_hidden")
                encoder_out = model.encoder(source.src_tokens, source.src_lengths)
                found.append(model.decoder.extract_features(self._decoder_input(model, sample), encoder_out)[0].cpu())
        return found

    def _decoder_input(self, model: EncoderDecoderModel, sample: Batch) -> Tensor:
        decoder_input = _targets(sample)[1].clone()
        own = sample.start_tokens
        decoder_input[:, 0] = model.start_token(self.eos) if own is None else own.to(decoder_input.device)
        return decoder_input


def _targets(sample: Batch) -> tuple[Tensor, Tensor]:
    if sample.target is None or sample.prev_output_tokens is None:
        raise ConfigError("the batch has no targets to score; give a target for each source")
    return sample.target, sample.prev_output_tokens


def _of_tokens(lprobs: Tensor, target: Tensor) -> Tensor:
    """The log-probabilities ``(N, T)`` of the target tokens, on the CPU."""
    return lprobs.gather(-1, target.unsqueeze(-1)).squeeze(-1).cpu()
