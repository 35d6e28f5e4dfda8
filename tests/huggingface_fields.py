"""Random valid values of every field of a ``config.json`` of each supported ``model_type``."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

Draw = Callable[[random.Random], Any]

SIZE = 29
"""Tokens of the vocabulary, unless a case has another number."""


def one_of(*values: Any) -> Draw:
    """A draw of one of some values."""
    return lambda rng: rng.choice(values)


FLAG = one_of(True, False)
PROBABILITY = one_of(0, 0.0, 0.1, 0.5, 0.97)
ID = one_of(0, 1, 2, 4, 5)


def activation(rng: random.Random) -> str:
    """Any activation of transformers, or twice as often one of the common ones."""
    from transformers.activations import ACT2FN

    common = ("relu", "gelu", "gelu_new", "silu", "swish", "tanh", "gelu_pytorch_tanh", "gelu_fast")
    return rng.choice(common if rng.random() < 2 / 3 else sorted(ACT2FN))


def feed_forward(rng: random.Random) -> str:
    """A value of ``feed_forward_proj``."""
    return rng.choice(("", "gated-")) + activation(rng)


DECODING: Mapping[str, Draw] = {
    "do_sample": FLAG,
    "num_beams": one_of(1, 4),
    "max_length": one_of(20, 50),
    "length_penalty": one_of(1.0, 2.0),
}
"""Some of the decoding settings, which old files have; logits do not depend on them."""

GENERAL: Mapping[str, Draw] = {
    **dict.fromkeys(("return_dict", "output_hidden_states", "output_attentions", "torchscript", "use_cache"), FLAG),
    **dict.fromkeys(("use_bfloat16", "tf_legacy_loss", "gradient_checkpointing"), FLAG),
    **dict.fromkeys(("is_decoder", "add_cross_attention", "tie_encoder_decoder", "is_encoder_decoder"), FLAG),
    "tie_word_embeddings": FLAG,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"), ID),
    "torch_dtype": one_of("float32", "float16", "bfloat16", "float64"),
    "pruned_heads": one_of({}, {"0": [0]}),
    "chunk_size_feed_forward": one_of(0, 1, 3),
    "cross_attention_hidden_size": one_of(None, 7),
    "architectures": one_of(None, [], ["Model"], ["BartForConditionalGeneration"]),
    "finetuning_task": one_of(None, "mnli"),
    "id2label": one_of({"0": "no", "1": "yes"}),
    "label2id": one_of({"no": 0, "yes": 1}),
    "num_labels": one_of(2, 3),
    "tokenizer_class": one_of(None, "T5Tokenizer", "BertTokenizer"),
    "prefix": one_of(None, "translate: "),
    "task_specific_params": one_of(None, {"summarization": {"num_beams": 4, "prefix": "summarize: "}}),
    "problem_type": one_of(None, "regression", "multi_label_classification"),
    "_name_or_path": one_of("", "organization/name"),
    "attn_implementation": one_of("eager", "sdpa"),
    **DECODING,
    "a_key_of_nobody": one_of(0, 1, "text", [3]),
}
"""Fields of all models, besides ``transformers_version``."""


def _bart(rng: random.Random) -> dict[str, Any]:
    """Sizes that fit each other."""
    heads = rng.choice([(1, 1), (2, 1), (3, 2), (2, 6), (5, 3)])
    dim = next(dim for dim in range(1, 99) if not dim % heads[0] and not dim % heads[1]) * rng.choice([1, 2, 3])
    return {
        "vocab_size": SIZE,
        "d_model": dim,
        "encoder_layers": rng.choice([1, 2]),
        "decoder_layers": rng.choice([1, 3]),
        "encoder_attention_heads": heads[0],
        "decoder_attention_heads": heads[1],
        "encoder_ffn_dim": rng.choice([1, 7, 12]),
        "decoder_ffn_dim": rng.choice([1, 5, 12]),
        "max_position_embeddings": rng.choice([9, 16, 33]),
        "pad_token_id": rng.choice([0, 1, 5]),
        "eos_token_id": 2,
        "bos_token_id": rng.choice([0, 3]),
        "decoder_start_token_id": rng.choice([0, 2, 7]),
    }


def _t5(rng: random.Random) -> dict[str, Any]:
    return {
        "vocab_size": SIZE,
        "d_model": rng.choice([1, 6, 15]),
        "d_kv": rng.choice([1, 4, 7]),
        "d_ff": rng.choice([1, 8, 11]),
        "num_layers": rng.choice([1, 2]),
        "num_heads": rng.choice([1, 2, 3]),
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    }


def _gpt2(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([1, 2, 3])
    sizes = {"n_embd": heads * rng.choice([1, 4, 5]), "n_layer": rng.choice([1, 2, 3]), "n_head": heads}
    return {"vocab_size": SIZE, "n_positions": rng.choice([9, 16]), **sizes, "bos_token_id": 2, "eos_token_id": 2}


_BART: dict[str, Draw] = {
    "activation_function": activation,
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "classifier_dropout"), PROBABILITY),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), PROBABILITY),
    "init_std": one_of(0.02, 1.0),
    "scale_embedding": FLAG,
    "forced_eos_token_id": ID,
    "num_hidden_layers": one_of(1, 5),
    "vocab_size": one_of(18, SIZE, 40),
    "hidden_size": one_of(6, 30),
    "num_attention_heads": one_of(1, 2, 3),
    "layer_norm_eps": one_of(1e-5, 0.1),
}
_T5: dict[str, Draw] = {
    "feed_forward_proj": feed_forward,
    "dense_act_fn": activation,
    "is_gated_act": FLAG,
    "num_decoder_layers": one_of(None, 1, 2),
    "relative_attention_num_buckets": one_of(2, 4, 5, 8, 16),
    "relative_attention_max_distance": one_of(3, 5, 9, 40),
    **dict.fromkeys(("dropout_rate", "classifier_dropout"), PROBABILITY),
    "layer_norm_epsilon": one_of(0, 1e-6, 0.01, 1.5),
    "initializer_factor": one_of(0.05, 1.0),
    "vocab_size": one_of(18, SIZE, 40),
    "num_hidden_layers": one_of(1, 2, 3),
    "num_attention_heads": one_of(1, 2, 3),
    "hidden_size": one_of(2, 6, 9),
    "head_dim": one_of(1, 4, 5),
}
_GPT2: dict[str, Draw] = {
    "n_inner": one_of(None, 1, 7, 12),
    "activation_function": activation,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout"), PROBABILITY),
    "layer_norm_epsilon": one_of(0.0, 1e-5, 0.3),
    "initializer_range": one_of(0.02, 1.0),
    "summary_type": one_of("cls_index", "mean"),
    "summary_activation": one_of(None, "tanh"),
    **dict.fromkeys(("summary_use_proj", "summary_proj_to_labels", "scale_attn_weights"), FLAG),
    **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"), FLAG),
    "vocab_size": one_of(18, SIZE, 40),
    "num_hidden_layers": one_of(1, 2, 3),
    "num_attention_heads": one_of(1, 2),
    "hidden_size": one_of(2, 6, 12),
    "max_position_embeddings": one_of(9, 12),
}
_MARIAN: dict[str, Draw] = {"share_encoder_decoder_embeddings": FLAG, "decoder_vocab_size": one_of(None, 23, SIZE)}

SIZES: Mapping[str, Callable[[random.Random], dict[str, Any]]] = {
    **dict.fromkeys(("bart", "mbart", "pegasus", "marian", "m2m_100"), _bart),
    **dict.fromkeys(("t5", "mt5", "umt5"), _t5),
    "gpt2": _gpt2,
}
"""For each ``model_type`` the fields that every case has."""

FIELDS: Mapping[str, Mapping[str, Draw]] = {
    **dict.fromkeys(("bart", "mbart", "pegasus", "m2m_100"), _BART),
    "marian": {**_BART, **_MARIAN},
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5),
    "gpt2": _GPT2,
}
"""For each ``model_type`` its own fields."""


def random_config(kind: str, rng: random.Random) -> tuple[dict[str, Any], list[str]]:
    """The content of a ``config.json``.

    Args:
        kind: its ``model_type``.
        rng: draws the values.

    Returns:
        Values by key, and the keys besides the sizes that every case has.
    """
    own, general = FIELDS[kind], GENERAL
    values = {"model_type": kind, **SIZES[kind](rng)}
    drawn = rng.sample(sorted(own), min(len(own), rng.randint(1, 6))) + rng.sample(sorted(general), rng.randint(0, 4))
    changes = {key: (own.get(key) or general[key])(rng) for key in drawn}
    if not changes.get("share_encoder_decoder_embeddings", True):  # transformers cannot read two sizes
        changes["decoder_vocab_size"] = None
    return {**values, **changes}, drawn
