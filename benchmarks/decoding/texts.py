"""Benchmark c: whole commands with trained models, from text to text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.decoding.command import Command, compare_commands, table
from benchmarks.decoding.models import multi30k, shared_folder
from benchmarks.decoding.workload import SEQGEN
from seqgen.cli.convert import ConvertConfig, convert

CHECKPOINTS = ("fconv", "transformer", "fconv:transformer")
"""The checkpoints of fairseq in the shared folder that are decoded."""


def commands(options: argparse.Namespace, folder: Path) -> Iterator[Command]:
    """The commands of benchmark c."""
    generate = [sys.executable, "-m", "seqgen.cli.generate"]
    common = [f"common.device={options.device}", f"common.threads={options.threads}", "generation.beam=5"]

    def seqgen(path: str, name: str, *further: str) -> Command:
        settings = [*common, *([] if name == "float32" else [f"generation.dtype={name}"]), *further]
        argv = [*generate, f"path={path}", *settings]
        return Command("", SEQGEN, name, lambda source, output: [*argv, f"input={source}", f"output={output}"])

    if options.t5:
        same = ["generation.semantics=huggingface", "generation.max_len=128", "generation.batch_size=64"]
        for name in options.formats:
            yield replace(seqgen(options.t5, name, *same), model="t5")
        if options.huggingface:
            yield from huggingface_commands(options, huggingface_folder(options.t5, folder))
    checkpoints = shared_folder() / "oracles" / "fairseq"
    for names in CHECKPOINTS if checkpoints.exists() else ():
        path = ":".join(str(checkpoints / f"{name}.pt") for name in names.split(":"))
        for name in options.formats:
            yield replace(seqgen(path, name), model=names)


def huggingface_commands(options: argparse.Namespace, folder: Path) -> Iterator[Command]:
    """Hugging Face with lines in their order, and with lines sorted by length."""
    script = [options.huggingface, "-m", "benchmarks.decoding.huggingface_text", str(folder)]
    for name in (name for name in options.formats if name != "int8"):
        further = ["--threads", str(options.threads), "--format", name, "--device", options.device]
        yield Command("t5", "huggingface", name, partial(on_files, script, further))
        yield Command("t5", "huggingface, sorted", name, partial(on_files, script, [*further, "--sort"]))


def on_files(script: list[str], options: list[str], source: Path, output: Path) -> list[str]:
    """The command line of a script that takes an input and an output file."""
    return [*script, str(source), str(output), *options]


def huggingface_folder(path: str, folder: Path) -> Path:
    """The folder if it has Hugging Face's layout; otherwise a folder in this layout, converted from the run."""
    if (Path(path) / "config.json").exists():
        return Path(path)
    convert(ConvertConfig(path=[path], format="huggingface", output=str(folder / "t5")))
    return folder / "t5"


def measure_texts(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run benchmark c, and print its table."""
    lines, references = multi30k("en"), multi30k("de")
    if not lines:
        sys.exit("test_2016_flickr is not found; set SEQGEN_SHARED to the folder with data/multi30k")
    measured, disagreements = list(commands(options, folder)), []
    for model in dict.fromkeys(command.model for command in measured):
        texts = [f"{options.prefix}{line}" for line in lines] if model == "t5" else lines
        here = [command for command in measured if command.model == model]
        disagreements += compare_commands(here, texts, references, folder, options.rounds, options.threads)
    measured = [command for command in measured if command.seconds]
    print(table(measured, len(lines)))
    return {"rows": [command.record(len(lines)) for command in measured], "disagreements": disagreements}
