"""``seqgen-convert format=trie``: allowed outputs, encoded for a model, as a file that decoding maps into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqgen.addons.catalogue.constraint import TRIE_SUFFIX, trie_of_file
from seqgen.extend import ConfigError, LoadedModel, Resources


def check(cfg: Any) -> None:
    """Check that the keys of this format are given.

    Args:
        cfg: the configuration of the command.

    Raises:
        ConfigError: a key is missing, or the output has another suffix.
    """
    if not (cfg.input and cfg.output.endswith(TRIE_SUFFIX)):
        raise ConfigError(f"format=trie needs input=FILE with the allowed outputs, and output=NAME{TRIE_SUFFIX}")


def write(cfg: Any, loaded: LoadedModel) -> None:
    """Write a trie of allowed outputs.

    Args:
        cfg: the configuration of the command.
        loaded: the model, for whose vocabulary they are encoded.

    Raises:
        DataError: the allowed outputs cannot be read.
    """
    task = loaded.task
    trie = trie_of_file(Path(cfg.input), Resources(task.target_dictionary, task.target_tokenizer.encode))
    trie.save(Path(cfg.output))
    print(f"{cfg.output}: a trie of {len(trie.tokens):,} nodes")
    print(f"decode:    seqgen-generate path={cfg.path[0]} input=FILE generation.allowed_outputs={cfg.output}")
