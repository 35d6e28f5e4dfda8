"""Models with random weights, and sources to decode."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer as Pipeline, models, pre_tokenizers

import seqgen.models  # noqa: F401  # declares the built-in models
from examples.shortlist import write_map
from seqgen.addons.huggingface.bart import KINDS, SIDES
from seqgen.addons.huggingface.checkpoint import save_pretrained
from seqgen.checkpoints.loaders import DecodingConfig, DecodingTask
from seqgen.core.model import EncoderDecoderModel
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.files import CONFIG_FILE, FAST_FILE, TokenizerFiles, to_json
from seqgen.data.tokenizers.pretrained import T5, load_pretrained_tokenizer, make_tokenizer
from seqgen.data.tokenizers.pretrained_base import PretrainedTokenizer
from seqgen.models.llama import LlamaConfig, LlamaModel
from seqgen.models.t5 import PRESETS, T5Model
from seqgen.models.transformer import TransformerConfig
from seqgen.registry import MODELS

SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}

MAP_FILE = "vmap.txt"
"""The vocabulary map of a model, for decoding with a shortlist."""


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


def numbered_words(size: int, special: Sequence[int] = (0, 1, 2)) -> PretrainedTokenizer:
    """A tokenizer in Hugging Face's layout whose word for the id i is ``wi``.

    Args:
        size: vocabulary size.
        special: the ids of padding, end-of-sentence, the unknown token and, if there is one, begin-of-sentence; by
            default those of T5.
    """
    tokens = [f"w{i}" for i in range(size)]
    names = dict(list(SPECIAL.items())[: len(special)])
    for index, token in zip(special, names.values(), strict=True):
        tokens[index] = token
    ids = {token: index for index, token in enumerate(tokens)}
    pipeline = Pipeline(models.WordLevel(ids, unk_token="<unk>"))
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.add_special_tokens(list(names.values()))
    config = {"tokenizer_class": T5, "extra_ids": 0, "additional_special_tokens": []}
    config |= names
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


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer of one type of Hugging Face's.

    Attributes:
        model_type: key of ``KINDS``.
        vocabulary: vocabulary size.
        dim: hidden size.
        heads: attention heads.
        layers: layers of the encoder, and of the decoder.
        activation: activation function.
    """

    model_type: str
    vocabulary: int
    dim: int
    heads: int
    layers: tuple[int, int]
    activation: str

    @property
    def special(self) -> tuple[int, ...]:
        """The ids of padding, end-of-sentence, ...; Marian has padding at the end and no begin-of-sentence."""
        return (self.vocabulary - 1, 0, 1) if self.model_type == "marian" else (1, 2, 3, 0)

    @property
    def words(self) -> int:
        """The ids from 4 to this one, exclusive, are words."""
        return self.vocabulary - (self.model_type == "marian")


SHAPES = {
    "marian_base": Shape("marian", 58101, 512, 8, (6, 6), "swish"),
    "nllb_600m": Shape("m2m_100", 256206, 1024, 16, (2, 6), "relu"),
    "marian_tiny": Shape("marian", 201, 16, 2, (1, 2), "swish"),
    "nllb_tiny": Shape("m2m_100", 300, 16, 2, (1, 2), "relu"),
}
"""Models with large vocabularies: OPUS-MT's Marian base, and NLLB-200-distilled-600M with fewer layers, which has 12 in
encoder and decoder; several processes with 12 layers would need more memory than the machine has."""


def save_random_transformer(name: str, folder: Path) -> None:
    """Write a model of one of ``SHAPES`` with random weights in Hugging Face's layout."""
    shape = SHAPES[name]
    pad = shape.special[0]
    kind = KINDS[shape.model_type]
    sizes = {
        key: value
        for number, side in enumerate(SIDES)
        for key, value in {
            f"{side}_embed_dim": shape.dim,
            f"{side}_ffn_embed_dim": 4 * shape.dim,
            f"{side}_layers": shape.layers[number],
            f"{side}_attention_heads": shape.heads,
        }.items()
    }
    cfg = TransformerConfig(
        **kind.options(pad),
        **sizes,
        activation_fn=shape.activation,
        share_all_embeddings=True,
        output_bias=kind.has_bias,
        decoder_start_token_id=pad if shape.model_type == "marian" else -1,
    )
    tokenizer = numbered_words(shape.vocabulary, shape.special)
    torch.manual_seed(1)
    task = DecodingTask(DecodingConfig(), tokenizer, tokenizer)
    model = task.build_model(cfg)
    with torch.no_grad():  # as for T5
        for weight in model.decoder.layers.parameters():
            weight.mul_(4 if weight.dim() == 2 else 1)
    save_pretrained(model, folder, tokenizer)


LLAMA_SHAPES = {"qwen_0.5b": (151936, 896, 4864, 24, 14), "qwen_tiny": (300, 32, 48, 2, 4)}
"""Vocabulary, hidden size, intermediate size, layers and heads of language models; two key/value heads each."""


def save_random_llama(name: str, folder: Path) -> int:
    """Write a language model of one of ``LLAMA_SHAPES`` with random weights, without a tokenizer.

    Returns:
        The vocabulary size.
    """
    vocabulary, *sizes = LLAMA_SHAPES[name]
    options = {"num_key_value_heads": 2, "attention_bias": True, "tie_word_embeddings": True, "rope_theta": 1e6}
    torch.manual_seed(1)
    model = LlamaModel(LlamaConfig(*sizes, **options), vocabulary)
    with torch.no_grad():  # as for T5
        for weight in model.decoder.layers.parameters():
            weight.mul_(4 if weight.dim() == 2 else 1)
    save_pretrained(model, folder)
    return vocabulary


def save_random_map(folder: Path, sources: Sequence[Sequence[int]], best: int, words: range) -> None:
    """Write a vocabulary map into the folder of a model, with random target tokens for each source token.

    They are drawn by Zipf's law, since the lists of real source tokens have frequent target tokens in common.

    Args:
        folder: the model's folder.
        sources: the sources that will be decoded.
        best: number of target tokens for each source token, and of those for all sources.
        words: ids of the words.
    """
    draw = np.random.default_rng(1)
    probability = 1 / np.arange(1, len(words) + 1)
    probability /= probability.sum()
    found = {(): np.arange(words.start, words.start + best)}
    for token in sorted({token for source in sources for token in source[:-1]}):
        found[(token,)] = words.start + draw.choice(len(words), best, replace=False, p=probability)
    dictionary = load_pretrained_tokenizer(folder).dictionary
    write_map(found, folder / MAP_FILE, dictionary, dictionary)


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
