"""Reading and writing folders in Hugging Face's layout.

::

    config.json              the architecture and its sizes
    model.safetensors        the weights; see weights.py
    generation_config.json   decoding settings, for keys that the user does not set
    tokenizer_config.json    and spiece.model or tokenizer.json: the tokenizer
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from seqgen.addons.huggingface.architecture import GENERATION_FILE, HEAD, Architecture, JSONConfig
from seqgen.addons.huggingface.generation import GENERATION_KEYS, read_generation, write_generation
from seqgen.addons.huggingface.weights import SAFETENSORS, weight_files
from seqgen.config import GenerationConfig, ReadingConfig, TrainConfig, to_dict
from seqgen.extend import (
    CheckpointError,
    ConfigError,
    Dictionary,
    EncoderDecoderModel,
    IdTokenizer,
    LoadedModel,
    Placement,
    PromptTokenizer,
    Tokenizer,
    build_on_meta,
    load_pretrained_tokenizer,
    load_weights,
    merge_additions,
    new_folder,
    num_parameters,
    register_checkpoint_loader,
    save_pretrained_tokenizer,
    shown,
    write_json,
    write_tensors,
)

LAYER_BYTES = 500
"""A lower bound of the bytes that the names and shapes of a layer's weights take in a file."""

LAYER_COUNTS = ("encoder_layers", "num_layers", "decoder_layers", "num_hidden_layers")
"""The names of the numbers of layers in configurations."""

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}

MODULES = {
    **dict.fromkeys(("t5", "mt5", "umt5"), "seqgen.addons.huggingface.t5"),
    "t5gemma": "seqgen.addons.huggingface.t5gemma",
    "t5gemma2": "seqgen.addons.huggingface.t5gemma2",
    "gpt2": "seqgen.addons.huggingface.gpt2",
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), "seqgen.addons.huggingface.llama"),
    **dict.fromkeys(("smollm3", "gemma2", "gemma3_text"), "seqgen.addons.huggingface.llama"),
    "gemma3": "seqgen.addons.huggingface.gemma3",
    **dict.fromkeys(("bart", "mbart", "pegasus", "marian", "m2m_100"), "seqgen.addons.huggingface.bart"),
}
"""For each ``model_type`` of a ``config.json`` the module with its ``ARCHITECTURE``."""


@register_checkpoint_loader("Hugging Face folder")
def read_huggingface_folder(path: Path, reading: ReadingConfig, placement: Placement) -> LoadedModel:
    """Read a model from a folder in Hugging Face's layout.

    Args:
        path: the folder.
        reading: ``tokenizer``; the others are ignored with a note, because such folders need none of them.
        placement: where the weights are put, and their dtype; by default the one in the folder's configuration.

    Returns:
        The model, with a task that decodes, and the model's decoding settings.

    Raises:
        CheckpointError: a file is missing or damaged, or the architecture is unknown.
        DataError: the tokenizer is missing, damaged, or does not belong to the model.
    """
    config = JSONConfig.read(path / "config.json")
    architecture = architecture_of(config)
    cfg = architecture.read_config(config)
    vocab_size = architecture.vocab_size(cfg, config)
    layers = sum(getattr(cfg, name, 0) for name in LAYER_COUNTS)
    _check_size(path, tokens=vocab_size, layers=layers)  # and whether there are weights at all
    if reading.tokenizer == "ids":
        tokenizer: Tokenizer = _id_tokenizer(config, architecture, vocab_size)
    else:
        tokenizer = load_pretrained_tokenizer(path, vocab_size)
    if isinstance(tokenizer, PromptTokenizer) and not architecture.decoder_only:
        raise CheckpointError(f"{path}: its tokenizer's class, {tokenizer.name}, is read for language models only")
    task = architecture.make_task(cfg, path, tokenizer)
    generation, notes = read_generation(
        path, task.target_tokenizer, architecture.decoder_only, architecture.generation_defaults(config)
    )
    saved, is_of_5 = config.get("dtype", config.get("torch_dtype", "float32")), config.written_by(5)
    notes += _notes(config, architecture, reading)
    if placement.dtype is None and saved not in _DTYPES:
        notes.append(
            f"{path}: its config.json has the dtype {saved}, which is not supported; the weights become float32"
        )
    model = build_on_meta(lambda: task.build_model(cfg), str(path))
    _check_size(path, parameters=num_parameters(model))
    model.to(placement.dtype or _DTYPES.get(saved, torch.float32))
    untied = load_weights(model, architecture.layout(cfg), path, placement.device, files=weight_files(path))
    if untied:
        architecture.untie(model, untied)
    if HEAD in untied and not is_of_5:  # version 5 writes all folders as tied
        notes.append(
            f"{path}: its config.json sets tie_word_embeddings, but {HEAD} differs from the embedding "
            "and is used as the output projection"
        )
    config_of_run = TrainConfig(model=getattr(model, "cfg", cfg))
    return LoadedModel(model, task, config_of_run, path, task.as_values(), notes, generation)


