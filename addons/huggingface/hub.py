"""Models on the Hugging Face Hub: ``hf:ORGANIZATION/NAME`` or ``hf:ORGANIZATION/NAME@REVISION`` in place of a folder.

The library ``huggingface_hub`` downloads the files into its cache, and reads environment variables: ``HF_HOME``
and ``HF_HUB_CACHE`` (the cache), ``HF_HUB_OFFLINE``, ``HF_ENDPOINT`` (another server), ``HF_TOKEN``.
"""

from __future__ import annotations

import re
from contextlib import suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from seqgen.addons.huggingface.checkpoint import check_config
from seqgen.data.tokenizers.files import FILES
from seqgen.extend import CheckpointError, ConfigError, shown, watch_download

CONFIG = "config.json"
SMALL_FILES = (CONFIG, "generation_config.json", *FILES)
"""All files that seqgen reads from such a repository, besides the weights; no file with code is among them."""

WEIGHTS = (
    ("model.safetensors", "model-?????-of-?????.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model-?????-of-?????.bin", "pytorch_model.bin.index.json"),
)
"""Patterns of the files with the weights: those of the second kind are downloaded if there are none of the first."""

TIMEOUT_SECONDS = 10.0
"""The time limit of an answer of the server; ``huggingface_hub`` has limits for files."""

_NAMES = {"ETag": r'(W/)?"?[\w-]+"?', "X-Linked-Etag": r'(W/)?"?[\w-]+"?', "X-Repo-Commit": r"[0-9a-f]{40}"}
"""The form that headers must have from which the library makes names of files and folders."""


def fetch(name: str) -> Path:
    """The folder of a model in the cache; what the cache does not have is downloaded.

    Args:
        name: ``ORGANIZATION/NAME`` with an optional ``@REVISION`` (a branch, a tag or a commit).

    Raises:
        CheckpointError: there is no such repository or revision, it is not accessible, it arrives too slowly, or
            seqgen cannot read the model; that is seen before its weights are downloaded.
        ConfigError: the name is not that of a repository, or ``huggingface_hub`` is not installed.
    """
    path = f"hf:{name}"
    repository, at, revision = name.partition("@")
    if at and not revision:
        raise ConfigError(f"{path} names no revision after the @; remove the @, or give a branch, a tag or a commit")
    try:
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise ConfigError(f"{path} needs the package huggingface_hub ({error}): pip install huggingface_hub") from None
    try:
        return watch_download(partial(_download, repository, revision or None), partial(_size_in_cache, repository))
    except CheckpointError:
        raise
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
    except errors.EntryNotFoundError:
        message = f"the repository has no {CONFIG}, so it is not a model that seqgen can read"
    except Exception as error:  # those of the network differ between versions of huggingface_hub
        first_line = str(error).strip().partition("\n")[0]
        message = f"cannot be downloaded from {constants.ENDPOINT}: {first_line}"
    raise CheckpointError(f"{path}: {message}")


def _download(repository: str, revision: str | None) -> Path:
    """Download the files of a model, except those that are in the cache already.

    Args:
        repository: ``ORGANIZATION/NAME``.
        revision: a branch, a tag or a commit; ``None`` for the main branch.

    Returns:
        The folder of the commit in the cache. Without network it can be incomplete.
    """
    from huggingface_hub import HfApi, errors, hf_hub_download
    from huggingface_hub.utils import get_session

    session: Any = get_session()
    hooks = session.event_hooks if hasattr(session, "event_hooks") else session.hooks  # of httpx; of requests
    if _check_names not in hooks["response"]:
        hooks["response"].append(_check_names)
    try:
        listed = HfApi().model_info(repository, revision=revision, timeout=TIMEOUT_SECONDS).siblings or []
    except (errors.HfHubHTTPError, errors.HFValidationError):
        raise
    except Exception:  # no network: its errors differ between versions of huggingface_hub
        return Path(hf_hub_download(repository, CONFIG, revision=revision, local_files_only=True)).parent
    folder = Path(hf_hub_download(repository, CONFIG, revision=revision)).parent
    check_config(folder / CONFIG)
    names = [file.rfilename for file in listed if "/" not in file.rfilename]
    weights = ([name for name in names if any(map(partial(fnmatch, name), patterns))] for patterns in WEIGHTS)
    for name in [*(name for name in names if name in SMALL_FILES), *next(filter(None, weights), [])]:
        hf_hub_download(repository, name, revision=folder.name)  # of the same commit
    return folder


def _size_in_cache(repository: str) -> int:
    """The number of bytes of a repository in the cache, those of incomplete files included."""
    from huggingface_hub import constants

    size = 0
    for file in Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}").rglob("*"):
        with suppress(OSError):  # it was just renamed
            size += file.stat().st_size
    return size


def _check_names(response: Any, *arguments: Any, **options: Any) -> None:
    """Check the headers from which the library makes names in its cache: a path in them could name any file.

    Args:
        response: an answer of the server.
        arguments: unused, likewise ``options``; what the library of requests passes.
        options: see there.

    Raises:
        ValueError: a header is not a plain name.
    """
    for header, form in _NAMES.items():
        value = response.headers.get(header)
        if response.request.method == "HEAD" and value and not re.fullmatch(form, value):
            raise ValueError(f"its header {header} is {shown(value)}, which is not the identifier of a file's version")
