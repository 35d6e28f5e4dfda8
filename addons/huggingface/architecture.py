"""Architectures in Hugging Face's layout: their ``config.json`` files, and the base class of what converts them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from seqgen.extend import (
    CheckpointError,
    DecodingTask,
    EncoderDecoderModel,
    ForeignConfig,
    Layout,
    Tokenizer,
    read_json,
    read_lists,
    shown,
    weights_of,
)

GENERATION_FILE = "generation_config.json"

V = TypeVar("V", int, str)

KEYS = read_lists(__package__, "keys.txt")
"""Lists of keys of ``config.json`` and ``generation_config.json``."""

NO_EFFECT = frozenset(KEYS["no_effect"])
"""Keys of a ``config.json`` that do not change what transformers computes, if the architecture does not read them."""


GENERAL = {
    **dict.fromkeys(("d_model", "n_embd"), "hidden_size"),
    **dict.fromkeys(("num_layers", "n_layer"), "num_hidden_layers"),
    **dict.fromkeys(("encoder_attention_heads", "num_heads", "n_head"), "num_attention_heads"),
    **{"d_kv": "head_dim", "n_positions": "max_position_embeddings"},
}
"""The general names of sizes in ``config.json`` by those of the architectures."""


class JSONConfig(ForeignConfig):
    """A ``config.json`` of transformers."""

    @classmethod
    def read(cls, path: Path) -> JSONConfig:
        """Read a file.

        Raises:
            CheckpointError: it is missing, no JSON, or holds no keys and values.
        """
        values = read_json(path)
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} is damaged: it must contain keys and values")
        return cls(path, values)

    def read_table(self, table: Iterable[tuple[str, str, Any]], minimum: int = 0) -> dict[str, Any]:
        """Values that have another name here, by that name.

        Args:
            table: for each value its name in the file, the name here, and the default. If the file also has the general
                name of a size, that value is used, as in transformers.
            minimum: the smallest whole number that is allowed.
        """
        values = {}
        for foreign, local, default in table:
            value = self.get(foreign, default, minimum)
            values[local] = self.get(GENERAL[foreign], value, minimum) if foreign in GENERAL else value
        return values

    def list_of(self, kind: type[V], name: str, default: list[V]) -> list[V]:
        """A list of texts or of whole numbers.

        Args:
            kind: the type of its values.
            name: the key.
            default: the list if the key is missing.

        Raises:
            CheckpointError: it is something else.
        """
        values: list[V] = self.value(name, default)
        if not isinstance(values, list) or not all(type(value) is kind for value in values):
            raise self.wrong(name, values, f"a list of {'texts' if kind is str else 'whole numbers'}")
        return values

    def bound(self, name: str, default: float) -> float:
        """A bound of scores or logits; 0 if the file has ``null``, which means none.

        Args:
            name: the key.
            default: the bound if the key is missing.

        Raises:
            CheckpointError: it is not a number above 0.
        """
        if self.value(name) is None:
            return 0.0 if name in self.values else default
        value = self.get(name, default)
        if value <= 0:
            raise self.wrong(name, value, "a number above 0, or null")
        return value

    def part(self, *names: str) -> Mapping[str, Any]:
        """The keys and values under a key, or under a key of those, and so on; empty if a key is missing.

        Raises:
            CheckpointError: there is something else.
        """
        part, place = self, ""
        for name in names:
            place = f"{place}.{name}".removeprefix(".")
            if not isinstance(inner := part.value(name, {}), dict):
                raise self.wrong(place, inner, "keys and values")
            part = JSONConfig(self.path, inner)
        return part.values

    def check_kind(self, kind: str, off: Collection[str] = ("tie_encoder_decoder", "pruned_heads")) -> None:
        """Refuse a model without an encoder, and keys that change the computation and are not supported.

        Args:
            kind: the type of the model, for the message.
            off: the keys, which must be missing or off.

        Raises:
            CheckpointError: the model has no encoder, or a key is set.
        """
        self.refuse(off, kind)
        if not self.get("is_encoder_decoder", True):
            raise CheckpointError(f"{self.path}: a {kind} with is_encoder_decoder=false is not supported")

    def unknown(self, known: Collection[str]) -> list[str]:
        """Notes for the user about keys that are neither known nor without effect.

        Args:
            known: the keys that are known.
        """
        return [
            f"{self.path}: {key}={shown(value)} is unknown and is ignored"
            for key, value in self.values.items()
            if not (key in known or key.rpartition(".")[2] in NO_EFFECT or key.startswith("_"))
            and value not in (None, False, 0, [], "", {})
        ]

    def written_by(self, version: int) -> bool:
        """True if a version of transformers, such as 5, wrote the file."""
        return str(self.value("transformers_version")).startswith(f"{version}.")

    def activation(self, default: str, key: str = "activation_function") -> str:
        """The activation that a key names, as a key of ``transformer_layer.ACTIVATIONS``.

        Args:
            default: the value if the key is missing.
            key: the key in the file.

        Raises:
            CheckpointError: the activation is not supported.
        """
        return ACTIVATIONS[self.one_of(key, sorted(ACTIVATIONS), default)]


HEAD = "lm_head.weight"
"""The name of the output projection in a folder."""

ACTIVATIONS = {"gelu_new": "gelu_accurate", "gelu": "gelu", "relu": "relu", "tanh": "tanh"}
ACTIVATIONS |= {"gelu_pytorch_tanh": "gelu_accurate", "gelu_fast": "gelu_accurate", "silu": "swish", "swish": "swish"}
ACTIVATIONS |= {"gelu_accurate": "gelu_accurate", "gelu_python": "gelu"}
"""For each supported value of ``activation_function`` the name in ``transformer_layer.ACTIVATIONS``."""


class Architecture(ABC):
    """Converts an architecture from and to Hugging Face's layout."""

    model_class: type[EncoderDecoderModel] | None = None
    """The class of the models; ``None`` if folders are only read."""

    head, tying = HEAD, "share_decoder_input_output_embed"
    """The name of the output projection in a folder, and the key that ties it to the embedding."""

    decoder_only = False
    """True if the source is a prompt, so that lengths of the decoding settings count it."""

    @abstractmethod
    def read_config(self, config: JSONConfig) -> Any:
        """Turn a folder's ``config.json`` into a configuration of the model.

        Args:
            config: the content of the file.

        Raises:
            CheckpointError: a value is of the wrong type, or seqgen does not support such a model.
        """

    def vocab_size(self, cfg: Any, config: JSONConfig) -> int:
        """The size of the vocabulary, of the source if there are two; by default ``cfg.vocab_size``.

        Args:
            cfg: the configuration that ``read_config`` returned.
            config: the content of ``config.json``.
        """
        size: int = cfg.vocab_size
        return size

    @abstractmethod
    def make_task(self, cfg: Any, path: Path, tokenizer: Tokenizer) -> DecodingTask:
        """The task that decodes; completes the configuration with values that are in other files or the tokenizer.

        Args:
            cfg: the configuration, which may be changed.
            path: the folder.
            tokenizer: its tokenizer.
        """

    def write_config(self, model: Any) -> dict[str, Any]:
        """The content of a model's ``config.json``, without its special ids; only for architectures that are written.

        Args:
            model: the model.

        Returns:
            Values by key.

        Raises:
            ConfigError: the file cannot describe the model.
        """
        raise NotImplementedError

    def special_ids(self, model: Any, tokenizer: Tokenizer | None) -> Mapping[str, int | None]:
        """The special ids in ``config.json`` and ``generation_config.json``; see ``write_config``.

        Args:
            model: the model.
            tokenizer: its tokenizer; without one, the ids are those that are usual for the architecture.
        """
        raise NotImplementedError

    @abstractmethod
    def layout(self, cfg: Any) -> Layout:
        """The names of the weights of a model.

        Args:
            cfg: its configuration.
        """

    def first_decoder_input(self, path: Path, start: int, bos: int, usual: int) -> int:
        """The id of the first decoder input of a folder.

        It comes from ``generation_config.json``, or else from ``config.json``. In each file, ``bos_token_id`` is used
        if there is no ``decoder_start_token_id``.

        Args:
            path: the folder.
            start: ``decoder_start_token_id`` of ``config.json``; -1 if there is none.
            bos: ``bos_token_id`` of ``config.json``; -1 if there is none.
            usual: the id with which the model begins if its configuration has -1.

        Returns:
            The id; -1 for the usual one, or if no file has one.
        """
        starts = [start, bos]
        if (path / GENERATION_FILE).is_file():
            generation = JSONConfig.read(path / GENERATION_FILE)
            names = ("decoder_start_token_id", "bos_token_id")
            starts = [*(generation.get(name, -1, minimum=-1) for name in names), *starts]
        found = next((start for start in starts if start >= 0), usual)
        return -1 if found == usual else found

    def generation_defaults(self, config: JSONConfig) -> dict[str, Any]:
        """Decoding settings that hold if a folder has no ``generation_config.json`` and its ``config.json`` lacks them.

        Args:
            config: the content of ``config.json``.

        Returns:
            Values by the names in the file; none by default.
        """
        return {}

    def reading_notes(self, config: JSONConfig) -> list[str]:
        """Notes for the user about keys of a ``config.json`` that are not used: by default those that are unknown.

        Args:
            config: the content of ``config.json``, from which everything else has been read.
        """
        return config.unknown(config.asked)

    def weights(self, model: Any) -> dict[str, Tensor]:
        """The weights of a model by their names in a folder.

        Args:
            model: the model.
        """
        return weights_of(model, self.layout(model.cfg))

    def notes(self, model: Any) -> list[str]:
        """Notes for the user about a folder written from a model; none by default.

        Args:
            model: the model.
        """
        return []

    def untie(self, model: Any, weights: Mapping[str, Tensor]) -> None:
        """Untie weights that the configuration ties but that differ in the files; by default the output projection.

        Args:
            model: the model.
            weights: the differing weights by their names in a folder; see ``Layout.tied``.
        """
        setattr(model.cfg, self.tying, False)
        model.decoder.output_projection.weight = nn.Parameter(weights[self.head])


def activation_name(activation: str) -> str:
    """The value of ``activation_function`` for a key of ``transformer_layer.ACTIVATIONS``.

    Args:
        activation: the key.
    """
    names = {local: foreign for foreign, local in reversed(ACTIVATIONS.items())}
    return names[activation.replace("gelu_fast", "gelu_accurate")]
