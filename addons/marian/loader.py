"""Reading models in Marian's formats: ``model.npz`` or ``model.bin``, and the files in its folder.

::

    model.npz                weights and, as special:model.yml, the options of the architecture
    decoder.yml              names the model and the vocabularies, and has decoding settings; may be missing
    vocab.yml                the id of each token, or vocab.spm, a SentencePiece model whose ids are used
    source.spm target.spm    SentencePiece models whose pieces have the ids of vocab.yml (OPUS-MT)

    model.intgemm.alphas.bin    the same in 8-bit integers (Firefox); its decoder.yml can be config.intgemm8bitalpha.yml
    vocab.ende.spm              or srcvocab.ende.spm and trgvocab.ende.spm

A decoder starts with an embedding of zeros. Here it is that of padding, a token that is appended to the vocabulary.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from seqgen.addons.marian.binary import BinaryModel
from seqgen.config import ReadingConfig, TrainConfig, from_dict
from seqgen.data.tokenizers.files import (
    CONFIG_FILE,
    MAX_IDS,
    SOURCE_MODEL_FILE,
    TARGET_MODEL_FILE,
    VOCAB_FILE,
    TokenizerFiles,
)
from seqgen.data.tokenizers.pretrained import MARIAN, make_tokenizer
from seqgen.extend import (
    CheckpointError,
    ConfigError,
    DataError,
    DecodingConfig,
    DecodingTask,
    Dictionary,
    ForeignConfig,
    Layout,
    LoadedModel,
    Piece,
    Placement,
    SentencePieceTokenizer,
    Tokenizer,
    TransformerConfig,
    TransformerModel,
    WhitespaceTokenizer,
    build_on_meta,
    is_stored,
    load_weights,
    num_parameters,
    open_regular,
    parse_yaml,
    read_lines,
    read_model,
    read_yaml,
    reading_errors,
    register_checkpoint_loader,
    shown,
)

OPTIONS = "special:model.yml"
"""The name of the array with the options."""

ACTIVATION_SCALE = "_QuantMultA"
"""The end of the names of scales of activations, which are computed here."""

DECODER_FILE = "decoder.yml"
BINARY_DECODER_FILES = "config.intgemm*.yml"
FIREFOX = {"beam-size": 1, "normalize": 1.0, "max-length-factor": 2.0}
"""The decoding settings of a binary model without a file that has them, which are those of Firefox."""

POSITIONS = 1024
"""The longest source and target; Marian computes positions as they are needed."""

PAD_SCORE = -1e4
"""Bias of padding in the output layer, with which its probability is 0 in every dtype."""

_FIXED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-attention-mask": ("default",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-ffn-activation": ("swish", "relu"),
    **{f"transformer-{name}": (False,) for name in ("no-projection", "no-bias", "no-affine", "rnn-projection", "pool")},
    **{f"transformer-{name}": (False,) for name in ("train-position-embeddings", "disable-position-embeddings")},
    **{"transformer-train-positions": (False,), "transformer-alibi-shift": (False,), "right-left": (False,)},
    **{"output-omit-bias": (False,), "ulr": (False,), "lemma-dim-emb": (0,), "factors-dim-emb": (0,)},
    **{"transformer-tied-layers": ([],), "transformer-postprocess-emb": ("d", "nd", "", "n")},
}
"""The supported values of options that change the computation; the first is that of files which lack the option."""

_NORMS = {("", "dan", ""): False, ("", "an", ""): False, ("n", "da", "n"): True, ("n", "a", "n"): True}
"""True for a pre-norm model, by ``transformer-preprocess``, ``-postprocess`` and ``-postprocess-top``."""

_LINE = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'|(.*[^ ])) *: +([0-9]{1,9}) *""")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}
_ESCAPED |= {"N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"}


@dataclass(frozen=True)
class _Files:
    """The files of a model; the vocabularies are those of source and target.

    Attributes:
        model: the file with the weights.
        vocabularies: of source and target.
        sentencepiece: of source and target; ``None`` for tokenized text.
    """

    model: Path
    vocabularies: tuple[Path, Path]
    sentencepiece: tuple[Path | None, Path | None]