def _id_tokenizer(config: JSONConfig, architecture: Architecture, vocab_size: int) -> IdTokenizer:
    """The tokenizer for decoding by ids; a language model without padding uses end-of-sentence as padding.

    Raises:
        CheckpointError: the configuration names no padding or end-of-sentence.
    """
    defaults = architecture.generation_defaults(config)

    def special(name: str, default: int | None = None) -> int:
        given = config.value(name, defaults.get(name, default))
        index = given[0] if isinstance(given, list) and given else given
        if type(index) is not int or not 0 <= index < vocab_size:
            raise config.wrong(name, given, f"an id from 0 to {vocab_size - 1}, which reading.tokenizer=ids needs")
        return index

    eos = special("eos_token_id")
    pad = special("pad_token_id", eos if architecture.decoder_only else None)
    return IdTokenizer(Dictionary(map(str, range(vocab_size)), pad=pad, eos=eos, unk=pad, bos=None))


def _notes(config: JSONConfig, architecture: Architecture, reading: ReadingConfig) -> list[str]:
    """Notes about keys that have no effect, in the folder or given by the user."""
    config.asked.update(GENERATION_KEYS)  # old versions wrote the decoding settings into config.json
    return architecture.reading_notes(config) + [
        f"{config.path.parent}: reading.{key} has no effect: a Hugging Face folder contains everything that is needed"
        for key, value in to_dict(reading).items()
        if value and key != "tokenizer"
    ]


def _check_size(path: Path, **described: int) -> None:
    """Refuse a configuration with more tokens, layers or parameters than the files with weights have bytes for."""
    size = sum(file.stat().st_size for file in weight_files(path))
    for what, count in described.items():
        if count * (LAYER_BYTES if what == "layers" else 1) > size:
            raise CheckpointError(
                f"{path}: the weights do not match its config.json, which describes {count:,} {what}, more than "
                f"{size:,} bytes can hold; copy all files of one model"
            )


def save_pretrained(
    model: EncoderDecoderModel,
    folder: str | Path,
    tokenizer: Tokenizer | None = None,
    generation: GenerationConfig | None = None,
) -> list[str]:
    """Write a model in Hugging Face's layout; transformers computes the same logits from it.

    Args:
        model: a Llama or a Gemma, a T5, a T5Gemma, or a transformer with the layers of BART or one of its relatives.
        folder: the folder to write; it must not exist, and is not written if an error occurs.
        tokenizer: its tokenizer, to write as well.
        generation: the model's decoding settings.

    Returns:
        Notes for the user about the folder.

    Raises:
        ConfigError: the layout does not support the model, or the folder exists already.
        DataError: the layout does not support the tokenizer.
    """
    folder, model = Path(folder), merge_additions(model)
    architecture = architecture_of_model(model)
    if folder.exists():
        raise ConfigError(f"{folder} already exists; give the name of a new folder")
    config = architecture.write_config(model)
    ids = architecture.special_ids(model, tokenizer)
    decoding: Mapping[str, Any] = (
        {} if generation is None else write_generation(generation, tokenizer, architecture.decoder_only)
    )
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    with new_folder(folder, exist_ok=False) as temporary:
        write_json(temporary / "config.json", {**config, **ids, "torch_dtype": dtype})
        write_json(temporary / GENERATION_FILE, {**ids, **decoding})
        write_tensors(temporary / SAFETENSORS, architecture.weights(model))
        if tokenizer is not None:
            save_pretrained_tokenizer(tokenizer, temporary)
    return architecture.notes(model)


def check_config(path: Path) -> None:
    """Check that the model of a ``config.json`` can be read, as far as that file tells.

    Raises:
        CheckpointError: it cannot.
    """
    config = JSONConfig.read(path)
    architecture_of(config).read_config(config)


def architecture_of(config: JSONConfig) -> Architecture:
    """The architecture of a folder; the modules of others are not imported.

    Args:
        config: the folder's ``config.json``.

    Raises:
        CheckpointError: it is of an architecture that seqgen does not have.
    """
    kind = config.get("model_type", "")
    if kind not in MODULES:
        named = config.values.get("architectures")
        what = f"model_type={shown(kind)}" + (f" ({str(named[0])[:100]})" if isinstance(named, list) and named else "")
        raise CheckpointError(
            f"{config.path}: {what} is an architecture which seqgen does not support; it supports the model types "
            f"{', '.join(MODULES)}"
        )
    return _architecture(MODULES[kind])


def _architecture(module: str) -> Architecture:
    architecture: Architecture = importlib.import_module(module).ARCHITECTURE
    return architecture


def architecture_of_model(model: EncoderDecoderModel) -> Architecture:
    """The architecture that writes a model.

    Args:
        model: the model.

    Raises:
        ConfigError: there is none.
    """
    architectures = [_architecture(module) for module in dict.fromkeys(MODULES.values())]
    for kind in type(model).__mro__:  # a derived class before the one that it is derived from
        for architecture in architectures:
            if architecture.model_class is kind:
                return architecture
    raise ConfigError(
        f"a {type(model).__name__} cannot be written in Hugging Face's layout; only llama, t5, t5gemma, transformer can"
    )
