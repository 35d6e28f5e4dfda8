"""The model of mask-predict and its training (Ghazvininejad, Levy, Liu and Zettlemoyer 2019, "Mask-Predict: Parallel
Decoding of Conditional Masked Language Models"); mask_predict.py decodes with it.

The conditional masked language model (CMLM) is a transformer whose decoder has no causal mask. It reads the target with
some tokens Y_mask hidden, and predicts all of them at once; the encoder reads a length token before the source, whose
features predict the number N of target tokens. For each sentence, the number of hidden tokens is uniform in 1..N:

    loss = - sum over y in Y_mask of log p(y | X, Y \\ Y_mask)  -  w log p(N | X)

``seqgen-train common.user_dir=[examples/papers/mask_predict_model.py,examples/papers/mask_predict.py]
model=mask_predict_tiny criterion=mask_predict generation.search=mask_predict run_dir=runs/cmlm``

The mask and the length token are the vocabularies' begin-of-sentence token, which no text has. Targets have no
end-of-sentence. Expect better outputs with the paper's targets: translations of the sources by a left-to-right model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from seqgen.extend import (
    MODELS,
    Batch,
    ConfigError,
    Criterion,
    CriterionOut,
    DecoderOut,
    EncoderDecoderModel,
    EncoderOut,
    QueryPositions,
    StateDict,
    TransformerConfig,
    TransformerDecoder,
    TransformerEncoder,
    TransformerModel,
    Vocabularies,
    cross_entropy,
    option,
    register_criterion,
    register_model,
    uniform,
)

LEFT_TO_RIGHT = "model=mask_predict has no left-to-right pass; set criterion= and generation.search=mask_predict"


@dataclass
class MaskPredictModelConfig(TransformerConfig):
    """The keys of the transformer."""


@dataclass(frozen=True)
class LengthEncoderOut(EncoderOut):
    """Features ``(N, 1 + S, C)`` of the length token and the source, and ``(N, L)`` logits of the target's length."""

    length_logits: Tensor = field(kw_only=True)


class LengthEncoder(TransformerEncoder):
    """Reads the length token ``length_token`` and the source."""

    def __init__(self, cfg: TransformerConfig, embed_tokens: nn.Embedding, length_token: int):
        super().__init__(cfg, embed_tokens)
        self.length_token = length_token
        self.length_projection = nn.Linear(cfg.encoder_embed_dim, cfg.max_target_positions)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> LengthEncoderOut:  # type: ignore[override]
        """Encode ``(N, S)`` sources, padded on the right."""
        first = torch.full_like(src_tokens[:, :1], self.length_token)
        out = super().forward(torch.cat([first, src_tokens], dim=1), src_lengths + 1)
        logits = self.length_projection(out.encoder_out[:, 0])
        return LengthEncoderOut(out.encoder_out, out.encoder_padding_mask, length_logits=logits)

    def max_positions(self) -> int:
        """The longest source, which has one token fewer than the encoder reads."""
        return super().max_positions() - 1


class MaskedDecoder(TransformerDecoder):
    """Each position attends to all positions that are not padding, and predicts its token."""

    def extract_features(self, prev_output_tokens: Tensor, encoder_out: EncoderOut,  # type: ignore[override]
                         incremental_state: StateDict | None = None, need_attention: bool = False,
                         ) -> tuple[Tensor, None]:  # fmt: skip
        """Compute the features ``(N, T, C)`` of targets ``(N, T)`` in which some tokens are the mask."""
        visible = prev_output_tokens.ne(self.embed_tokens.padding_idx or 0)
        visible[:, 0] = True  # a row without tokens attends to something
        x = self.embed(prev_output_tokens, QueryPositions.of_target(prev_output_tokens, 0, None, None))
        for _, layer in self.layers.active():
            mask = encoder_out.encoder_padding_mask
            x, _ = layer(x, encoder_out.encoder_out, mask, visible[:, None, None])
        return self.layer_norm(x), None


