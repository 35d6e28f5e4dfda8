"""The types of BART's family in Hugging Face's layout: what their ``config.json`` files mean, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SIDES = ("encoder", "decoder")


@dataclass(frozen=True)
class Kind:
    """What all models of one ``model_type`` have in common.

    Attributes:
        class_name: the class of transformers.
        pre_norm: whether layer normalization is applied before each sublayer, and once more after the last layer.
        norms_embeddings: whether layer normalization is applied to embeddings.
        positions: ``learned``, or the name of the table of sinusoids.
        position_offset: number of the first position; ``None`` for ``pad_token_id + 1``.
        ids: the special ids of a model whose ``config.json`` lacks them; -1 for none.
        defaults: other values of such a model, where they differ from those of BART.
        has_bias: whether the output projection has a bias.
    """

    class_name: str
    pre_norm: bool
    norms_embeddings: bool
    positions: str
    position_offset: int | None
    ids: Mapping[str, int]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_bias: bool = True

    def options(self, pad: int) -> dict[str, Any]:
        """The values of the model's configuration that all models of this type have.

        Args:
            pad: id of padding.
        """
        return {
            **{f"{side}_normalize_before": self.pre_norm for side in SIDES},
            **{f"{side}_learned_pos": self.positions == "learned" for side in SIDES},
            "layernorm_embedding": self.norms_embeddings,
            "sinusoids": "fairseq" if self.positions == "learned" else self.positions,
            "position_offset": pad + 1 if self.position_offset is None else self.position_offset,
        }

    def described_structure(self) -> dict[str, bool]:
        """Keys of old versions that describe what the type alone determines, with the values that are right for it."""
        return {
            "normalize_before": self.pre_norm,
            "add_final_layer_norm": self.pre_norm,
            "normalize_embedding": self.norms_embeddings,
            "static_position_embeddings": self.positions != "learned",
            "add_bias_logits": False,
            "do_blenderbot_90_layernorm": False,
        }


def _ids(pad: int, eos: int, bos: int, start: int, forced_eos: int) -> dict[str, int]:
    names = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "forced_eos_token_id")
    return dict(zip(names, (pad, eos, bos, start, forced_eos), strict=True))


_LEARNED: dict[str, Any] = {"positions": "learned", "position_offset": 2}
_PAPER: dict[str, Any] = {"positions": "paper", "position_offset": 0}
_M2M_100: dict[str, Any] = {
    **{"vocab_size": 128112, "activation_function": "relu", "scale_embedding": True, "attention_dropout": 0.1},
    **{f"{side}_layerdrop": 0.05 for side in SIDES},
}

KINDS = {
    "bart": Kind(
        "BartForConditionalGeneration", pre_norm=False, norms_embeddings=True, **_LEARNED, ids=_ids(1, 2, 0, 2, 2)
    ),
    "mbart": Kind(
        "MBartForConditionalGeneration", pre_norm=True, norms_embeddings=True, **_LEARNED, ids=_ids(1, 2, 0, -1, 2)
    ),
    "pegasus": Kind(
        "PegasusForConditionalGeneration", pre_norm=True, norms_embeddings=False, **_PAPER, ids=_ids(0, 1, -1, 0, 1)
    ),
    "marian": Kind(
        "MarianMTModel",
        pre_norm=False,
        norms_embeddings=False,
        **_PAPER,
        ids=_ids(58100, 0, -1, 58100, 0),
        defaults={"vocab_size": 58101},
    ),
    "m2m_100": Kind(
        "M2M100ForConditionalGeneration",
        pre_norm=True,
        norms_embeddings=False,
        positions="fairseq",
        position_offset=None,
        ids=_ids(1, 2, 0, 2, -1),
        defaults=_M2M_100,
        has_bias=False,
    ),
}
"""The supported values of ``model_type``."""

SIZES = (
    ("encoder_layers", "encoder_layers", 12),
    ("encoder_ffn_dim", "encoder_ffn_embed_dim", 4096),
    ("decoder_layers", "decoder_layers", 12),
    ("decoder_ffn_dim", "decoder_ffn_embed_dim", 4096),
    ("decoder_attention_heads", "decoder_attention_heads", 16),
)
"""The name in ``config.json``, ours, and the default."""

PROBABILITIES = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}
PROBABILITIES |= {f"{side}_layerdrop": 0.0 for side in SIDES}

OFF = ("is_decoder", "add_cross_attention", "tie_encoder_decoder", "pruned_heads")
"""Keys that change the computation and are not supported."""

NO_EFFECT = frozenset(
    """
    num_hidden_layers init_std classif_dropout extra_pos_embeddings save_step model_max_length max_source_positions
    max_target_positions decoder_vocab_size share_encoder_decoder_embeddings
    """.split()  # noqa: SIM905
)
"""Keys that do not change what transformers 4.53.3 computes, besides those of all models; the last two, unless it is a
Marian."""
