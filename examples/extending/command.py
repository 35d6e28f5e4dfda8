"""A command: prints the words of a text that a model does not know.

``python examples/extending/command.py path=runs/a input=test.en``
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from seqgen import load_model
from seqgen.extend import CommonConfig, ConfigError, option, read_lines, run


@dataclass
class UnknownWordsConfig:
    """The keys of the command; those of the group ``common`` are the same in all commands."""

    path: str = option("", "run folder or checkpoint of the model", role="input_path")
    input: str = option("", "text file", role="input_path")
    common: CommonConfig = field(default_factory=CommonConfig)


def main(cfg: UnknownWordsConfig) -> int:
    """Print the unknown words of each line that has some.

    Args:
        cfg: the keys as the user gave them.

    Returns:
        The exit code: 1 if a line has unknown words.

    Raises:
        ConfigError: a key is missing.
    """
    if not (cfg.path and cfg.input):
        raise ConfigError("set path=RUN input=FILE")
    tokenizer = load_model(cfg.path).task.source_tokenizer
    code = 0
    for number, line in enumerate(read_lines(Path(cfg.input)), start=1):
        if words := tokenizer.unknown(line):
            print(f"line {number}: {' '.join(words)}")
            code = 1
    return code


if __name__ == "__main__":
    run(UnknownWordsConfig, main, "prints the words of input=FILE that the model of path=RUN does not know.")
