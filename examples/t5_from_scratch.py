"""A T5 (Raffel et al. 2020) from raw text: pretrain, fine-tune on two tasks at once, decode and score.

For comparison, a second model is trained on the two tasks without pretraining.

    python examples/t5_from_scratch.py                          # the names of numbers, into runs/t5_from_scratch
    python examples/t5_from_scratch.py --data DATA/multi30k --train train --valid val --test test_2016_flickr

The script runs the seqgen commands and prints each of them. ``--data`` names a folder of parallel text, such as
``train.en`` and ``train.de``, plain or ``.gz``. The model is pretrained on both sides as raw text. It is fine-tuned on
the first ``--pairs`` pairs, in both directions.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from seqgen.extend import ParallelFiles, find_parallel, number_names, read_lines, split_numbers

LANGUAGES = {"en": "English", "de": "German"}
SPLITS = ("train", "valid", "test")
RECIPE = (
    "criterion=cross_entropy",
    "criterion.z_loss=1e-4",
    "optimizer=adafactor",
    "lr_scheduler=inverse_sqrt",
    "lr_scheduler.warmup_updates=1000",
    "lr_scheduler.warmup_init_lr=0.0316",
    "optimization.lr=[0.0316]",
    "common.log_interval=100",
)
"""T5's settings, except for the number of updates with a constant learning rate."""


def command(name: str, *arguments: str) -> str:
    """Print a command, run it, and return its standard output."""
    print(f"\n$ seqgen-{name} {' '.join(arguments)}", flush=True)
    module = [sys.executable, "-m", f"seqgen.cli.{name}", *arguments]
    return subprocess.run(module, check=True, stdout=subprocess.PIPE, text=True).stdout


def write(path: Path, lines: Iterable[str]) -> None:
    """Write a text file with one text on each line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def parallel_files(arguments: argparse.Namespace) -> dict[str, ParallelFiles]:
    """The files of each split; without ``--data``, the names of numbers are written first."""
    if arguments.data:
        prefixes = {split: f"{arguments.data}/{getattr(arguments, split)}" for split in SPLITS}
    else:
        prefixes = {split: f"{arguments.folder}/text/{split}" for split in SPLITS}
        for split, language in itertools.product(SPLITS, LANGUAGES):
            numbers = split_numbers(split, 20_000)
            write(Path(f"{prefixes[split]}.{language}"), number_names(numbers, language))
    return {split: find_parallel(prefix, *LANGUAGES, key="--data") for split, prefix in prefixes.items()}


def prepare_text(arguments: argparse.Namespace) -> None:
    """Write the raw text of both languages, the pairs to fine-tune on, and the mixture of the two directions."""
    text = Path(arguments.folder) / "text"
    sides = {split: (files.source, files.target or []) for split, files in parallel_files(arguments).items()}
    for split in ("train", "valid"):
        write(text / f"raw.{split}.txt", itertools.chain.from_iterable(read_lines(paths) for paths in sides[split]))
    limits = {"train": arguments.pairs, "valid": 0, "test": arguments.sentences}
    for split, pair in sides.items():
        for language, paths in zip(LANGUAGES, pair, strict=True):
            write(text / f"pairs.{split}.{language}", itertools.islice(read_lines(paths), limits[split] or None))
    sources = {}
    for source, target in itertools.permutations(LANGUAGES):
        sources[target] = {split: f"{text}/pairs.{split}" for split in SPLITS}
        sources[target] |= {"source_lang": source, "target_lang": target}
        sources[target]["input"] = f"translate {LANGUAGES[source]} to {LANGUAGES[target]}: {{source}}"
    (text / "mixture.yaml").write_text(yaml.safe_dump({"sources": sources}, sort_keys=False), encoding="utf-8")


def pretrain(arguments: argparse.Namespace) -> None:
    """Train on span corruption of the raw text; this run also makes the tokenizer."""
    command(
        "train",
        f"run_dir={arguments.folder}/pretrained",
        "task=denoising",
        f"task.train={arguments.folder}/text/raw.train.txt",
        f"task.valid={arguments.folder}/text/raw.valid.txt",
        f"task.vocab_size={arguments.vocab_size}",
        "task.hard_vocab_limit=false",
        f"task.input_length={arguments.input_length}",
        f"dataset.max_tokens={arguments.max_tokens}",
        f"optimization.max_update={arguments.pretrain_updates}",
        *arguments.model,
        *RECIPE,
    )


def finetune(arguments: argparse.Namespace, name: str, *further: str) -> None:
    """Train on both directions, each with its own prefix of the source, with the pretrained model's tokenizer."""
    command(
        "train",
        f"run_dir={arguments.folder}/{name}",
        "task=text_to_text",
        f"task.mixture={arguments.folder}/text/mixture.yaml",
        "task.tokenizer=pretrained",
        f"task.pretrained_tokenizer={arguments.folder}/pretrained",
        f"dataset.max_tokens={arguments.max_tokens}",
        f"optimization.max_update={arguments.finetune_updates}",
        *arguments.model,
        *RECIPE,
        *further,
    )


