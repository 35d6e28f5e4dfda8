"""SentencePiece models and ``tokenizer.json``."""

from __future__ import annotations

import base64
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer as Pipeline

from seqgen.data.tokenizers.fast import FastT5Tokenizer
from seqgen.data.tokenizers.files import TokenizerFiles
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, read_model
from tests.fuzzing.mutation import VALUES, change_bytes, change_json
from tests.fuzzing.reader import Reader
from tests.fuzzing.sandbox import Wrong
from tests.hostile import JSON
from tests.pretrained_folders import byte_level, sentencepiece_model

TEXTS = ["the dog sees two men", "", " ", "é 😀 \u2028", "</s> <pad> ▁", "a" * 200]


class SentencePiece(Reader):
    name = "sentencepiece"
    fast_cases = 150

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        content = sentencepiece_model(rng.choice(["unigram", "bpe"]))
        if rng.random() < 0.5:
            content = _changed_model(content, rng)
        if rng.random() < 0.5:
            content = change_bytes(content, rng)
        (folder / "sentencepiece.model").write_bytes(content)

    def read(self, folder: Path) -> None:
        path = folder / "sentencepiece.model"
        tokenizer = SentencePieceTokenizer(read_model(path), origin=str(path))
        original = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
        if tokenizer.dictionary.symbols[: original.vocab_size()] != [
            original.id_to_piece(i) for i in range(original.vocab_size())
        ]:
            raise Wrong("other pieces than SentencePiece's")
        for text in TEXTS:
            ids = tokenizer.encode(text)
            if ids != original.encode(text):
                raise Wrong(f"{text!r} is encoded as {ids}")
            if not all(0 <= index < len(tokenizer.dictionary) for index in ids):
                raise Wrong(f"{text!r} has ids outside the vocabulary: {ids}")
            tokenizer.decode(ids)
            tokenizer.decode(list(range(len(tokenizer.dictionary))))
            tokenizer.unknown(text)


def _changed_model(content: bytes, rng: random.Random) -> bytes:
    """Change fields of a model; its pieces, ids, types, scores and normalization."""
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    for _ in range(rng.choice([1, 1, 3])):
        piece = rng.choice(model.pieces)
        deed = rng.randrange(9)
        if deed == 0:
            piece.piece = rng.choice(["", "▁", "</s>", "a" * 1000, "\0", "<0x0A>", rng.choice(model.pieces).piece])
        elif deed == 1:
            piece.score = rng.choice([float("nan"), float("inf"), -1e38, 0.0])
        elif deed == 2:
            piece.type = rng.choice([1, 2, 3, 4, 5, 6])
        elif deed == 3:
            del model.pieces[rng.randrange(len(model.pieces)) :]
            model.pieces.add(piece="x", score=0.0)
        elif deed == 4:
            name = rng.choice(["unk_id", "bos_id", "eos_id", "pad_id", "vocab_size"])
            setattr(model.trainer_spec, name, rng.choice([-1, 0, 3, 10**9, -(2**31)]))
        elif deed == 5:
            table = rng.choice(
                [b"", b"\0", b"\xff\xff\xff\xff" * 4, rng.randbytes(64), b"\x08\0\0\0" + rng.randbytes(8)]
            )
            model.normalizer_spec.precompiled_charsmap = rng.choice(
                [table, change_bytes(model.normalizer_spec.precompiled_charsmap, rng)]
            )
        elif deed == 6:
            model.trainer_spec.model_type = rng.choice([1, 2, 3, 4])
        elif deed == 7:
            model.trainer_spec.byte_fallback = True
        else:
            name = rng.choice(["unk_piece", "bos_piece", "eos_piece", "pad_piece", "unk_surface"])
            setattr(model.trainer_spec, name, rng.choice(["", "x", "the", "\x1b"]))
    result: bytes = model.SerializeToString()
    return result


_REGEX = ["", "e", "(e+)+b", "(", "\\p{L}", "(?=x)", ".*", "[", "\\1"]
_STEPS: list[Any] = [
    *(
        {"type": kind}
        for kind in ("NFC", "NFKD", "Lowercase", "Nmt", "StripAccents", "Whitespace", "Punctuation", "Fuse")
    ),
    *({"type": "Replace", "pattern": {"Regex": text}, "content": "xy"} for text in _REGEX),
    *(
        {"type": "Replace", "pattern": {"String": text}, "content": "e" * n}
        for text in ("", "e")
        for n in (0, 3, 10**6)
    ),
    *(
        {"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": b}
        for r in _REGEX
        for b in (True, False)
    ),
    *(
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(n).decode()}
        for n in (b"", b"\xff" * 9, b"\4\0\0\0abcd")
    ),
    {"type": "Prepend", "prepend": "▁" * 1000},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Strip", "content": "e", "start": 2**40, "stop": 1},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "ByteFallback"},
    {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
    {"type": "Digits", "individual_digits": True},
    {"type": "FixedLength", "length": 0},
]
_MODELS: list[Any] = [
    {"type": "Unigram", "unk_id": 7, "vocab": [], "byte_fallback": True},
    {"type": "Unigram", "unk_id": None, "vocab": [["", 0.0], ["a", -1e308]]},
    {"type": "BPE", "vocab": {"a": 0, "b": 0, "ab": 10**9}, "merges": [["a", "b"], ["b", "x"]]},
    {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "dropout": 0.5, "unk_token": "z"},
    {"type": "WordLevel", "vocab": {"the": 0}, "unk_token": "none"},
    {"type": "WordPiece", "vocab": {"the": 0}, "unk_token": "none", "max_input_chars_per_word": 0},
]


