"""``seqgen-generate``: decode a test split, a file or standard input with a model or an ensemble."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqgen.arguments import given_values
from seqgen.checkpoints.loading import load_models
from seqgen.cli.command import log, run, set_up_device
from seqgen.cli.formats import FORMATS, wanted_details
from seqgen.cli.notes import summary
from seqgen.cli.output import check_output, open_output
from seqgen.config import GenerateConfig, GenerateDatasetConfig
from seqgen.config_dicts import to_dict
from seqgen.data.text import count_lines, is_pipe, read_lines, stream_lines
from seqgen.errors import ConfigError, DataError
from seqgen.memory import memory_errors
from seqgen.metrics import text_scores
from seqgen.task import Task
from seqgen.text.text_decoding import BUFFER_SIZE, TextDecoding
from seqgen.text.translator import Translator
from seqgen.text.word_streaming import TextStreamer

DESCRIPTION = "decodes a test split, a file or standard input with a trained model or an ensemble."


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    arguments = list(sys.argv[1:] if argv is None else argv)

    def work(cfg: GenerateConfig) -> int:
        overrides = [argument for argument in arguments if "=" in argument]
        debug = {f"debug.{key}": value for key, value in to_dict(cfg.debug).items()}
        return generate(cfg, {**given_values(cfg, "generation", overrides), **debug})

    run(GenerateConfig, work, DESCRIPTION, arguments)


def generate(cfg: GenerateConfig, given: Mapping[str, Any]) -> int:
    """Decode the input, write the output, and print scores and speed.

    Args:
        cfg: the whole configuration.
        given: the keys of its ``generation`` group that the user gave, and all keys of its ``debug`` group, as
            ``debug.KEY``. The models' own settings are used for the other keys.

    Returns:
        The exit code.

    Raises:
        UserError: a key, model or file cannot be used, or memory runs out.
    """
    _check_keys(cfg)
    streamer = TextStreamer() if cfg.stream else None
    decoding = _decoding(cfg, given, streamer)
    task = decoding.task
    lines, references, prefixes = input_lines(cfg, task), reference_lines(cfg, task), prefix_lines(cfg)
    if cfg.input not in ("", "-") and not is_pipe(Path(cfg.input)):  # a pipe can be read only once
        check_input(cfg, references)
    hypotheses: list[str] = []
    notes: list[tuple[int, str]] = []
    start = time.perf_counter()
    with open_output(cfg.output) as file, memory_errors(lambda: _less_memory(len(hypotheses))):
        if streamer is not None:
            streamer.file = file
        write = FORMATS[cfg.format](decoding, references)
        for translation in decoding.translate(lines, prefixes, _buffer_size(cfg)):
            hypotheses.append(translation.text)
            if cfg.print_alignment and any(item.alignment is None for item in translation.hypotheses):
                translation.notes.append("no alignment is written: the model returns no attention weights")
            notes += [(translation.id + 1, note) for note in translation.notes]
            if streamer is None:
                file.write(write(translation))
            if _buffer_size(cfg) == 1:
                file.flush()
    seconds = time.perf_counter() - start
    _report(cfg, hypotheses, references, notes, seconds, decoding.tokens_written)
    if summary_of_search := decoding.generator.setup.search.summary():
        log(summary_of_search)
    return 0


def _less_memory(written: int) -> str:
    return (
        f"after {written} lines, whose outputs were written; choose a smaller generation.beam, "
        "generation.batch_size or generation.max_tokens"
    )


def check_path_and_split(path: Sequence[str], lines: str, dataset: GenerateDatasetConfig) -> None:
    """Check that there are models to decode with, and only one text to decode.

    Args:
        path: the models.
        lines: the text file to decode; empty for a split of the task.
        dataset: which split.

    Raises:
        ConfigError: there is no model, or both a file and a split are given.
    """
    if not path:
        raise ConfigError("path is missing: give path=RUN_FOLDER, or path=[A,B] for an ensemble")
    if lines and dataset.gen_subset != type(dataset)().gen_subset:
        raise ConfigError(
            f"dataset.gen_subset={dataset.gen_subset} has no effect, because input={lines} is decoded instead; "
            "remove one of the two keys"
        )


def _check_keys(cfg: GenerateConfig) -> None:
    """Check before the models are loaded that no key is missing or has no effect, and that the output can be written.

    Raises:
        ConfigError: a key cannot be used.
    """
    check_path_and_split(cfg.path, cfg.input, cfg.dataset)
    if cfg.print_alignment and cfg.format != "fairseq":
        raise ConfigError(f"print_alignment=true needs format=fairseq, not format={cfg.format}; remove one of them")
    if cfg.stream and cfg.format != "text":
        raise ConfigError(f"stream=true needs format=text, not format={cfg.format}; remove one of them")
    files = (cfg.input, cfg.reference, cfg.prefix, cfg.generation.prefix_trie, cfg.generation.shortlist)
    check_output("output", cfg.output, *files)


def _decoding(cfg: GenerateConfig, given: Mapping[str, Any], streamer: TextStreamer | None) -> TextDecoding:
    """Load the models, prepare decoding with the details that the output format needs, and print the notes of both."""
    loaded = load_models(cfg.path, set_up_device(cfg.common), cfg.reading, device_map=cfg.common.device_map)
    for note in (note for item in loaded for note in item.notes):
        log(note)
    translator = Translator(loaded, **{**settings_of_part(cfg.dataset, loaded[0].task), **given})
    decoding = translator.prepare(wanted_details(cfg, translator), streamer)
    for note in decoding.notes:
        log(note)
    if cfg.format == "text" and decoding.cfg.nbest > 1:
        log(
            f"generation.nbest={decoding.cfg.nbest}: format=text writes only the best hypothesis of each line; "
            "format=json and format=fairseq write all of them"
        )
    return decoding


def input_lines(cfg: GenerateConfig, task: Task) -> Iterator[str]:
    """The lines to decode: those of ``input``, or of the split ``dataset.gen_subset`` of the models' task."""
    task = _part(cfg, task)
    if not cfg.input:
        return task.source_lines(cfg.dataset.gen_subset)
    lines: Iterator[str] = read_lines(Path(cfg.input), pipes=True)
    if cfg.input == "-":
        lines = stream_lines(sys.stdin.buffer, "standard input")
    return (task.input_of(line) for line in lines) if cfg.dataset.gen_source else lines


