"""Runs under transformers 5, in an environment without seqgen: writes T5Gemma folders.

::

    python tests/transformers5_t5gemma.py write tests/recorded/transformers5_t5gemma
    python tests/transformers5_t5gemma.py logits FOLDER ...     prints its logits for each folder as JSON
    python tests/transformers5_t5gemma.py texts FOLDER ...      prints the ids of fixed texts, and texts of these
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

SIZES: dict[str, Any] = {
    **{"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "query_pre_attn_scalar": 6},
    **{"sliding_window": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
}
SMALL = {"hidden_size": 6, "intermediate_size": 10, "num_hidden_layers": 3, "num_attention_heads": 3}
MODELS: dict[str, dict[str, Any]] = {
    "tied": {"encoder": SIZES, "decoder": SIZES},
    "untied": {"encoder": SIZES, "decoder": {**SIZES, "sliding_window": 2}, "tie_word_embeddings": False},
    "sizes": {
        "encoder": {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}, "sliding_window": 1},
        "decoder": {
            **{**SIZES, **SMALL, "num_key_value_heads": 1, "head_dim": 6, "query_pre_attn_scalar": 2},
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    },
    "uncapped": {
        side: {
            **{**SIZES, "attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
            **{"num_key_value_heads": 4, "hidden_activation": "silu", "sliding_window": 4096},
        }
        for side in ("encoder", "decoder")
    },
}
"""What the ``config.json`` says from which each model is made."""

SOURCES = [[2, 5, 9, 7, 4, 8, 6, 1], [2, 6, 3, 1], [3, 10, 9, 4, 6, 7], [2]]
TARGET = [2, 9, 4, 10, 0, 7, 6, 1]

TEXTS = [
    *("", " ", "  ", "a dog", " a dog ", "the  dog\tsees\n\n\na boat.", "dogdog", "▁dog ▁", "<bos>a<eos>", "a <unk> b"),
    *("<pad>", "😀 é e\u0301 中 \x00 \x85 \u2028", "\u3000a\u00a0b", "<0x41>", "a<start_of_turn>user\n<end_of_turn>"),
    *(
        "<start_of_turn",
        "it 's , fun ! n't",
        "\n",
        "\n\n",
        "\r\n",
        "ＦＵＬＬ ﬁ",
        "\u200b\ufeff",
        "a\n\nb",
        "<bos> <bos>",
    ),
    *("dog " * 60, "x" * 200, "<mask>", "The DOG", "a<eos> dog"),
]


def model_of(name: str) -> Any:
    """A model that is random everywhere."""
    torch.manual_seed(list(MODELS).index(name))
    model = transformers.T5GemmaForConditionalGeneration(transformers.T5GemmaConfig(**MODELS[name]))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.normal_(std=0.3 if parameter.dim() == 1 else 0.7)
            if key == "model.decoder.norm.weight":
                parameter.sub_(2.5 if model.config.tie_word_embeddings else 0)
    model.tie_weights()
    return model.eval()


def logits(model: Any) -> list[Any]:
    """The logits of all sources in a batch, padded on the right, for one target."""
    longest = max(map(len, SOURCES))
    sources = torch.tensor([source + [0] * (longest - len(source)) for source in SOURCES])
    mask = torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in SOURCES])
    with torch.no_grad():
        targets = torch.tensor([TARGET] * len(SOURCES))
        out = model(input_ids=sources, attention_mask=mask, decoder_input_ids=targets)
    return [[[round(value, 6) for value in row] for row in rows] for rows in out.logits.tolist()]


def write_tokenizer(folder: Path) -> None:
    """A byte-pair encoding with Gemma's steps, special tokens, bytes and a few merges, as transformers 5 saves it."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>", "\n\n", "▁▁"]
    merges = [("d", "o"), ("do", "g"), ("▁", "dog"), ("▁", "a"), ("t", "h"), ("th", "e"), ("s", "e")]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *"abdeghnorstu.▁中"]
    tokens += [first + second for first, second in merges]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pipeline = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, fuse_unk=True, unk_token="<unk>", byte_fallback=True)
    )
    pipeline.normalizer = normalizers.Replace(" ", "▁")
    pipeline.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    pipeline.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pipeline.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special[:7]])
    pipeline.add_tokens([AddedToken(token, normalized=False) for token in special[7:]])
    pipeline.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    published = folder.with_name(f"{folder.name}-published")
    published.mkdir(parents=True)
    pipeline.save(str(published / "tokenizer.json"))
    added = {
        str(index): {"content": token, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
        | {"special": index < 7}
        for index, token in enumerate(special)
    }
    config = {
        **{"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False},
        **{f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk")},
        "additional_special_tokens": special[5:7],
        "added_tokens_decoder": added,
        "clean_up_tokenization_spaces": False,
        "spaces_between_special_tokens": False,
    }
    (published / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    transformers.AutoTokenizer.from_pretrained(published).save_pretrained(folder)


def texts(folder: Path) -> dict[str, Any]:
    """What a tokenizer makes of fixed texts, and of their ids."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = [tokenizer(text).input_ids for text in TEXTS]
    decoded = [[ids, *(tokenizer.decode(ids, skip_special_tokens=skip) for skip in (True, False))] for ids in encoded]
    return {"encoded": list(zip(TEXTS, encoded, strict=True)), "decoded": decoded}


def write(folder: Path) -> None:
    """Write every model, and the tokenizer with what transformers 5 makes of texts."""
    for name in MODELS:
        model_of(name).save_pretrained(folder / name)
    write_tokenizer(folder / "tokenizer")
    read = {name: texts(folder / name) for name in ("tokenizer", "tokenizer-published")}
    (folder / "texts.json").write_text(json.dumps(read) + "\n")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folders = [Path(argument) for argument in sys.argv[2:]]
    if sys.argv[1] == "write":
        write(folders[0])
    elif sys.argv[1] == "logits":
        reader = transformers.AutoModelForSeq2SeqLM
        read_models = {folder: reader.from_pretrained(folder, dtype=torch.float32).eval() for folder in folders}
        print(json.dumps({str(folder): logits(model) for folder, model in read_models.items()}))
    else:
        print(json.dumps({str(folder): texts(folder) for folder in folders}))