class MarianModel(NamedTuple):
    """The content of a model's files.

    Attributes:
        files: the files.
        tensors: the weights and further arrays, by name.
        options: the options of the architecture.
        decoding: the content of ``decoder.yml``.
    """

    files: _Files
    tensors: Mapping[str, Tensor]
    options: ForeignConfig
    decoding: ForeignConfig

    @classmethod
    def open(cls, path: Path, reading: ReadingConfig) -> Self:
        """Find and open the files of a model; see ``read_marian_model``."""
        decoding = _described(path)
        weights = path if path.is_file() else _model_of(path, decoding)
        tensors = BinaryModel(weights) if weights.suffix == ".bin" else read_npz(weights)
        files = _find_files(weights, decoding, reading)
        return cls(files, tensors, _options(files.model, tensors.get(OPTIONS)), decoding)

    def layout(self, model: TransformerModel) -> Layout:
        """The names of the weights of a model of this architecture."""
        unused = frozenset(name for name in self.tensors if name == OPTIONS or name.endswith(ACTIVATION_SCALE))
        return replace(_layout(model, self.options, "decoder_ff_logit_out_W" in self.tensors), ignored=unused)


@register_checkpoint_loader("Marian model")
def read_marian_model(path: Path, reading: ReadingConfig, placement: Placement) -> LoadedModel:
    """Read a transformer of Marian, or one with an SSRU decoder.

    Args:
        path: the ``.npz`` or ``.bin`` file, or its folder.
        reading: vocabularies and SentencePiece models that are not in its folder.
        placement: where the weights are put, and their dtype; by default float32.

    Returns:
        The model, with a task that decodes, and the decoding settings of ``decoder.yml``.

    Raises:
        CheckpointError: the file is damaged, or has an option that seqgen does not support.
        DataError: a vocabulary or SentencePiece model is missing, damaged, or does not belong to the model.
    """
    if reading.tokenizer:
        raise ConfigError(f"reading.tokenizer={reading.tokenizer} is for Hugging Face folders only; remove it")
    opened = MarianModel.open(path, reading)
    files, tensors, config, decoding = opened
    source, target = _tokenizers(files)
    pair = re.match(r"model\.([a-z]{2})([a-z]{2})\.intgemm", files.model.name)  # as Firefox names its models
    languages = ("", "") if pair is None else (pair[1], pair[2])
    task = DecodingTask(DecodingConfig(languages[0], languages[1], translates=True), source, target)
    cfg = _model_config(config, len(task.target_dictionary) - 1)
    _check_sizes(cfg, files, tensors, task)
    model: TransformerModel = build_on_meta(lambda: task.build_model(cfg), str(files.model))
    if num_parameters(model) > sum(tensor.numel() for tensor in tensors.values()) + 4 * cfg.encoder_embed_dim + 4:
        raise CheckpointError(f"{files.model} has fewer weights than its {OPTIONS} describes; copy it again")
    model.to(placement.dtype or torch.float32)
    load_weights(model, opened.layout(model), files.model, placement.device, tensors)
    with torch.no_grad():
        for weight in (side.embed_tokens.weight for side in (model.encoder, model.decoder)):
            weight[-1] = 0
        model.decoder.output_projection.weight[-1] = 0
        model.decoder.output_projection.bias[-1] = PAD_SCORE
    generation, notes = _decoding(decoding)
    if None in files.sentencepiece and files.vocabularies[0].suffix != ".spm":
        notes.append(f"{path}: there is no SentencePiece model in its folder: input and output are tokenized text")
    return LoadedModel(model, task, TrainConfig(model=cfg), files.model, task.as_values(), notes, generation)


def _find_files(model: Path, decoding: ForeignConfig, reading: ReadingConfig) -> _Files:
    """Find the files: those that the user gives, else those that ``decoder.yml`` names, in the folder of the model."""
    folder, named = model.parent, _names(decoding, "vocabs")
    usual = [[f"vocab{side}.{kind}" for side in (*sides, "") for kind in ("yml", "spm")] for sides in _SIDE_NAMES]
    usual = [[name] for name in (named[0], named[-1])] if named else usual
    vocabularies = [
        _file(folder, reading, side, "dictionary", names) for side, names in zip(_SIDES, usual, strict=True)
    ]
    if None in vocabularies:
        wanted = usual[0][-2] if len(usual[0]) > 1 else usual[0][0]
        raise DataError(
            f"{model} has no vocabulary, or several: there is no {wanted} in its folder; copy it there, or set "
            "reading.dictionary=FILE"
        )
    pieces = [_file(folder, reading, side, "sentencepiece", [f"{side}.spm"]) for side in _SIDES]
    return _Files(model, tuple(vocabularies), tuple(pieces))  # type: ignore[arg-type]


