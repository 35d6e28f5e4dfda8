"""A loader of another toolkit's checkpoints: the transformers of JoeyNMT 2, in the folder of their training.

::

    config.yaml                  options of the model, of the text and of decoding
    best.ckpt                    weights, as torch.save wrote them; the path can also name another .ckpt file
    src_vocab.txt trg_vocab.txt  the tokens of source and target in the order of their ids
    joint.model                  a SentencePiece model, if config.yaml names one

    seqgen-generate common.user_dir=examples/joeynmt/checkpoint.py path=joeynmt-en-de input=- output=-
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from seqgen.extend import (
    CheckpointError,
    ConfigError,
    DataError,
    DecodingConfig,
    DecodingTask,
    Dictionary,
    ForeignConfig,
    LoadedModel,
    Placement,
    ReadingConfig,
    SentencePieceTokenizer,
    Tokenizer,
    TrainConfig,
    WhitespaceTokenizer,
    build_with_weights,
    flatten,
    fuse_projections,
    read_bytes,
    read_model,
    read_torch_file,
    read_yaml,
    register_checkpoint_loader,
    register_tokenizer,
    shown,
)

SIDES = ("encoder", "decoder")
SIZES = {"embed_dim": "hidden_size", "ffn_embed_dim": "ff_size", "layers": "num_layers", "attention_heads": "num_heads"}
SPECIALS = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
"""The keys and the usual names of the tokens with the ids 0 to 3."""

RENAMED = {
    r"^src_embed\.lut": "encoder.embed_tokens",
    r"^trg_embed\.lut": "decoder.embed_tokens",
    r"\.pe\.pe$": ".embed_positions.weight",
    r"\.(src_src|trg_trg)_att\.": ".self_attn.",
    r"\.src_trg_att\.": ".encoder_attn.",
    r"_attn\.([qkv])_layer": r"_attn.\1_proj",
    r"_attn\.output_layer": "_attn.out_proj",
    r"\.feed_forward\.layer_norm": ".final_layer_norm",
    r"\.feed_forward\.pwff_layer\.0": ".fc1",
    r"\.feed_forward\.pwff_layer\.3": ".fc2",
    r"\.(\d+)\.(x_)?layer_norm": r".\1.self_attn_layer_norm",
    r"\.dec_layer_norm": ".encoder_attn_layer_norm",
    r"^decoder\.output_layer": "decoder.output_projection",
}
"""New names of the weights, by pattern."""

NOT_APPLIED = {
    **{f"data.{side}.normalize": False for side in ("src", "trg")},
    **{f"data.{side}.tokenizer_cfg.pretokenizer": "none" for side in ("src", "trg")},
    **{f"data.{side}.tokenizer_type": "sentencepiece" for side in ("src", "trg")},
    **{"data.src.lowercase": False, "testing.repetition_penalty": -1, "testing.no_repeat_ngram_size": -1},
}
"""Keys that this loader reads only for a message to the user, with the values for which there is none."""


def is_joeynmt(path: Path) -> bool:
    """True if a path is a folder or a checkpoint of JoeyNMT, by the names of files."""
    return path.suffix == ".ckpt" or (path / "src_vocab.txt").is_file()


@register_tokenizer("joeynmt_words")
class SpacedWordTokenizer(WhitespaceTokenizer):
    """Words between single spaces, among them special tokens such as ``</s>``; other white space is part of a word."""

    name = "joeynmt_words"

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer.encode``; between two spaces is an empty word."""
        return [self.dictionary.index(word) for word in text.split(" ")]

    def unknown(self, text: str) -> list[str]:
        """See ``Tokenizer.unknown``."""
        return [word or repr(word) for word in text.split(" ") if self.dictionary.index(word) == self.dictionary.unk()]


