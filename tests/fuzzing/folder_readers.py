"""Models in Hugging Face's layout: their configurations, weights and indices."""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path
from typing import Any

import safetensors.torch

from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import load_model
from seqgen.checkpoints.serialization import read_tensors
from seqgen.models.huggingface.weights import weight_files
from seqgen.text.translator import Translator
from tests import huggingface_bart, huggingface_gpt2
from tests.fuzzing.mutation import VALUES, change_bytes, change_json, change_safetensors
from tests.fuzzing.reader import Reader, link, replace
from tests.fuzzing.sandbox import Wrong
from tests.hostile import JSON
from tests.pretrained_folders import write_model

LONGEST = 4


def check_decoding(loaded: LoadedModel, text: str = "the dog sees two men") -> None:
    """Decode a line and check what holds for every output.

    Raises:
        Wrong: a score is not finite, or an output is too long.
        UserError: the model cannot decode.
    """
    for translation in Translator([loaded], max_len=LONGEST, dtype="float32").translate([text]):
        for item in translation.hypotheses:
            if not math.isfinite(item.score) or len(item.tokens) > LONGEST:
                raise Wrong(f"the score is {item.score}, the tokens are {item.tokens.tolist()}")


class Folder(Reader):
    """A folder of which one file is changed."""

    file = ""

    def __init__(self, scratch: Path):
        super().__init__(scratch)
        self.original = self.make(scratch / "model")
        self.content = (self.original / self.file).read_bytes()
        check_decoding(load_model(self.original))  # it is intact; and PyTorch makes its own folders at the first use

    def make(self, folder: Path) -> Path:
        """Write the intact folder."""
        return write_model(folder, "PegasusTokenizer")

    def change(self, content: bytes, canary: Path, rng: random.Random) -> bytes:
        """Change the content of the file."""
        return change_bytes(content, rng) if rng.random() < 0.15 else change_json(content, rng)

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        link(self.original, folder)
        content = self.change(self.content, canary, rng)
        if self.file.endswith(".json") and rng.random() < 0.03:
            content = rng.choice(list(JSON.values())).encode()
        replace(folder / self.file, content)
        for name in ("evil.py", "modeling_t5.py", "__init__.py", "setup.py", "sitecustomize.py"):
            (folder / name).write_text(f"open({str(canary)!r}, 'w')\n")

    def read(self, folder: Path) -> None:
        check_decoding(load_model(folder))


class ConfigJson(Folder):
    name = file = "config.json"
    fast_cases = 12

    def change(self, content: bytes, canary: Path, rng: random.Random) -> bytes:
        tree = json.loads(content)
        if rng.random() < 0.3:
            code = ["evil.Config", "evil--evil.Config", f"{canary.parent}/evil.Config", "os.system"]
            tree["auto_map"] = {"AutoConfig": rng.choice(code), "AutoModelForSeq2SeqLM": rng.choice(code)}
            tree["_target_"], tree["trust_remote_code"] = "os.system", True
        if rng.random() < 0.2:
            tree["model_type"] = rng.choice(
                ["bart", "mt5", "gpt2", "marian", "mbart", "m2m_100", "evil", "umt5", "pegasus"]
            )
        return super().change(json.dumps(tree).encode(), canary, rng)


class BartConfigJson(ConfigJson):
    name = "config.json of BART"
    fast_cases = 0

    def make(self, folder: Path) -> Path:
        return huggingface_bart.tiny_folder(folder, "bart")


class GPT2ConfigJson(ConfigJson):
    name = "config.json of GPT-2"
    fast_cases = 0

    def make(self, folder: Path) -> Path:
        return huggingface_gpt2.tiny_folder(folder)


