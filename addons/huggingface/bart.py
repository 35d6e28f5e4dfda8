"""BART and its relatives in Hugging Face's layout: mBART, Pegasus, Marian, M2M-100 and NLLB. All are a ``transformer``.

A ``config.json`` names the type and the sizes. What else distinguishes the types is in ``KINDS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seqgen.addons.huggingface.architecture import HEAD, Architecture, JSONConfig, activation_name
from seqgen.addons.huggingface.weights import with_bias
from seqgen.config import value_text
from seqgen.extend import (
    CheckpointError,
    ConfigError,
    DataError,
    DecodingConfig,
    DecodingTask,
    Layout,
    Piece,
    Tokenizer,
    TransformerConfig,
    TransformerModel,
    stacked_pieces,
    weights_of,
)

SIDES = ("encoder", "decoder")


@dataclass(frozen=True)
class Kind:
    """The properties that all models of one ``model_type`` have in common.

    Attributes:
        class_name: the class of transformers.
        pre_norm: whether layer normalization is applied before each sublayer, and once more after the last layer.
        norms_embeddings: whether layer normalization is applied to embeddings.
        positions: ``learned``, or the name of the table of sinusoids.
        position_offset: number of the first position; ``None`` for ``pad_token_id + 1``.
        ids: the special ids of a model whose ``config.json`` lacks them; -1 for none.
        defaults: other values of such a model, where they differ from those of BART.
        has_bias: whether the output projection has a bias.
    """

    class_name: str
    pre_norm: bool
    norms_embeddings: bool
    positions: str
    position_offset: int | None
    ids: Mapping[str, int]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_bias: bool = True

    def options(self, pad: int) -> dict[str, Any]:
        """The values of the model's configuration that all models of this type have.

        Args:
            pad: id of padding.
        """
        return {
            **{f"{side}_normalize_before": self.pre_norm for side in SIDES},
            **{f"{side}_learned_pos": self.positions == "learned" for side in SIDES},
            "layernorm_embedding": self.norms_embeddings,
            "sinusoids": "fairseq" if self.positions == "learned" else self.positions,
            "position_offset": pad + 1 if self.position_offset is None else self.position_offset,
            "layer_norm_epsilon": 1e-5,
        }


def _ids(pad: int, eos: int, bos: int, start: int, forced_eos: int) -> dict[str, int]:
    names = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "forced_eos_token_id")
    return dict(zip(names, (pad, eos, bos, start, forced_eos), strict=True))


_M2M_100: dict[str, Any] = {
    **{"vocab_size": 128112, "activation_function": "relu", "scale_embedding": True, "attention_dropout": 0.1},
    **{f"{side}_layerdrop": 0.05 for side in SIDES},
}

KINDS = {  # the class, pre_norm, norms_embeddings, positions, position_offset, ids and defaults
    "bart": Kind("BartForConditionalGeneration", False, True, "learned", 2, _ids(1, 2, 0, 2, 2)),
    "mbart": Kind("MBartForConditionalGeneration", True, True, "learned", 2, _ids(1, 2, 0, -1, 2)),
    "pegasus": Kind("PegasusForConditionalGeneration", True, False, "paper", 0, _ids(0, 1, -1, 0, 1)),
    "marian": Kind("MarianMTModel", False, False, "paper", 0, _ids(58100, 0, -1, 58100, 0), {"vocab_size": 58101}),
    "m2m_100": Kind(
        "M2M100ForConditionalGeneration", True, False, "fairseq", None, _ids(1, 2, 0, 2, -1), _M2M_100, has_bias=False
    ),
}
"""The supported values of ``model_type``."""

_SIZES = (
    ("encoder_layers", "encoder_layers", 12),
    ("encoder_ffn_dim", "encoder_ffn_embed_dim", 4096),
    ("decoder_layers", "decoder_layers", 12),
    ("decoder_ffn_dim", "decoder_ffn_embed_dim", 4096),
    *((f"{side}_attention_heads", f"{side}_attention_heads", 16) for side in SIDES),
)
"""The name in ``config.json``, the name in seqgen, and the default."""

_PROBABILITIES = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}
_PROBABILITIES |= {f"{side}_layerdrop": 0.0 for side in SIDES}

_OFF = ("is_decoder", "add_cross_attention", "tie_encoder_decoder", "pruned_heads")
"""Keys that change the computation and are not supported."""

_SHARED, _BIAS = "model.shared.weight", "final_logits_bias"


class BartArchitecture(Architecture):
    """BART and its relatives; see ``Architecture``."""

    model_class = TransformerModel

    def read_config(self, config: JSONConfig) -> TransformerConfig:
        """Turn a folder's ``config.json`` into a configuration."""
        name = config.get("model_type", "")
        kind = KINDS[name]
        config.check_kind(name, _OFF)
        default = kind.defaults
        dim = config.read_table([("d_model", "dim", 1024)], minimum=1)["dim"]
        longest = config.get("max_position_embeddings", 1024, minimum=1)
        tied = config.get("tie_word_embeddings", True)
        shared = name != "marian" or config.get("share_encoder_decoder_embeddings", True)
        pad, size = _id(config, kind, "pad_token_id"), _vocab_sizes(config, kind)[0]
        if pad >= size:
            raise CheckpointError(f"{config.path}: pad_token_id={pad} is outside the vocabulary of {size} tokens")
        values = {
            "_name": "transformer",
            **kind.options(max(pad, 0)),
            **{f"{side}_embed_dim": dim for side in SIDES},
            **config.read_table(_SIZES, minimum=1),
            "max_source_positions": longest,
            "max_target_positions": longest,
            "activation_fn": config.activation(default.get("activation_function", "gelu")),
            "no_scale_embedding": not config.get("scale_embedding", default.get("scale_embedding", False)),
            "output_bias": kind.has_bias,
            **{key: config.get(key, default.get(key, value)) for key, value in _PROBABILITIES.items()},
            **_sharing(shared, tied),
        }
        cfg: TransformerConfig = config.model(values)
        return cfg

    def vocab_size(self, cfg: TransformerConfig, config: JSONConfig) -> int:
        """The size of the source's vocabulary."""
        return _vocab_sizes(config, KINDS[config.get("model_type", "")])[0]

    def make_task(self, cfg: TransformerConfig, path: Path, tokenizer: Tokenizer) -> DecodingTask:
        """The task that decodes; the configuration gets the first decoder input.

        A tokenizer with other files for the target has the attribute ``target_side``, the tokenizer of the target.
        """
        config = JSONConfig.read(path / "config.json")
        kind = KINDS[config.get("model_type", "")]
        target: Tokenizer = getattr(tokenizer, "target_side", tokenizer)
        wanted = _vocab_sizes(config, kind)[1]
        if len(target.dictionary) != wanted:
            raise DataError(
                f"{path}: the target's tokenizer has {len(target.dictionary)} ids but the decoder's vocabulary {wanted}"
            )
        start, bos = (_id(config, kind, f"{name}_token_id") for name in ("decoder_start", "bos"))
        cfg.decoder_start_token_id = self.first_decoder_input(path, start, bos, target.dictionary.eos())
        return DecodingTask(DecodingConfig(translates=kind is KINDS["marian"]), tokenizer, target)

    def generation_defaults(self, config: JSONConfig) -> dict[str, Any]:
        """Values that transformers' configuration has although the file lacks them."""
        kind = KINDS[config.get("model_type", "")]
        defaults: dict[str, Any] = {name: value for name, value in kind.ids.items() if value >= 0}
        if config.get("force_bos_token_to_be_generated", False):
            defaults["forced_bos_token_id"] = _id(config, kind, "bos_token_id")
        return defaults

    def write_config(self, model: TransformerModel) -> dict[str, Any]:
        """The content of a model's ``config.json``; the type is the one whose structure the model has."""
        cfg = model.cfg
        name, kind = _kind_of(model)
        shared, tied = _shares(cfg)
        vocab_size, target = (side.embed_tokens.num_embeddings for side in (model.encoder, model.decoder))
        sizes = {"decoder_vocab_size": target, "share_encoder_decoder_embeddings": shared} if name == "marian" else {}
        return {
            "architectures": [kind.class_name],
            "model_type": name,
            "is_encoder_decoder": True,
            "vocab_size": vocab_size,
            "d_model": cfg.encoder_embed_dim,
            **{foreign: getattr(cfg, local) for foreign, local, _ in _SIZES},
            "num_hidden_layers": cfg.encoder_layers,
            "max_position_embeddings": cfg.max_source_positions,
            "activation_function": activation_name(cfg.activation_fn),
            "scale_embedding": not cfg.no_scale_embedding,
            **{key: getattr(cfg, key) for key in _PROBABILITIES},
            "tie_word_embeddings": tied and (shared or name == "marian"),
            **sizes,
            "use_cache": True,
        }

    def special_ids(self, model: TransformerModel, tokenizer: Tokenizer | None) -> dict[str, int]:
        """The special ids of the files of a folder."""
        pad = model.encoder.embed_tokens.padding_idx
        eos = _kind_of(model)[1].ids["eos_token_id"] if tokenizer is None else tokenizer.dictionary.eos()
        bos = None if tokenizer is None else tokenizer.dictionary.bos()
        assert pad is not None
        ids = {"pad_token_id": pad, "eos_token_id": eos, "decoder_start_token_id": model.start_token(eos)}
        return ids if bos is None else {**ids, "bos_token_id": bos}

    def weights(self, model: TransformerModel) -> dict[str, Tensor]:
        """The weights of a model by their names in a folder.

        If the output projection is not tied, transformers expects the embedding of each side, too.
        """
        tensors = weights_of(model, self.layout(model.cfg))
        shared, tied = _shares(model.cfg)
        if (shared and not tied) or (not shared and _kind_of(model)[0] != "marian"):
            stacks = {_SHARED: model.encoder, **{_embedding(side): getattr(model, side) for side in SIDES}}
            tensors |= {name: stack.embed_tokens.weight.detach().clone() for name, stack in stacks.items()}
            tensors[HEAD] = model.decoder.output_projection.weight.detach().clone()
        return tensors

    def notes(self, model: TransformerModel) -> list[str]:
        """A note about a Pegasus with separate embeddings, which version 4 of transformers does not have."""
        if _shares(model.cfg)[0] or _kind_of(model)[0] != "pegasus":
            return []
        return [
            "Pegasus with separate embeddings of source and target: transformers 5 computes the same logits from this "
            "folder, transformers 4 does not, because it shares them"
        ]

    def layout(self, cfg: TransformerConfig) -> Layout:
        """The names of the weights; folders of the model without its output projection lack ``model.``."""
        shared, tied = _shares(cfg)
        optional, ignored = set(), set()
        aliases: dict[str, tuple[str, ...]] = {}
        ties: dict[str, str] = {}
        if shared:
            pieces = {_SHARED: Piece("encoder.embed_tokens.weight")}
            aliases = {_SHARED: tuple(map(_embedding, SIDES))} if tied else {}
            ties = {} if tied else dict.fromkeys(map(_embedding, SIDES), _SHARED)
        else:
            pieces = {_embedding(side): Piece(f"{side}.embed_tokens.weight") for side in SIDES}
        if tied:
            ties[HEAD] = _SHARED if shared else _embedding("decoder")
        else:
            pieces[HEAD] = Piece("decoder.output_projection.weight")
        if cfg.output_bias:
            pieces[_BIAS] = Piece("decoder.output_projection.bias", is_row=True)
            optional.add(_BIAS)
        for side in SIDES:
            pieces |= _stack(cfg, side)
            ignored.add(f"model.{side}.embed_positions.weights")  # sinusoids of an M2M
            if not cfg.encoder_learned_pos:
                optional.add(f"model.{side}.embed_positions.weight")
        return Layout(pieces, aliases, frozenset(ignored), ties, frozenset(optional & set(pieces)), prefix="model.")

    def untie(self, model: TransformerModel, weights: Mapping[str, Tensor]) -> None:
        """Untie the output projection, or the embeddings of source and target."""
        shared, tied = _shares(model.cfg)
        for name, tensor in weights.items():
            if name == HEAD:
                model.decoder.output_projection.weight, tied = nn.Parameter(tensor), False
            else:
                stack = model.encoder if "encoder." in name else model.decoder
                rows, dim = tensor.shape
                stack.embed_tokens = nn.Embedding(rows, dim, stack.embed_tokens.padding_idx, _weight=tensor)
                shared = False
        for key, value in _sharing(shared, tied).items():
            setattr(model.cfg, key, value)


