"""Runs under transformers 5, in an environment without seqgen: writes folders as it saves them, with what it computes.

::

    python tests/transformers5.py tests/recorded            writes transformers5 (T5 and tokenizers), transformers5_bart
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers

SOURCES, PREFIXES = [[5, 9, 20, 1], [7, 1, 0, 0]], [[0, 8, 3], [0, 1, 39]]
SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "d_model": 8,
    "d_kv": 3,
    "d_ff": 6,
    "num_layers": 1,
    "num_heads": 2,
    "relative_attention_num_buckets": 4,
    "relative_attention_max_distance": 10,
    "decoder_start_token_id": 0,
}
GATED = {"feed_forward_proj": "gated-gelu"}
MODELS: dict[str, dict[str, Any]] = {
    "t5": {"model_type": "t5"},
    "t5_v1_1": {"model_type": "t5", "tie_word_embeddings": False, **GATED},
    "mt5": {"model_type": "mt5", "tie_word_embeddings": False, **GATED},
    "umt5": {"model_type": "umt5", "tie_word_embeddings": False, **GATED},
}
"""What the ``config.json`` says from which transformers 5 makes each model, besides its shape."""

HEADS = ("none", "own")
"""The output projection in the weights that are read: missing, or of its own."""


def logits(model: Any) -> list[Any]:
    """What a model says of fixed tokens."""
    sources = torch.tensor(SOURCES)
    with torch.no_grad():
        out = model.eval()(
            input_ids=sources, attention_mask=sources.ne(0).long(), decoder_input_ids=torch.tensor(PREFIXES)
        )
    return [[[round(value, 6) for value in row] for row in rows] for rows in out.logits.tolist()]


def read(folder: Path) -> Any:
    """Read a folder as a user does."""
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)


def write(folder: Path, values: dict[str, Any], head: str, seed: int) -> list[Any]:
    """Let transformers 5 read a published layout, save it, and compute with what it saved.

    Args:
        folder: the folder to save to; the published layout is written to a folder next to it.
        values: see ``MODELS``.
        head: one of ``HEADS``.
        seed: seed of the weights.
    """
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(**{**SHAPE, **values})
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    weights = {name: torch.randn_like(tensor) * 0.5 for name, tensor in model.state_dict().items()}
    shared = weights["shared.weight"]
    weights |= {"encoder.embed_tokens.weight": shared, "decoder.embed_tokens.weight": shared}
    if head == "none":
        del weights["lm_head.weight"]
    published = folder.with_name(f"{folder.name}-published")
    published.mkdir(parents=True)
    torch.save(weights, published / "pytorch_model.bin")
    (published / "config.json").write_text(json.dumps({**SHAPE, **values}))
    read(published).save_pretrained(folder)
    return logits(read(folder))


TEXT = """A dog sees a boat. two dogs see the red house, it's fun!
the dog is on the boat. a red house is there; the dog sees it"""
RULES = "FF21\t41\nA0\t20\n65 301\tE9\n85\t\n"
"""A normalization of its own, since the usual one has 300 KB: full width A, no-break space, an accent, nothing."""

SENTINELS = [f"<extra_id_{i}>" for i in range(4)]
_CLEAN = "clean_up_tokenization_spaces"
_T5 = {"tokenizer_class": "T5Tokenizer", "extra_ids": 4}
TOKENIZERS: dict[str, dict[str, Any]] = {
    "tokenizer-t5": {**_T5, "additional_special_tokens": SENTINELS},
    "tokenizer-not_legacy": {**_T5, "legacy": False},
    "tokenizer-prefix": {**_T5, "add_prefix_space": True},
    "tokenizer-bytes_few": {**_T5, "tokenizer_class": "ByT5Tokenizer", "additional_special_tokens": SENTINELS},
    "tokenizer-bart": {"tokenizer_class": "BartTokenizer", **dict.fromkeys(("add_prefix_space", _CLEAN), True)},
}
"""What the ``tokenizer_config.json`` says that transformers 5 reads and then saves."""

TEXTS = [
    *("", "A dog sees a boat.", "A dog <extra_id_0>.", "<extra_id_1> dog <extra_id_0>", "A<extra_id_0>dog"),
    *("a  <extra_id_2>  dog", "dog </s>", "</s> dog <pad> a", "<unk> red", "a <new> b", "a , dog . it 's , fun !"),
    *("  two  spaces \n\tand\u00a0more  ", "dog \x85", "A <mask> dog", "cafe\u0301 \uff21 \U0001f600 \u4e2d <"),
]
IDS = [[5, 0, 9, 1], [39, 8, 2, 12, 38, 7], [3, 3, 4], [10, 1, 1, 6]]


def sentencepiece_model() -> bytes:
    """A small model with 33 pieces."""
    content = io.BytesIO()
    rules = Path("normalization.tsv")
    rules.write_text(RULES)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n") * 3),
        model_writer=content,
        vocab_size=33,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
        normalization_rule_tsv=str(rules),
    )
    rules.unlink()
    return content.getvalue()


def byte_level_files() -> dict[str, str]:
    """A small byte-level byte-pair encoding in BART's layout; ``Ġ`` is a space."""
    special, merged = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], ["Ġ", "Ċ", "do", "dog", "Ġdog", "Ġ."]
    tokens = [*special, *sorted(set(TEXT) - set(" \n")), *merged]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    return {"vocab.json": json.dumps(vocabulary), "merges.txt": "#version: 0.2\nd o\ndo g\nĠ dog\nĠ .\n"}


