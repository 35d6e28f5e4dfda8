"""Reading checkpoints of fairseq: ``checkpoint_best.pt`` and the files in its folder.

::

    checkpoint_best.pt       weights and options; the weights' names and layouts are converted to those of seqgen
    dict.en.txt dict.de.txt  the dictionaries of source and target, or one dict.txt for both
    sentencepiece.bpe.model  a SentencePiece model, or spm.model; without one, text is read as tokenized

A multilingual checkpoint (M2M-100) has one dictionary, such as ``model_dict.128k.txt``.

Every option is of one of four kinds: it has a counterpart in the model's configuration; it changes the computation in a
way that seqgen does not support, and must be off; it is known not to change the computation; or it is unknown, and the
checkpoint is refused.
"""

from __future__ import annotations

import itertools
import re
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqgen.config import ReadingConfig, TrainConfig, from_dict
from seqgen.extend import (
    MODELS,
    CheckpointError,
    ConfigError,
    DataError,
    DecodingConfig,
    DecodingTask,
    Dictionary,
    EncoderDecoderModel,
    FConvConfig,
    Inert,
    Languages,
    LanguageTokenizer,
    LoadedModel,
    Placement,
    PromptDecodingTask,
    SentencePieceTokenizer,
    TargetLanguage,
    Tokenizer,
    TransformerConfig,
    TransformerLMConfig,
    WhitespaceTokenizer,
    build_with_weights,
    fuse_projections,
    nearest,
    read_bytes,
    read_lists,
    read_model,
    read_torch_file,
    register_checkpoint_loader,
    shown,
)

# Not weights: version numbers, a buffer that marks the device, and sinusoids that old versions saved.
_NO_WEIGHTS = re.compile(r"(.*\.)?(version|_float_tensor|embed_positions\.weights)")

_RENAMED = [
    # before they had names, the norms of a layer were numbered: two in the encoder, three in the decoder
    (r"encoder\.layers\.(\d+)\.layer_norms\.0\.", r"encoder.layers.\1.self_attn_layer_norm."),
    (r"encoder\.layers\.(\d+)\.layer_norms\.1\.", r"encoder.layers.\1.final_layer_norm."),
    (r"decoder\.layers\.(\d+)\.layer_norms\.0\.", r"decoder.layers.\1.self_attn_layer_norm."),
    (r"decoder\.layers\.(\d+)\.layer_norms\.1\.", r"decoder.layers.\1.encoder_attn_layer_norm."),
    (r"decoder\.layers\.(\d+)\.layer_norms\.2\.", r"decoder.layers.\1.final_layer_norm."),
    (r"decoder\.embed_out$", "decoder.output_projection.weight"),
    # weight normalization before PyTorch had parametrizations
    (r"\.weight_g$", ".parametrizations.weight.original0"),
    (r"\.weight_v$", ".parametrizations.weight.original1"),
]

_PACKAGES = ("omegaconf.", "fairseq.")  # whose objects become inert: options (in some versions) and training meters
_SENTENCEPIECE_NAMES = ("sentencepiece.bpe.model", "spm.model", "sentencepiece.model", "spm.128k.model")
_M2M_DICTIONARY = "model_dict.128k.txt"
_MAX_VALUES = 100_000
"""The largest number of values in a checkpoint's options, each counted once for each reference."""


