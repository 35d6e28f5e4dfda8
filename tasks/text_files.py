"""The splits of tasks over text files, and the folder of their encoded text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqgen.errors import ConfigError
from seqgen.system.files import CACHE

SPLITS = ("train", "valid", "test")


def check_split(split: str) -> None:
    """Check that a split exists.

    Args:
        split: its name.

    Raises:
        ConfigError: the name is not one of ``SPLITS``.
    """
    if split not in SPLITS:
        raise ConfigError(f"there is no split {split!r}; choose one of: {', '.join(SPLITS)}")


def cache_folder(cfg: Any, folder: Path) -> Path:
    """The folder of files that are made from the text and can be made again.

    Args:
        cfg: the task's configuration, with the key ``cache_dir``.
        folder: the run folder.
    """
    return Path(cfg.cache_dir) if cfg.cache_dir else folder / CACHE
