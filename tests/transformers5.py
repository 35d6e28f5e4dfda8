"""Runs under transformers 5, in an environment without seqgen: records anew what it computes of the recorded folders.

::

    python tests/transformers5.py tests/recorded

Version 5.23 saved these folders, of models with random weights and of small tokenizers (``*-published`` are as Google
publishes them). Each is read and saved again; the inputs are those of the former record.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers


def logits(folder: Path, record: dict[str, Any]) -> None:
    """Compute a model's logits of a batch of padded sources and of target prefixes."""
    config = json.loads((folder / "config.json").read_text())
    model = getattr(transformers, config["architectures"][0]).from_pretrained(folder).eval()
    sources, prefixes = torch.tensor(record["sources"]), torch.tensor(record["prefixes"])
    mask = sources.ne(config["pad_token_id"]).long()
    with torch.no_grad():
        out = model(input_ids=sources, attention_mask=mask, decoder_input_ids=prefixes)
    record["logits"] = [[[round(value, 6) for value in row] for row in rows] for rows in out.logits.tolist()]
    model.save_pretrained(folder)


def texts(folder: Path, record: dict[str, Any]) -> None:
    """Encode texts, and decode ids with and without special tokens."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    record["encoded"] = [[text, tokenizer(text).input_ids] for text, _ in record["encoded"]]
    record["decoded"] = [
        [ids, *(tokenizer.decode(ids, skip_special_tokens=skip) for skip in (True, False))]
        for ids, *_ in record["decoded"]
    ]
    if not folder.name.endswith("published"):
        tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    for compute in (logits, texts):
        for path in Path(sys.argv[1]).glob(f"transformers5*/{compute.__name__}.json"):
            records = json.loads(path.read_text())
            for name, each in records.items():
                compute(path.parent / name, each)
            path.write_text(json.dumps(records) + "\n")