@register_checkpoint_loader("fairseq checkpoint")
def read_fairseq_checkpoint(path: Path, reading: ReadingConfig, placement: Placement) -> LoadedModel:
    """Read a checkpoint of fairseq's convolutional model, transformer or transformer language model.

    Args:
        path: the checkpoint.
        reading: files that are not in its folder, and values that are not in its options.
        placement: where the weights are put; their dtype is float32.

    Returns:
        The model, with a task that decodes.

    Raises:
        CheckpointError: the file is damaged, contains code, or contains a model that seqgen does not support.
        ConfigError: languages are given for a checkpoint that has none.
        DataError: a dictionary or SentencePiece model is missing, damaged, or belongs to another model.
    """
    content = read_torch_file(path, _PACKAGES)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise CheckpointError(f"{path} is not a fairseq checkpoint: it has no weights under 'model'")
    try:
        described = {key: plain(content.get(key)) for key in ("args", "cfg")}
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: its options {error}") from None
    if reading.tokenizer:
        raise ConfigError(f"reading.tokenizer={reading.tokenizer} is for Hugging Face folders only; remove it")
    options = read_options(described, path, reading.architecture, reading.ignore)
    if reading.lang_dict and options.languages is None:
        raise ConfigError(f"reading.lang_dict={reading.lang_dict}: {path} is not a multilingual checkpoint; remove it")
    weights = convert_weights(content["model"], path, _ties(options.model))
    continues = isinstance(options.model, TransformerLMConfig)
    names = ("target",) if continues else ("source", "target")
    found = [_find_tokenizer(path, name, options, reading, weights) for name in names]
    (source, _), (target, _) = found[0], found[-1]
    pieces = [is_sentencepiece for _, is_sentencepiece in found]
    if source.fingerprint() == target.fingerprint():  # a joined dictionary is saved under both languages
        target = source
    task = DecodingTask(DecodingConfig(options.source_lang, options.target_lang), source, target)
    if isinstance(options.model, TransformerLMConfig):
        task = PromptDecodingTask.of(source, begin_with_eos=True)
        if "decoder.layer_norm.weight" in weights:  # some versions build a pre-norm model whatever the option
            options.model.decoder_normalize_before, options.model.no_decoder_final_norm = True, False
    model = build_with_weights(lambda: task.build_model(options.model), weights, str(path), placement.device)
    values = task.as_values()
    if not continues and options.languages is None:
        values = _task_values(options, source is target, any(pieces), model)
    without = "there is no SentencePiece model in its folder, and none is given: input and output are tokenized text"
    notes = [] if all(pieces) else [f"{path}: {without}"]
    return LoadedModel(model, task, TrainConfig(model=options.model), path, task_values=values, notes=notes)


def _ties(config: Any) -> dict[str, str]:
    """The names of tied weights."""
    if isinstance(config, FConvConfig):
        tied = ["decoder.fc3.weight"] * config.share_input_output_embed
    elif getattr(config, "share_all_embeddings", False):
        tied = ["decoder.output_projection.weight", "encoder.embed_tokens.weight"]
    else:
        tied = ["decoder.output_projection.weight"] * config.share_decoder_input_output_embed
    return dict.fromkeys(tied, "decoder.embed_tokens.weight")


def _find_tokenizer(
    path: Path, side: str, options: FairseqOptions, reading: ReadingConfig, weights: Mapping[str, Tensor]
) -> tuple[Tokenizer, bool]:
    """The tokenizer of one language, and whether it has a SentencePiece model.

    Its files are those that the user gives, else those in the folder of the checkpoint.
    """
    language = getattr(options, f"{side}_lang")
    names = [f"dict.{language}.txt"] * bool(language) + ["dict.txt"]
    if options.languages is not None:
        fixed = options.languages.dictionary
        names += [Path(fixed).name] * bool(fixed) + [_M2M_DICTIONARY]
        names += [f"dict.{code}.txt" for code in options.languages.codes[:1]]
    given = getattr(reading, f"{side}_dictionary") or reading.dictionary
    dictionary = Path(given) if given else _beside(path, names)
    if dictionary is None:
        raise DataError(
            f"{path} has no {side} dictionary: there is no {' and no '.join(names)} in its folder; copy it there, or "
            f"set reading.{side}_dictionary=FILE (reading.dictionary=FILE for both languages)"
        )
    words, codes = Dictionary.load(dictionary), []
    if options.languages is not None:
        codes = options.languages.find_codes(path, words, reading.lang_dict)
        options.languages.add_tokens(words, codes)
    name = "encoder" if side == "source" else "decoder"
    embedding = weights.get(f"{name}.embed_tokens.weight")
    if embedding is not None and embedding.dim() and embedding.size(0) != len(words):
        raise DataError(
            f"{dictionary} does not belong to {path}: with the 4 special tokens "
            f"{'and those of languages ' if codes else ''}it has {len(words)} tokens, but the {name} was trained with "
            f"{embedding.size(0)}; give the dictionary of its training data"
        )
    chosen = getattr(reading, f"{side}_sentencepiece") or reading.sentencepiece
    model = None if chosen == "none" else Path(chosen) if chosen else _beside(path, _SENTENCEPIECE_NAMES)
    text: Tokenizer = WhitespaceTokenizer(words)
    if model is not None:
        text = SentencePieceTokenizer(read_model(model), words, location=str(model))
    if options.languages is not None:
        text = LanguageTokenizer(text, codes, options.languages.convention(codes))
    return text, model is not None


