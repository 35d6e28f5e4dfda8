"""Small random models for the invariants that are tested on every registered model.

To add a model, import its file and add one entry to ``_BUILDERS``: a name, which begins with that of the model and
``_``, and a function that builds the model for a vocabulary of ``VOCAB`` ids; name it below if it has one of the
properties there. Models of add-ons that are not installed are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

import examples.lstm
import examples.ported  # noqa: F401  # both examples register their models
import seqgen.models  # noqa: F401  # declares the built-in models
from seqgen.extend import MODELS, EncoderDecoderModel
from tests.scripted_model import dictionary

PAD, EOS, VOCAB = 1, 2, 23

LANGUAGE_MODELS = ("transformer_lm", "llama")
"""How the names of the decoder-only models begin."""
PADDED_ON_ONE_SIDE = ("lstm", *LANGUAGE_MODELS)
"""Those whose sources are padded on one side only."""
WITHOUT_TABLE = ("lstm", "average", "t5", *LANGUAGE_MODELS)
"""Those whose positions do not come from a table, which limits the length of inputs."""


class TinyTask:
    """The two dictionaries of the zoo, one object if ``joint``."""

    def __init__(self, joint: bool = False):
        self.target_dictionary = self.source_dictionary = dictionary()
        if not joint:
            self.source_dictionary = dictionary(VOCAB - 5)
            self.source_dictionary.add_symbol("other")


@dataclass(frozen=True)
class Specimen:
    """A model of the zoo: how to build it, and its properties.

    Attributes:
        build: builds the model.
        is_language_model: whether it is decoder-only.
        either_padding: whether sources may be padded on the left as well as on the right.
        has_table: whether its positions come from a table, which limits the length of its inputs.
    """

    build: Callable[[], EncoderDecoderModel]
    is_language_model: bool
    either_padding: bool
    has_table: bool

    @cached_property
    def padded_left(self) -> bool:
        """Whether its sources are padded on the left."""
        with torch.random.fork_rng():
            return self.build().left_pad_source


_WIDTHS = {"embed_dim": 16, "ffn_embed_dim": 24, "layers": 2, "attention_heads": 2}
_NARROW_DECODER = {f"decoder_{key}": value for key, value in _WIDTHS.items()}
_NARROW = {f"encoder_{key}": value for key, value in _WIDTHS.items()} | _NARROW_DECODER
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
_CONVOLUTIONAL = {"encoder_embed_dim": 12, "decoder_embed_dim": 12, "decoder_out_embed_dim": 12}
_NARROW_T5 = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 3}
_NARROW_T5GEMMA = {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in {"hidden_size": 16, "intermediate_size": 24, "layers": 2, "head_dim": 6}.items()
}

_NARROW_LLAMA = {
    **{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 6, "dropout": 0.0},
    **{"max_position_embeddings": 64},
}
_MIXED = ["full_attention", "sliding_attention"]

_TWO_LAYERS: dict[str, Any] = {"encoder_layers": "[(12, 3)]", "decoder_layers": "[(12, 3)] * 2"}
_LAYERDROP = {"encoder_layerdrop": 0.2, "decoder_layerdrop": 0.2}
_PAPER: dict[str, Any] = {"sinusoids": "paper", "position_offset": 0}
_WIDER: dict[str, Any] = {
    **{"decoder_key_value_heads": 4, "decoder_layer_types": _MIXED},
    **{"attention_bias": True, "tie_word_embeddings": False},
}

_SMALL = {"embed_dim": 64, "ffn_embed_dim": 64, "layers": 2, "attention_heads": 4}
_SMALL_PRESETS: dict[str, dict[str, Any]] = {
    "fconv_tiny": {
        **{f"{side}_embed_dim": 24 for side in ("encoder", "decoder", "decoder_out")},
        "encoder_layers": "[(24, 3)] * 3",
        "decoder_layers": "[(24, 3)] * 2",
    },
    "transformer_tiny": {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in _SMALL.items()},
    "t5_tiny": {"d_model": 24, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 3},
    "transformer_lm_tiny": {**_NARROW_DECODER, "decoder_embed_dim": 32, "decoder_ffn_embed_dim": 48},
    "llama_tiny": _NARROW_LLAMA,
}
"""Sizes with which random models decode fast, and end outputs at different steps."""


def small_config(name: str, **changes: Any) -> Any:
    """The configuration of a registered model or preset with some values changed; the presets above are smaller."""
    return replace(MODELS.config(name), **{**_SMALL_PRESETS.get(name, {}), **changes})


def registered(name: str, joint: bool = False, **changes: Any) -> Callable[[], EncoderDecoderModel]:
    """Build a registered model or preset with some values changed."""

    def build() -> EncoderDecoderModel:
        config = small_config(name, **changes)
        model = MODELS.entry(name).component.build_model(config, TinyTask(joint))
        return model

    return build


_BUILDERS = {
    "fconv_tiny": registered("fconv_tiny"),
    "fconv_uneven": registered(
        "fconv",
        **_CONVOLUTIONAL,
        encoder_layers="[(8, 3)] * 2 + [(10, 2), (14, 1, 2)]",
        decoder_layers="[(8, 4), (8, 2, 0)] + [(14, 1, 3), (10, 3, 1)]",
        decoder_attention="[True, False, False, True]",
    ),
    "fconv_shared": registered("fconv", **_CONVOLUTIONAL, **_TWO_LAYERS, share_input_output_embed=True),
    "transformer_tiny": registered("transformer_tiny"),
    "transformer_prenorm_gelu_learned": registered(
        "transformer", **_NARROW, **PRE_NORM, **LEARNED, activation_fn="gelu", **_LAYERDROP
    ),
    "transformer_shared": registered(
        "transformer", True, **_NARROW, share_all_embeddings=True, no_scale_embedding=True, layernorm_embedding=True
    ),
    "transformer_marian": registered(
        "transformer", True, **_NARROW, **_PAPER, share_all_embeddings=True, output_bias=True, decoder_start_token_id=1
    ),
    "transformer_mbart": registered(
        "transformer",
        joint=True,
        **{**_NARROW, **PRE_NORM, **LEARNED, "position_offset": 5, "activation_fn": "swish"},
        **{"layernorm_embedding": True, "share_encoder_decoder_embed": True},
    ),
    "transformer_ssru": registered(
        "transformer_ssru",
        True,
        **_NARROW,
        **_PAPER,
        share_all_embeddings=True,
        output_bias=True,
        decoder_start_token_id=1,
    ),
    "lstm_tiny": registered("lstm_tiny", embed_dim=12, hidden_size=10, layers=2),
    "average": registered("average", embed_dim=12, max_positions=64),
    "transformer_narrow_decoder": registered(
        "transformer", **{**_NARROW, "decoder_embed_dim": 20, "decoder_attention_heads": 4}
    ),
    "t5_tiny": registered("t5_tiny", joint=True),
    "t5_gated_untied": registered(
        "t5",
        joint=True,
        **{**_NARROW_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 1},
        **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6},
    ),
    "t5_bias_per_layer": registered(
        "t5", joint=True, **_NARROW_T5, feed_forward_proj="gated-gelu", per_layer_bias=True
    ),
    "t5gemma_tiny": registered("t5gemma_tiny", **_NARROW_T5GEMMA, encoder_sliding_window=2, decoder_sliding_window=3),
    "t5gemma_untied": registered(
        "t5gemma_tiny",
        **{**_NARROW_T5GEMMA, **_WIDER, "decoder_hidden_size": 20},
        **{"attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0},
    ),
    "t5gemma2_tiny": registered(
        "t5gemma2_tiny",
        joint=True,
        **{**_NARROW_T5GEMMA, "encoder_sliding_window": 4, "decoder_sliding_window": 3, "end_of_image_id": 7},
    ),
    "t5gemma2_untied": registered(
        "t5gemma2_tiny",
        joint=True,
        **{**_NARROW_T5GEMMA, **_WIDER, "encoder_rope_factor": 4.0, "decoder_sliding_window": 2},
    ),
    "transformer_lm_tiny": registered("transformer_lm_tiny"),
    "transformer_lm_learned": registered(
        "transformer_lm",
        **{**_NARROW_DECODER, "decoder_learned_pos": True, "positions_from_zero": True, "no_scale_embedding": True},
        **{"activation_fn": "gelu_accurate", "layernorm_embedding": True},
    ),
    "llama_tiny": registered("llama_tiny", tie_word_embeddings=False),
    "llama_sliding": registered(
        "llama_tiny",
        **{"sliding_window": 3, "layer_types": _MIXED, "qk_norm": True, "attention_bias": True},
        **{"tie_word_embeddings": False, "rope_original_positions": 8, "rope_factor": 4.0, "mlp_bias": True},
    ),
    "llama_gemma": registered(
        "llama_tiny",
        **{"num_hidden_layers": 3, "sliding_window": 3, "layer_types": [*_MIXED, "full_attention"]},
        **{"no_rope_layers": [0, 1, 1], "rope_local_base_freq": 5.0, "rope_factor": 8.0, "query_pre_attn_scalar": 2},
        **{"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "post_norm": True, "scale_embedding": True},
        **{"zero_centered_norm": True, "activation_fn": "gelu_accurate"},
    ),
}
ZOO = {
    name: Specimen(
        build,
        is_language_model=name.startswith(LANGUAGE_MODELS),
        either_padding=not name.startswith(PADDED_ON_ONE_SIDE),
        has_table=not name.startswith(WITHOUT_TABLE),
    )
    for name, build in _BUILDERS.items()
    if name.partition("_")[0] in MODELS.names()
}


def in_zoo(*names: str) -> list[str]:
    """Those of some models whose add-ons are installed."""
    return [name for name in names if name in ZOO]


ARCHITECTURES = in_zoo(
    *("fconv_uneven", "fconv_tiny", "transformer_tiny", "transformer_marian", "lstm_tiny", "average", "t5_tiny"),
    *("t5gemma_tiny", "transformer_lm_tiny", "llama_tiny"),
)
"""One model of each kind of decoder and of start token, where other layers of the same kind would change nothing."""


def build(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> EncoderDecoderModel:
    """A model of the zoo in evaluation mode.

    Biases are random too: an error could be invisible where they are zero.
    """
    torch.manual_seed(seed)
    model = ZOO[name].build().to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def sharp(name: str, seed: int = 0, factor: float = 1.5) -> EncoderDecoderModel:
    """A model of the zoo in float64 with peaked distributions, so that hypotheses differ and end at different steps."""
    torch.manual_seed(seed)
    model = ZOO[name].build().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model
