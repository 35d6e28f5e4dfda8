"""``seqgen-check languages``: list the languages of a multilingual model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from seqgen.checkpoints.hub import local_path
from seqgen.checkpoints.loading import run_folder
from seqgen.cli.command import log, run
from seqgen.config import option
from seqgen.data.tokenizers.base import Tokenizer, load_tokenizer
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer
from seqgen.errors import ConfigError, printable

DESCRIPTION = """lists the language codes of a multilingual model, one per line: the values of generation.source_lang
and generation.target_lang. Only the tokenizer is read."""


@dataclass
class LanguagesConfig:
    """The configuration of ``seqgen-check languages``."""

    path: str = option("", "Hugging Face folder or run of a multilingual model")


def main(argv: Sequence[str]) -> NoReturn:
    """Entry point of the sub-command.

    Args:
        argv: the arguments after the sub-command's name.
    """
    run(LanguagesConfig, list_languages, DESCRIPTION, argv, subcommand="languages")


def list_languages(cfg: LanguagesConfig) -> None:
    """Print the languages of a model.

    Args:
        cfg: the configuration.

    Raises:
        ConfigError: the path is missing, or the model has no languages.
        DataError: the tokenizer cannot be read.
    """
    if not cfg.path:
        raise ConfigError("path is missing: give path=FOLDER")
    languages = _tokenizer(local_path(cfg.path)).languages
    if languages is None:
        raise ConfigError(f"path={cfg.path}: the model has no languages to choose from")
    for code in languages.ids:
        print(printable(code))
    if languages.source_lang:
        log(f"generation.source_lang is {languages.source_lang} by default")


def _tokenizer(path: Path) -> Tokenizer:
    """The source tokenizer of a run or of a Hugging Face folder."""
    folder = run_folder(path)
    if folder is None:
        return load_pretrained_tokenizer(path)
    separate = folder / "source_tokenizer"
    return load_tokenizer(separate if separate.is_dir() else folder / "tokenizer")
