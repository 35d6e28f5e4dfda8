"""Models on the Hugging Face Hub: ``hf:ORGANIZATION/NAME`` or ``hf:ORGANIZATION/NAME@REVISION`` in place of a folder.

The library ``huggingface_hub`` downloads the files into its cache, and reads its own environment variables: ``HF_HOME``
and ``HF_HUB_CACHE`` (the cache), ``HF_HUB_OFFLINE``, ``HF_ENDPOINT`` (another server), ``HF_TOKEN``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqgen.data.tokenizers import files as tokenizer_files
from seqgen.errors import CheckpointError, ConfigError

PREFIX = "hf:"

SMALL_FILES = (
    "config.json",
    "generation_config.json",
    *(name for key, name in vars(tokenizer_files).items() if key.endswith("_FILE")),
)
"""All files that seqgen reads from such a repository, besides the weights; no file with code is among them."""

WEIGHTS = (
    ("model.safetensors", "model-?????-of-?????.safetensors"),
    ("pytorch_model.bin", "pytorch_model-?????-of-?????.bin"),
)
"""Patterns of the files with the weights: those of the second kind are downloaded if there are none of the first."""


def local_path(path: str | Path) -> Path:
    """The file or folder that the path of a model refers to; a model on the Hub is downloaded into the cache.

    Args:
        path: a path, or ``hf:ORGANIZATION/NAME`` with an optional ``@REVISION`` (a branch, a tag or a commit).

    Returns:
        The path itself, or the folder in the cache.

    Raises:
        CheckpointError: there is no such repository or revision, it is not accessible, or it has no such model.
        ConfigError: the path is an address, the name is not that of a repository, or ``huggingface_hub`` is not
            installed.
    """
    if not str(path).startswith(PREFIX):
        if "://" in str(path):
            raise ConfigError(f"{path} is an address; a model of the Hugging Face Hub is written hf:ORGANIZATION/NAME")
        return Path(path)
    repository, at, revision = str(path).removeprefix(PREFIX).partition("@")
    if at and not revision:
        raise ConfigError(f"{path} names no revision after the @; remove the @, or give a branch, a tag or a commit")
    folder = _snapshot(str(path), repository, revision or None, SMALL_FILES)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{path}: the repository has no config.json, so it is not a model that seqgen can read")
    for patterns in WEIGHTS:
        _snapshot(str(path), repository, folder.name, (*patterns, f"{patterns[0]}.index.json"))  # of the same commit
        if any(file for pattern in patterns for file in folder.glob(pattern)):
            break
    return folder


def _snapshot(path: str, repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """Download the files of a repository that match patterns, except those that are in the cache already.

    Args:
        path: what the user gave, for messages.
        repository: ``ORGANIZATION/NAME``.
        revision: a branch, a tag or a commit; ``None`` for the main branch.
        patterns: names of files, in which ``?`` and ``*`` stand for other characters.

    Returns:
        The folder of the commit in the cache, whose name is that of the commit. Without network it can be incomplete.

    Raises:
        CheckpointError: there is no such repository or revision, or it cannot be downloaded.
        ConfigError: the name is not that of a repository, or ``huggingface_hub`` is not installed.
    """
    try:
        from huggingface_hub import constants, errors, snapshot_download
        from huggingface_hub.utils import tqdm
    except ImportError as error:
        raise ConfigError(f"{path} needs the package huggingface_hub ({error}): pip install huggingface_hub") from None

    class Silent(tqdm):
        """The number of files says nothing; the progress bar of each file that is downloaded is displayed."""

        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, **{**options, "disable": True})  # type: ignore[no-untyped-call]

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(patterns), tqdm_class=Silent))
    except errors.HFValidationError:
        raise ConfigError(
            f"{path} is not the name of a repository; write hf:ORGANIZATION/NAME or hf:ORGANIZATION/NAME@REVISION"
        ) from None
    except errors.GatedRepoError:
        message = "access to the repository is restricted: accept its terms on its page, and set HF_TOKEN to your token"
    except errors.RepositoryNotFoundError:
        message = f"{constants.ENDPOINT} has no such repository, or a private one for which HF_TOKEN must be set"
    except errors.RevisionNotFoundError:
        message = f"the repository has no revision {revision}; give a branch, a tag or a commit"
    except errors.LocalEntryNotFoundError:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} cannot be reached"
        message = f"the model is not in the cache, {constants.HF_HUB_CACHE}, and {why}"
    except Exception as error:  # those of the network differ between versions of huggingface_hub
        first_line = str(error).strip().partition("\n")[0]
        message = f"cannot be downloaded from {constants.ENDPOINT}: {first_line}"
    raise CheckpointError(f"{path}: {message}")
