"""``seqgen-generate``: decode a test split, a file or standard input with a model or an ensemble.

At a terminal, it prompts for lines or shows a progress bar. With ``trace=FILE`` it also writes a trace.
"""

from __future__ import annotations

import io
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from seqgen.cli import line_decoding
from seqgen.cli.command import Arguments, log, run, set_up_device
from seqgen.cli.output import check_output, format_scores, open_output
from seqgen.cli.record import Record
from seqgen.config import GenerateConfig
from seqgen.config.values import changed, split_argument
from seqgen.core.errors import ConfigError, DataError
from seqgen.data.records import is_json
from seqgen.data.text import count_lines, is_pipe, read_lines, stream_lines
from seqgen.metrics import text_scores
from seqgen.registry import import_declared
from seqgen.system.devices import memory_errors
from seqgen.system.progress import LineProgress
from seqgen.task import Task
from seqgen.text.input_line import UNKNOWN
from seqgen.text.line_stages import summaries
from seqgen.text.output_formats import FORMATS
from seqgen.text.results import Translation
from seqgen.text.text_decoding import BUFFER_SIZE, TextDecoding
from seqgen.text.word_streaming import TextStreamer

UNIT_FILES = {".po", ".pot", ".xlf", ".xliff"}
"""Endings of the names of files whose units are decoded."""

DESCRIPTION = "decodes a test split, a file or standard input with a trained model or an ensemble."


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""

    def work(cfg: GenerateConfig, arguments: Arguments) -> int:
        if cfg.lines:
            if cfg.input:
                raise ConfigError(f"there are words without KEY=, or lines=, and input={cfg.input}; remove one of them")
            cfg.input = "-"  # words are read as standard input is
            sys.stdin = io.TextIOWrapper(io.BytesIO("".join(f"{line}\n" for line in cfg.lines).encode()))
        if cfg.units != "unfinished" or UNIT_FILES & {Path(name).suffix.lower() for name in (cfg.input, cfg.output)}:
            files = import_declared("seqgen.addons.translation_files.command", "a file of units (.po, .xlf)")
            return int(files.decode(cfg, lambda: decode(cfg, arguments)))
        return decode(cfg, arguments)

    def decode(cfg: GenerateConfig, arguments: Arguments) -> int:
        keys = [split_argument(override)[0] for override in arguments.overrides]
        if cfg.engine != "ray" and (of_ray := [key for key in keys if key.startswith("ray.")]):
            raise ConfigError(
                f"{of_ray[0]} needs engine=ray, not engine={cfg.engine}; remove the key or set engine=ray"
            )
        if cfg.engine == "ray" or any(key.startswith("job.") for key in keys):
            jobs = import_declared("seqgen.addons.jobs.command", "a job (engine=ray, job.*)")
            return int(jobs.run_job(cfg, arguments.given, arguments.overrides))
        generate(cfg, arguments)
        return 0

    run(GenerateConfig, work, DESCRIPTION, argv, pass_arguments=True, words="lines")