@register_checkpoint_loader("JoeyNMT model", is_joeynmt)
def read_joeynmt_model(path: Path, reading: ReadingConfig, placement: Placement) -> LoadedModel:
    """Read a transformer of JoeyNMT.

    Args:
        path: the folder of a training, or a checkpoint in it.
        reading: must be empty, since all files are in the folder.
        placement: where the weights are put.

    Returns:
        The model, with a task that decodes, and the decoding settings of ``config.yaml``.

    Raises:
        CheckpointError: a file is missing or damaged, or the model has an option that is not supported.
        ConfigError: ``reading`` has a value.
        DataError: a vocabulary or SentencePiece model is missing, damaged or of another model.
    """
    if reading != ReadingConfig():
        raise ConfigError(f"{path} is a JoeyNMT model, whose files are all in its folder; remove the keys reading.KEY")
    folder, checkpoint = (path, path / "best.ckpt") if path.is_dir() else (path.parent, path)
    config = ForeignConfig(folder / "config.yaml", dict(flatten(read_yaml(folder / "config.yaml"))))
    cfg = read_model_config(config)
    languages = DecodingConfig(config.get("data.src.lang", ""), config.get("data.trg.lang", ""), translates=True)
    source, target = (read_tokenizer(config, side) for side in ("src", "trg"))
    task = DecodingTask(languages, source, source if source.fingerprint() == target.fingerprint() else target)
    weights = read_weights(checkpoint)
    model = build_with_weights(lambda: task.build_model(cfg), weights, str(checkpoint), placement.device)
    ignored = [f"{key}={config.value(key)}" for key, usual in NOT_APPLIED.items() if config.value(key, usual) != usual]
    notes = [f"{config.path}: not applied: {', '.join(ignored)}"] if ignored else []
    settings = read_settings(config, task.target_dictionary)
    return LoadedModel(model, task, TrainConfig(model=cfg), checkpoint, task.as_values(), notes, settings)


def read_model_config(config: ForeignConfig) -> Any:
    """Turn the options of the model into a configuration of seqgen's transformer.

    The position table of 5000 rows is saved with the weights. Its columns alternate sine and cosine, in contrast to
    those of seqgen's sinusoids, so that it is loaded as if it were learned.

    Raises:
        CheckpointError: the transformer does not have an option that changes the computation.
    """
    if config.value("model.initializer") == "xavier_normal":
        raise CheckpointError(f"{config.path}: the residual weights of initializer=xavier_normal are not supported")
    values: dict[str, Any] = {"_name": "transformer", "position_offset": 0, "layer_norm_epsilon": 1e-6}
    for side, length in zip(SIDES, ("max_source_positions", "max_target_positions"), strict=True):
        config.one_of(f"model.{side}.type", ["transformer"])
        config.one_of(f"model.{side}.alpha", [1.0], 1.0)
        norm = config.one_of(f"model.{side}.layer_norm", ["pre", "post"])
        sizes = {f"{side}_{ours}": config.get(f"model.{side}.{theirs}", 0, 1) for ours, theirs in SIZES.items()}
        values |= {**sizes, f"{side}_normalize_before": norm == "pre", f"{side}_learned_pos": True, length: 5000}
    tied, output = (config.get(f"model.tied_{what}", False) for what in ("embeddings", "softmax"))
    values["share_all_embeddings"] = tied and output
    values["share_encoder_decoder_embed"] = tied and not output
    values["share_decoder_input_output_embed"] = output and not tied
    values["no_scale_embedding"] = not same(config, "embeddings.scale", False, SIDES[: 1 if tied else 2])
    values["activation_fn"] = same(config, "activation", "relu", SIDES)
    dropouts = ("dropout", "attention_dropout", "activation_dropout")
    values |= dict.fromkeys(dropouts, config.get("model.encoder.dropout", 0.1))
    values["decoder_start_token_id"] = list(SPECIALS).index("bos_token")
    return config.model(values)


