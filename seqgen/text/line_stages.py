"""Line stages: what a feature does with a line before it is encoded, and with its translation.

A stage is registered by name; a class that reads a key of ``GenerationConfig`` names it::

    @register_line_stage("shout")
    class Shout(LineStage):
        order = LineOrder.RESULTS

        def write(self, line, translation):
            return translation.with_extra("shouted", translation.text.upper())
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from seqgen.config import GenerationConfig
from seqgen.decoding.building import Resources
from seqgen.registry import Registry, import_declared
from seqgen.text.input_line import InputLine
from seqgen.text.results import Translation

LINE_STAGES = Registry("line stage", "line_stage")
"""The line stages that are registered, by name."""
register_line_stage = LINE_STAGES.register

_DECLARED = {"glossary": "seqgen.addons.glossary.stage", "certificate": "seqgen.addons.catalogue.certificate"}
"""By the key of ``generation`` that selects a stage: the module that registers it; only such a key imports it."""


class LineOrder(enum.IntEnum):
    """When a stage reads and writes a line, relative to other stages; those of equal order run by name."""

    TEXT = 10
    """Changes the text."""
    PHRASES = 20
    """Demands phrases, which depend on the text."""
    RESULTS = 30
    """Describes the translation."""


class LineStage:
    """One feature's part of decoding a line; each method may be left out.

    Attributes:
        order: when it runs.
        key: the key of ``GenerationConfig`` that selects the stage; empty for a stage that always runs.
    """

    order: ClassVar[LineOrder] = LineOrder.RESULTS
    key: ClassVar[str] = ""

    @classmethod
    def build(cls, cfg: GenerationConfig, resources: Resources) -> LineStage | None:
        """Build the stage; ``None`` if these settings do not need it.

        Args:
            cfg: the decoding settings.
            resources: the models and the target vocabulary.
        """
        return cls()

    def read(self, line: InputLine) -> InputLine:
        """Change a line before it is encoded, or demand phrases of its output; empty lines are not read.

        Args:
            line: the line, whose sources are not encoded yet.
        """
        return line

    def write(self, line: InputLine, translation: Translation) -> Translation:
        """Change the translation of a line, or add extras to it.

        Args:
            line: the line; it has the extras that ``read`` added, and none if it is empty.
            translation: the translation.
        """
        return translation

    def joined(self, whole: Translation, parts: Sequence[Translation]) -> Translation:
        """Add the extras of a line that was split.

        Args:
            whole: the translation of the line.
            parts: the translations of its sentences, two or more.
        """
        return whole

    def record(self, translation: Translation) -> Mapping[str, Any]:
        """The fields of JSON output that describe the extras of a translation.

        Args:
            translation: the translation; without extras if the line could not be decoded.
        """
        return {}

    def counts(self, translation: Translation) -> Mapping[str, int]:
        """Numbers of a translation that are summed up for ``summary``.

        Args:
            translation: the translation.
        """
        return {}

    @classmethod
    def summary(cls, sums: Mapping[str, int]) -> str:
        """What a command or a job says at its end; empty for nothing.

        Args:
            sums: the sums of ``counts`` over all lines; a name that never occurred is 0.
        """
        return ""


class LineStages:
    """The stages of a decode, in their order; each method is that of all stages together.

    Args:
        stages: the stages by name.
    """

    def __init__(self, stages: Mapping[str, LineStage]):
        self._stages = stages

    @classmethod
    def build(cls, cfg: GenerationConfig, resources: Resources) -> LineStages:
        """Build the stages that the settings select.

        Args:
            cfg: the decoding settings.
            resources: see ``LineStage.build``.

        Raises:
            MissingAddonError: a stage belongs to an add-on that is not installed.
        """
        built = ((name, stage.build(cfg, resources)) for name, stage in _selected(cfg))
        return cls({name: stage for name, stage in built if stage is not None})

    def read(self, line: InputLine) -> InputLine:
        """See ``LineStage.read``."""
        for stage in self._stages.values():
            line = stage.read(line)
        return line

    def write(self, line: InputLine, translation: Translation) -> Translation:
        """See ``LineStage.write``."""
        for stage in self._stages.values():
            translation = stage.write(line, translation)
        return translation

    def joined(self, whole: Translation, parts: Sequence[Translation]) -> Translation:
        """See ``LineStage.joined``."""
        for stage in self._stages.values():
            whole = stage.joined(whole, parts)
        return whole

    def record(self, translation: Translation) -> dict[str, Any]:
        """See ``LineStage.record``."""
        return {key: value for stage in self._stages.values() for key, value in stage.record(translation).items()}

    def counts(self, translation: Translation) -> Counter[str]:
        """The counts of all stages, as ``STAGE.NAME``; see ``LineStage.counts``."""
        pairs = ((name, stage.counts(translation)) for name, stage in self._stages.items())
        return Counter({f"{name}.{key}": value for name, found in pairs for key, value in found.items()})


def _selected(cfg: GenerationConfig) -> Iterator[tuple[str, type[LineStage]]]:
    """The names and classes of the stages that the settings select, in their order."""
    for key, module in _DECLARED.items():
        if getattr(cfg, key, None):
            import_declared(module, f"generation.{key}")
    stages: list[tuple[str, Any]] = [(entry.name, entry.component) for entry in LINE_STAGES.entries()]
    for name, stage in sorted(stages, key=lambda pair: (pair[1].order, pair[0])):
        if not stage.key or getattr(cfg, stage.key):
            yield name, stage


def summaries(cfg: GenerationConfig, counts: Mapping[str, int]) -> list[str]:
    """What the stages say about all lines; a job calls it in a process that builds no stages.

    Args:
        cfg: the decoding settings.
        counts: the sums of ``LineStages.counts``.
    """
    found = []
    for name, stage in _selected(cfg):
        own = {key.removeprefix(f"{name}."): count for key, count in counts.items() if key.startswith(f"{name}.")}
        found.append(stage.summary(Counter(own)))
    return [text for text in found if text]