def generate(cfg: GenerateConfig, arguments: Arguments) -> None:
    """Decode the input, write the output, and print scores and speed.

    Args:
        cfg: the whole configuration.
        arguments: the settings that the user gave; the others are those of the models.

    Raises:
        UserError: a key, model or file cannot be used, or memory runs out.
    """
    _check_keys(cfg)
    references, total = check_input(cfg)
    typed = TypedLines(sys.stdin.buffer) if cfg.input == "-" and sys.stdin.isatty() else None
    if typed is not None:
        log(f"loading {', '.join(cfg.path)} ...")
    streamer = TextStreamer() if cfg.stream else None
    device = set_up_device(cfg.common)
    loaded, decoding = line_decoding.prepare_decoding(cfg, arguments.given, device, log, streamer)
    record = Record(cfg.record, arguments.typed, arguments.overrides, loaded) if cfg.record else None
    task, noted = decoding.task, len(decoding.notes)
    lines = input_lines(cfg, task, typed)
    prefixes = read_lines(Path(cfg.prefix)) if cfg.prefix else None
    if not cfg.input and references is None:
        references = split_references(cfg, task)
        total = None if references is None else len(references)
    if typed is not None:
        log("ready; type a line and press Enter, or Ctrl-D to end")
    clean = line_decoding.make_text_cleaner(cfg.remove_bpe, cfg.detokenize)
    outputs = _Outputs(typed)
    start = time.perf_counter()
    trace = tracing(cfg, decoding, references)
    with (
        open_output(cfg.output) as file,
        trace or nullcontext(),
        memory_errors(
            lambda: (
                f"after {len(outputs.hypotheses)} lines, whose outputs were written; choose a smaller "
                "generation.beam, generation.batch_size or generation.max_tokens"
            )
        ),
        outputs.counted(),
        line_progress(cfg, total) as on_line,
    ):
        if record is not None:
            lines = record.lines(lines)
        if trace is not None:
            lines = trace.lines(lines)
        if streamer is not None:
            streamer.file = cast(IO[str], file)  # it has the methods that are used
        write = FORMATS[cfg.format](decoding, references)
        for translation in decoding.translate(lines, prefixes, _buffer_size(cfg), on_line=on_line):
            translation = line_decoding.complete(translation, cfg, clean)
            if trace is not None:
                trace.add(translation)
            outputs.add(translation)
            outputs.counts.update(decoding.stages.counts(translation))
            if streamer is None:
                file.write(write(translation))
            if _buffer_size(cfg) == 1:
                file.flush()
    seconds = time.perf_counter() - start - (typed.waited if typed is not None else 0.0)
    for note in [*(trace.notes if trace is not None else ()), *decoding.notes[noted:]]:
        log(note)
    if record is not None:
        record.write(decoding, file.written)
    _report(cfg, outputs, references, seconds)
    if summary_of_search := decoding.generator.summary():
        log(summary_of_search)


