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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, ClassVar, NamedTuple, TypeAlias

from seqgen.config import GenerateConfig, GenerationConfig
from seqgen.decoding.building import Resources
from seqgen.registry import MissingAddonError, Registry, import_declared
from seqgen.text.input_line import InputLine
from seqgen.text.results import DecodedLine, TextHypothesis, Translation

LINE_STAGES = Registry("line stage", "line_stage")
"""The line stages that are registered, by name."""
register_line_stage = LINE_STAGES.register

_DECLARED = {
    "input_split": "seqgen.addons.paragraphs.stage",
    "glossary": "seqgen.addons.glossary.stage",
    **dict.fromkeys(("prompt", "chat"), "seqgen.addons.prompts.stage"),
    "protect": "seqgen.addons.protect.stage",
    "check_outputs": "seqgen.addons.protect.checks",
    "quality_features": "seqgen.addons.confidence.stage",
    "confidence": "seqgen.addons.confidence.stage",
    "certificate": "seqgen.addons.catalogue.certificate",
    "rewriters": "seqgen.addons.rewriting.stage",
    "replace_unknown": "seqgen.addons.rewriting.unknown_words",
}
"""By the key of ``generation`` that selects a stage: the module that registers it; only such a key imports it."""


Score: TypeAlias = Callable[[Sequence[tuple[InputLine, TextHypothesis]]], Iterable[TextHypothesis]]
"""Gives hypotheses of lines the scores of the models that decode."""


class LineOrder(enum.IntEnum):
    """When a stage reads and writes a line, relative to other stages; those of equal order run by name."""

    TEXT = 10
    """Changes the text."""
    PHRASES = 20
    """Demands phrases, which depend on the text."""
    HYPOTHESES = 30
    """Writes before the others, while a translation has all hypotheses of the search; ``nbest`` of them are kept."""
    RESULTS = 40
    """Describes the translation."""


class Split(NamedTuple):
    """A line that is decoded in parts.

    Attributes:
        parts: the parts. Their numbers, on which random numbers depend, are different for all parts of all lines;
            those but the last one have ``ends_line=False``.
        join: makes the translation of the line of those of its parts.
    """

    parts: Sequence[InputLine]
    join: Callable[[Sequence[Translation]], Translation]