ARCHITECTURE = BartArchitecture()


def _id(config: JSONConfig, kind: Kind, name: str) -> int:
    """A special id; -1 if there is none, which the file says with ``null``."""
    default = -1 if name in config.values else kind.ids[name]
    return config.get(name, default, minimum=-1)


def _vocab_sizes(config: JSONConfig, kind: Kind) -> tuple[int, int]:
    """The sizes of the source's and the target's vocabulary."""
    source = config.get("vocab_size", kind.defaults.get("vocab_size", 50265), minimum=1)
    separate = kind is KINDS["marian"] and not config.get("share_encoder_decoder_embeddings", True)
    return source, config.get("decoder_vocab_size", source, minimum=1) if separate else source


def _sharing(shared: bool, tied: bool) -> dict[str, bool]:
    """The options of a model whose source and target embeddings, or target and output embeddings, are the same."""
    return {
        "share_all_embeddings": shared and tied,
        "share_encoder_decoder_embed": shared and not tied,
        "share_decoder_input_output_embed": tied and not shared,
    }


def _shares(cfg: TransformerConfig) -> tuple[bool, bool]:
    """Two truth values: source and target embeddings are the same; target and output embeddings are the same."""
    shared = cfg.share_all_embeddings or cfg.share_encoder_decoder_embed
    return shared, cfg.share_all_embeddings or cfg.share_decoder_input_output_embed


