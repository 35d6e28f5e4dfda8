"""Decodes lines with given settings, and records every step."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqgen.config import DebugConfig, GenerationConfig
from seqgen.config.values import from_dict, to_dict
from seqgen.errors import ConfigError
from seqgen.generation.search.exact import ExactSearch
from seqgen.lab.traces.line_trace import LineTrace, Probe, Recorder
from seqgen.text.results import Details, Translation
from seqgen.text.text_decoding import TextDecoding
from seqgen.text.text_model import TextModel
from seqgen.text.translator import Translator

Values = Mapping[str, Any]
"""Values by full key: ``generation.beam``, ``search.groups``, ``debug.beam_table``."""


@dataclass(frozen=True)
class Lines:
    """Consecutive lines of the input.

    Attributes:
        first: number of the first line, from 0.
        texts: the lines.
        prefixes: the forced beginning of each output; ``None`` for no forced beginnings.
    """

    first: int
    texts: Sequence[str]
    prefixes: Sequence[str] | None = None


@dataclass(frozen=True)
class Settings:
    """All settings of a decode, including those that come from the model.

    Attributes:
        values: values by full key.
    """

    values: Values

    @classmethod
    def of(cls, generation: GenerationConfig, debug: DebugConfig) -> Settings:
        """The settings in two groups of a configuration."""
        own = to_dict(generation)
        components = own.pop("components")
        groups = (("generation", own), ("debug", to_dict(debug)))
        return cls({f"{group}.{key}": value for group, values in groups for key, value in values.items()} | components)

    @property
    def generation(self) -> dict[str, Any]:
        """The values of the ``generation`` group by key; those of the components' own keys are in ``components``."""
        components = {k: v for k, v in self.values.items() if k.partition(".")[0] not in ("generation", "debug")}
        return {**self._group("generation"), "components": components}

    @property
    def debug(self) -> DebugConfig:
        """The ``debug`` group."""
        return from_dict(DebugConfig, self._group("debug"), "debug")

    def _group(self, group: str) -> dict[str, Any]:
        return {k.removeprefix(f"{group}."): v for k, v in self.values.items() if k.startswith(f"{group}.")}

    def differing(self, other: Settings) -> list[str]:
        """The keys whose values differ; a key that only one of the two has is among them."""
        keys = dict.fromkeys((*self.values, *other.values))
        return [key for key in keys if self.values.get(key) != other.values.get(key)]

    def with_keys(self, keys: Sequence[str], other: Settings) -> Settings:
        """A copy in which the given keys have the values of ``other``."""
        values = {key: value for key, value in self.values.items() if key not in keys}
        return Settings(values | {key: other.values[key] for key in keys if key in other.values})


class InspectedModels:
    """Models that decode the same lines several times, with different settings.

    Args:
        load: loads the models; called once for each dtype, because models are converted in place.
    """

    def __init__(self, load: Callable[[], Sequence[TextModel]]):
        self.load = load
        self.translators: dict[str, Translator] = {}

    def translator(self, dtype: str) -> Translator:
        """The models in a dtype; ``""`` means float32.

        Raises:
            ConfigError: the models have different target vocabularies.
        """
        dtype = "" if dtype == "float32" else dtype
        if dtype not in self.translators:
            translator = Translator(list(self.load()), **({"dtype": dtype} if dtype else {}))
            if translator.by_agreement:
                raise ConfigError(
                    "the steps of members with different target vocabularies cannot be recorded; give models with the "
                    "same target vocabulary"
                )
            self.translators[dtype] = translator
        return self.translators[dtype]

    def resolve(self, given: Values, debug: DebugConfig) -> Settings:
        """Complete the settings that the user gives with the models' own.

        Args:
            given: the values that the user gave for keys of the ``generation`` group.
            debug: the switches of the optimizations.

        Returns:
            All settings.

        Raises:
            ConfigError: settings exclude each other.
        """
        given = {**given, "dtype": "" if given.get("dtype") == "float32" else given.get("dtype", "")}
        cfg = self.translator(given["dtype"]).settings(**given)
        return Settings.of(dataclasses.replace(cfg, nbest=1), debug)  # not compared: decodes return whole n-best lists

    def prepare(self, settings: Settings, recorder: Recorder | None, scores: bool = False) -> TextDecoding:
        """Prepare to decode whole n-best lists.

        Args:
            settings: all settings of the decode.
            recorder: an observer that is added to those of the settings; ``None`` for no additional one.
            scores: whether hypotheses get a ``model_score``.

        Returns:
            The prepared decoding.

        Raises:
            ConfigError: settings exclude each other.
        """
        generation = {**settings.generation, "nbest": 1}
        decoding = self.translator(generation["dtype"]).prepare(Details(scores=scores), **generation)
        generator = copy.copy(decoding.generator)
        observers = list(generator.setup.observers)
        if recorder is not None and not isinstance(generator.setup.search, ExactSearch):  # exact search has no steps
            observers.append(recorder)
        generator.setup = dataclasses.replace(generator.setup, debug=settings.debug, observers=observers)
        decoding.generator = generator
        decoding.cfg = dataclasses.replace(decoding.cfg, nbest=generator.beam_size)  # the whole n-best list
        return decoding

    def decode(self, settings: Settings, lines: Lines, probe: Probe | None = None) -> dict[int, LineTrace]:
        """Decode lines together, and record every step.

        Args:
            settings: all settings of the decode.
            lines: the lines.
            probe: a recorder that also keeps the members' scores at one step; hypotheses then have a ``model_score``.

        Returns:
            The trace of each line, by its number.

        Raises:
            ConfigError: settings exclude each other.
        """
        recorder = probe or Recorder()
        found = _translate(self.prepare(settings, recorder, scores=probe is not None), lines)
        plain = self.prepare(settings, None)
        joined = _translate(plain, lines) if plain.generator.can_merge else None
        return {
            item.id: LineTrace(
                recorder.steps(item.id),
                item.hypotheses,
                None if joined is None else joined[item.id - lines.first].hypotheses,
            )
            for item in found
        }


def _translate(decoding: TextDecoding, lines: Lines) -> list[Translation]:
    return list(decoding.translate(lines.texts, lines.prefixes, len(lines.texts), lines.first))
