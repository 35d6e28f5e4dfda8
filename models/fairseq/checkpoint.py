"""Reading checkpoints of fairseq: ``checkpoint_best.pt`` and the files in its folder.

::

    checkpoint_best.pt       weights and options; the weights' names and layouts are converted to those of seqgen
    dict.en.txt dict.de.txt  the dictionaries of source and target, or one dict.txt for both
    sentencepiece.bpe.model  a SentencePiece model, or spm.model; without one, text is read as tokenized

A multilingual checkpoint (M2M-100) has one dictionary, such as ``model_dict.128k.txt``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqgen.checkpoints.decoding_task import DecodingConfig, DecodingTask, PromptDecodingTask
from seqgen.checkpoints.loaders import LoadedModel, Placement, register_checkpoint_loader
from seqgen.checkpoints.model_weights import build_with_weights, fuse_projections
from seqgen.checkpoints.torch_file import plain, read_torch_file
from seqgen.config import ReadingConfig, TrainConfig
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.data.tokenizers.language_tokens import LanguageTokenizer
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, read_model
from seqgen.errors import CheckpointError, ConfigError, DataError
from seqgen.model import EncoderDecoderModel
from seqgen.models.fairseq.options import FairseqLanguages, FairseqOptions, read_options
from seqgen.models.fconv import FConvConfig
from seqgen.models.transformer_lm import TransformerLMConfig
from seqgen.task import are_languages

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


@dataclass(frozen=True)
class _Side:
    """The vocabulary of one language and its file; ``sentencepiece`` is ``None`` for tokenized text."""

    file: Path
    dictionary: Dictionary
    sentencepiece: Path | None
    codes: Sequence[str] = ()


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
    except RecursionError:
        raise CheckpointError(f"{path} is damaged: its options contain themselves") from None
    if reading.tokenizer:
        raise ConfigError(f"reading.tokenizer={reading.tokenizer} is for Hugging Face folders only; remove it")
    options = read_options(described, path, reading.architecture, reading.ignore)
    if reading.lang_dict and options.languages is None:
        raise ConfigError(f"reading.lang_dict={reading.lang_dict}: {path} is not a multilingual checkpoint; remove it")
    weights = convert_weights(content["model"], path, _ties(options.model))
    continues = isinstance(options.model, TransformerLMConfig)
    names = ("target",) if continues else ("source", "target")
    sides = [_find_side(path, name, options, reading) for name in names]
    _check_sizes(path, [sides[0], sides[-1]], weights)
    source, target = (_tokenizer(side, options.languages) for side in (sides[0], sides[-1]))
    if source.fingerprint() == target.fingerprint():  # a joined dictionary is saved under both languages
        target = source
    languages = DecodingConfig(options.source_lang, are_languages(options.source_lang, options.target_lang))
    task = DecodingTask(languages, source, target)
    if isinstance(options.model, TransformerLMConfig):
        task = PromptDecodingTask.of(source, begin_with_eos=True)
        if "decoder.layer_norm.weight" in weights:  # some versions build a pre-norm model whatever the option
            options.model.decoder_normalize_before, options.model.no_decoder_final_norm = True, False
    model = build_with_weights(lambda: task.build_model(options.model), weights, str(path), placement.device)
    values = task.as_values()
    if not continues and options.languages is None:
        values = _task_values(options, source is target, any(side.sentencepiece for side in sides), model)
    return LoadedModel(
        model, task, TrainConfig(model=options.model), path, task_values=values, notes=_notes(path, sides)
    )


def _ties(config: Any) -> dict[str, str]:
    """The names of tied weights."""
    if isinstance(config, FConvConfig):
        tied = ["decoder.fc3.weight"] * config.share_input_output_embed
    elif getattr(config, "share_all_embeddings", False):
        tied = ["decoder.output_projection.weight", "encoder.embed_tokens.weight"]
    else:
        tied = ["decoder.output_projection.weight"] * config.share_decoder_input_output_embed
    return dict.fromkeys(tied, "decoder.embed_tokens.weight")


def _find_side(path: Path, side: str, options: FairseqOptions, reading: ReadingConfig) -> _Side:
    """Find the files of one language: those that the user gives, else those in the folder of the checkpoint."""
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
            f"give reading.{side}_dictionary=FILE (reading.dictionary=FILE for both languages)"
        )
    words, codes = Dictionary.load(dictionary), []
    if options.languages is not None:
        codes = options.languages.find_codes(path, words, reading.lang_dict)
        options.languages.add_tokens(words, codes)
    chosen = getattr(reading, f"{side}_sentencepiece") or reading.sentencepiece
    model = Path(chosen) if chosen else _beside(path, _SENTENCEPIECE_NAMES)
    return _Side(dictionary, words, None if chosen == "none" else model, codes)


def _beside(path: Path, names: list[str] | tuple[str, ...]) -> Path | None:
    return next((path.parent / name for name in names if (path.parent / name).is_file()), None)


def _check_sizes(path: Path, sides: list[_Side], weights: dict[str, Tensor]) -> None:
    for side, name in zip(sides, ("encoder", "decoder"), strict=True):
        embedding = weights.get(f"{name}.embed_tokens.weight")
        size = len(side.dictionary)
        if embedding is not None and embedding.dim() and embedding.size(0) != size:
            raise DataError(
                f"{side.file} does not belong to {path}: with the 4 special tokens "
                f"{'and those of languages ' if side.codes else ''}it has {size} tokens, but "
                f"the {name} was trained with {embedding.size(0)}; give the dictionary of its training data"
            )


def _tokenizer(side: _Side, languages: FairseqLanguages | None = None) -> Tokenizer:
    text: Tokenizer = WhitespaceTokenizer(side.dictionary)
    if side.sentencepiece is not None:
        text = SentencePieceTokenizer(read_model(side.sentencepiece), side.dictionary, origin=str(side.sentencepiece))
    return text if languages is None else LanguageTokenizer(text, side.codes, languages.convention(side.codes))


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


def _notes(path: Path, sides: list[_Side]) -> list[str]:
    if all(side.sentencepiece for side in sides):
        return []
    return [
        f"{path}: there is no SentencePiece model in its folder, and none is given: input and output are tokenized text"
    ]


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
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{path} is damaged: its weight {name} is not a tensor")
        if not _NO_WEIGHTS.fullmatch(name):
            if not tensor.is_floating_point():
                raise CheckpointError(f"{path}: its weight {name} has no floating-point numbers")
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