def _embedding(side: str) -> str:
    return f"model.{side}.embed_tokens.weight"


def _stack(cfg: TransformerConfig, side: str) -> dict[str, Piece]:
    """The weights of the encoder or the decoder, without embeddings of tokens."""
    pieces = {}
    if getattr(cfg, f"{side}_learned_pos") or cfg.sinusoids == "paper":
        pieces[f"model.{side}.embed_positions.weight"] = Piece(f"{side}.embed_positions.weight")
    if cfg.layernorm_embedding:
        pieces |= with_bias(f"model.{side}.layernorm_embedding", f"{side}.layernorm_embedding")
    dim = getattr(cfg, f"{side}_embed_dim")
    for index in range(getattr(cfg, f"{side}_layers")):
        name = f"{side}.layers.{index}"
        names = ["self_attn_layer_norm", "fc1", "fc2", "final_layer_norm", "self_attn.out_proj"]
        projections = [("self_attn", "qkv", "in_proj")]
        if side == "decoder":
            names += ["encoder_attn_layer_norm", "encoder_attn.out_proj", "encoder_attn.q_proj"]
            projections.append(("encoder_attn", "kv", "kv_proj"))
        for part in names:
            pieces |= with_bias(f"model.{name}.{part}", f"{name}.{part}")
        for attention, letters, local in projections:
            for what in ("weight", "bias"):
                foreign = [f"model.{name}.{attention}.{letter}_proj.{what}" for letter in letters]
                pieces |= stacked_pieces(foreign, f"{name}.{attention}.{local}.{what}", dim)
    if getattr(cfg, f"{side}_normalize_before"):
        pieces |= with_bias(f"model.{side}.layer_norm", f"{side}.layer_norm")
    return pieces


