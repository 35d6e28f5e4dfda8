"""Models with random weights, and sources to decode."""

from __future__ import annotations

import gzip
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer as Pipeline
from tokenizers import models, pre_tokenizers

import seqgen.models  # noqa: F401  # declares the built-in models
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.files import CONFIG_FILE, FAST_FILE, TokenizerFiles, to_json
from seqgen.data.tokenizers.pretrained import FAST, PretrainedTokenizer, make_tokenizer
from seqgen.model import EncoderDecoderModel
from seqgen.models.huggingface_checkpoint import save_pretrained
from seqgen.models.t5 import T5Model
from seqgen.models.t5_config import PRESETS
from seqgen.registry import MODELS

SPECIAL = ("<pad>", "</s>", "<unk>")


class Vocabulary:
    """The part of a task that a model uses: dictionaries, here with the words ``w0``, ``w1``, ….

    Args:
        size: vocabulary size.
    """

    def __init__(self, size: int) -> None:
        self.source_dictionary = Dictionary()
        for number in range(size - len(self.source_dictionary)):
            self.source_dictionary.add_symbol(f"w{number}")
        self.target_dictionary = self.source_dictionary


def random_model(preset: str, vocabulary: Vocabulary, seed: int = 1) -> EncoderDecoderModel:
    """A model of a preset, with random weights."""
    torch.manual_seed(seed)
    model: EncoderDecoderModel = MODELS.entry(preset).component.build_model(MODELS.config(preset), vocabulary)
    return model.eval()


def numbered_words(size: int) -> PretrainedTokenizer:
    """A tokenizer in T5's layout whose word for the id i is ``wi``."""
    ids = {token: index for index, token in enumerate([*SPECIAL, *(f"w{i}" for i in range(len(SPECIAL), size))])}
    pipeline = Pipeline(models.WordLevel(ids, unk_token="<unk>"))
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.add_special_tokens(list(SPECIAL))
    config = {"tokenizer_class": FAST, "extra_ids": 0, "additional_special_tokens": []}
    config |= dict(zip(("pad_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    contents = {CONFIG_FILE: to_json(config), FAST_FILE: to_json(json.loads(pipeline.to_str()))}
    return make_tokenizer(TokenizerFiles("the tokenizer", contents))


def save_random_t5(preset: str, vocabulary: int, folder: Path) -> None:
    """Write a T5 with random weights in Hugging Face's layout."""
    torch.manual_seed(1)
    model = T5Model(replace(PRESETS[preset], vocab_size=vocabulary), padding_idx=0)
    with torch.no_grad():  # with its initial weights, a T5 repeats one token; with larger weights it does not
        for weight in model.decoder.layers.parameters():
            weight.mul_(4 if weight.dim() == 2 else 1)
    save_pretrained(model, folder, numbered_words(vocabulary))


def shared_folder() -> Path:
    """The folder with data and other toolkits' checkpoints, which are not part of the repository."""
    return Path(os.environ.get("SEQGEN_SHARED", Path(__file__).resolve().parents[3] / "shared"))


def multi30k(language: str) -> list[str]:
    """The lines of test_2016_flickr; empty if it is not found."""
    path = shared_folder() / "data" / "multi30k" / f"test_2016_flickr.{language}.gz"
    if not path.exists():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def natural_lengths(count: int) -> list[int]:
    """Source lengths, shortest first: 4/3 tokens for each word of Multi30k, or random lengths like these."""
    if lines := multi30k("en")[:count]:
        return sorted(round(len(line.split()) * 4 / 3) for line in lines)
    rng = random.Random(0)
    return sorted(max(4, round(rng.gauss(16, 5))) for _ in range(count))


def random_sources(lengths: list[int], vocabulary: int, eos: int) -> list[list[int]]:
    """Sentences of random words.

    Args:
        lengths: length of each source, without end-of-sentence.
        vocabulary: vocabulary size; the first four ids are special tokens.
        eos: id of end-of-sentence.
    """
    rng = random.Random(1)
    return [[*(rng.randrange(4, vocabulary) for _ in range(length)), eos] for length in lengths]
