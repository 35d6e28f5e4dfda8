"""Folders of small tokenizers in Hugging Face's layout, of each class."""

import functools
import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from tokenizers import ByteLevelBPETokenizer

from seqgen.addons.huggingface.checkpoint import save_pretrained
from seqgen.extend import GenerationConfig, T5Config, T5Model, load_pretrained_tokenizer
from seqgen.models.llama import LlamaConfig, LlamaModel
from tests.tokenizer_texts import TEXT

PIECES = 44
LANGUAGE_TOKENS = (">>fra<<", ">>cmn_Hans<<")
FRENCH = [text.replace("dog", "chien").replace("two", "deux") for text in TEXT]


@functools.cache
def sentencepiece_model(
    kind: str = "unigram", pegasus: bool = False, french: bool = False, normalization: str = "nmt_nfkc"
) -> bytes:
    """A SentencePiece model.

    Args:
        kind: ``unigram`` or ``bpe``.
        pegasus: whether its first pieces are those of Pegasus and T5, or those of fairseq.
        french: whether it is trained on the text of a second language.
        normalization: the rule by which characters are normalized.
    """
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} if pegasus else {"unk_id": 0, "bos_id": 1, "eos_id": 2}
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(FRENCH if french else TEXT),
        model_writer=content,
        normalization_rule_name=normalization,
        **{"vocab_size": PIECES, "model_type": kind, "minloglevel": 2, **ids},
    )
    return content.getvalue()


def _pieces(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.vocab_size())]


def _vocabulary(*models: bytes, first: tuple[str, ...], last: tuple[str, ...] = ()) -> str:
    tokens = dict.fromkeys([*first, *(piece for model in models for piece in _pieces(model)), *last])
    return json.dumps({token: index for index, token in enumerate(tokens)})


@functools.cache
def byte_level() -> tuple[str, str]:
    """``vocab.json`` and ``merges.txt`` of a byte-level byte-pair encoding, in BART's order."""
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(TEXT, vocab_size=330, special_tokens=special, show_progress=False)
    content = json.loads(trained.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["merges"]]
    return json.dumps(content["vocab"]), "\n".join(["#version: 0.2", *merges, ""])


def files_of(name: str, **options: Any) -> dict[str, str | bytes]:
    """The files of a tokenizer besides its configuration.

    Args:
        name: the class, without ``Fast``.
        options: those of ``sentencepiece_model``; ``separate`` for two vocabularies of Marian.
    """
    separate = options.pop("separate", False)
    if name in ("BartTokenizer", "RobertaTokenizer"):
        vocabulary, merges = byte_level()
        return {"vocab.json": vocabulary, "merges.txt": merges}
    if name == "ByT5Tokenizer":
        return {}
    if name in ("PegasusTokenizer", "T5Tokenizer", "MT5Tokenizer"):
        return {"spiece.model": sentencepiece_model(pegasus=True, **options)}
    model = sentencepiece_model(**options)
    if name == "M2M100Tokenizer":
        vocabulary = _vocabulary(model, first=("<s>", "<pad>", "</s>", "<unk>"))
        return {"sentencepiece.bpe.model": model, "vocab.json": vocabulary}
    if name != "MarianTokenizer":
        return {"sentencepiece.bpe.model": model}
    target = sentencepiece_model(**{**options, "french": True})
    files: dict[str, str | bytes] = {"source.spm": model, "target.spm": target}
    first, last = ("</s>", "<unk>"), (*LANGUAGE_TOKENS, "<pad>")
    if not separate:
        return {**files, "vocab.json": _vocabulary(model, target, first=first, last=last)}
    # padding must have the same id in both vocabularies
    files["vocab.json"] = _vocabulary(model, first=(*first, "<pad>"), last=LANGUAGE_TOKENS)
    return {**files, "target_vocab.json": _vocabulary(target, first=(*first, "<pad>"))}


def write_folder(folder: Path, name: str, config: dict[str, Any] | None = None, **options: Any) -> Path:
    """Write the folder of a tokenizer.

    Args:
        folder: where to; it must not exist.
        name: the class, with or without ``Fast``.
        config: values of ``tokenizer_config.json`` besides the class.
        options: see ``files_of``.
    """
    folder.mkdir(parents=True)
    for file, content in files_of(name.removesuffix("Fast"), **options).items():
        (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)
    settings = {"tokenizer_class": name, **(config or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_model(folder: Path, name: str, config: dict[str, Any] | None = None, decoder_only: bool = False) -> Path:
    """Write the folder of a small random T5 with the tokenizer of another model, without transformers.

    Args:
        folder: where to; it must not exist.
        name: the tokenizer's class.
        config: see ``write_folder``.
        decoder_only: whether it is a Llama instead.
    """
    tokenizer = load_pretrained_tokenizer(write_folder(folder.with_name(f"{folder.name}-tokenizer"), name, config))
    words = tokenizer.dictionary
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    torch.manual_seed(1)
    t5 = T5Config(vocab_size=len(words), decoder_start_token_id=words.eos(), **sizes)
    llama = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    model = LlamaModel(llama, len(words)) if decoder_only else T5Model(t5, padding_idx=words.pad())
    generation = GenerationConfig(semantics="huggingface", beam=2 - decoder_only, max_len=8)
    save_pretrained(model, folder, tokenizer, generation)
    return folder