def _model_of(folder: Path, decoding: ForeignConfig) -> Path:
    """The file with the weights of a folder."""
    models = _names(decoding, "models")
    if len(models) != 1:
        raise CheckpointError(f"{decoding.path} names {len(models)} models; give the file of one of them")
    return folder / models[0]


def _described(path: Path) -> ForeignConfig:
    """The content of ``decoder.yml``; if there is none, of a binary model the usual names and Firefox's settings."""
    folder = path if path.is_dir() else path.parent
    of_models = sorted(folder.glob(f"*.npz.{DECODER_FILE}")) if path.is_dir() else [Path(f"{path}.{DECODER_FILE}")]
    places = [folder / DECODER_FILE, *of_models] if path.is_dir() else [*of_models, folder / DECODER_FILE]
    found = [file for file in (*places, *sorted(folder.glob(BINARY_DECODER_FILES))) if file.is_file()]
    if len(of_models) > 1 and found[0] in of_models:
        raise CheckpointError(f"{path} has {len(of_models)} models; give the file of one of them")
    if found or path.suffix == ".npz":
        return ForeignConfig(found[0] if found else folder, read_yaml(found[0]) if found else {})
    names = sorted(file.name for file in folder.iterdir())
    vocabularies = [name for name in names if re.fullmatch(r"(src|trg)?vocab.*\.spm", name)]
    if [name.partition("vocab")[0] for name in vocabularies] not in ([""], ["src", "trg"]):
        vocabularies = []
    models = [name for name in names if re.search(r"intgemm.*\.bin$", name)]
    return ForeignConfig(folder, {"models": models, "vocabs": vocabularies, **FIREFOX})


_SIDES = ("source", "target")
_SIDE_NAMES = ((".src", ".source"), (".trg", ".target"))


def _names(decoding: ForeignConfig, key: str) -> list[str]:
    """The names of files in ``decoder.yml``; only their last parts count, because the files are in its folder."""
    values = decoding.value(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) and Path(value).name for value in values):
        raise CheckpointError(f"{decoding.path}: {key} is {shown(values)}, not a list of files")
    return [Path(value).name for value in values]


def _file(folder: Path, reading: ReadingConfig, side: str, kind: str, names: list[str]) -> Path | None:
    given = getattr(reading, f"{side}_{kind}") or getattr(reading, kind)
    if given:
        return None if given == "none" else Path(given)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _options(path: Path, content: Tensor | None) -> ForeignConfig:
    """Parse the options of the architecture."""
    if content is None or content.dtype not in (torch.int8, torch.uint8):
        raise CheckpointError(f"{path} is not a model of Marian: it has no {OPTIONS}")
    try:
        values = parse_yaml(content.contiguous().numpy().tobytes().rstrip(b"\0"))
    except ValueError as error:
        raise CheckpointError(f"{path}: its {OPTIONS} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: its {OPTIONS} is damaged: it must contain keys and values")
    return ForeignConfig(path, values)


