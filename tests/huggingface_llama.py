"""Tiny random models of Llama's family by the original (transformers)."""

from __future__ import annotations

from typing import Any

import torch

from tests.huggingface_original import make_original

VOCAB = 33
_SHAPE: dict[str, Any] = {
    **{"vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 48},
    **{"pad_token_id": None, "bos_token_id": 3, "eos_token_id": 2},
}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_SLIDING = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}

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
    values = {**_SHAPE, **VARIANTS[variant], **changes}
    attention = "sdpa" if dtype == torch.float64 else "eager"  # which casts masks to float32, where they are infinite
    model = make_original("CausalLM", values, seed, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    rotary, model = model.model.rotary_emb.inv_freq, model.to(dtype).eval()
    model.model.rotary_emb.inv_freq = rotary  # in float32, as after reading a folder
    return model
