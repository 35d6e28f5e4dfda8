"""``seqgen-convert format=marian``: a model that was fine-tuned from one of Marian, with the other files of that."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import yaml

from seqgen import Translator
from seqgen.addons.marian.binary import BinaryModel, binary_model, encode
from seqgen.addons.marian.loader import ACTIVATION_SCALE, DECODER_FILE, SPM, MarianModel
from seqgen.config import ReadingConfig
from seqgen.extend import (
    ConfigError,
    LoadedModel,
    Texts,
    TransformerModel,
    check_plain_text,
    corpus_scores,
    load_model,
    local_path,
    new_folder,
    read_lines,
)

DTYPE = torch.float32
"""The dtype in which ``seqgen-convert`` loads the model."""

NPZ, BIN = "model.npz", "model.intgemm.alphas.bin"
BIN_DECODER_FILE = "config.intgemm8bitalpha.yml"

COPIED = ("lex*.bin", "tokenizer.json")
"""Files of the base that belong to its vocabulary."""

_DROPOUTS = dict.fromkeys(
    ("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop"), 0.0
)


def check(cfg: Any) -> None:
    """Check that the text is plain and has references.

    Args:
        cfg: the configuration of ``seqgen-convert``.

    Raises:
        ConfigError: it is a table, or one of the two keys is missing.
    """
    if bool(cfg.input) != bool(cfg.reference):
        raise ConfigError("set both input=FILE and reference=FILE, its correct outputs; or neither")
    check_plain_text(input=[cfg.input], reference=[cfg.reference])


def write(cfg: Any, loaded: LoadedModel) -> None:
    """Write the model of ``seqgen-convert format=marian``, decode a text with the written model, and print its score.

    Args:
        cfg: the configuration of the command.
        loaded: the model.

    Raises:
        ConfigError: it cannot be written in this format, or the text has not one reference for each line.
        UserError: the text cannot be read, or the folder not written.
    """
    lines, references = (list(read_lines(Path(file))) if file else [] for file in (cfg.input, cfg.reference))
    if len(lines) != len(references):
        raise ConfigError(f"input={cfg.input} has {len(lines)} lines, but reference={cfg.reference} {len(references)}")
    base = _base_of(cfg, loaded)
    with new_folder(Path(cfg.output), exist_ok=False) as temporary:
        _write_files(loaded, base, temporary, cfg.int8)
        written = load_model(temporary, dtype=DTYPE)
        pair = [replace(loaded, generation=written.generation), written] if lines else []
        outputs = [[made.text for made in Translator(one).translate(lines)] for one in pair]
    print(f"{cfg.output}: {type(loaded.model).__name__}, from {cfg.path[0]}, in {'int8' if cfg.int8 else 'float32'}")
    if lines:
        before, after = (corpus_scores(["bleu"], Texts(texts, references))["bleu"].value for texts in outputs)
        same = sum(one == other for one, other in zip(*outputs, strict=True))
        print(
            f"bleu of {cfg.input}: {before:.2f} before, {after:.2f} written; {same} of {len(lines)} outputs are equal"
        )
    print(f"decode:    seqgen-generate path={cfg.output} input=FILE")


def _base_of(cfg: Any, loaded: LoadedModel) -> MarianModel:
    """The model in Marian's format from which a model was fine-tuned.

    Raises:
        ConfigError: there is none, or the model has another architecture or vocabulary.
    """
    name = cfg.base or cfg.path[0]
    of_base = load_model(name, dtype=DTYPE) if cfg.base else loaded
    if of_base.checkpoint.suffix not in (".npz", ".bin"):
        raise ConfigError(
            f"{name} is not a model in Marian's format; set base=MODEL, the one in Marian's format from which "
            f"{cfg.path[0]} was fine-tuned, such as base=firefox:en-pt"
        )
    if type(loaded.model) is not type(of_base.model) or _kind(loaded) != _kind(of_base):
        raise ConfigError(
            f"{cfg.path[0]} was not fine-tuned from {name}: it has another architecture or vocabulary, so that it "
            "cannot be written in Marian's format with this base"
        )
    base = MarianModel.open(local_path(name), ReadingConfig())
    if cfg.int8 and any(file.suffix != SPM for file in base.files.vocabularies):
        raise ConfigError(
            f"int8=true writes a model for Firefox and Bergamot, which read SentencePiece vocabularies ({SPM}) only, "
            f"not {base.files.vocabularies[0].name}; set int8=false"
        )
    return base


def _kind(loaded: LoadedModel) -> tuple[Any, ...]:
    """What fine-tuning does not change."""
    model, task = cast(Any, loaded.model), loaded.task
    return replace(model.cfg, **_DROPOUTS), task.source_dictionary, task.target_dictionary


def _write_files(loaded: LoadedModel, base: MarianModel, folder: Path, int8: bool) -> None:
    """Write the arrays of the base with the weights of the model, copy its other files, and write what names them."""
    model, files = cast(TransformerModel, loaded.model), base.files
    weights = dict(model.named_parameters(remove_duplicate=False))
    found = {key: piece.of(weights[piece.parameter]) for key, piece in base.layout(model).pieces.items()}
    arrays: dict[str, Any] = {
        key: np.ascontiguousarray(found.get(key, tensor).detach()) for key, tensor in base.tensors.items()
    }
    scales = {key for key in arrays if key.endswith(ACTIVATION_SCALE)}
    old = base.tensors if isinstance(base.tensors, BinaryModel) else None
    name = NPZ if not int8 else files.model.name if old else BIN
    if int8:
        kept = {key: old.encoded(key) for key in arrays.keys() - found.keys()} if old else {}
        encoded = [kept.get(key) or encode(key, array, key in found) for key, array in arrays.items()]
        (folder / name).write_bytes(binary_model(encoded))
    else:
        np.savez(folder / name, **{key: array for key, array in arrays.items() if key not in scales})
    further = [file for pattern in COPIED for file in files.model.parent.glob(pattern)]
    for file in {*files.vocabularies, *filter(None, files.sentencepiece), *further}:
        shutil.copyfile(file, folder / file.name)
    values = {
        **base.decoding.values,
        **{"relative-paths": True, "models": [name], "vocabs": [file.name for file in files.vocabularies]},
        "gemm-precision": ("int8shiftAlphaAll" if scales else "int8shiftAll") if int8 else "float32",
    }
    (folder / (BIN_DECODER_FILE if int8 else DECODER_FILE)).write_text(yaml.safe_dump(values, sort_keys=False))
