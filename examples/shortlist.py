"""A command that makes the file of ``generation.shortlist`` from parallel text.

``python examples/shortlist.py path=runs/a source=train.en target=train.de output=shortlist.txt`` writes the file.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seqgen.extend import (
    CommonConfig,
    ConfigError,
    DataError,
    ReadingConfig,
    Task,
    VocabularyMap,
    check_output,
    ibm_model_1,
    load_model,
    log,
    option,
    read_lines,
    run,
    set_up_device,
)

DESCRIPTION = """writes for each source token of a model the target tokens that are its most probable translations in
parallel text, by IBM model 1. Decoding with generation.shortlist=FILE generates only those of the source's tokens.
The file has the format of CTranslate2's vmap.txt."""


@dataclass
class ShortlistConfig:
    """The configuration of the command."""

    path: str = option("", "run folder or checkpoint of the model, whose tokenizer and vocabulary are used")
    source: str = option("", "text file in the source language, one sentence per line; .gz is decompressed")
    target: str = option("", "the translations of its lines")
    output: str = option("", "file to write", names="output")
    best: int = option(100, "number of target tokens for each source token", minimum=0)
    frequent: int = option(100, "number of most frequent target tokens that every output may contain", minimum=0)
    iterations: int = option(5, "iterations of expectation maximization of IBM model 1", minimum=1)
    lines: int = option(500_000, "number of lines that are read; 0 for all", minimum=0)
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: CommonConfig = dataclasses.field(default_factory=CommonConfig)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(ShortlistConfig, shortlist, DESCRIPTION, argv)


def shortlist(cfg: ShortlistConfig) -> int:
    """Estimate translation probabilities, and write the best target tokens of each source token.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.

    Raises:
        UserError: a key is missing, or a file or the model cannot be used.
    """
    for key in ("path", "source", "target", "output"):
        if not getattr(cfg, key):
            raise ConfigError(f"{key} is missing: give path=RUN source=FILE target=FILE output=FILE")
    check_output("output", cfg.output, cfg.source, cfg.target)
    task = load_model(cfg.path, set_up_device(cfg.common), reading=cfg.reading).task
    sources, targets = _encoded(cfg, task)
    counts = Counter(itertools.chain.from_iterable(targets))
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    found = ibm_model_1(sources, targets, cfg.iterations).best(cfg.best)
    everywhere = np.array(ranked[: cfg.frequent], dtype=np.int64)
    table = VocabularyMap({(): everywhere, **found.targets})
    output = Path(cfg.output)
    if left_out := table.write(output, task.source_dictionary, task.target_dictionary):
        log(f"{left_out} tokens contain white space, which separates the tokens of the file, and are left out")
    print(f"{output}: {len(found.targets)} source tokens from {len(sources)} lines, {len(everywhere)} frequent tokens")
    return 0


def _encoded(cfg: ShortlistConfig, task: Task) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of the lines of both files, without special tokens and tokens of languages.

    Every output may contain special tokens anyway. The token of a language would be a source word of every line.

    Raises:
        DataError: a file cannot be read, or the files have different numbers of lines, or none.
    """
    languages = task.source_tokenizer.languages
    left_out = {*task.source_dictionary.special_ids.values(), *(languages.ids.values() if languages else ())}
    special = set(task.target_dictionary.special_ids.values())
    sources: list[list[int]] = []
    targets: list[list[int]] = []
    for source, target in itertools.islice(_pairs(cfg), cfg.lines or None):
        sources.append([token for token in task.encode_source(source).tolist() if token not in left_out])
        targets.append([token for token in task.encode_target(target).tolist() if token not in special])
    if not sources:
        raise DataError(f"{cfg.source} has no lines; give parallel text from which the translations can be learned")
    return sources, targets


def _pairs(cfg: ShortlistConfig) -> Iterator[tuple[str, str]]:
    for source, target in itertools.zip_longest(read_lines(Path(cfg.source)), read_lines(Path(cfg.target))):
        if source is None or target is None:
            longer, shorter = (cfg.source, cfg.target) if target is None else (cfg.target, cfg.source)
            raise DataError(
                f"{longer} has more lines than {shorter}; line n of one file must be the translation of line n of the "
                "other"
            )
        yield source, target


if __name__ == "__main__":
    main()
