"""What is particular to Llama and the models with its layers: tokenizers of prompts, and several ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from seqgen.checkpoints.loading import load_model
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer, save_pretrained_tokenizer
from tests import huggingface_llama
from tests.huggingface_t5 import save
from tests.tokenizer_texts import HARD, TEXT, random_ids

transformers = pytest.importorskip("transformers")

_SPLIT = Regex(r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_END, _BEGIN = "<|endoftext|>", "<|begin_of_text|>"


def _byte_level(normalizer: Any = None, digits: bool = False, bos: bool = False) -> Any:
    """A pipeline of Llama 3, or with a normalizer of Qwen, or with separate digits of SmolLM 2."""
    pipeline = Tokenizer(models.BPE(ignore_merges=bos))
    first = pre_tokenizers.Digits(individual_digits=True) if digits else pre_tokenizers.Split(_SPLIT, "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=digits)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_])
    pipeline.decoder = decoders.ByteLevel()
    if normalizer is not None:
        pipeline.normalizer = normalizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=[_END, _BEGIN], show_progress=False
    )
    pipeline.train_from_iterator(TEXT, trainer)
    pipeline.add_special_tokens([AddedToken("<|im_end|>", normalized=False)])
    if bos:
        pipeline.post_processor = processors.TemplateProcessing(f"{_BEGIN}:0 $A:0", special_tokens=[(_BEGIN, 1)])
    return pipeline


def _pieces() -> Any:
    """A pipeline of Llama 2: pieces of SentencePiece by merges, with bytes for other characters."""
    pipeline = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    pipeline.normalizer = normalizers.Sequence(steps)
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=first, show_progress=False)
    pipeline.train_from_iterator(TEXT, trainer)
    content = json.loads(pipeline.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    pipeline = Tokenizer.from_str(json.dumps(content))
    last = [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    pipeline.decoder = decoders.Sequence([decoders.Replace("▁", " "), *last])
    return pipeline


TOKENIZERS: dict[str, Any] = {
    "llama 2": lambda: transformers.LlamaTokenizerFast(tokenizer_object=_pieces()),
    "llama 2 without bos": lambda: transformers.LlamaTokenizerFast(tokenizer_object=_pieces(), add_bos_token=False),
    "llama 3": lambda: transformers.PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(bos=True), bos_token=_BEGIN, eos_token=_END
    ),
    "mistral": lambda: transformers.PreTrainedTokenizerFast(
        tokenizer_object=_pieces(), eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=True
    ),
    "qwen 2": lambda: transformers.Qwen2TokenizerFast(
        tokenizer_object=_byte_level(normalizers.NFC()), eos_token="<|im_end|>", additional_special_tokens=[_BEGIN]
    ),
    "smollm 2": lambda: transformers.GPT2TokenizerFast(
        tokenizer_object=_byte_level(digits=True), bos_token=_BEGIN, eos_token="<|im_end|>", pad_token="<|im_end|>"
    ),
}
TEXTS = [
    *HARD,
    *(f"a{_END}b {_END} <|im_end|>", "<s>a</s>", "12345 1,000.00 don't", "ελληνικά 👩‍👩‍👧", "<0x41>", "\r\n \n"),
]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_prompts_and_texts_are_the_originals(kind: str, tmp_path: Path) -> None:
    folder, again = tmp_path / "theirs", tmp_path / "again"
    TOKENIZERS[kind]().save_pretrained(folder)
    original, ours = transformers.AutoTokenizer.from_pretrained(folder), load_pretrained_tokenizer(folder)
    encoded = original(TEXTS).input_ids
    before = ours.source_tokens().before
    for text, ids in zip(TEXTS, encoded, strict=True):
        assert [*before, *ours.encode(text)] == ids, repr(text)
    assert (len(before) == 1) == (kind in ("llama 2", "llama 3"))
    for ids in encoded + random_ids(len(original)):
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == original.decode(ids, skip_special_tokens=skip), ids
    words = ours.dictionary
    assert words.eos() == original.eos_token_id
    assert words.pad() == (words.eos() if original.pad_token_id is None else original.pad_token_id)
    save_pretrained_tokenizer(ours, again)
    assert transformers.AutoTokenizer.from_pretrained(again)(TEXTS).input_ids == encoded


def llama_folder(folder: Path, kind: str = "llama 2", variant: str = "llama", **changes: Any) -> Path:
    """A small model and one of the tokenizers, with several ends."""
    tokenizer = TOKENIZERS[kind]()
    original = huggingface_llama.tiny_model(variant, vocab_size=len(tokenizer) + 3, **changes)
    save(original, folder, {"eos_token_id": [0, 2, 9], "bos_token_id": 1})
    tokenizer.save_pretrained(folder)
    return folder


def test_a_folder_of_llama_2_and_of_llama_3(tmp_path: Path) -> None:
    """Prompts begin as in transformers, and every end of the generation settings ends an output."""
    for kind in ("llama 2", "llama 3"):
        loaded, tokenizer = load_model(llama_folder(tmp_path / kind, kind)), TOKENIZERS[kind]()
        for text in ("the dog", ""):
            assert loaded.task.encode_source(text).tolist() == tokenizer(text).input_ids
        assert len(loaded.generation["end_symbols"]) == 2
