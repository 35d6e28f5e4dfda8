"""Runs under transformers 5, in an environment without seqgen: records anew what it computes of the recorded folders.

::

    python tests/transformers5.py tests/recorded

Version 5.23 saved these folders, of models with random weights and of small tokenizers (``*-published`` are as Google
publishes them). Each is read and saved again; the inputs are those of the former record. A new language model is a
folder of ``write_random`` in ``test_oracle_language_models.py``, with its prompts and warpers in ``decodes.json``.
"""

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
    record["logits"] = rounded(out.logits)
    model.save_pretrained(folder)


def decoded(model: Any, prompts: list[list[int]], warpers: dict[str, Any]) -> list[dict[str, Any]]:
    """For each prompt the logits, outputs and scores of beams, and a sample with the distributions that it is from."""
    found, end = [], model.config.eos_token_id
    for prompt in prompts:
        ids = torch.tensor([prompt])
        always = {"max_new_tokens": 8, "attention_mask": torch.ones_like(ids), "return_dict_in_generate": True}
        one: dict[str, Any] = {"prompt": prompt, "logits": rounded(model(ids).logits[0])}
        for beam in (1, 4):
            options = {"num_beams": beam, "num_return_sequences": beam, "do_sample": False, "output_scores": True}
            out = model.generate(ids, **always, **options)
            rows = [row[len(prompt) :] for row in out.sequences.tolist()]
            rows = [row[: row.index(end) + 1] if end in row else row for row in rows]
            if beam == 1:  # which has no scores of sequences
                steps = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
                out.sequences_scores = steps[:, : len(rows[0])].mean(1)
            one[f"beam {beam}"] = list(zip(rows, rounded(out.sequences_scores), strict=True))
        torch.manual_seed(len(prompt))
        out = model.generate(ids, **always, do_sample=True, output_scores=True, **warpers)
        one["drawn"] = out.sequences[0, len(prompt) :].tolist()
        one["distributions"] = rounded(torch.cat(out.scores).log_softmax(-1))
        found.append(one)
    return found


def rounded(values: torch.Tensor) -> Any:
    """Nested lists of numbers with few digits."""
    return torch.round(values.detach().double(), decimals=6).tolist()


@torch.no_grad()
def decodes(folder: Path, record: dict[str, Any]) -> None:
    """Decode with a language model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    record["decoded"] = decoded(model, record["prompts"], record["warpers"])
    model.save_pretrained(folder)


def texts(folder: Path, record: dict[str, Any]) -> None:
    """Encode texts, and decode ids with and without special tokens."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if not folder.name.endswith("published"):
        tokenizer.save_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    record["encoded"] = [[text, tokenizer(text).input_ids] for text, _ in record["encoded"]]
    record["decoded"] = [
        [ids, *(tokenizer.decode(ids, skip_special_tokens=skip) for skip in (True, False))]
        for ids, *_ in record["decoded"]
    ]


if __name__ == "__main__":
    for compute in (logits, decodes, texts):
        for path in Path(sys.argv[1]).glob(f"transformers5*/{compute.__name__}.json"):
            records = json.loads(path.read_text())
            for name, each in records.items():
                compute(path.parent / name, each)
            path.write_text(json.dumps(records) + "\n")