def _beside(path: Path, names: list[str] | tuple[str, ...]) -> Path | None:
    return next((path.parent / name for name in names if (path.parent / name).is_file()), None)


def _task_values(
    options: FairseqOptions, joined: bool, sentencepiece: bool, model: EncoderDecoderModel
) -> dict[str, Any]:
    """The task values of a run that is made from a checkpoint of two languages; its tokenizers are in its folder."""
    longest_source, longest_target = model.max_positions()
    return {
        "_name": "translation",
        "source_lang": options.source_lang,
        "target_lang": options.target_lang,
        "tokenizer": "sentencepiece" if sentencepiece else "whitespace",
        "joined_dictionary": joined,
        "max_source_positions": longest_source,
        "max_target_positions": longest_target,
    }


def convert_weights(weights: Mapping[str, Tensor], path: Path, ties: Mapping[str, str]) -> dict[str, Tensor]:
    """Rename a model's weights to seqgen's names.

    Args:
        weights: the checkpoint's ``model``.
        path: the file, for messages.
        ties: seqgen's names of weights that are tied to others, which old versions saved only once.

    Returns:
        Weights by seqgen's names, in float32.

    Raises:
        CheckpointError: a value is not a tensor, or tied weights differ.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if isinstance(name, str) and _NO_WEIGHTS.fullmatch(name):
            continue
        if not (isinstance(name, str) and isinstance(tensor, Tensor) and tensor.is_floating_point()):
            raise CheckpointError(f"{path} is damaged: its weight {name} has no floating-point numbers")
        for pattern, replacement in _RENAMED:
            name = re.sub(pattern, replacement, name)
        result[name] = tensor.float()
    fuse_projections(result)
    _split_projections(result)
    _normalize_over_outputs(result)
    for name, original in ties.items():
        if original in result and not torch.equal(result.setdefault(name, result[original]), result[original]):
            raise CheckpointError(f"{path} ties {name} to {original}, but contains two different tensors")
    return result


def _split_projections(weights: dict[str, Tensor]) -> None:
    """Rename the matrix of queries, keys and values that older versions of fairseq save for every attention.

    Encoder-decoder attention has one matrix for queries and one for keys and values.
    """
    for name in [name for name in weights if name.endswith((".in_proj_weight", ".in_proj_bias"))]:
        prefix, _, kind = name.rpartition("in_proj_")
        fused = weights.pop(name)
        if prefix.endswith("encoder_attn.") and fused.dim():
            size = fused.size(0) // 3
            weights[f"{prefix}q_proj.{kind}"], weights[f"{prefix}kv_proj.{kind}"] = fused[:size], fused[size:]
        else:
            weights[f"{prefix}in_proj.{kind}"] = fused


def _normalize_over_outputs(weights: dict[str, Tensor]) -> None:
    """Convert convolutions that an old version weight-normalized over time to norms of each output dimension.

    There ``weight_g`` is ``(k, 1, 1)``; here it is ``(1, 1, out)``, the norm over time and input dimension.
    """
    for name in [name for name in weights if ".convolutions." in name and name.endswith("weight.original0")]:
        direction = name.removesuffix("0") + "1"
        scale, other = weights[name], weights.get(direction)
        if other is None or other.dim() != 3 or scale.shape != (other.size(0), 1, 1):
            continue
        weight = other * (scale / other.norm(dim=(1, 2), keepdim=True))
        weights[name], weights[direction] = weight.norm(dim=(0, 1), keepdim=True), weight


_LISTS = read_lists(__package__, "options.txt")
"""Names of architectures and options. ``ignored`` and the prefixes ``prefix`` are of options about data, training,
logging and saving, and of those that belong to one of ``_MUST_BE``; ``language_modeling`` are options of that task that
change the model.
"""

FAMILIES = {
    name: family for family in ("fconv", "transformer", "transformer_lm") for name in _LISTS[f"architecture.{family}"]
}
"""The model of each architecture. Checkpoints have all options; one that is missing has the model's default."""

_MUST_BE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_LISTS["off"], (False,)),
    **dict.fromkeys(_LISTS["empty"], ()),
    **{key: (number,) for number in (-1, 0, 1, 2, 3) for key in _LISTS[f"must_be.{number}"]},
}
"""Options that change the computation in ways that seqgen does not support, and the values, besides ``None``, that
leave them off."""