def decode(arguments: argparse.Namespace, name: str, target: str) -> dict[str, str]:
    """Decode the test split of one direction; return the scores that the command prints, by name."""
    report = command(
        "generate",
        f"path={arguments.folder}/{name}",
        f"dataset.gen_source={target}",
        f"output={arguments.folder}/{name}.{target}",
        f"generation.beam={arguments.beam}",
        "generation.max_len_a=2",
        "generation.max_len_b=20",
    )
    print(report, end="")
    return dict(re.findall(r"^(\w+) = ([\d.]+)", report, flags=re.MULTILINE))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="runs/t5_from_scratch", help="folder for text and runs")
    parser.add_argument("--data", default="", help="folder of parallel text; empty for the names of numbers")
    for split, default in zip(SPLITS, ("train", "val", "test_2016_flickr"), strict=True):
        parser.add_argument(f"--{split}", default=default, help=f"name of the {split} files without language")
    parser.add_argument("--pairs", type=int, default=0, help="pairs to fine-tune on, 0 for all")
    parser.add_argument("--sentences", type=int, default=0, help="test sentences to decode, 0 for all")
    parser.add_argument("--vocab-size", type=int, default=400, help="pieces of the vocabulary")
    parser.add_argument("--input-length", type=int, default=128, help="tokens of an input in pretraining")
    parser.add_argument("--max-tokens", type=int, default=2048, help="tokens of a batch")
    parser.add_argument("--pretrain-updates", type=int, default=1500)
    parser.add_argument("--finetune-updates", type=int, default=1500)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--model", nargs="+", default=["model=t5_tiny"], help="model keys for all runs")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, decode and print a table."""
    arguments = parse(argv)
    prepare_text(arguments)
    start = time.perf_counter()
    pretrain(arguments)
    seconds = time.perf_counter() - start
    table = Table(title=f"{arguments.pretrain_updates} updates of pretraining in {seconds:.0f} s, then fine-tuning")
    for column in ("model", "fine-tuned in", "direction", "BLEU", "chrF", "exact match"):
        table.add_column(column, justify="left" if column in ("model", "direction") else "right")
    weights = f"checkpoint.finetune_from={arguments.folder}/pretrained"
    for name, further in (("from_pretrained", [weights]), ("from_scratch", [])):
        start = time.perf_counter()
        finetune(arguments, name, *further)
        seconds = time.perf_counter() - start
        for target in reversed(LANGUAGES):
            scores = decode(arguments, name, target)
            cells = [scores.get(key, "?") for key in ("bleu", "chrf", "exact_match")]
            table.add_row(name.replace("_", " "), f"{seconds:.0f} s", f"to {LANGUAGES[target]}", *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