def _kind_of(model: TransformerModel) -> tuple[str, Kind]:
    """The type whose structure a model has.

    Raises:
        ConfigError: no type has it.
    """
    cfg, pad = model.cfg, model.encoder.embed_tokens.padding_idx
    assert pad is not None
    has = {**vars(cfg), "position_offset": pad + 1 if cfg.position_offset is None else cfg.position_offset}
    if cfg.encoder_learned_pos:
        has["sinusoids"] = "fairseq"  # no matter which
    differing: dict[str, list[str]] = {}
    for name, kind in KINDS.items():
        wanted = kind.options(pad)
        wanted |= {"decoder_embed_dim": cfg.encoder_embed_dim, "max_target_positions": cfg.max_source_positions}
        wanted |= {} if kind.has_bias else {"output_bias": False}
        differing[name] = [key for key, value in wanted.items() if has[key] != value]
        one_vocabulary = model.encoder.embed_tokens.num_embeddings == model.decoder.embed_tokens.num_embeddings
        if not differing[name] and (one_vocabulary or name == "marian"):
            return name, kind
    nearest = min(differing, key=lambda name: len(differing[name]))
    values = {key: getattr(cfg, key) for key in differing[nearest]}
    keys = ", ".join(f"model.{key}={value_text(value)}" for key, value in values.items())
    raise ConfigError(
        f"a transformer with {keys or 'two vocabularies'} cannot be written in Hugging Face's layout; the nearest type "
        f"is {nearest}"
    )