LANG_TOKEN_FORMATS = {"multilingual": "__{}__", "mbart": "[{}]"}
"""The token of a language for each ``lang_tok_style``."""

SUFFIXES = {"dae": "_dae", "mined": "_mined"}
"""The suffix of a language in the tokens of some kinds of data, by the end of the name of the kind."""


class FairseqLanguages:
    """The way in which a multilingual checkpoint, such as M2M-100, is told the languages.

    Args:
        options: the options of the task, as plain values.
        path: the checkpoint, for messages.

    Attributes:
        codes: the languages in the order of their tokens; empty if the options do not list them.
        file: name of the file with the languages (``lang_dict``); empty for none.
        pairs: the pairs of the training data, such as ``en-de``.
        dictionary: name of the file of the dictionary that is the same for all languages; empty for none.
        token_format: the token of a language, such as ``__{}__``.
        source: whose token sources begin with: ``src``, ``tgt``, or ``None``.
        by_target: whether targets begin with the token of their language.
        kinds: the kinds of training data that have tokens of languages.
        has_mask: whether the vocabulary has a mask token after the tokens of languages.

    Raises:
        CheckpointError: an option is not supported.
    """

    def __init__(self, options: Mapping[str, Any], path: Path):
        source, target = options.get("encoder_langtok"), "tgt" if options.get("decoder_langtok") else None
        langtoks = options.get("langtoks")  # fairseq adds what the two options above mean as "main"
        main = langtoks.get("main") if isinstance(langtoks, Mapping) else None
        if isinstance(main, list | tuple) and len(main) == 2:
            source, target = main
        if options.get("lang_tok_replacing_bos_eos"):
            raise CheckpointError(f"{path} was trained with lang_tok_replacing_bos_eos, which seqgen does not support")
        if (source or "", target or "") not in (("src", "tgt"), ("", "tgt"), ("tgt", "")):
            raise CheckpointError(
                f"{path} was trained with encoder_langtok={source} and decoder_langtok={target == 'tgt'}; seqgen "
                "supports the token of the target language in the target, with or without that of the source language "
                "in the source, or the token of the target language in the source"
            )
        style = str(options.get("lang_tok_style") or "multilingual")
        if style not in LANG_TOKEN_FORMATS:
            known = ", ".join(LANG_TOKEN_FORMATS)
            raise CheckpointError(f"{path} was trained with lang_tok_style={style}; seqgen supports: {known}")
        self.source, self.by_target, self.token_format = source, target == "tgt", LANG_TOKEN_FORMATS[style]
        self.codes, self.pairs = _texts(options.get("langs")), _texts(options.get("lang_pairs"))
        self.file = str(options.get("lang_dict") or "")
        self.dictionary = str(options.get("fixed_dictionary") or options.get("source_dict") or "")
        self.kinds = _texts(options.get("langtoks_specs")) or ["main"]
        extra = options.get("extra_data")
        self.has_mask = style == "mbart" or (isinstance(extra, Mapping) and "mono_dae" in extra)

    def find_codes(self, path: Path, dictionary: Dictionary, given: str) -> list[str]:
        """Find the languages: in the given file, the options, the file that they name, the dictionary, or the pairs.

        Args:
            path: the checkpoint.
            dictionary: its dictionary as in the file, which may have the tokens of languages.
            given: a file with one language on each line; empty for none.

        Raises:
            DataError: the given file cannot be read, or there are no languages.
        """
        beside = path.parent / Path(self.file).name if self.file else path
        if given or (not self.codes and beside is not path and beside.is_file()):
            file = Path(given) if given else beside
            try:
                return read_bytes(file).decode().split()
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"cannot read the languages in {file}: {error}") from None
        token = re.compile(re.escape(self.token_format).replace(re.escape("{}"), r"([a-z]{2,3}(?:[_-]\w+)?)"))
        listed = [found[1] for word in dictionary if (found := token.fullmatch(word))]
        listed = [code for code in listed if not code.endswith(tuple(SUFFIXES.values()))]
        codes = list(self.codes) or listed or sorted({code for pair in self.pairs for code in pair.split("-")})
        if not codes:
            raise DataError(f"{path} does not list its languages; set reading.lang_dict=FILE, with one on each line")
        return codes

    def add_tokens(self, dictionary: Dictionary, codes: Sequence[str]) -> None:
        """Append the tokens that the file of the dictionary lacks.

        Args:
            dictionary: the dictionary, which is changed.
            codes: the languages.
        """
        for kind in self.kinds:
            suffix = next((found for end, found in SUFFIXES.items() if kind.endswith(end)), "")
            for code in codes:
                dictionary.add_symbol(self.token_format.format(code + suffix))
        if self.has_mask:
            dictionary.add_symbol("<mask>")

    def convention(self, codes: Sequence[str]) -> Languages:
        """The convention by which languages are chosen.

        Args:
            codes: the languages.
        """
        place = TargetLanguage.FIRST if self.by_target else TargetLanguage.SOURCE
        default = ("en" if "en" in codes else codes[0]) if self.source == "src" else ""
        return Languages({}, place, default, token_format=self.token_format)


