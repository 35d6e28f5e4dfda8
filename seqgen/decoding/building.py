"""Components are built from their configuration, with the vocabulary and the tokenizer that they may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypeVar

import torch

from seqgen.config import FastConfig, GenerationConfig
from seqgen.config.compose import component_config
from seqgen.config.values import default_of
from seqgen.core.component import Component
from seqgen.core.contract import check_returned
from seqgen.core.errors import ConfigError, DataError, nearest
from seqgen.core.observers import Observer
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer, is_id
from seqgen.registry import Registry, import_declared

C = TypeVar("C", bound=Component)
T = TypeVar("T")

IDS = "ids:"
"""The beginning of an entry that consists of ids instead of text; see ``Resources.sequence``."""


@dataclass(frozen=True)
class Resources:
    """The objects that a component can use when it is built from its configuration.

    Attributes:
        dictionary: the target vocabulary.
        encode: turns a text of the target language into ids, without end-of-sentence; ``None`` without a tokenizer.
        decode: turns ids into text; ``None`` without a tokenizer.
        extra_end_tokens: ids that end an output besides end-of-sentence.
        device: device of the models.
        models: the models that decode, each with its task (``TextModel``), for a component that decodes or scores text
            with them; empty where a criterion builds its utility.
        source_dictionary: the source vocabulary; ``None`` if it is not known.
        observers: the observers of the search, for a line stage that reports what they found.
        ensemble: the settings that make them an ensemble: their sources, weights and combination.
            ``Translator(models, **ensemble)`` scores and decodes with the same ensemble.
        settings: the ``generation`` group, with the keys that ``register_options`` has added.
        objects: by key the components that are given as objects, for a line stage.
    """

    dictionary: Dictionary
    encode: Callable[[str], Sequence[int]] | None = None
    decode: Callable[[Sequence[int]], str] | None = None
    extra_end_tokens: Sequence[int] = ()
    device: torch.device = torch.device("cpu")
    models: Sequence[Any] = ()
    source_dictionary: Dictionary | None = None
    observers: Sequence[Observer] = ()
    ensemble: Mapping[str, Any] = field(default_factory=dict)
    settings: GenerationConfig = field(default_factory=GenerationConfig)
    objects: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, cfg: GenerationConfig, dictionary: Dictionary, tokenizer: Tokenizer | None, **further: Any) -> Self:
        """The resources under a configuration, with the end tokens that it names.

        Args:
            cfg: the configuration.
            dictionary: the target vocabulary.
            tokenizer: the target tokenizer; ``None`` if texts cannot be encoded.
            further: the other attributes.

        Raises:
            ConfigError: an end token is not in the vocabulary.
        """
        encode, decode = (None, None) if tokenizer is None else (tokenizer.encode, tokenizer.decode)
        found = cls(dictionary, encode, decode, settings=cfg, **further)
        with name_key_in_errors("generation.end_symbols"):
            ends = dict.fromkeys(found.tokens(cfg.end_symbols))
        return replace(found, extra_end_tokens=[index for index in ends if index != dictionary.eos()])

    def token(self, token: str) -> int:
        """The id of a token.

        Raises:
            ConfigError: it is not in the vocabulary.
        """
        if token not in self.dictionary:
            near = nearest(token, self.dictionary.symbols)
            raise ConfigError(f"{token!r} is not in the target vocabulary{near}")
        return self.dictionary.index(token)

    def tokens(self, tokens: Sequence[str]) -> list[int]:
        """The ids of some tokens; see ``token``."""
        return [self.token(token) for token in tokens]

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text; without a tokenizer, its words are tokens of the vocabulary."""
        if self.encode is not None:
            return tuple(self.encode(text))
        return tuple(self.dictionary.word_index(word) for word in text.split())

    def phrase(self, text: str) -> tuple[int, ...]:
        """The ids of a text that the model can generate.

        Raises:
            ConfigError: the text is empty or has the unknown token.
        """
        ids = self.ids(text)
        if not ids or self.dictionary.unk() in ids:
            why = "has words or characters that are not in the target vocabulary" if ids else "is empty"
            raise ConfigError(f"{text!r} {why}, so the model never generates it; remove it")
        return ids

    def sequence(self, entry: str) -> tuple[int, ...]:
        """The ids of an entry of ``bad_words`` or ``sequence_bias``.

        Args:
            entry: a text; or ``ids:`` and ids of tokens, such as ``ids:7 31``, for sequences that no text gives.

        Raises:
            ConfigError: the model cannot generate the text, or an id is not in the vocabulary.
        """
        if not entry.startswith(IDS):
            return self.phrase(entry)
        words, size = entry.removeprefix(IDS).split(), len(self.dictionary)
        if not words or not all(is_id(word, size) for word in words):
            raise ConfigError(f"{entry!r} must have ids from 0 to {size - 1} after {IDS!r}, such as '{IDS}7 31'")
        return tuple(map(int, words))


def build_component(registry: Registry, name: str, base: type[C], cfg: GenerationConfig, resources: Resources) -> C:
    """Make a registered component.

    Args:
        registry: has it.
        name: a registered name or a preset.
        base: the class that it must be a subclass of.
        cfg: has the values that the user gave for it (``cfg.components``).
        resources: what it may use.

    Raises:
        ConfigError: the name is not registered or is of another kind of component, or a value cannot be used.
    """
    entry = registry.entry(name)
    if not issubclass(entry.component, base):
        raise ConfigError(f"{registry.kind} {name!r} ({entry.defined_in}) does not subclass {base.__name__}")
    made = entry.component.build(component_config(registry, name, cfg), replace(resources, settings=cfg))
    return check_returned(entry.component, "build", made, base)


def apply_keys(what: str, made: T, settings: GenerationConfig | FastConfig, *further: Any) -> T:
    """Let keys that differ from their defaults change what is built, each by ``setup="package.module:function"``.

    Args:
        what: the fact that names the function: ``"setup"`` (of a ``DecodingSetup``) or ``"scorer"``.
        made: what is built.
        settings: the keys.
        further: further arguments of these functions, for ``"setup"`` the ``Resources``.

    Returns:
        What the function of the last key returns, given what that of the key before it returned, and the key's value.
    """
    for key in fields(settings):
        if what in key.metadata and (value := getattr(settings, key.name)) != default_of(key):
            module, _, name = key.metadata[what].partition(":")
            made = getattr(import_declared(module, f"the key {key.name}"), name)(made, value, *further)
    return made


@contextmanager
def name_key_in_errors(key: str) -> Iterator[None]:
    """Let messages about a value begin with the key that it was given in.

    Args:
        key: such as ``generation.suppress``.
    """
    try:
        yield
    except (ConfigError, DataError) as error:
        raise type(error)(f"{key}: {error}") from None