def texts(tokenizer: Any) -> dict[str, Any]:
    """What a tokenizer makes of fixed texts, and of ids."""
    encoded = [tokenizer(text).input_ids for text in TEXTS]
    decoded = [
        [ids, *(tokenizer.decode(ids, skip_special_tokens=skip) for skip in (True, False))]
        for ids in [*encoded, *([min(index, len(tokenizer) - 1) for index in ids] for ids in IDS)]
    ]
    return {"encoded": list(zip(TEXTS, encoded, strict=True)), "decoded": decoded}


def write_tokenizer(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Let transformers 5 read a published tokenizer, save it, and encode with what it saved."""
    published = folder.with_name(f"{folder.name}-published")
    published.mkdir(parents=True)
    if settings["tokenizer_class"] == "BartTokenizer":
        for name, content in byte_level_files().items():
            (published / name).write_text(content)
    elif settings["tokenizer_class"] != "ByT5Tokenizer":
        (published / "spiece.model").write_bytes(sentencepiece_model())
    (published / "tokenizer_config.json").write_text(json.dumps(settings))
    transformers.AutoTokenizer.from_pretrained(published).save_pretrained(folder)
    return texts(transformers.AutoTokenizer.from_pretrained(folder))


def record_t5(folder: Path) -> None:
    """Write every T5 with every kind of head, and every tokenizer."""
    computed = {
        f"{name}-{head}": write(folder / f"{name}-{head}", values, head, 2 * seed + (head == "own"))
        for seed, (name, values) in enumerate(MODELS.items())
        for head in HEADS
    }
    (folder / "logits.json").write_text(json.dumps(computed) + "\n")
    read_texts = {name: write_tokenizer(folder / name, settings) for name, settings in TOKENIZERS.items()}
    (folder / "texts.json").write_text(json.dumps(read_texts) + "\n")
    for published in folder.glob("*-published"):
        shutil.rmtree(published)


BART_SHAPE: dict[str, Any] = {
    **{"vocab_size": 32, "d_model": 4, "max_position_embeddings": 8},
    **{f"{side}_layers": 1 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 4 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
}
_MARIAN = {"pad_token_id": 31, "decoder_start_token_id": 31}
BARTS: dict[str, dict[str, Any]] = {
    "bart": {},
    "mbart-untied": {"tie_word_embeddings": False, "decoder_start_token_id": 7},
    "pegasus-untied": {"tie_word_embeddings": False, "scale_embedding": True},
    "marian": _MARIAN,
    "marian-untied": {**_MARIAN, "tie_word_embeddings": False},
    "marian-separate": {**_MARIAN, "share_encoder_decoder_embeddings": False},
    "m2m_100": {},
}
"""What the ``config.json`` says from which each model is made, besides its shape."""


def record_bart(folder: Path) -> None:
    """Write every model of BART's family."""
    computed = {}
    for name, values in BARTS.items():
        config = transformers.AutoConfig.for_model(name.partition("-")[0], **BART_SHAPE, **values)
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
        computed[name] = {"sources": sources.tolist(), "prefixes": prefixes.tolist(), "logits": rounded}
    (folder / "logits.json").write_text(json.dumps(computed))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    record_t5(Path(sys.argv[1]) / "transformers5")
    record_bart(Path(sys.argv[1]) / "transformers5_bart")