@dataclass
class _Outputs:
    """The outputs and notes of the lines decoded so far.

    Attributes:
        typed: shows notes at once if a user types the lines.
        hypotheses: the text of each line.
        tokens: number of tokens of these texts.
        counts: what the line stages counted, by name.
        notes: numbers of lines, from 1, with their notes that were not shown yet.
    """

    typed: TypedLines | None
    hypotheses: list[str] = field(default_factory=list)
    tokens: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[tuple[int, str]] = field(default_factory=list)

    def add(self, translation: Translation) -> None:
        """Add the next line."""
        self.hypotheses.append(translation.text)
        self.tokens += translation.num_tokens
        notes = [(translation.id + 1, note) for note in translation.notes]
        if self.typed is None:
            self.notes += notes
            return
        for text in summary(notes):
            log(text)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Print the number of outputs if the user interrupts the command."""
        try:
            yield
        except KeyboardInterrupt:
            log(f"{len(self.hypotheses)} lines are decoded, and their outputs written")
            raise


def _check_keys(cfg: GenerateConfig) -> None:
    """Check before the models are loaded that no key is missing or has no effect, and that the output can be written.

    Raises:
        ConfigError: a key cannot be used.
    """
    line_decoding.check_outputs(cfg)
    if cfg.stream and cfg.format != "text":
        raise ConfigError(f"stream=true needs format=text, not format={cfg.format}; remove one of them")
    if cfg.stream and (cfg.remove_bpe or cfg.detokenize):
        raise ConfigError("remove_bpe and detokenize need whole outputs, which stream=true does not have; remove one")
    files = (cfg.input, cfg.reference, cfg.prefix, *line_decoding.decoding_files(cfg))
    check_output("output", cfg.output, *files, in_place=True)
    if not cfg.trace and (unused := changed(cfg.trace_options)):
        raise ConfigError(f"trace_options.{unused[0]} has no effect without trace=FILE; set both, or remove the key")
    if cfg.trace:
        if not cfg.trace.endswith(SUFFIXES):
            raise ConfigError(f"trace={cfg.trace} must end in {' or '.join(SUFFIXES)}; give another name")
        check_output("trace", cfg.trace, *files, other_outputs=[cfg.output], in_place=True)
    if cfg.record:
        check_output("record", cfg.record, *files, other_outputs=[cfg.output, cfg.trace])


def input_lines(cfg: Any, task: Task, typed: TypedLines | None = None) -> Iterator[str]:
    """The lines to decode: those of ``input``, or of the split ``dataset.gen_subset`` of the models' task.

    Args:
        cfg: the configuration of a command with ``input`` and ``dataset``.
        task: the task of the first model.
        typed: the lines of standard input if a user types them; ``None`` if not.
    """
    task = line_decoding.part_of(cfg.dataset, task)
    if not cfg.input:
        return task.source_lines(cfg.dataset.gen_subset)
    stdin = typed or sys.stdin.buffer
    lines = stream_lines(stdin, "standard input") if cfg.input == "-" else line_decoding.read_input(cfg.input, task)
    return (task.input_of(line) for line in lines) if cfg.dataset.gen_source else lines


def check_input(cfg: Any) -> tuple[list[str] | None, int | None]:
    """Read the references, and the other files once, so that errors in them are reported before hours of work.

    Args:
        cfg: the configuration of a command with ``input``, ``reference`` and ``prefix``.

    Returns:
        The lines of ``reference``, or ``None``; the number of lines to decode, ``None`` if it is not known yet.

    Raises:
        DataError: a file cannot be read, or the numbers of lines differ.
    """
    line_decoding.check_plain_text(
        input=[] if is_json(Path(cfg.input)) else [cfg.input], reference=[cfg.reference], prefix=[cfg.prefix]
    )
    references = list(read_lines(Path(cfg.reference), pipes=True)) if cfg.reference else None
    if cfg.input in ("", "-") or is_pipe(Path(cfg.input)):  # a pipe can be read only once
        return references, None if references is None else len(references)
    count = count_lines(Path(cfg.input))
    prefixes = list(read_lines(Path(cfg.prefix))) if cfg.prefix else None
    for key, lines in (("reference", references), ("prefix", prefixes)):
        if lines is not None and len(lines) != count:
            raise DataError(
                f"input={cfg.input} has {count} lines but {key}={getattr(cfg, key)} has {len(lines)}; line n of the "
                f"{key} must belong to line n of the input"
            )
    return references, count


def split_references(cfg: Any, task: Task) -> list[str] | None:
    """The reference outputs of the split ``dataset.gen_subset`` of the models' task; ``None`` if it has none."""
    lines = line_decoding.part_of(cfg.dataset, task).references(cfg.dataset.gen_subset)
    return None if lines is None else list(lines)


def _buffer_size(cfg: GenerateConfig) -> int:
    if cfg.generation.buffer_size:
        return cfg.generation.buffer_size
    return 1 if cfg.input == "-" and (sys.stdin.isatty() or cfg.stream) else BUFFER_SIZE


def _report(cfg: GenerateConfig, outputs: _Outputs, references: list[str] | None, seconds: float) -> None:
    """Print the notes about lines, the scores and the speed."""
    hypotheses, tokens = outputs.hypotheses, outputs.tokens
    for line in summary(outputs.notes):
        log(line)
    for line in summaries(cfg.generation, outputs.counts):
        log(line)
    if not hypotheses:
        log("the input has no lines, so the output is empty")
    stream = sys.stderr if cfg.output == "-" else sys.stdout
    if references is not None:
        if len(references) != len(hypotheses):
            raise DataError(
                f"{len(hypotheses)} lines were decoded but the reference has {len(references)}; the output was "
                "written, but no scores were computed"
            )
        if references:
            for line in format_scores(text_scores(hypotheses, references), hypotheses):
                print(line, file=stream)
    speed = f"{len(hypotheses) / seconds:.1f} sentences/s, {tokens / seconds:.1f} tokens/s"
    print(f"{len(hypotheses)} sentences, {tokens} tokens in {seconds:.1f} s: {speed}", file=stream)