class GenerationConfigJson(Folder):
    name = file = "generation_config.json"
    fast_cases = 12
    keys = {
        "num_beams": [1, 3, 10**6],
        "num_beam_groups": [2, 3],
        "diversity_penalty": [0.5],
        "do_sample": [True],
        "temperature": [0.5, 0, -1],
        "top_k": [3, 0, -1],
        "top_p": [0.5, 0.0, 2],
        "min_p": [0.1],
        "typical_p": [0.5],
        "max_length": [2, 10**9],
        "max_new_tokens": [3],
        "min_length": [3, 10**9],
        "num_return_sequences": [2, 50],
        "length_penalty": [2.0, -5, 1e30],
        "no_repeat_ngram_size": [1, 10**9],
        "repetition_penalty": [1.5, 0],
        "bad_words_ids": [[[5]], [[]], [["x"]], [[10**9]], [list(range(3000))]],
        "force_words_ids": [[[5]], [[[5], [6]]]],
        "forced_bos_token_id": [5, -1, 10**9],
        "forced_eos_token_id": [1, [1, 2]],
        "suppress_tokens": [[5, 6], [-1], list(range(44))],
        "begin_suppress_tokens": [[1]],
        "sequence_bias": [[[[5], -3.0]], {"5": 1}],
        "eos_token_id": [[1, 5], 10**9],
        "decoder_start_token_id": [3, 10**9, -5],
        "guidance_scale": [2.0],
        "penalty_alpha": [0.6],
        "early_stopping": [True, "never"],
        "exponential_decay_length_penalty": [[2, 1.5], [2, float("inf")]],
        "custom_generate": ["evil", "./"],
        "stop_strings": ["a", ["b"]],
        "watermarking_config": [{"greenlist_ratio": 0.5}],
        "assistant_model": ["../evil"],
    }

    def change(self, content: bytes, canary: Path, rng: random.Random) -> bytes:
        tree = json.loads(content)
        for key in rng.sample(sorted(self.keys), rng.choice([0, 1, 2, 4])):
            tree[key] = rng.choice(self.keys[key])
        content = json.dumps(tree).encode()
        return super().change(content, canary, rng) if rng.random() < 0.6 else content


class Safetensors(Folder):
    name, file = "safetensors", "model.safetensors"
    fast_cases = 100

    def change(self, content: bytes, canary: Path, rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            tree: dict[str, Any] = {}
            for index in range(rng.choice([1, 2, 5])):
                shape = [rng.choice([0, 1, 4, 10**6, 10**12, 2**62, -1]) for _ in range(rng.choice([0, 1, 2, 3]))]
                start = rng.choice([0, 0, 16, 10**15])
                tree[f"w{index}"] = {
                    "dtype": rng.choice(["F32", "F64", "BF16", "F8_E5M2", "I64", "BOOL", "U16", "C64", "F4", "x"]),
                    "shape": shape,
                    "data_offsets": [start, start + rng.choice([0, 4 * max(0, math.prod(shape)), 10**15])],
                }
            tree["__metadata__"] = rng.choice(
                [{"format": "pt"}, {"alias:a": "w0"}, {"alias:a": "a"}, {"alias:w0": "w1"}]
            )
            header = json.dumps(tree).encode()
            size = rng.choice([len(header), 10**18, 2**63, 0, 10**9])
            return struct.pack("<Q", size) + header + bytes(rng.choice([0, 16, 256]))
        if rng.random() < 0.2:
            return content
        return change_bytes(content, rng) if rng.random() < 0.4 else change_safetensors(content, rng)

    def read(self, folder: Path) -> None:
        path = folder / self.file
        tensors = read_tensors(path)
        shapes = read_tensors(path, values=False)
        for name, tensor in safetensors.torch.load(path.read_bytes()).items():
            found = tensors[name]
            if found.dtype != tensor.dtype or found.numpy(force=True).tobytes() != tensor.numpy(force=True).tobytes():
                raise Wrong(f"{name} differs from what safetensors reads")
            if shapes[name].shape != tensor.shape:
                raise Wrong(f"{name} has the shape {tensor.shape}, not {shapes[name].shape}")
        if random.Random(len(path.read_bytes())).random() < 0.1:
            check_decoding(load_model(folder))


class Index(Folder):
    name, file = "shards", "model.safetensors.index.json"
    fast_cases = 12

    def make(self, folder: Path) -> Path:
        write_model(folder, "PegasusTokenizer")
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        names = sorted(weights)
        places = {}
        for number in (1, 2, 3):
            file = f"model-{number:05}-of-00003.safetensors"
            part = names[(number - 1) * len(names) // 3 : number * len(names) // 3]
            safetensors.torch.save_file({name: weights[name] for name in part}, folder / file, {"format": "pt"})
            places |= dict.fromkeys(part, file)
        (folder / self.file).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
        return folder

    def change(self, content: bytes, canary: Path, rng: random.Random) -> bytes:
        outside = [
            "../scratch/x.safetensors",
            "/dev/zero",
            "/etc/passwd",
            ".",
            "..",
            "",
            "config.json",
            "a\0b",
            "evil.py",
        ]
        if rng.random() < 0.2:
            return change_bytes(content, rng)
        return change_json(content, rng, [*VALUES, *outside, *outside])

    def read(self, folder: Path) -> None:
        for path in weight_files(folder):
            if path.parent != folder:
                raise Wrong(f"{path} is outside of the folder")
        check_decoding(load_model(folder))


READERS: list[type[Reader]] = [ConfigJson, BartConfigJson, GPT2ConfigJson, GenerationConfigJson, Safetensors, Index]
