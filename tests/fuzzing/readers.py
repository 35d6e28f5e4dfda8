"""All readers that are fuzzed: an intact input of each, its damage, and what reads it."""

import gzip
import io
import json
import math
import os
import pickle
import random
import shutil
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import sentencepiece
import torch
import yaml

from seqgen.addons.huggingface.weights import weight_files
from seqgen.addons.mixtures.text_to_text import read_mixture
from seqgen.checkpoints.run_checkpoints import update_of
from seqgen.checkpoints.serialization import read_tensors
from seqgen.cli.convert import ConvertConfig, run_config, write_run
from seqgen.data.records import JsonFormat, Records, Template
from seqgen.data.tokenizers.fast import FastT5Tokenizer
from seqgen.data.tokenizers.files import TokenizerFiles
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, read_model
from seqgen.extend import Dictionary, UserError, load_model, load_pretrained_tokenizer, read_lines
from seqgen.text.translator import Translator
from tests import fairseq_checkpoints
from tests.fuzzing import settings
from tests.fuzzing.mutation import change_bytes, change_json, change_safetensors, change_yaml
from tests.fuzzing.sandbox import Sandbox, Wrong
from tests.hostile import JSON, PICKLES, YAML, checksummed, compressed, old_file
from tests.huggingface_t5 import change_config
from tests.marian_binary import write_binary
from tests.pretrained_folders import sentencepiece_model, write_model
from tests.scripted_model import dictionary

LONGEST = 4
TEXTS = ["the dog sees two men", "", " ", "é 😀 \u2028", "</s> <pad> ▁", "a" * 200]
LINES = ["the dog", "", "  sees \t\r", "\x85\u2028\x0b\x1c", "e\u0301 😀 \ufeff\u202e", "{source} </s> ▁", "ﷺ" * 9, "x"]
SAMPLES = {".yaml": YAML, ".json": JSON}
CHANGES: dict[str, Any] = {".yaml": change_yaml, ".json": change_json, ".safetensors": change_safetensors}
CODE = ("evil.py", "config.py", "__init__.py", "modeling_t5.py", "setup.py", "sitecustomize.py", "conftest.py")
"""Files with code that are put into folders of models."""

Damage = Callable[[Path, Path, random.Random], None]


def damage(folder: Path, canary: Path, rng: random.Random) -> None:
    """Change a file of the folder by its format, or its bytes, or replace it by something malicious."""
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size))
    content, change = path.read_bytes(), CHANGES.get(path.suffix, change_bytes)
    if path.suffix in SAMPLES and rng.random() < 0.1:
        content = rng.choice(list(SAMPLES[path.suffix].values())).encode(errors="surrogateescape")
    else:
        content = (change_bytes if rng.random() < 0.3 else change)(content, rng)
    replace(path, content)
    if rng.random() < 0.7:
        checksummed(path.parent)


