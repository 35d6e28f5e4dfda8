"""Decoding lines with given settings and keeping what happened."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqgen.config import DebugConfig, GenerationConfig
from seqgen.config_dicts import from_dict, to_dict
from seqgen.generation.search.exact import ExactSearch
from seqgen.inspection.trace import LineTrace, Probe, Recorder
from seqgen.text.results import Translation
from seqgen.text.text_decoding import Details, TextDecoding
from seqgen.text.text_model import TextModel
from seqgen.text.translator import Translator

Values = Mapping[str, Any]
"""Values by their whole keys: ``generation.beam``, ``search.groups``, ``debug.beam_table``."""


@dataclass(frozen=True)
class Lines:
    """Consecutive lines of the input.

    Attributes:
        first: number of the first one, from 0.
        texts: the lines.
        prefixes: what the output of each begins with; ``None`` for nothing.
    """

    first: int
    texts: Sequence[str]
    prefixes: Sequence[str] | None = None


@dataclass(frozen=True)
class Settings:
    """All settings of a decode, those that come from the model included."""

    values: Values

    @classmethod
    def of(cls, generation: GenerationConfig, debug: DebugConfig) -> Settings:
        """From two groups of a configuration."""
        own = to_dict(generation)
        components = own.pop("components")
        groups = (("generation", own), ("debug", to_dict(debug)))
        return cls({f"{group}.{key}": value for group, values in groups for key, value in values.items()} | components)

    @property
    def generation(self) -> dict[str, Any]:
        """The keys of the ``generation`` group, the components' own keys among them."""
        components = {k: v for k, v in self.values.items() if k.partition(".")[0] not in ("generation", "debug")}
        return {**self._group("generation"), "components": components}

    @property
    def debug(self) -> DebugConfig:
        """The ``debug`` group."""
        return from_dict(DebugConfig, self._group("debug"), "debug")

    def _group(self, group: str) -> dict[str, Any]:
        return {k.removeprefix(f"{group}."): v for k, v in self.values.items() if k.startswith(f"{group}.")}

    def differing(self, other: Settings) -> list[str]:
        """The keys whose values differ, a component's key that one of them lacks included."""
        keys = dict.fromkeys((*self.values, *other.values))
        return [key for key in keys if self.values.get(key) != other.values.get(key)]

    def with_keys(self, keys: Sequence[str], other: Settings) -> Settings:
        """These settings, with the values that ``other`` has for some keys."""
        values = {key: value for key, value in self.values.items() if key not in keys}
        return Settings(values | {key: other.values[key] for key in keys if key in other.values})


UNOPTIMIZED = DebugConfig(
    use_cache=False,
    beam_table="off",
    share_encoder_output=False,
    skip_log_softmax=False,
    two_stage_candidates=False,
    prepacked_weights=False,
    lazy_compaction=False,
    continuous_batching=False,
)
"""Every optimization is off."""


class InspectedModels:
    """Models that decode the same lines again and again, with different settings.

    Args:
        load: loads the models; called once for each dtype that is asked for, since models are converted in place.
    """

    def __init__(self, load: Callable[[], Sequence[TextModel]]):
        self.load = load
        self.translators: dict[str, Translator] = {}

    def translator(self, dtype: str) -> Translator:
        """The models in a dtype; ``""`` is float32."""
        dtype = "" if dtype == "float32" else dtype
        if dtype not in self.translators:
            self.translators[dtype] = Translator(list(self.load()), **({"dtype": dtype} if dtype else {}))
        return self.translators[dtype]

    def resolve(self, given: Values, debug: DebugConfig) -> Settings:
        """All settings where the user gives some keys of the ``generation`` group: the models' own are added.

        Raises:
            ConfigError: settings exclude each other.
        """
        given = {**given, "dtype": "" if given.get("dtype") == "float32" else given.get("dtype", "")}
        cfg = self.translator(given["dtype"]).settings(**given)
        return Settings.of(dataclasses.replace(cfg, nbest=1), debug)  # whole lists are compared

    def prepare(self, settings: Settings, recorder: Recorder | None, scores: bool = False) -> TextDecoding:
        """Make ready to decode, with an observer where one is given.

        Raises:
            ConfigError: settings exclude each other.
        """
        generation = {**settings.generation, "nbest": 1}
        decoding = self.translator(generation["dtype"]).prepare(Details(scores=scores), **generation)
        generator = copy.copy(decoding.generator)
        steps = recorder is not None and not isinstance(generator.setup.search, ExactSearch)  # which has no steps
        observers = [*generator.setup.observers, *([recorder] if recorder is not None and steps else [])]
        generator.setup = dataclasses.replace(generator.setup, debug=settings.debug, observers=observers)
        decoding.generator = generator
        decoding.cfg = dataclasses.replace(decoding.cfg, nbest=generator.beam_size)  # the whole n-best list
        return decoding

    def decode(self, settings: Settings, lines: Lines, probe: Probe | None = None) -> dict[int, LineTrace]:
        """Decode lines.

        Args:
            settings: how.
            lines: which, all of them at once.
            probe: also keeps the model's scores at one step; hypotheses then have their ``model_score``.

        Returns:
            What happened, by the number of the line.
        """
        recorder = probe or Recorder()
        found = _translate(self.prepare(settings, recorder, scores=probe is not None), lines)
        plain = self.prepare(settings, None)
        joined = _translate(plain, lines) if plain.generator.can_merge else None
        return {
            item.id: LineTrace(
                recorder.steps.get(item.id, []),
                item.hypotheses,
                None if joined is None else joined[item.id - lines.first].hypotheses,
            )
            for item in found
        }


def _translate(decoding: TextDecoding, lines: Lines) -> list[Translation]:
    return list(decoding.translate(lines.texts, lines.prefixes, len(lines.texts), lines.first))
