"""Self-critical sequence training (Rennie et al. 2017).

The policy gradient of REINFORCE, whose baseline is the utility of the output that the model itself gives in testing.
With ``y`` sampled from the model, ``g`` its greedy output and ``u`` the utility with the reference, the gradient of a
sentence's expected risk is estimated by (Rennie et al. 2017, section 3)::

    -(u(y) - u(g)) / 100 * gradient of log p(y|x)

Samples better than the greedy output become more probable, worse ones less probable. With ``criterion.decode.beam=K``,
it is the mean of ``K`` samples. The loss is a surrogate with this gradient; its value is not meaningful, so watch the
utility.

The estimate is unbiased if samples have the probabilities of the model: with ``criterion.decode.min_len=0``, without
truncation such as ``top_k`` and without dropout. The end that is forced at the maximum length is not counted.

``seqgen-train common.user_dir=examples/objectives/self_critical.py criterion=self_critical
checkpoint.finetune_from=runs/base run_dir=runs/self_critical``
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from seqgen.extend import (
    Batch,
    EncoderDecoderModel,
    GenerationConfig,
    SequenceConfig,
    SequenceCriterion,
    decode_option,
    register_criterion,
)

_LIMITS = ("max_len_a", "max_len_b", "max_len", "min_len", "semantics")
"""Decoding keys of the samples that the greedy output has, too."""


@dataclass
class SelfCriticalConfig(SequenceConfig):
    """Options of self-critical training."""

    decode: GenerationConfig = decode_option(beam=1, sampling=True)


@register_criterion("self_critical", config=SelfCriticalConfig)
class SelfCritical(SequenceCriterion):
    """The policy gradient with the utility of the greedy output as the baseline."""

    def sequence_loss(self, model: EncoderDecoderModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See ``SequenceCriterion.sequence_loss``."""
        samples = self.decode(model, batch)
        utilities = self.utilities(batch, samples)  # (N, K)
        limits = {key: getattr(self.cfg.decode, key) for key in _LIMITS}
        greedy = self.decode(model, batch, cfg=GenerationConfig(beam=1, **limits))
        baseline = self.utilities(batch, greedy)  # (N, 1)
        scored = self.rescore(model, batch, samples)
        lprobs, counts = (scored.token_lprobs * scored.drawn).sum(-1), scored.present.sum(1)
        loss = -((utilities - baseline) / 100 * lprobs).sum(1) / counts  # lprobs are 0 where there is no sample
        return loss.sum(), {"utility": (utilities.sum(1) / counts).sum(), "greedy_utility": baseline.sum()}
