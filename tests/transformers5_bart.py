"""Runs under transformers 5, in an environment without seqgen: writes folders of BART's family, with their logits.

::

    python tests/transformers5_bart.py tests/recorded/transformers5_bart
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

SHAPE: dict[str, Any] = {
    **{"vocab_size": 32, "d_model": 4, "max_position_embeddings": 8},
    **{f"{side}_layers": 1 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 4 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
}
IDS = {"pad_token_id": 31, "decoder_start_token_id": 31}
MODELS: dict[str, dict[str, Any]] = {
    "bart": {},
    "mbart-untied": {"tie_word_embeddings": False, "decoder_start_token_id": 7},
    "pegasus-untied": {"tie_word_embeddings": False, "scale_embedding": True},
    "marian": IDS,
    "marian-untied": {**IDS, "tie_word_embeddings": False},
    "marian-separate": {**IDS, "share_encoder_decoder_embeddings": False},
    "m2m_100": {},
}
"""What the ``config.json`` says from which each model is made, besides its shape."""


def main(folder: Path) -> None:
    logits = {}
    for name, values in MODELS.items():
        config = transformers.AutoConfig.for_model(name.partition("-")[0], **SHAPE, **values)
        torch.manual_seed(0)
        model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "embed_positions" not in key or "bart" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.4)
            if hasattr(model, "final_logits_bias"):
                model.final_logits_bias.normal_()
        model.save_pretrained(folder / name)
        pad, eos, start = config.pad_token_id, config.eos_token_id, config.decoder_start_token_id
        sources, prefixes = (
            torch.tensor([[5, 9, 20, eos], [7, eos, pad, pad]]),
            torch.tensor([[start, 8], [start, eos]]),
        )
        with torch.no_grad():
            out = model(input_ids=sources, attention_mask=sources.ne(pad).long(), decoder_input_ids=prefixes)
        rounded = [[[round(value, 5) for value in row] for row in rows] for rows in out.logits.tolist()]
        logits[name] = {"sources": sources.tolist(), "prefixes": prefixes.tolist(), "logits": rounded}
    (folder / "logits.json").write_text(json.dumps(logits))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
