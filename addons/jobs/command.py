"""A job of ``seqgen-generate``: decoding in parts, which several workers decode and which can be continued."""

from __future__ import annotations

import copy
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from seqgen.addons.jobs.folder import ERRORS, JobFolder, manifest_of, merged_notes
from seqgen.addons.jobs.job import Job, JobStopped, Stop
from seqgen.addons.jobs.processes import LocalWorkers
from seqgen.addons.jobs.source import Source, find_source, plan_parts
from seqgen.addons.jobs.workers import Answers, Workers
from seqgen.cli.line_decoding import (
    check_outputs,
    complete,
    decoding_files,
    make_text_cleaner,
    part_of,
    prepare_decoding,
)
from seqgen.cli.provenance import versions
from seqgen.cli.record import file_digests, models_fingerprint, named_files
from seqgen.config import SPEED, GenerateConfig, keys_tagged
from seqgen.extend import (
    FORMATS,
    ConfigError,
    LineProgress,
    Translation,
    UserError,
    available_cores,
    check_output,
    disk_errors,
    duration,
    fingerprint,
    import_plugins,
    is_pipe,
    log,
    new_file,
    remove_leftovers,
    run_lock,
    set_up_device,
    split_argument,
    to_dict,
)
from seqgen.modules.kernel_choice import TIMES, Kind, measure_all
from seqgen.text.line_stages import summaries

FAILED_LINES = 3
"""Exit code of a job that is done, but in which lines have failed."""

PIECE_LINES = 4096
"""Number of lines that a worker gets at a time if ``generation.buffer_size`` is 0."""


def run_job(cfg: GenerateConfig, given: Mapping[str, Any], overrides: Sequence[str]) -> int:
    """Decode the input in parts, continue where an earlier process has stopped, and merge the outputs.

    Args:
        cfg: the whole configuration.
        given: see ``generate``.
        overrides: all ``key=value`` arguments.

    Returns:
        The exit code: 0, ``FAILED_LINES``, or 128 and the number of the signal that stopped the job.

    Raises:
        UserError: a key, model or file cannot be used.
    """
    keys = dict(map(split_argument, overrides))
    _check_keys(cfg)
    place = Path(cfg.job.folder or f"{cfg.output}.parts")
    source = find_source(cfg.input, cfg.job.format, cfg.job.column)
    _check_places(cfg, source, place)
    with Stop() as stop, run_lock(place, "job.folder"):
        folder = JobFolder(place, ".jsonl" if cfg.format == "json" else ".txt")
        try:
            return _run(cfg, given, keys, source, folder, stop)
        except (JobStopped, UserError) as error:
            done = f"{folder.lines} lines are done and kept in {place}"
            if isinstance(error, UserError):
                raise type(error)(f"{error}; {done}" if folder.lines else str(error)) from error
            what = done if folder.lines else f"what was decoded before is kept in {place}"
            log(f"stopped; {what}; to continue, run the same command again")
            return stop.exit_code


def _run(
    cfg: GenerateConfig,
    given: Mapping[str, Any],
    keys: Mapping[str, str],
    source: Source,
    folder: JobFolder,
    stop: Stop,
) -> int:
    start = time.monotonic()
    models = models_fingerprint(cfg.path)
    named = {key: value for key, value in keys.items() if key not in ("path", "input", "output", "job.folder")}
    files = file_digests(named_files(named))
    log(f"reading {cfg.input} ...")
    plan = plan_parts(source, cfg.job.part_lines, stop.check)
    read = {**models, **files}
    folder.open(manifest_of(_settings(cfg, given), read, cfg.job.part_lines, plan, versions()), plan.parts)
    piece_lines = cfg.generation.buffer_size or PIECE_LINES
    job = Job(folder, source, plan, fingerprint(read), piece_lines, log, stop.check)
    before = folder.lines
    if before:
        log(f"{before} of {plan.lines} lines were decoded before; continuing")
    try:
        if job.undone():
            progress = LineProgress(plan.lines, before, folder.failed, cfg.job.progress, log)
            with closing(progress), closing(_workers(cfg, given, tuple(files))) as workers:
                job.run(workers, progress)
    finally:
        failed = folder.write_errors()
    _merge(cfg, folder, stop, "output" in keys)
    _report(cfg, folder, plan.lines, plan.lines - before, failed, time.monotonic() - start)
    return FAILED_LINES if failed else 0