def _model_config(config: ForeignConfig, pad: int) -> TransformerConfig:
    """Turn the options into a configuration; ``pad`` is the first input of the decoder."""
    for key, supported in _FIXED.items():
        value = config.value(key, supported[0])
        if value not in supported or type(value) is not type(supported[0]):
            raise CheckpointError(f"{config.path}: {key}={shown(value)} is not supported")
    norms = tuple(config.get(f"transformer-{key}", "") for key in ("preprocess", "postprocess", "postprocess-top"))
    if norms not in _NORMS:
        raise CheckpointError(
            f"{config.path}: transformer-preprocess={shown(norms[0])} with transformer-postprocess={shown(norms[1])} "
            f"and transformer-postprocess-top={shown(norms[2])} is not supported"
        )
    recurrent = config.get("transformer-decoder-autoreg", "self-attention") == "rnn"
    if recurrent and (config.get("dec-cell", "gru") != "ssru" or config.get("layer-normalization", False)):
        cell, normed = (shown(config.value(key)) for key in ("dec-cell", "layer-normalization"))
        raise CheckpointError(f"{config.path}: dec-cell={cell} with layer-normalization={normed} is not supported")
    tied, source = (config.get(f"tied-embeddings{suffix}", False) for suffix in ("-all", "-src"))
    output = config.get("tied-embeddings", False)
    hidden = config.get("transformer-dim-ffn", 2048, minimum=1)
    sizes = {"embed_dim": config.get("dim-emb", 512, 1), "attention_heads": config.get("transformer-heads", 8, 1)}
    values = {
        "_name": "transformer_ssru" if recurrent else "transformer",
        **{f"{side}_{key}": size for side in ("encoder", "decoder") for key, size in sizes.items()},
        **{f"{side}_normalize_before": _NORMS[norms] for side in ("encoder", "decoder")},
        "encoder_layers": config.get("enc-depth", 6, minimum=1),
        "decoder_layers": config.get("dec-depth", 6, minimum=1),
        "encoder_ffn_embed_dim": hidden,
        "decoder_ffn_embed_dim": config.get("transformer-decoder-dim-ffn", 0) or hidden,
        "activation_fn": config.get("transformer-ffn-activation", "swish"),
        "layernorm_embedding": "n" in config.get("transformer-postprocess-emb", "d"),
        "share_all_embeddings": tied or (source and output),
        "share_encoder_decoder_embed": source and not tied and not output,
        "share_decoder_input_output_embed": output and not tied and not source,
        "output_bias": True,
        "dropout": 0.0,  # not recorded; students, such as Firefox's, are trained without and fail with it
        "position_offset": 0,
        "max_source_positions": POSITIONS,
        "max_target_positions": POSITIONS,
        "decoder_start_token_id": pad,
    }
    cfg: TransformerConfig = from_dict(TrainConfig, {"model": values}, str(config.path)).model
    return cfg


def _check_sizes(cfg: TransformerConfig, files: _Files, tensors: Mapping[str, Tensor], task: DecodingTask) -> None:
    """Refuse vocabularies of other sizes than the embeddings, and more layers than there are weights for."""
    for side, local, file in zip(_SIDES, ("encoder", "decoder"), files.vocabularies, strict=True):
        weight = tensors.get(f"{local}_Wemb", tensors.get("Wemb"))
        size = len(getattr(task, f"{side}_dictionary")) - 1
        if weight is not None and (weight.dim() != 2 or len(weight) != size):
            raise DataError(
                f"{file} does not belong to {files.model}: it has {size} tokens, but the {local}'s embedding has the "
                f"shape {tuple(weight.shape)}"
            )
        layers = {name.split("_")[1] for name in tensors if name.startswith(f"{local}_l")}
        if getattr(cfg, f"{local}_layers") > len(layers):
            raise CheckpointError(f"{files.model} has weights of {len(layers)} layers, fewer than its {OPTIONS} says")