class LineStage:
    """One feature's part of decoding a line; each method may be left out.

    Attributes:
        order: when it runs.
        key: the key of ``GenerationConfig`` that selects the stage; empty for a stage that always runs.
        splits: whether ``split`` divides lines; only one stage of a decode can.
        streams: whether outputs can be shown, token by token, before ``write`` has seen them; others have a ``key``.
        reads_empty: whether ``read`` makes something of empty lines, which are then decoded.
        written: by key of ``GenerationConfig`` what most formats write of it, such as ``"no terms"``, and the formats
            that write all, such as ``"format=json"``, for a note to the user; ``None`` if all can have the key.
    """

    order: ClassVar[LineOrder] = LineOrder.RESULTS
    key: ClassVar[str] = ""
    splits: ClassVar[bool] = False
    streams: ClassVar[bool] = True
    reads_empty: ClassVar[bool] = False
    written: ClassVar[Mapping[str, tuple[str, str] | None]] = {}

    @classmethod
    def check(cls, cfg: GenerateConfig) -> None:
        """Refuse options of ``seqgen-generate`` that the stage cannot be used with, before a model is loaded.

        Args:
            cfg: the configuration, which selects the stage.

        Raises:
            ConfigError: says which option to remove.
        """

    @classmethod
    def build(cls, cfg: GenerationConfig, resources: Resources) -> LineStage | None:
        """Build the stage; ``None`` if these settings do not need it.

        Args:
            cfg: the decoding settings.
            resources: the models and the target vocabulary.
        """
        return cls()

    def split(self, line: InputLine) -> Split:
        """Divide a line into parts, which are then read, decoded and written like separate lines.

        Args:
            line: the line; it may be empty.
        """
        raise NotImplementedError

    def read(self, line: InputLine) -> InputLine:
        """Change a line before it is encoded, or demand phrases of its output; see ``reads_empty``.

        Args:
            line: the line, whose sources are not encoded yet.
        """
        return line

    def rewrite(self, lines: Sequence[InputLine], decoded: Sequence[DecodedLine], score: Score) -> None:
        """Change the lists of hypotheses of many lines, before they are ranked, or the lists of notes.

        Lines of a decode with such a stage are ranked in groups. It cannot be streamed.

        Args:
            lines: lines of which at least one hypothesis was found.
            decoded: for each of them the translation, without hypotheses, and the hypotheses, best first.
            score: scores hypotheses that have no ``positional_scores``.
        """

    def write(self, line: InputLine, translation: Translation) -> Translation:
        """Change the translation of a line, or add extras to it.

        Args:
            line: the line; it has the extras that ``read`` added, and none if it is empty.
            translation: the translation.
        """
        return translation

    def again(self, line: InputLine, translation: Translation) -> InputLine | None:
        """Ask that a line is decoded again, in place of its translation; ``None`` if the translation is kept.

        Args:
            line: the line before ``read``, or what this method returned for it.
            translation: its translation, after ``write`` of all stages.

        Returns:
            The line, for example with an extra that changes what ``read`` does; its translation is asked about again.
        """
        return None

    def joined(self, whole: Translation, parts: Sequence[Translation]) -> Translation:
        """Add the extras of a line that was split.

        Args:
            whole: the translation of the line.
            parts: the translations of its parts, two or more.
        """
        return whole

    def record(self, translation: Translation) -> Mapping[str, Any]:
        """The fields of JSON output that describe the extras of a translation.

        Args:
            translation: the translation; without extras if the line could not be decoded.
        """
        return {}

    @classmethod
    def columns(cls, translation: Translation) -> Mapping[str, str]:
        """The columns of TSV output that describe the extras of a translation: names and texts.

        Tables have the columns of all installed stages, so that their number does not depend on the settings.

        Args:
            translation: the translation; without extras if the stage is not selected.
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
        cfg: the decoding settings, which select them.
        resources: see ``LineStage.build``.

    Attributes:
        splitter: the stage that divides lines; ``None`` if they are decoded as they are.
        unstreamed: a stage whose outputs cannot be streamed, if there is one.
        rewriting: the stages that change lists of hypotheses.
        needs_all: whether a stage writes all hypotheses of the search, not only ``nbest`` of them.
        reads_empty: whether a stage reads empty lines.

    Raises:
        MissingAddonError: a stage belongs to an add-on that is not installed.
    """

    def __init__(self, cfg: GenerationConfig, resources: Resources):
        built = {name: stage.build(cfg, resources) for name, stage in stages_of(cfg, resources.objects).items()}
        self._stages = {name: stage for name, stage in built.items() if stage is not None}
        self.splitter = next((stage for stage in self._stages.values() if stage.splits), None)
        self.unstreamed = next((each for each in self._stages.values() if not each.streams), None)
        self.rewriting = [each for each in self._stages.values() if type(each).rewrite is not LineStage.rewrite]
        self.needs_all = any(stage.order == LineOrder.HYPOTHESES for stage in self._stages.values())
        self.reads_empty = any(stage.reads_empty for stage in self._stages.values())

    @property
    def written(self) -> dict[str, tuple[str, str] | None]:
        """See ``LineStage.written``."""
        return {key: what for stage in self._stages.values() for key, what in stage.written.items()}

    def split(self, line: InputLine) -> Split:
        """See ``LineStage.split``; a line that is not divided is its own part."""
        if self.splitter is None:
            return Split([line], lambda parts: parts[0])
        parts, join = self.splitter.split(line)
        return Split(parts, lambda translations: self._joined(join(translations), translations))

    def read(self, line: InputLine) -> InputLine:
        """See ``LineStage.read``."""
        for stage in self._stages.values():
            line = stage.read(line)
        return line

    def write(self, line: InputLine, translation: Translation, of_search: bool) -> Translation:
        """``LineStage.write`` of the stages of ``LineOrder.HYPOTHESES``, or after ``nbest`` are kept of the others."""
        for stage in self._stages.values():
            if (stage.order == LineOrder.HYPOTHESES) == of_search:
                translation = stage.write(line, translation)
        return translation

    def again(self, line: InputLine, translation: Translation) -> InputLine | None:
        """See ``LineStage.again``; the first stage that asks for it is followed."""
        asked = (stage.again(line, translation) for stage in self._stages.values())
        return next((each for each in asked if each is not None), None)

    def _joined(self, whole: Translation, parts: Sequence[Translation]) -> Translation:
        for stage in self._stages.values() if len(parts) > 1 else ():
            whole = stage.joined(whole, parts)
        return whole

    def record(self, translation: Translation) -> dict[str, Any]:
        """See ``LineStage.record``."""
        return {key: value for stage in self._stages.values() for key, value in stage.record(translation).items()}

    def counts(self, translation: Translation) -> Counter[str]:
        """The counts of all stages, as ``STAGE.NAME``; see ``LineStage.counts``."""
        pairs = ((name, stage.counts(translation)) for name, stage in self._stages.items())
        return Counter({f"{name}.{key}": value for name, found in pairs for key, value in found.items()})


def stages_of(cfg: GenerationConfig | None = None, chosen: Iterable[str] = ()) -> dict[str, type[LineStage]]:
    """The stages by name, in their order.

    Args:
        cfg: the decoding settings, which select some; ``None`` for all that are installed.
        chosen: keys that select stages, too, because they have objects.

    Raises:
        MissingAddonError: a selected stage belongs to an add-on that is not installed.
    """
    for key, module in _DECLARED.items():
        with suppress(MissingAddonError) if cfg is None else nullcontext():
            if cfg is None or getattr(cfg, key, None):  # the add-on that declares the key may be missing
                import_declared(module, f"generation.{key}")
    found: dict[str, Any] = {entry.name: entry.component for entry in LINE_STAGES.entries()}
    in_order = sorted(found.items(), key=lambda pair: (pair[1].order, pair[0]))
    chosen = ("", *chosen)
    return {name: stage for name, stage in in_order if cfg is None or stage.key in chosen or getattr(cfg, stage.key)}


def summaries(cfg: GenerationConfig, counts: Mapping[str, int]) -> list[str]:
    """What the stages say about all lines; a job calls it in a process that builds no stages.

    Args:
        cfg: the decoding settings.
        counts: the sums of ``LineStages.counts``.
    """
    found = []
    for name, stage in stages_of(cfg).items():
        own = {key.removeprefix(f"{name}."): count for key, count in counts.items() if key.startswith(f"{name}.")}
        found.append(stage.summary(Counter(own)))
    return list(dict.fromkeys(text for text in found if text))  # stages can say the same