def _check_keys(cfg: GenerateConfig) -> None:
    """Refuse keys that have no effect in a job.

    Raises:
        ConfigError: a key is missing or cannot be used.
    """
    check_outputs(cfg)
    if cfg.input in ("", "-") or is_pipe(Path(cfg.input)):
        raise ConfigError(
            "a job reads its input more than once, so that it can be continued; set input= to a file, a folder or a "
            "name with wildcards"
        )
    for key in ("reference", "prefix", "stream", "trace", "record"):
        if getattr(cfg, key):
            advice = "; score the merged output with seqgen-score" if key == "reference" else ""
            raise ConfigError(f"{key} cannot be used in a job (engine=ray, job.*){advice}; remove one of them")
    if cfg.output == "-" and not cfg.job.folder:
        raise ConfigError("a job needs a folder for its parts; set job.folder=FOLDER or output=FILE")


def _check_places(cfg: GenerateConfig, source: Source, folder: Path) -> None:
    """Check that outputs do not overwrite inputs, and do not become inputs when the command is repeated."""
    check_output("output", cfg.output, *map(str, source.files), *decoding_files(cfg))
    inputs = Path(cfg.input).resolve()
    pattern = str(inputs / "*" if inputs.is_dir() else inputs)
    for given, file in ((f"job.folder={folder}", folder / ERRORS), (f"output={cfg.output}", Path(cfg.output))):
        if file.resolve().match(pattern) and str(file) != "-":
            raise ConfigError(
                f"{given} would be part of input={cfg.input} when the job is continued; give another folder"
            )