def _layout(model: TransformerModel, config: ForeignConfig, is_old: bool) -> Layout:
    """Marian's names of the weights; a matrix is ``(in, out)``, a vector has one row.

    ``is_old`` says that the matrix of the output layer is, too.
    """
    cfg, pre = model.cfg, "_pre" if model.cfg.encoder_normalize_before else ""
    recurrent = config.value("transformer-decoder-autoreg") == "rnn"
    pieces: dict[str, Piece] = {}

    def vectors(norm: str, local: str, suffix: str) -> None:
        for foreign, kind in (("scale", "weight"), ("bias", "bias")):
            pieces[f"{norm}_ln_{foreign}{suffix}"] = Piece(f"{local}.{kind}", is_row=True)

    def linear(prefix: str, number: str, local: str, rows: tuple[int, int] | None = None) -> None:
        pieces[f"{prefix}_W{number}"] = Piece(f"{local}.weight", rows, transposed=True)
        pieces[f"{prefix}_b{number}"] = Piece(f"{local}.bias", rows, is_row=True)

    shared = cfg.share_all_embeddings or cfg.share_encoder_decoder_embed
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        dim, size = stack.embed_tokens.embedding_dim, stack.embed_tokens.num_embeddings - 1
        pieces["Wemb" if shared else f"{side}_Wemb"] = Piece(f"{side}.embed_tokens.weight", (0, size))
        if cfg.layernorm_embedding:
            vectors(f"{side}_emb", f"{side}.layernorm_embedding", "_pre")
        if pre:
            vectors(f"{side}_top", f"{side}.layer_norm", "")
        for index in range(getattr(cfg, f"{side}_layers")):
            foreign, local = f"{side}_l{index + 1}", f"{side}.layers.{index}"
            if side == "decoder" and recurrent:
                linear(f"{foreign}_rnn", "f", f"{local}.self_attn.forget")
                pieces[f"{foreign}_rnn_W"] = Piece(f"{local}.self_attn.input.weight", transposed=True)
                vectors(f"{foreign}_rnn" if pre else f"{foreign}_rnn_ffn", f"{local}.self_attn_layer_norm", pre)
            else:
                for number, letter in enumerate("qkv"):
                    place = (number * dim, (number + 1) * dim)
                    linear(f"{foreign}_self", letter, f"{local}.self_attn.in_proj", place)
                linear(f"{foreign}_self", "o", f"{local}.self_attn.out_proj")
                vectors(f"{foreign}_self_Wo", f"{local}.self_attn_layer_norm", pre)
            if side == "decoder":
                linear(f"{foreign}_context", "q", f"{local}.encoder_attn.q_proj")
                for number, letter in enumerate("kv"):
                    place = (number * dim, (number + 1) * dim)
                    linear(f"{foreign}_context", letter, f"{local}.encoder_attn.kv_proj", place)
                linear(f"{foreign}_context", "o", f"{local}.encoder_attn.out_proj")
                vectors(f"{foreign}_context_Wo", f"{local}.encoder_attn_layer_norm", pre)
            linear(f"{foreign}_ffn", "1", f"{local}.fc1")
            linear(f"{foreign}_ffn", "2", f"{local}.fc2")
            vectors(f"{foreign}_ffn_ffn", f"{local}.final_layer_norm", pre)
    size = model.decoder.output_projection.out_features - 1
    linear("decoder_ff_logit_out", "", "decoder.output_projection", (0, size))
    if cfg.share_all_embeddings or cfg.share_decoder_input_output_embed:
        del pieces["decoder_ff_logit_out_W"]
    elif not is_old:
        pieces["decoder_ff_logit_out_Wt"] = replace(pieces.pop("decoder_ff_logit_out_W"), transposed=False)
    return Layout(pieces, source=f"its {OPTIONS}")