def _texts(value: Any) -> list[str]:
    """A list of texts, which old versions save as one text with commas."""
    if isinstance(value, str):
        return [part for part in value.split(",") if part]
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


@dataclass(frozen=True)
class FairseqOptions:
    """The meaning of a checkpoint's options.

    Attributes:
        model: the configuration of the model.
        source_lang: ending of the source files, such as ``en``; empty where the checkpoint does not say.
        target_lang: likewise for the target.
        languages: how a model of several languages is told them; ``None`` for any other model.
    """

    model: FConvConfig | TransformerConfig | TransformerLMConfig
    source_lang: str
    target_lang: str
    languages: FairseqLanguages | None = None


def read_options(
    checkpoint: Mapping[str, Any], path: Path, architecture: str = "", ignore: Collection[str] = ()
) -> FairseqOptions:
    """Find out which model a checkpoint holds.

    Args:
        checkpoint: its content, as plain values: options under ``args`` (old) or ``cfg``.
        path: the file, for messages.
        architecture: a known architecture of which the checkpoint's is a variant; empty for the one that it names.
        ignore: unknown options to ignore, because the user states that they do not change the computation.

    Raises:
        CheckpointError: it holds another architecture or task, or an option that is unknown or not supported.
    """
    model, task = _groups(checkpoint, path)
    family = _family(architecture or str(model.get("arch") or model.get("_name")), path)
    wanted = "language_modeling" if family == "transformer_lm" else "translation"
    name = str(task.get("_name") or task.get("task") or wanted)
    is_multilingual = name == "translation_multi_simple_epoch" and family == "transformer"
    languages = FairseqLanguages(task, path) if is_multilingual else None
    if name != wanted and languages is None and "task" not in ignore:
        raise CheckpointError(
            f"{path} was trained for the task {shown(name)}; only {wanted!r} is supported. If {shown(name)} reads and "
            "writes text in the same way, set reading.ignore=[task]"
        )
    if family == "transformer_lm":
        model = {**{key: task[key] for key in _LISTS["language_modeling"] if key in task}, **model}
    config = _config(family, {key: value for key, value in model.items() if key not in ignore}, path)
    return FairseqOptions(config, str(task.get("source_lang") or ""), str(task.get("target_lang") or ""), languages)


def plain(value: Any) -> Any:
    """Turn options into dicts, lists and values.

    Args:
        value: an ``argparse.Namespace``, the stand-in of an OmegaConf node or of a choice (an enumeration), or dicts
            and lists of these.

    Raises:
        ValueError: they contain themselves, or expand to more values than any options have.
    """
    try:
        return _plain(value, itertools.count(1))
    except RecursionError:
        raise ValueError("contain themselves") from None


def _plain(value: Any, counter: Iterator[int]) -> Any:
    if next(counter) > _MAX_VALUES:
        raise ValueError(f"expand to more than {_MAX_VALUES} values")
    if isinstance(value, Inert):
        state = value.state if isinstance(value.state, Mapping) else {}
        inside = [state[key] for key in ("_content", "_val") if key in state] or list(value.args)
        return _plain(inside[0], counter) if len(inside) == 1 else None
    if isinstance(value, Namespace):
        return _plain(vars(value), counter)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else shown(key): _plain(item, counter) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, counter) for item in value]
    return value