def _settings(cfg: GenerateConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that change outputs, with their values; those of models and input are compared by content."""
    chosen = ("format", "print_alignment", "remove_bpe", "detokenize")
    settings: dict[str, Any] = {key: getattr(cfg, key) for key in chosen}
    settings |= {f"dataset.{key}": value for key, value in to_dict(cfg.dataset).items()}
    settings |= {f"reading.{key}": value for key, value in to_dict(cfg.reading).items()}
    for key, value in sorted(given.items()):
        group, _, name = key.partition(".")
        if group not in ("generation", "fast"):
            settings[key] = str(value)
        elif name not in keys_tagged(SPEED):
            settings[key] = value
    return settings


def _workers(cfg: GenerateConfig, given: Mapping[str, Any], files: tuple[str, ...]) -> Workers:
    ray, count = cfg.engine == "ray", cfg.job.workers
    cores = int(cfg.ray.cpus) if ray else available_cores() // (count or 1)
    threads = cfg.common.threads or max(1, cores)
    several = cfg.fast.kernel_choice == "measured" and (ray or (count or 1) > 1)
    times = measure_all(threads, cfg.generation.dtype == "int8") if several else {}
    build = CommandBuilder(cfg, dict(given), threads, times, files, os.getcwd())
    if ray:
        from seqgen.addons.jobs.ray_workers import RayWorkers  # Ray need not be installed

        workers = RayWorkers(build, cfg.ray.address, cfg.ray.actors_per_node, count, cfg.ray.gpus, cfg.ray.cpus)
        for note in workers.notes():
            log(note)
        return workers
    return LocalWorkers(build, count or 1)


@dataclass(frozen=True)
class CommandBuilder:
    """Makes the decoder of each worker; see ``Builder``.

    Attributes:
        cfg: the whole configuration.
        given: see ``generate``.
        threads: CPU threads of each worker.
        times: the measured times of kernels, so that all workers choose the same ones.
        files: the files that keys name; workers on other machines must have the same.
        folder: the working folder of the command, to which paths are relative.
    """

    cfg: GenerateConfig
    given: dict[str, Any]
    threads: int
    times: dict[Kind, dict[str, float]]
    files: tuple[str, ...]
    folder: str

    def __call__(self, number: int) -> CommandDecoder:
        """Load the models; see ``Builder``."""
        with suppress(OSError):  # another machine need not have the folder if all paths are absolute
            os.chdir(self.folder)
        import_plugins([])
        TIMES.update(self.times)
        common = replace(self.cfg.common, threads=self.threads)
        device = set_up_device(common)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", number % torch.cuda.device_count())
        return CommandDecoder(self.cfg, self.given, device, self.files)


class CommandDecoder:
    """Decodes lines as ``seqgen-generate`` decodes them; see ``LineDecoder``.

    Args:
        cfg: the whole configuration.
        given: see ``generate``.
        device: where to decode.
        files: the files that keys name.
    """

    def __init__(self, cfg: GenerateConfig, given: Mapping[str, Any], device: torch.device, files: Sequence[str]):
        self.cfg, self.notes = cfg, list[str]()
        _, self.decoding = prepare_decoding(cfg, given, device, self.notes.append)
        self.fingerprint = fingerprint({**models_fingerprint(cfg.path), **file_digests(files)})
        self.write = FORMATS[cfg.format](self.decoding, None)
        self.clean = make_text_cleaner(cfg.remove_bpe, cfg.detokenize)
        self.task = part_of(cfg.dataset, self.decoding.task)

    def decode(self, lines: Sequence[str], first: int, divisor: int) -> Answers:
        """Decode lines; see ``LineDecoder``."""
        decoding = copy.copy(self.decoding)
        if divisor > 1:
            decoding.batcher = decoding.batcher.divided(len(lines), divisor)
        texts = map(self.task.input_of, lines) if self.cfg.dataset.gen_source else lines
        outputs, notes, tokens, counts = list[str](), list[tuple[int, str]](), 0, Counter[str]()
        for translation in decoding.translate(texts, None, len(lines), range(first, first + len(lines))):
            translation = complete(translation, self.cfg, self.clean)
            outputs.append(self.write(translation))
            tokens += translation.num_tokens
            counts.update(self.decoding.stages.counts(translation))
            notes += [(translation.id + 1, note) for note in translation.notes]
        return Answers(outputs, notes=notes, tokens=tokens, counts=counts)

    def blank(self, line: str, number: int, reason: str) -> str:
        """Format the output of a line without an answer; see ``LineDecoder``."""
        nothing = torch.empty(0, dtype=torch.int64)
        return self.write(Translation(number, line, nothing, notes=[f"the line failed: {reason}"]))


def _merge(cfg: GenerateConfig, folder: JobFolder, stop: Stop, named: bool) -> None:
    """Write the outputs of all parts into one file, or to standard output if the user asks for it."""
    output = Path(cfg.output).resolve()  # a link is written through, and stays
    if cfg.output == "-":
        if named:
            with disk_errors("standard output"), open(sys.stdout.fileno(), "wb", closefd=False) as file:
                folder.merge(file, stop.check)
    elif is_pipe(output):
        with disk_errors(output), open(output, "wb") as file:
            folder.merge(file, stop.check)
    else:
        remove_leftovers(output.parent, output.name)
        with new_file(output) as file:
            folder.merge(file, stop.check)


def _report(cfg: GenerateConfig, folder: JobFolder, lines: int, decoded: int, failed: int, seconds: float) -> None:
    """Print what was done."""
    stream = sys.stderr if cfg.output == "-" else sys.stdout
    for note in merged_notes(folder.records()):
        log(note)
    for line in summaries(cfg.generation, sum((Counter(record["counts"]) for record in folder.records()), Counter())):
        log(line)
    if failed:
        what = "line" if failed == 1 else "lines"
        log(f"{failed} {what} could not be decoded and got no answer; see {folder.path / ERRORS}")
    if cfg.output == "-":
        log(f"the outputs are in {folder.path / 'parts'}")
    tokens = sum(known.tokens for known in folder.done.values())
    speed = f", {decoded / seconds:.1f} lines/s" if decoded else ""
    rest = "" if decoded == lines else f" ({decoded} of them now)"
    print(f"{lines} lines{rest}, {tokens} tokens in {duration(seconds)}{speed}", file=stream)