MOST_NOTES = 20
"""Maximum number of different notes shown."""

MOST_UNKNOWN = 500
"""Maximum number of characters shown of the text that are not in a vocabulary."""

MOST_NUMBERS = 5
"""Maximum number of line numbers shown per note."""


def summary(notes: Iterable[tuple[int, str]]) -> list[str]:
    """Merge notes with the same text, and those on characters or words that are not in a vocabulary.

    Args:
        notes: pairs of the number of an input line, from 1, and the text of a note.

    Returns:
        One line for each of the first different notes, and one that counts the others. Control characters are escaped,
        also line breaks.
    """
    found: dict[str, tuple[list[int], dict[str, None]]] = {}
    for line, note in notes:
        kind = "".join(note.partition(UNKNOWN)[:2])
        lines, unknown = found.setdefault(kind, ([], {}))
        lines.append(line)
        unknown |= dict.fromkeys(note[len(kind) :].split())
    shown = []
    for kind, (lines, unknown) in found.items():
        numbers = ", ".join(map(str, lines[:MOST_NUMBERS]))
        others = f" and {len(lines) - MOST_NUMBERS} others" if len(lines) > MOST_NUMBERS else ""
        text = kind + " ".join(unknown)[:MOST_UNKNOWN]
        escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        shown.append(f"line{'s' * (len(lines) > 1)} {numbers}{others}: {escaped}")
    left = len(shown) - MOST_NOTES
    more = [f"... and {left} further notes; format=json writes all of them"] if left > 0 else []
    return [*shown[:MOST_NOTES], *more]


class TypedLines:
    """The lines that a user types at a terminal, with a prompt before each on standard error.

    Args:
        file: the terminal, opened for bytes.

    Attributes:
        waited: seconds for which the command has waited for the user.
    """

    def __init__(self, file: IO[bytes]):
        self.file = file
        self.waited = 0.0

    def readline(self, limit: int) -> bytes:
        """Prompt for a line and return its first ``limit`` bytes; empty at the end of the input."""
        print("> ", end="", file=sys.stderr, flush=True)
        start = time.perf_counter()
        line = self.file.readline(limit)
        self.waited += time.perf_counter() - start
        if not line:
            print(file=sys.stderr)  # Ctrl-D leaves the cursor behind the prompt
        return line


@contextmanager
def line_progress(cfg: GenerateConfig, total: int | None) -> Iterator[Callable[[], None] | None]:
    """Show how many lines are decoded: a bar, or without a terminal a line of text now and then.

    Nothing is shown if a terminal shows the outputs, or if each line is answered at once.

    Args:
        cfg: the whole configuration.
        total: number of lines; ``None`` if unknown.

    Yields:
        A function to call after each line; ``None`` if nothing is shown.
    """
    if _buffer_size(cfg) == 1 or (cfg.output == "-" and sys.stdout.isatty()):
        yield None
        return
    with closing(LineProgress(total, 0, 0, cfg.job.progress, log)) as progress:
        yield lambda: progress.advance(1, 0)


SUFFIXES = (".jsonl", ".jsonl.gz")


def tracing(cfg: GenerateConfig, decoding: TextDecoding, references: Sequence[str] | None) -> Any:
    """The writer of the trace that the user asks for, or ``None``.

    Raises:
        ConfigError: the strategy cannot be traced, or an option has no effect.
    """
    if not cfg.trace:
        return None
    if cfg.trace_options.reference_scores and references is None:
        raise ConfigError("trace_options.reference_scores has no effect without references; set reference=FILE")
    writer = import_declared("seqgen.addons.traces.writer", "a trace").TraceWriter
    return writer(Path(cfg.trace), decoding, cfg.trace_options, references, cfg.path)


if __name__ == "__main__":
    main()