class TokenizerJson(Reader):
    name = "tokenizer.json"
    fast_cases = 50

    def __init__(self, scratch: Path):
        super().__init__(scratch)
        (scratch / "spiece.model").write_bytes(sentencepiece_model(pegasus=True))
        (scratch / "tokenizer_config.json").write_text('{"extra_ids": 0}')
        pipeline: Any = FastT5Tokenizer(TokenizerFiles.read(scratch))._pipeline
        self.t5 = pipeline.to_str().encode()
        vocabulary, merges = byte_level()
        tree = json.loads(self.t5)
        pairs = [line.split(" ") for line in merges.split("\n")[1:] if line]
        step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        tree |= {"normalizer": None, "post_processor": None, "pre_tokenizer": step, "decoder": step}
        tree |= {"added_tokens": [], "model": {"type": "BPE", "vocab": json.loads(vocabulary), "merges": pairs}}
        self.gpt2 = json.dumps(tree).encode()

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        kind, content = rng.choice([("T5TokenizerFast", self.t5), ("GPT2TokenizerFast", self.gpt2)])
        if rng.random() < 0.4:
            tree = json.loads(content)
            key = rng.choice(["normalizer", "pre_tokenizer", "decoder", "model", "post_processor"])
            step: Any = rng.choice(_MODELS if key == "model" else _STEPS)
            if key != "model" and rng.random() < 0.3:
                names = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
                steps = [rng.choice(_STEPS) for _ in range(rng.choice([0, 2, 30]))]
                step = {"type": "Sequence", names.get(key, "decoders"): steps}
            tree[key] = step
            content = json.dumps(tree).encode()
        for _ in range(rng.choice([0, 1, 1])):
            content = change_json(content, rng, [*VALUES, *_STEPS])
        if rng.random() < 0.2:
            content = change_bytes(content, rng)
        if rng.random() < 0.03:
            content = rng.choice(list(JSON.values())).encode()
        (folder / "tokenizer.json").write_bytes(content)
        code = folder / "evil.py"
        code.write_text(f"open({str(canary)!r}, 'w')\n")
        config: dict[str, Any] = {"tokenizer_class": kind, "extra_ids": 0, "eos_token": "</s>", "unk_token": "<unk>"}
        config |= {"pad_token": "<pad>"} if kind.startswith("T5") else {}
        if rng.random() < 0.3:
            config["auto_map"] = {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
        plain = json.dumps(config).encode()
        (folder / "tokenizer_config.json").write_bytes(change_json(plain, rng) if rng.random() < 0.1 else plain)

    def read(self, folder: Path) -> None:
        tokenizer = load_pretrained_tokenizer(folder)
        original = Pipeline.from_str((folder / "tokenizer.json").read_text())
        original.no_truncation()
        pipeline: Any = tokenizer._pipeline  # to which special tokens may have been added
        same = repr(original.get_added_tokens_decoder()) == repr(pipeline.get_added_tokens_decoder())
        for text in TEXTS:
            ids = tokenizer.encode(text)
            with contextlib.suppress(KeyError):
                if same and not _differs(folder) and ids != original.encode(text, add_special_tokens=False).ids:
                    raise Wrong(f"{text!r} is encoded as {ids}")
            if not all(0 <= index < len(tokenizer.dictionary) for index in ids):
                raise Wrong(f"{text!r} has ids outside the vocabulary: {ids}")
            tokenizer.decode(ids)
        tokenizer.decode(list(range(min(len(tokenizer.dictionary), 1000))))


def _differs(folder: Path) -> bool:
    """Whether two encodings may differ: by dropout, or by a prefix space, which ``tokenizer_config.json`` removes."""
    content = (folder / "tokenizer.json").read_bytes()
    return b'"dropout": 0.5' in content or b'"add_prefix_space": true' in content


READERS: list[type[Reader]] = [SentencePiece, TokenizerJson]
