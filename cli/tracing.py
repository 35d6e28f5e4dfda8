"""``trace=FILE`` and ``replay=FILE`` of ``seqgen-generate``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from seqgen.cli.command import log
from seqgen.cli.output import check_output, open_output
from seqgen.config import GenerateConfig
from seqgen.config.values import changed
from seqgen.errors import ConfigError
from seqgen.lab.traces.trace import Trace, replayed
from seqgen.lab.traces.writer import TraceWriter
from seqgen.text.output_formats import json_line
from seqgen.text.results import Translation
from seqgen.text.sources import EncodedSource
from seqgen.text.text_decoding import TextDecoding

OF_REPLAY = ("replay", "output", "format", "common", "generation")
"""The keys and groups that may be set with ``replay``; keys of ``generation`` are refused if the user gave them."""

SUFFIXES = (".jsonl", ".jsonl.gz")


class NoTrace(nullcontext[None]):
    """Stands for a trace that is not written."""

    notes: Sequence[str] = ()

    def lines(self, lines: Iterable[str | EncodedSource]) -> Iterable[str | EncodedSource]:
        """The lines, unchanged."""
        return lines

    def add(self, translation: Translation) -> None:
        """Do nothing."""


def check_trace(cfg: GenerateConfig, *inputs: str) -> None:
    """Check before the models are loaded that the trace can be written.

    Raises:
        ConfigError: it cannot, or an option has no effect.
    """
    if not cfg.trace:
        for key in changed(cfg.trace_options):
            raise ConfigError(f"trace_options.{key} has no effect without trace=FILE; give both, or remove the key")
        return
    if not cfg.trace.endswith(SUFFIXES):
        raise ConfigError(f"trace={cfg.trace} must end in {' or '.join(SUFFIXES)}; give another name")
    check_output("trace", cfg.trace, *inputs, other_outputs=[cfg.output])


def tracing(cfg: GenerateConfig, decoding: TextDecoding, references: Sequence[str] | None) -> TraceWriter | NoTrace:
    """What writes the trace that the user asks for.

    Raises:
        ConfigError: the strategy cannot be traced, or an option has no effect.
    """
    if not cfg.trace:
        return NoTrace()
    if cfg.trace_options.reference_scores and references is None:
        raise ConfigError("trace_options.reference_scores has no effect without references; give reference=FILE")
    return TraceWriter(Path(cfg.trace), decoding, cfg.trace_options, references, cfg.path)


def _typed(cfg: GenerateConfig, name: str) -> list[str]:
    """The keys of the ``generation`` group as the user typed them: those of components have groups of their own."""
    return list(cfg.generation.components) if name == "components" else [f"generation.{name}"]


def replay(cfg: GenerateConfig, given: Mapping[str, Any]) -> int:
    """Write the n-best lists that follow from a trace.

    Args:
        cfg: the whole configuration.
        given: the keys of its ``generation`` group that the user gave, and all keys of its ``debug`` group.

    Returns:
        The exit code.

    Raises:
        ConfigError: a key has no effect.
        DataError: the trace cannot be read or replayed.
    """
    unused = [key for key in changed(cfg) if key not in OF_REPLAY]
    unused += [key for name in given if "." not in name for key in _typed(cfg, name)]
    if unused:
        raise ConfigError(f"{unused[0]} has no effect with replay={cfg.replay}, which needs no models; remove it")
    if cfg.format == "fairseq":
        raise ConfigError("format=fairseq cannot be written with replay=FILE; choose format=text or format=json")
    check_output("output", cfg.output, cfg.replay)
    trace = Trace(cfg.replay)
    how: dict[str, Any] = {"semantics": trace.header.rules}
    how |= {} if trace.header.seed is None else {"seed": trace.header.seed}
    with open_output(cfg.output) as file:
        for translation in replayed(trace):
            file.write(json_line(translation, how, 1) if cfg.format == "json" else translation.text + "\n")
    if not trace.complete:
        log(f"{cfg.replay} has only the first {len(trace)} lines of the decode")
    return 0