def replace(path: Path, content: bytes) -> None:
    """Write a file without changing one that has hard links."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


@dataclass(frozen=True)
class Reader:
    """A reader of seqgen.

    Attributes:
        make: writes an intact input into an empty folder.
        read: reads the input of a folder; raises ``Wrong`` if the result is not the right one.
        fast_cases: cases in the fast tests.
        damage: changes the input in a folder; gets the folder, a file that malicious inputs should try to create, and
            the random numbers that all choices come from.
    """

    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    fast_cases: int
    damage: Damage = damage


class Bench:
    """Runs the cases of a reader.

    Args:
        name: its name in ``READERS``.
        root: an empty folder.
    """

    def __init__(self, name: str, root: Path):
        self.name, self.reader = name, READERS[name]
        self.sandbox, self.original = Sandbox(root / "sandbox"), root / "original"
        self.original.mkdir()
        self.reader.make(self.original)
        self.reader.read(self.original)  # it is intact; and PyTorch makes its own folders at the first use

    def case(self, number: int) -> str | None:
        """Run one case; the same number gives the same input.

        Returns:
            The sentence with which the input was refused; ``None`` if it was read correctly.

        Raises:
            Failure: see ``Sandbox.run``.
        """
        folder = self.sandbox.folder
        shutil.rmtree(folder)
        shutil.copytree(self.original, folder, copy_function=os.link)
        self.reader.damage(folder, self.sandbox.canary, random.Random(f"{self.name} {number}"))
        return self.sandbox.run(lambda: self.reader.read(folder))


# -- texts and vocabularies --------------------------------------------------------------------------------------------


def make_text(folder: Path) -> None:
    content = ("\n".join(LINES) + "\n").encode()
    (folder / "input.txt").write_bytes(content)
    (folder / "input.txt.gz").write_bytes(gzip.compress(content[:40]) + gzip.compress(content[40:]))


def read_text(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        try:
            content = path.read_bytes()
            plain = gzip.decompress(content) if path.suffix == ".gz" else content
            text = plain.removeprefix(b"\xef\xbb\xbf").decode()
            wanted = text.removesuffix("\n").split("\n") if text else [""] if plain else []
        except (ValueError, EOFError, OSError, zlib.error):
            wanted = None
        if (found := list(read_lines(path))) != wanted:
            raise Wrong(f"read {found!r:.300}, expected {wanted!r:.300}")


def damage_text(folder: Path, canary: Path, rng: random.Random) -> None:
    if rng.random() < 0.02:  # more than the limit in one line
        packer = zlib.compressobj(9, wbits=31)
        line = b"".join([*(packer.compress(b"x" * (1 << 20)) for _ in range(80)), packer.flush()])
        replace(folder / "input.txt.gz", line)
    else:
        damage(folder, canary, rng)


def make_records(folder: Path) -> None:
    records = [{"source": line, "target": line[::-1], "other": [1, {"x": None}]} for line in LINES]
    (folder / "input.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")


def read_records(folder: Path) -> None:
    records = JsonFormat(("source", "target"))
    list(Records([folder / "input.jsonl"], records, Template("[{source}|{target}]", "template")).texts())


def make_mixture(folder: Path) -> None:
    first = {"train": "one.jsonl", "input": "x: {a}", "target": "{b}", "rate": 0.5}
    second = {"train": ["two.tsv"], "input": "{a}{b}", "target": "{b}"}
    (folder / "mixture.yaml").write_text(yaml.safe_dump({"sources": {"first": first, "second": second}}))


def make_vocabularies(folder: Path) -> None:
    words = dictionary(9)
    words.save(folder / "dict.txt")
    words.save(folder / "vocabulary.json")


def read_vocabularies(folder: Path) -> None:
    for path in (folder / "dict.txt", folder / "vocabulary.json"):
        words = Dictionary.load(path)
        if any(not 0 <= words.index(token) < len(words) for token in [*words.symbols, "unknown"]):
            raise Wrong("an id is outside the vocabulary")
        words.save(folder / "copy.json")
        if Dictionary.load(folder / "copy.json") != words:
            raise Wrong("saved and loaded, it differs")


# -- tokenizers --------------------------------------------------------------------------------------------------------


def make_sentencepiece(folder: Path) -> None:
    (folder / "sentencepiece.model").write_bytes(sentencepiece_model())


def read_sentencepiece(folder: Path) -> None:
    path = folder / "sentencepiece.model"
    tokenizer = SentencePieceTokenizer(read_model(path), location=str(path))
    original = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    if any(tokenizer.encode(text) != original.encode(text) for text in TEXTS):
        raise Wrong("other ids than SentencePiece's")
    tokenizer.decode(list(range(len(tokenizer.dictionary))))


def make_pipeline(folder: Path) -> None:
    (folder / "spiece.model").write_bytes(sentencepiece_model(pegasus=True))
    (folder / "tokenizer_config.json").write_text('{"extra_ids": 0}')
    pipeline: Any = FastT5Tokenizer(TokenizerFiles.read(folder))._pipeline
    (folder / "tokenizer.json").write_bytes(pipeline.to_str().encode())
    (folder / "spiece.model").unlink()
    config = {"tokenizer_class": "T5TokenizerFast", "extra_ids": 0, "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": "<pad>"}))


STEPS: list[Any] = [
    {"type": "Replace", "pattern": {"Regex": "(e+)+b"}, "content": "xy"},
    {"type": "Split", "pattern": {"Regex": "\\1"}, "behavior": "Isolated", "invert": True},
    {"type": "Precompiled", "precompiled_charsmap": "BAAAAGFiY2Q="},
    {"type": "Prepend", "prepend": "▁" * 10**4},
    {"type": "Strip", "content": "e", "start": 2**40, "stop": 1},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "BPE", "vocab": {"a": 0, "b": 0, "ab": 10**9}, "merges": [["a", "b"], ["b", "x"]]},
]
"""Steps and models that a pipeline may not be able to have."""


def damage_pipeline(folder: Path, canary: Path, rng: random.Random) -> None:
    if rng.random() < 0.3:
        tree = json.loads((folder / "tokenizer.json").read_bytes())
        tree[rng.choice(["normalizer", "pre_tokenizer", "decoder", "model", "post_processor"])] = rng.choice(STEPS)
        replace(folder / "tokenizer.json", json.dumps(tree).encode())
    else:
        damage(folder, canary, rng)


def read_pipeline(folder: Path) -> None:
    tokenizer = load_pretrained_tokenizer(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        if not all(0 <= index < len(tokenizer.dictionary) for index in ids):
            raise Wrong(f"{text!r} has ids outside the vocabulary: {ids}")
        tokenizer.decode(ids)
    tokenizer.decode(list(range(min(len(tokenizer.dictionary), 1000))))


# -- models ------------------------------------------------------------------------------------------------------------


def decode(path: Path, text: str) -> None:
    """Decode a line and check what holds for every output."""
    for translation in Translator([load_model(path)], max_len=LONGEST, dtype="float32").translate([text]):
        for item in translation.hypotheses:
            if not math.isfinite(item.score) or len(item.tokens) > LONGEST:
                raise Wrong(f"the score is {item.score}, the tokens are {item.tokens.tolist()}")


def make_huggingface(folder: Path) -> None:
    """A T5 with weights in three shards and an index."""
    folder.rmdir()
    write_model(folder, "PegasusTokenizer")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{at % 3 + 1}-of-00003.safetensors" for at, name in enumerate(sorted(weights))}
    for file in set(places.values()):
        part = {name: weights[name] for name in weights if places[name] == file}
        safetensors.torch.save_file(part, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    keys = {"num_beams": 3, "do_sample": False, "top_k": 3, "min_length": 1, "length_penalty": 2.0}
    keys |= {"bad_words_ids": [[5]], "suppress_tokens": [6], "sequence_bias": [[[5], -3.0]], "eos_token_id": [1, 5]}
    change_config(folder, "generation_config.json", stop_strings=["b"], **keys)


def damage_huggingface(folder: Path, canary: Path, rng: random.Random) -> None:
    config = json.loads((folder / "config.json").read_text())
    if rng.random() < 0.3:
        code = ["evil.Config", "evil--evil.Config", f"{canary.parent}/evil.Config", "os.system"]
        config["auto_map"] = {"AutoConfig": rng.choice(code), "AutoModelForSeq2SeqLM": rng.choice(code)}
        config["_target_"], config["trust_remote_code"] = "os.system", True
        replace(folder / "config.json", json.dumps(config).encode())
    elif rng.random() < 0.1:
        index = folder / "model.safetensors.index.json"
        places = json.loads(index.read_text())["weight_map"]
        outside = ["../original/x.safetensors", "/etc/passwd", "..", "", "config.json", "a\0b"]
        replace(index, json.dumps({"weight_map": {**places, rng.choice(sorted(places)): rng.choice(outside)}}).encode())
    if rng.random() < 0.8:
        damage(folder, canary, rng)
    for name in CODE:
        (folder / name).write_text(f"open({str(canary)!r}, 'w')\n")


def read_huggingface(folder: Path) -> None:
    for path in weight_files(folder):
        if path.parent != folder:
            raise Wrong(f"{path} is outside of the folder")
        tensors = read_tensors(path)
        for name, tensor in safetensors.torch.load(path.read_bytes()).items():
            if tensors[name].dtype != tensor.dtype or not torch.equal(tensors[name].nan_to_num(), tensor.nan_to_num()):
                raise Wrong(f"{name} differs from what safetensors reads")
    decode(folder, TEXTS[0])


def make_fairseq(folder: Path) -> Path:
    return fairseq_checkpoints.write_random(folder, fairseq_checkpoints.TRANSFORMER)


def make_run(folder: Path) -> None:
    """A run folder."""
    loaded = load_model(make_fairseq(folder.with_name("fairseq")))
    shutil.rmtree(folder)
    write_run(loaded, run_config(loaded, ConvertConfig(path=["model.pt"], source_lang="en", target_lang="de")), folder)


def damage_run(folder: Path, canary: Path, rng: random.Random) -> None:
    for name in CODE:
        (folder / name).write_text(f"open({str(canary)!r}, 'w')\n")
    if rng.random() < 0.3:
        _point_to_code(folder, canary, rng)
    if rng.random() < 0.8:
        damage(folder, canary, rng)
    if rng.random() < 0.1:
        name = rng.choice([".lock", "config.yaml", "cache", "checkpoints/last", "log.jsonl", "checksums.json"])
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(rng.choice([str(canary), "/dev/zero"]))
    if rng.random() < 0.6:
        (folder / "checksums.json").unlink(missing_ok=True)


def _point_to_code(folder: Path, canary: Path, rng: random.Random) -> None:
    """Name the code in the folder wherever a configuration names files, modules or classes."""
    evil, path = str(folder / "evil.py"), folder / "config.yaml"
    tree = yaml.safe_load(path.read_bytes())
    tree["common"] |= {"user_dir": [evil], "user_files": {"model.evil": evil, "search.evil": evil}}
    deed = rng.randrange(4)
    if deed == 0:
        tree["model"]["_target_"] = rng.choice(["os.system", "evil.main"])
    elif deed == 1:
        tree["model"]["_name"] = rng.choice(["evil", evil, "evil.Model", "../evil"])
    elif deed == 2:
        tree["generation"] |= {"processors": ["evil"], "search": "evil"}
    content = yaml.safe_dump(tree, sort_keys=False)
    if deed == 3:
        tag = rng.choice([f"apply:os.system ['touch {canary}']", "new:evil.X []", "module:evil ''", "name:evil.x ''"])
        content = content.replace("user_files:", f"log_format: !!python/object/{tag}\n  user_files:", 1)
    replace(path, content.encode())


def read_run(folder: Path) -> None:
    refused: list[UserError | OSError] = []
    for reader in (lambda: update_of(folder / "checkpoints" / "best"), lambda: decode(folder, "w1 w2")):
        try:
            reader()
        except (UserError, OSError) as error:
            refused.append(error)
    if refused:
        raise refused[-1]


# -- files of torch.save -----------------------------------------------------------------------------------------------


class Payload:
    """Runs code when it is unpickled by Python itself."""

    def __init__(self, function: Any, *arguments: Any):
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def make_bin(folder: Path) -> None:
    """A T5 whose weights are a pickle."""
    make_huggingface(folder)
    weights = {name: tensor for path in weight_files(folder) for name, tensor in read_tensors(path).items()}
    for path in folder.glob("model*"):
        path.unlink()
    torch.save(weights, folder / "pytorch_model.bin")


def damage_pickle(folder: Path, canary: Path, rng: random.Random) -> None:
    (path,) = [*folder.glob("*.pt"), *folder.glob("*.bin")]
    content, deed = torch.load(path, weights_only=False), rng.random()
    whole = path.read_bytes()
    path.unlink()
    group = content.get("model", content)
    if deed < 0.15:
        code = f"open({str(canary)!r}, 'w')"
        payloads = [Payload(os.system, f"touch {canary}"), Payload(exec, code), Payload(open, str(canary), "w")]
        payloads += [Payload(torch.load, str(canary)), Payload(torch.save, {}, str(canary))]
        content[rng.choice(["model", "args", "x", "extra_state"])] = rng.choice(payloads)
    elif deed < 0.3:
        odd: list[Any] = [torch.zeros(1).expand(10**6, 10**6), torch.zeros(2, 2).to_sparse(), torch.zeros(3).long()]
        odd += [torch.full((4,), float("nan")), torch.zeros(0), None, 10**400, {"a": 1}, torch.nn.Linear(1, 1)]
        group[rng.choice(sorted(group))] = rng.choice(odd)
    if deed < 0.3:
        torch.save(content, path, _use_new_zipfile_serialization=rng.random() < 0.5)
    elif deed < 0.35:
        old_file(path, rng.choice(list(PICKLES.values())))
    elif deed < 0.4:
        compressed(path)
    elif deed < 0.43:
        path.write_bytes(rng.choice([pickle.dumps(content), pickle.dumps(Payload(os.getcwd)), b"", b"PK", b"\x80"]))
    elif deed < 0.6:
        path.write_bytes(change_bytes(whole, rng))
    elif deed < 0.9:
        path.write_bytes(_changed_inside(whole, rng))
    else:
        path.write_bytes(whole)


def _changed_inside(data: bytes, rng: random.Random) -> bytes:
    """Change a file in an archive, whose checksum is then that of the changed file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        chosen = "archive/data.pkl" if rng.random() < 0.8 else rng.choice(old.namelist())
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change_bytes(content, rng) if name == chosen else content)
    return buffer.getvalue()


