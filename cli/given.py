"""The command that a user gave: its arguments, and where each key comes from."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqgen.cli.config_file import KEY, with_config_files
from seqgen.config import TrainConfig
from seqgen.config.compose import chosen_components
from seqgen.config.values import split_argument, text_values


@dataclass(frozen=True)
class Command:
    """A command of training.

    Attributes:
        argv: the program and its arguments, as typed, without ``run_dir``, because the folder can be moved.
        given: by each key that was given, where it comes from: the command line, a file or a checkpoint.
        components: the name that is chosen in each group of components, which can be a preset.
    """

    argv: list[str]
    given: Mapping[str, str]
    components: Mapping[str, str]

    @classmethod
    def of(cls, argv: Sequence[str] | None, overrides: Sequence[str]) -> Command:
        """Find out where the keys of a command come from.

        Args:
            argv: its arguments; ``None`` for those of the process.
            overrides: all ``key=value`` arguments, with those of files and checkpoints.
        """
        typed = list(sys.argv[1:] if argv is None else argv)
        shown = [text for text in typed if not text.startswith("run_dir=")]
        pairs = [argument for argument in typed if not argument.startswith("-")]
        files = with_config_files(TrainConfig, pairs).files
        own = {split_argument(pair)[0] for pair in pairs}
        checkpoint = next(iter(text_values(overrides, "checkpoint.finetune_from", str)), "")
        given = {}
        for override in overrides:
            key = split_argument(override)[0]
            file = f"{KEY}={files[key]}" if key in files else f"checkpoint {checkpoint}"
            given[key] = "command line" if key in own else file
        program = "seqgen-" + Path(sys.argv[0]).stem.removeprefix("seqgen-")
        return cls([program, *shown], given, chosen_components(TrainConfig, overrides))
