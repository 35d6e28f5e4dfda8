"""Runs under transformers 5, in an environment without seqgen: writes T5Gemma 2 folders, with what it computes.

::

    python tests/transformers5_t5gemma2.py tests/recorded/transformers5_t5gemma2
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers5_t5gemma import logits

FULL, SLIDING = "full_attention", "sliding_attention"
SIZES: dict[str, Any] = {
    **{"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "query_pre_attn_scalar": 6},
    **{"sliding_window": 3, "layer_types": [SLIDING, FULL, SLIDING], "final_logit_softcapping": 5.0},
}
ROPE = {FULL: {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0}, SLIDING: {"rope_type": "default"}}
VISION: dict[str, Any] = {
    **{"model_type": "siglip_vision_model", "hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1},
    **{"num_attention_heads": 1, "image_size": 4, "patch_size": 2},
}
MODELS: dict[str, dict[str, Any]] = {
    "tied": {"encoder": SIZES, "decoder": SIZES, "end_of_image": 10},
    "untied": {
        "encoder": {**SIZES, "sliding_window": 4, "rope_parameters": ROPE},
        "decoder": {**SIZES, "sliding_window": 2, "final_logit_softcapping": None, "num_hidden_layers": 2}
        | {"layer_types": [FULL, SLIDING]},
        "end_of_image": 4,
        "tie_word_embeddings": False,
    },
    "sizes": {
        "encoder": {**SIZES, "intermediate_size": 10, "num_attention_heads": 2, "head_dim": 6, "sliding_window": 2}
        | {"num_hidden_layers": 7, "layer_types": None},
        "decoder": {**SIZES, "num_key_value_heads": 1, "query_pre_attn_scalar": 2, "rope_parameters": ROPE}
        | {"attention_bias": False},
        "end_of_image": 256000,
    },
    "wide": {
        side: {**SIZES, "sliding_window": 4096, "hidden_activation": "silu", "attention_bias": True}
        | {"num_key_value_heads": 4, "attn_logit_softcapping": 1.0, "final_logit_softcapping": None}
        for side in ("encoder", "decoder")
    }
    | {"end_of_image": 9},
}
"""What the ``config.json`` says from which each model is made."""


def model_of(name: str) -> Any:
    """A model that is random everywhere."""
    torch.manual_seed(list(MODELS).index(name))
    given = dict(MODELS[name])
    encoder = {"text_config": given.pop("encoder"), "vision_config": VISION, "mm_tokens_per_image": 1}
    encoder["eoi_token_index"] = given.pop("end_of_image")
    model = transformers.T5Gemma2ForConditionalGeneration(transformers.T5Gemma2Config(encoder=encoder, **given))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.normal_(std=0.3 if parameter.dim() == 1 else 0.7)
            if key == "model.decoder.norm.weight":
                parameter.sub_(2.5 if model.config.tie_word_embeddings else 0)
            if key.endswith("eoi_embedding"):
                parameter.mul_(8)
    model.tie_weights()
    return model.eval()


def main(folder: Path) -> None:
    computed = {}
    for name in MODELS:
        model_of(name).save_pretrained(folder / name)
        reader = transformers.T5Gemma2ForConditionalGeneration
        model = reader.from_pretrained(folder / name, dtype=torch.float32).eval()
        computed[name] = logits(model)
    (folder / "computed.json").write_text(json.dumps(computed) + "\n")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    main(Path(sys.argv[1]))