@register_model(
    "mask_predict",
    config=MaskPredictModelConfig,
    presets={"mask_predict_tiny": MaskPredictModelConfig(**vars(MODELS.config("transformer_tiny")))},
)
class MaskPredictModel(EncoderDecoderModel):
    """The conditional masked language model."""

    @classmethod
    def build_model(cls, cfg: MaskPredictModelConfig, task: Vocabularies) -> Self:
        """Build the model; see ``TransformerModel.build_model``."""
        bos = task.source_dictionary.bos()
        if bos is None or task.target_dictionary.bos() is None:
            raise ConfigError("model=mask_predict needs vocabularies with a begin-of-sentence token")
        plain = TransformerModel.build_model(cfg, task)
        embeddings: Any = (plain.encoder.embed_tokens, plain.decoder.embed_tokens)
        encoder = LengthEncoder(cfg, embeddings[0], bos)
        return cls(encoder, MaskedDecoder(cfg, embeddings[1], cfg.encoder_embed_dim))

    def forward(self, *inputs: object, **named: object) -> DecoderOut:
        """There is no teacher-forced pass."""
        raise ConfigError(LEFT_TO_RIGHT)

    def adjust_logits_during_generation(self, logits: Tensor, step: int) -> Tensor:
        """There is no decoding step by step."""
        raise ConfigError(LEFT_TO_RIGHT)


@dataclass
class MaskPredictCriterionConfig:
    """Configuration of the loss; its fields are the keys ``criterion.FIELD``."""

    label_smoothing: float = option(0.1, "probability distributed over the other tokens", minimum=0, maximum=1)
    length_weight: float = option(1.0, "w, the weight of the loss of lengths", minimum=0)


@register_criterion("mask_predict", config=MaskPredictCriterionConfig)
class MaskPredictCriterion(Criterion):
    """Cross-entropy of randomly hidden tokens and of the length. In evaluation, what is hidden is always the same."""

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> CriterionOut:
        """Compute the loss of a batch with targets ``(N, T)``, averaged over hidden tokens."""
        words, target = self.task.target_dictionary, batch.target
        if target is None or not isinstance(model, MaskPredictModel):
            raise ConfigError("criterion=mask_predict needs targets, and model=mask_predict")
        target = target.masked_fill(target == words.eos(), words.pad())
        lengths = (target != words.pad()).sum(1)
        numbers = uniform(1, batch.ids.unsqueeze(1), torch.arange(1 + target.size(1), device=target.device))
        hidden = choose_hidden(lengths, torch.rand_like(numbers) if model.training else numbers)
        encoder_out = model.encoder(batch.source.src_tokens, batch.source.src_lengths)
        features, _ = model.decoder.extract_features(target.masked_fill(hidden, words.bos()), encoder_out)
        logits, size = model.decoder.output_layer(features[hidden]), int(hidden.sum())  # (M, V)
        loss, nll, correct = cross_entropy(logits, target[hidden], self.cfg.label_smoothing)
        length_loss, *_ = cross_entropy(encoder_out.length_logits, lengths)
        logging: dict[str, Any] = {"nll_loss": nll, "correct": correct, "ntokens": size, "nsentences": len(lengths)}
        return CriterionOut(loss + self.cfg.length_weight * length_loss, size, logging)


def choose_hidden(lengths: Tensor, uniforms: Tensor) -> Tensor:
    """Hide one to all tokens: ``lengths`` ``(N,)``, ``uniforms`` ``(N, 1 + T)``; ``(N, T)`` bool."""
    most = (uniforms[:, :1] * lengths.unsqueeze(1)).long()  # the number of hidden tokens, less one
    inside = torch.arange(uniforms.size(1) - 1, device=lengths.device) < lengths.unsqueeze(1)
    order = uniforms[:, 1:].masked_fill(~inside, 2.0).argsort(dim=1)  # first a random order of 0, ..., length - 1
    return inside & (order <= most)
