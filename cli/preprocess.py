"""``seqgen-preprocess``: make a run's tokenizer and encode its text, so that training starts at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seqgen.checkpoints.run_checkpoints import run_lock
from seqgen.cli.checkpoint_arguments import with_checkpoint
from seqgen.cli.command import run
from seqgen.cli.given import Command
from seqgen.cli.run_folder import open_run
from seqgen.config import TrainConfig
from seqgen.errors import ConfigError

DESCRIPTION = """trains the tokenizer of a run and encodes the text of its splits, as seqgen-train would do.
It takes the same arguments as seqgen-train, which then skips these steps."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""

    def work(cfg: TrainConfig, overrides: list[str]) -> int:
        return preprocess(cfg, Command.of(argv, overrides))

    run(TrainConfig, work, DESCRIPTION, argv, complete=with_checkpoint, pass_arguments=True)


def preprocess(cfg: TrainConfig, command: Command | None = None) -> int:
    """Prepare the data of a run, and print its sizes.

    Args:
        cfg: the whole configuration.
        command: the command that was given, for the run's record; ``None`` for no record.

    Returns:
        The exit code.

    Raises:
        UserError: the run folder or the text cannot be used.
    """
    if not cfg.run_dir:
        raise ConfigError(
            "run_dir is missing: give run_dir=FOLDER, the run folder that you will also give to seqgen-train"
        )
    folder = Path(cfg.run_dir)
    with run_lock(folder):
        task = open_run(cfg, folder, command)
        print(f"source vocabulary: {len(task.source_dictionary)}, target vocabulary: {len(task.target_dictionary)}")
        for split in task.splits():
            data = task.dataset(split)
            print(f"{split}: {len(data)} pairs")
    return 0


if __name__ == "__main__":
    main()