def same(config: ForeignConfig, key: str, default: Any, sides: Sequence[str]) -> Any:
    """The value of a key that encoder and decoder have.

    Raises:
        CheckpointError: the values of ``sides`` differ.
    """
    first, *others = (config.get(f"model.{side}.{key}", default) for side in sides)
    if any(other != first for other in others):
        raise CheckpointError(f"{config.path}: encoder and decoder differ in {key}, which this loader does not support")
    return first


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Read the weights, by the names of seqgen's transformer.

    Raises:
        CheckpointError: the file is missing or damaged, or has no weights.
    """
    content = read_torch_file(checkpoint)
    state = content.get("model_state") if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise CheckpointError(f"{checkpoint} is not a checkpoint of JoeyNMT: it has no weights under 'model_state'")
    weights: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for pattern, replacement in RENAMED.items():
            name = re.sub(pattern, replacement, str(name))
        weights[name] = tensor.squeeze(0) if "positions" in name else tensor  # (1, 5000, C)
    fuse_projections(weights)
    return weights


def read_tokenizer(config: ForeignConfig, side: str) -> Tokenizer:
    """The tokenizer of ``src`` or ``trg``: SentencePiece, or words for text that is already tokenized.

    Raises:
        CheckpointError: it is of another kind.
        DataError: a file is missing or damaged, or the vocabulary does not belong to it.
    """
    folder = config.path.parent
    config.refuse([f"data.special_symbols.{key}" for key in ("sep_token", "lang_tags")], "translation model")
    names = [config.get(f"data.special_symbols.{key}", usual) for key, usual in SPECIALS.items()]
    dictionary = read_vocabulary(folder / f"{side}_vocab.txt", names)
    if config.one_of(f"data.{side}.level", ["word", "bpe"]) == "word":
        return SpacedWordTokenizer(dictionary)
    kind = config.one_of(f"data.{side}.tokenizer_type", ["sentencepiece", "subword-nmt"], "sentencepiece")
    if kind == "subword-nmt":
        return WhitespaceTokenizer(dictionary)
    file = folder / Path(config.get(f"data.{side}.tokenizer_cfg.model_file", "")).name
    model = read_model(file)
    pieces = SentencePieceTokenizer(model, location=str(file)).dictionary
    special = {pieces.symbol(index) for index in pieces.special_ids.values() if index is not None}
    if lacking := {piece for piece in pieces if len(piece) > 1} - special - set(dictionary):
        raise DataError(
            f"{len(lacking)} pieces of {file.name}, such as {shown(min(lacking))}, are not in "
            f"{folder / side}_vocab.txt; JoeyNMT segments text without them, which this loader does not"
        )
    return SentencePieceTokenizer(model, dictionary, location=str(file))


def read_vocabulary(path: Path, special: list[str]) -> Dictionary:
    """Read a vocabulary, which begins with the tokens ``special``.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        tokens = read_bytes(path).decode().splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None
    if tokens[: len(special)] != special:
        raise DataError(f"{path} does not begin with the tokens {', '.join(special)}, which have the ids 0 to 3")
    return Dictionary(tokens, unk=0, pad=1, bos=2, eos=3)


def read_settings(config: ForeignConfig, dictionary: Dictionary) -> dict[str, Any]:
    """The decoding settings, by the names of seqgen's keys ``generation.KEY``."""
    longest = config.get("testing.max_output_length", -1, minimum=-1)
    never = [dictionary.bos()] + ([] if config.get("testing.generate_unk", True) else [dictionary.unk()])
    return {
        "beam": config.get("testing.beam_size", 1, minimum=1),
        "length_penalty_form": "wu",
        "length_penalty": max(config.get("testing.beam_alpha", -1.0), 0.0),
        "min_len": config.get("testing.min_output_length", 1),
        "max_len_a": 1.5 if longest < 0 else 0.0,
        "max_len_b": max(longest, 0),
        "suppress": [dictionary.symbol(index) for index in never],
    }
