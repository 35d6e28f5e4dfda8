"""Tiny random models of Llama's family by the original (transformers)."""

from typing import Any

import torch

from tests.huggingface_original import make_original

VOCAB = 33
SHAPE: dict[str, Any] = {
    **{"vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 48},
    **{"pad_token_id": None, "bos_token_id": 3, "eos_token_id": 2},
}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_SLIDING = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
_CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
_LOCAL = {"rope_theta": 80.0, "rope_local_base_freq": 7.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama_3": {
        **{"model_type": "llama", "rope_scaling": {**_LLAMA3, "original_max_position_embeddings": 6}},
        **{"tie_word_embeddings": True, "head_dim": 10, "rope_theta": 50.0},
    },
    "llama_biased": {
        **{"model_type": "llama", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": None},
        **{"rope_scaling": {"type": "linear", "factor": 2.0}, "pad_token_id": 0},
    },
    "mistral": {"model_type": "mistral", "sliding_window": 4, "head_dim": 8},
    "mistral_unlimited": {"model_type": "mistral", "sliding_window": None, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2_sliding": {"model_type": "qwen2", **_SLIDING},
    "qwen3": {"model_type": "qwen3", "head_dim": 8},
    "qwen3_sliding": {"model_type": "qwen3", "head_dim": 6, "attention_bias": True, **_SLIDING},
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2},
    "smollm3_sliding": {
        **{"model_type": "smollm3", "no_rope_layers": [0, 1, 0], "attention_bias": True, **_SLIDING},
        **{"layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "rope_theta": 50.0},
    },
    "gemma2": {"model_type": "gemma2", "head_dim": 6, "sliding_window": 3, **_CAPS, "query_pre_attn_scalar": 2},
    "gemma2_uncapped": {
        **{"model_type": "gemma2", "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 8},
        **{"attention_bias": True, "hidden_activation": "silu"},
    },
    "gemma3_text": {"model_type": "gemma3_text", "head_dim": 6, "sliding_window": 3, **_LOCAL},
    "gemma3_text_all": {
        **{"model_type": "gemma3_text", "head_dim": 8, "sliding_window_pattern": 2, "attention_bias": True},
        **{"tie_word_embeddings": False, "query_pre_attn_scalar": 30, "final_logit_softcapping": 3.0},
    },
}
"""What a variant's ``config.json`` says, besides its shape."""

KINDS = [name for name, values in VARIANTS.items() if name == values["model_type"]]


def tiny_model(variant: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """The original, random everywhere, in evaluation mode.

    Args:
        variant: one of ``VARIANTS``.
        seed: seed of the weights.
        dtype: dtype of the weights.
        changes: further values of its configuration.
    """
    values = {**SHAPE, **VARIANTS[variant], **changes}
    model = make_original("CausalLM", values, seed, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    kept = {name: rotary.inv_freq for name, rotary in model.model.named_children() if "rotary" in name}
    model = model.to(dtype).eval()
    for name, frequencies in kept.items():  # in float32, as after reading a folder
        getattr(model.model, name).inv_freq = frequencies
    return model