def _tokenizers(files: _Files) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target, whose last token is padding; one object if both are the same."""
    source, target = files.vocabularies
    if SPM in (source.suffix, target.suffix):
        native = [SentencePieceTokenizer(read_model(file), location=str(file)) for file in files.vocabularies]
        for tokenizer, file in zip(native, files.vocabularies, strict=True):
            if tokenizer.dictionary.pad() != len(tokenizer.dictionary) - 1:
                raise DataError(f"{file} has a token for padding, which vocabularies of Marian do not have")
        return native[0], native[0] if source == target else native[1]
    by_file = {file: _read_vocabulary(file) for file in {source, target}}
    ids = by_file[source], by_file[target]
    if ids[0] == ids[1] and None not in files.sentencepiece:
        contents = {name: read_model(file) for name, file in zip(_SPM, files.sentencepiece, strict=True) if file}
        pad = next(reversed(ids[0]))
        settings = {"tokenizer_class": MARIAN, "pad_token": pad, "eos_token": "</s>", "unk_token": "<unk>"}
        contents |= {VOCAB_FILE: json.dumps(ids[0]).encode(), CONFIG_FILE: json.dumps(settings).encode()}
        marian = make_tokenizer(TokenizerFiles(str(files.model.parent), contents), len(ids[0]))
        return marian, marian.target_side
    made: list[Tokenizer] = []
    for tokens, pieces in zip(ids, files.sentencepiece, strict=True):
        dictionary = Dictionary(tokens, pad=len(tokens) - 1, eos=tokens["</s>"], unk=tokens["<unk>"], bos=None)
        text: Tokenizer = WhitespaceTokenizer(dictionary)
        made.append(
            text if pieces is None else SentencePieceTokenizer(read_model(pieces), dictionary, location=str(pieces))
        )
    same = ids[0] == ids[1] and files.sentencepiece == (None, None)
    return made[0], made[0] if same else made[1]


SPM = ".spm"
_SPM = (SOURCE_MODEL_FILE, TARGET_MODEL_FILE)


def _read_vocabulary(path: Path) -> dict[str, int]:
    """The id of each token of a ``vocab.yml`` in the order of ids, and padding at the end.

    The file has one token in each line. Some files that Marian writes are not valid YAML.

    Raises:
        DataError: the file is missing or damaged.
    """
    text = "\n".join(line.removesuffix("\r") for line in read_lines(path))
    ids: dict[str, int] = {}
    for number, line in enumerate(text.replace("\n: ", ": ").split("\n"), start=1):
        if not line.strip() or line == "---":
            continue
        found = _LINE.fullmatch(line.removeprefix("? ") if line.startswith("? ") else line)
        if found is None:
            raise DataError(f"{path}: line {number} has no token with its id, such as Haus: 17")
        double, single, plain, index = found.groups()
        token = plain if plain is not None else single.replace("''", "'") if double is None else _unescaped(double)
        ids[token] = int(index)
    if len(ids) > MAX_IDS or sorted(ids.values()) != list(range(len(ids))):
        raise DataError(f"{path} is damaged: its {len(ids)} ids are not the numbers from 0 to {len(ids) - 1}")
    if missing := {"</s>", "<unk>"} - set(ids):
        raise DataError(f"{path} is not a vocabulary of Marian: it has no {min(missing)}")
    ordered = dict(sorted(ids.items(), key=lambda item: item[1]))
    pad = next(name for name in ("<pad>", "<seqgen:pad>", f"<seqgen:{len(ids)}>") if name not in ids)
    return {**ordered, pad: len(ids)}


def _unescaped(text: str) -> str:
    """The text between double quotes, its escapes replaced."""

    def character(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 1:
            return _ESCAPED.get(code, code)
        value = int(code[1:], 16)
        return chr(value) if value <= 0x10FFFF and not 0xD800 <= value < 0xE000 else "\ufffd"

    return _ESCAPE.sub(character, text)


def _decoding(decoding: ForeignConfig) -> tuple[dict[str, Any], list[str]]:
    """The decoding settings of ``decoder.yml``, and notes about those that are ignored."""
    settings: dict[str, Any] = {"search": "marian", "max_len_b": 0, "min_len": 0}
    settings["max_len_a"] = decoding.get("max-length-factor", 3.0)
    settings["suppress"] = [] if decoding.get("allow-unk", False) else ["<unk>"]
    settings["beam"] = decoding.get("beam-size", 12, minimum=1)
    is_plain = decoding.value("normalize", 0) is True
    settings["length_penalty"] = 1.0 if is_plain else decoding.get("normalize", 0.0)  # 0: the sum is not divided
    penalty = decoding.get("word-penalty", 0.0)
    return settings, [f"{decoding.path}: word-penalty={penalty:g} is ignored"] if penalty else []


def read_npz(path: Path) -> dict[str, Tensor]:
    """Read all arrays of an ``.npz`` file by name; nothing in the file is evaluated or unpickled.

    Args:
        path: the file.

    Raises:
        CheckpointError: it cannot be read, is damaged or compressed, or has other arrays than those of numbers.
    """
    try:
        with reading_errors(path, CheckpointError), open_regular(path) as file:
            with zipfile.ZipFile(file) as archive:
                if not is_stored(archive, path):
                    raise CheckpointError(f"{path} is compressed, which seqgen does not read; copy it again")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(array) for name, array in arrays.items()}
    except (zipfile.BadZipFile, struct.error, EOFError, ValueError, TypeError, MemoryError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is damaged, or is not an archive of arrays ({' '.join(str(error).split())[:100]}); copy it again"
        ) from None