MARIAN = Path(__file__).parents[1] / "recorded" / "marian"


def make_marian(folder: Path) -> None:
    """A model of Marian in its binary format."""
    shutil.copy(MARIAN / "vocab.yml", folder)
    write_binary(folder / "model.bin", dict(np.load(MARIAN / "ssru.npz")), int8=True)


READERS = {
    "text": Reader(make_text, read_text, 40, damage_text),
    "jsonl": Reader(make_records, read_records, 40),
    "mixture": Reader(make_mixture, lambda folder: read_mixture((folder / "mixture.yaml").read_bytes(), "it"), 40),
    "vocabulary": Reader(make_vocabularies, read_vocabularies, 40),
    "sentencepiece": Reader(make_sentencepiece, read_sentencepiece, 40),
    "tokenizer": Reader(make_pipeline, read_pipeline, 10, damage_pipeline),
    "huggingface": Reader(make_huggingface, read_huggingface, 8, damage_huggingface),
    "run": Reader(make_run, read_run, 6, damage_run),
    ".pt": Reader(make_fairseq, lambda folder: decode(folder / "model.pt", "w1 w2"), 10, damage_pickle),
    ".bin": Reader(make_bin, lambda folder: decode(folder, TEXTS[0]), 8, damage_pickle),
    "marian": Reader(make_marian, lambda folder: decode(folder / "model.bin", "no 1"), 10),
    "overrides": Reader(settings.make_overrides, settings.read_overrides, 6, settings.damage_overrides),
    "generation": Reader(settings.make_settings, settings.read_settings, 8, settings.damage_settings),
}