def settings_of_part(dataset: GenerateDatasetConfig, task: Task) -> dict[str, str]:
    """The decoding settings of the part of a task that ``dataset.gen_source`` names, such as the languages of a pair.

    Args:
        dataset: names the part, or none.
        task: the task of the first model.
    """
    return task.part(dataset.gen_source).decoding_settings() if dataset.gen_source else {}


def _part(cfg: GenerateConfig, task: Task) -> Task:
    """The task, or the part of a mixture that ``dataset.gen_source`` names."""
    return task.part(cfg.dataset.gen_source) if cfg.dataset.gen_source else task


def check_input(cfg: GenerateConfig, references: list[str] | None) -> None:
    """Read the input once before decoding, so that errors in it are reported before hours of work."""
    count = count_lines(Path(cfg.input))
    if references is not None and len(references) != count:
        raise DataError(
            f"input={cfg.input} has {count} lines but reference={cfg.reference} has {len(references)}; line n of the "
            "reference must belong to line n of the input"
        )
    if cfg.prefix and (prefixes := count_lines(Path(cfg.prefix))) != count:
        raise DataError(
            f"input={cfg.input} has {count} lines but prefix={cfg.prefix} has {prefixes}; line n of the prefix "
            "file must be the forced beginning of output n"
        )


def prefix_lines(cfg: GenerateConfig) -> Iterator[str] | None:
    """The forced beginnings of the outputs; ``None`` if there are none."""
    return read_lines(Path(cfg.prefix)) if cfg.prefix else None


def reference_lines(cfg: GenerateConfig, task: Task) -> list[str] | None:
    """The reference outputs of ``input_lines``; ``None`` if there are none."""
    if cfg.reference:
        return list(read_lines(Path(cfg.reference), pipes=True))
    if not cfg.input:
        lines = _part(cfg, task).references(cfg.dataset.gen_subset)
        return None if lines is None else list(lines)
    return None


def _buffer_size(cfg: GenerateConfig) -> int:
    if cfg.generation.buffer_size:
        return cfg.generation.buffer_size
    return 1 if cfg.input == "-" and (sys.stdin.isatty() or cfg.stream) else BUFFER_SIZE


def _report(
    cfg: GenerateConfig,
    hypotheses: list[str],
    references: list[str] | None,
    notes: list[tuple[int, str]],
    seconds: float,
    tokens: int,
) -> None:
    """Print the notes about lines, the scores and the speed."""
    for line in summary(notes):
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
            for name, score in text_scores(hypotheses, references).items():
                print(f"{name} = {score.value:.2f}{f'  ({score.signature})' if score.signature else ''}", file=stream)
    speed = f"{len(hypotheses) / seconds:.1f} sentences/s, {tokens / seconds:.1f} tokens/s"
    print(f"{len(hypotheses)} sentences, {tokens} tokens in {seconds:.1f} s: {speed}", file=stream)


if __name__ == "__main__":
    main()