def _groups(checkpoint: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the model and those of the task; in old checkpoints they are the same."""
    args, cfg = checkpoint.get("args"), checkpoint.get("cfg")
    if isinstance(cfg, Mapping) and isinstance(cfg.get("model"), Mapping):
        task = cfg.get("task")
        model = {key: _resolve(value, cfg) for key, value in _flat(cfg["model"]).items()}
        return model, dict(task) if isinstance(task, Mapping) else {}
    if isinstance(args, Mapping):
        return dict(args), dict(args)
    raise CheckpointError(f"{path} has no options ('args' or 'cfg'), so its architecture is unknown")


def _flat(model: Mapping[str, Any]) -> dict[str, Any]:
    """Join groups inside the model's options to names: ``{"encoder": {"layers": 6}}`` is ``encoder_layers``."""
    flat: dict[str, Any] = {}
    for key, value in model.items():
        if key in ("encoder", "decoder", "quant_noise") and isinstance(value, Mapping):
            flat |= {f"{key}_{inner}": item for inner, item in value.items()}
        elif value != "???":  # OmegaConf's mark of a missing value
            flat[key] = value
    return flat


def _resolve(value: Any, cfg: Mapping[str, Any]) -> Any:
    """Follow a reference such as ``${model.decoder.embed_dim}``."""
    for _ in range(9):
        reference = re.fullmatch(r"\$\{([\w.]+)\}", value) if isinstance(value, str) else None
        if reference is None:
            return value
        value = cfg
        for key in reference[1].split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _family(name: str, path: Path) -> str:
    if name not in FAMILIES:
        raise CheckpointError(
            f"{path} holds a model of the architecture {shown(name)}, which seqgen does not know"
            f"{nearest(name, FAMILIES)}; it knows: {', '.join(FAMILIES)}. If it is one of these with other sizes, set "
            "reading.architecture=NAME"
        )
    return FAMILIES[name]


def _config(family: str, options: dict[str, Any], path: Path) -> FConvConfig | TransformerConfig | TransformerLMConfig:
    schema: type[FConvConfig] | type[TransformerConfig] | type[TransformerLMConfig] = MODELS.entry(family).config
    if family != "fconv":
        _fill_in(options, family)
    known = {field.name: field for field in fields(schema)}
    dim = options.get("decoder_embed_dim")
    must_be = {**_MUST_BE, "decoder_input_dim": (dim,), "decoder_output_dim": (dim,)}
    for key, value in sorted(options.items()):
        if key in must_be and key not in known and value is not None and value not in must_be[key]:
            raise CheckpointError(f"{path} was trained with {key}={shown(value)}, which seqgen does not support")
    understood = {*known, *_MUST_BE, *_LISTS["ignored"]}
    unknown = sorted(key for key in options if key not in understood and not key.startswith(tuple(_LISTS["prefix"])))
    if unknown:
        raise CheckpointError(
            f"{path} was trained with unknown options: {', '.join(unknown[:8])}. If they do not change "
            f"what the model computes, set reading.ignore=[{','.join(unknown)}]"
        )
    # text is what seqgen reads where fairseq evaluates an expression; some versions save the list that it stands for
    values = {
        key: str(options[key]) if field.type == "str" else options[key]
        for key, field in known.items()
        if options.get(key) is not None
    }
    try:
        return from_dict(schema, values, "its options")
    except ConfigError as error:
        raise CheckpointError(f"{path} was trained with a setting that seqgen does not support: {error}") from None


def _fill_in(options: dict[str, Any], family: str) -> None:
    """Fill in what depends on other options, and the new names of old ones.

    By default a decoder is as wide as the encoder, and a language model has as many positions as a training example has
    tokens. Old versions had ``no_tie_adaptive_proj`` and no final layer normalization, or a separate option for it.
    """
    if "relu_dropout" in options:
        options.setdefault("activation_dropout", options["relu_dropout"])
    if family == "transformer":
        for key in ("embed_dim", "ffn_embed_dim"):
            if f"encoder_{key}" in options:
                options.setdefault(f"decoder_{key}", options[f"encoder_{key}"])
        return
    options.setdefault("no_decoder_final_norm", "no_tie_adaptive_proj" in options)
    if "decoder_final_norm" in options:
        options["no_decoder_final_norm"] = not options["decoder_final_norm"]
    if options.get("max_target_positions") is None and options.get("tokens_per_sample") is not None:
        options["max_target_positions"] = options["tokens_per_sample"]
