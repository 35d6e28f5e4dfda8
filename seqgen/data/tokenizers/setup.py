"""A run's tokenizers: loaded from its folder, made from given files, or trained on the training text."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from seqgen.config import option
from seqgen.core.errors import ConfigError
from seqgen.data.columns import Column
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer, load_tokenizer, save_tokenizer
from seqgen.data.tokenizers.languages import TargetLanguage
from seqgen.data.tokenizers.pretrained import byte_files, load_pretrained_tokenizer, make_tokenizer, t5_files
from seqgen.data.tokenizers.sentencepiece_tokenizer import (
    FAIRSEQ_IDS,
    T5_IDS,
    SentencePieceTokenizer,
    read_model,
    train_sentencepiece,
)
from seqgen.system.files import check_not_frozen

logger = logging.getLogger(__name__)


@dataclass
class TokenizerConfig:
    """The tokenizer: where it comes from, and how it is trained."""

    tokenizer: str = option(
        "sentencepiece",
        "sentencepiece, t5 (with sentinels), bytes, pretrained (from a folder), whitespace (for tokenized text)",
        choices=("sentencepiece", "t5", "bytes", "pretrained", "whitespace"),
    )
    joined_dictionary: bool = option(True, "use one vocabulary for source and target")
    vocab_size: int = option(8000, "size of the vocabulary that is trained on the training text", minimum=5)
    hard_vocab_limit: bool = option(
        True, "stop with an error if the text is too small for vocab_size; if false, train a smaller vocabulary"
    )
    spm_type: str = option("unigram", "kind of SentencePiece model to train", choices=("unigram", "bpe"))
    character_coverage: float = option(
        1.0, "fraction of the training text's characters that get a piece of their own", minimum=0.9, maximum=1
    )
    extra_ids: int = option(
        100, "number of sentinels, with ids after those of the pieces (tokenizer=t5)", minimum=0, maximum=10_000
    )
    pretrained_tokenizer: str = option(
        "",
        "folder with a tokenizer in Hugging Face's layout, such as T5's or BART's, or a run folder "
        "(tokenizer=pretrained)",
        role="input_path",
    )
    spm_model: str = option("", "SentencePiece model to use; empty to train one", role="input_path")
    source_spm_model: str = option("", "SentencePiece model of the source (joined_dictionary=false)", role="input_path")
    target_spm_model: str = option("", "SentencePiece model of the target (joined_dictionary=false)", role="input_path")
    srcdict: str = option(
        "",
        "dict.txt with the source ids, or with the ids of both languages (joined_dictionary=true)",
        role="input_path",
    )
    tgtdict: str = option("", "dict.txt with the target ids (joined_dictionary=false)", role="input_path")


def without_languages(tokenizer: Tokenizer) -> Tokenizer:
    """Refuse a tokenizer whose model must be told the languages of each pair.

    Raises:
        ConfigError: the tokenizer has such languages.
    """
    languages = tokenizer.languages
    if languages is not None and languages.target is not TargetLanguage.SOURCE:
        raise ConfigError(
            f"the tokenizer in task.pretrained_tokenizer has {len(languages.ids)} languages, of which this task names "
            "none; use task=multilingual_translation task.pairs=[SOURCE-TARGET]"
        )
    return tokenizer


def prepare_tokenizers(
    cfg: TokenizerConfig,
    folder: Path,
    lines: Callable[[Sequence[Any]], Iterable[str]],
    complete: Callable[[Tokenizer], Tokenizer] = without_languages,
) -> tuple[Tokenizer, Tokenizer]:
    """Load the tokenizers of a run, or make them and write them into its folder.

    Args:
        cfg: the configuration of the tokenizers.
        folder: the run folder.
        lines: gives the training text of sides, 0 for the source, 1 for the target, or the name of a column; called
            only if a vocabulary must be made from it.
        complete: checks a new tokenizer, and adds what the task needs.

    Returns:
        The tokenizers of source and target; with a joint vocabulary the same object twice, unless the target has other
        pieces (Marian).

    Raises:
        ConfigError: keys contradict each other.
        DataError: a file cannot be used.
    """
    _check(cfg)
    if cfg.joined_dictionary:
        kinds = {"tokenizer": (cfg.spm_model, cfg.srcdict, partial(lines, [0, 1]))}
    else:
        kinds = {
            "source_tokenizer": (cfg.source_spm_model or cfg.spm_model, cfg.srcdict, partial(lines, [0])),
            "target_tokenizer": (cfg.target_spm_model or cfg.spm_model, cfg.tgtdict, partial(lines, [1])),
        }
    declared = [Column(*pair) for pair in getattr(cfg, "columns", {}).items()]
    texts = {f"column_{one.name}": ("", "", partial(lines, [one.name])) for one in declared if one.kind == "text"}
    missing = [name for name in (*kinds, *texts) if not (folder / name).is_dir()]
    for name in missing:
        check_not_frozen(folder / name)  # before training, which may take a long time
    made = {name: complete(_make(cfg, name, *kinds[name])) for name in kinds if name in missing}
    made |= {name: _make(cfg, name, *text) for name, text in texts.items() if name in missing}
    for name, tokenizer in made.items():  # all before one is written
        save_tokenizer(tokenizer, folder / name)
    tokenizers = [load_tokenizer(folder / name) for name in kinds]
    return tokenizers[0], tokenizers[-1].target_side


def check_one_vocabulary(cfg: TokenizerConfig) -> None:
    """Refuse two vocabularies for a task that has one."""
    if not cfg.joined_dictionary:
        raise ConfigError("this task has one vocabulary for all text; set task.joined_dictionary=true")


MODEL_KEYS = ("spm_model", "source_spm_model", "target_spm_model")
DICTIONARY_KEYS = ("srcdict", "tgtdict")
KINDS = {
    "pretrained_tokenizer": ("pretrained",),
    **dict.fromkeys(MODEL_KEYS, ("sentencepiece", "t5")),
    **dict.fromkeys(DICTIONARY_KEYS, ("sentencepiece", "whitespace")),
}
"""The kinds of tokenizers that use a key."""


def given_vocabulary(cfg: TokenizerConfig) -> str:
    """The key that gives the vocabulary, so that none is trained on the text; empty if one is trained."""
    if cfg.tokenizer in ("bytes", "pretrained"):
        return f"task.tokenizer={cfg.tokenizer}"
    if cfg.tokenizer == "whitespace":
        keys: tuple[str, ...] = DICTIONARY_KEYS[:1] if cfg.joined_dictionary else DICTIONARY_KEYS
    else:
        keys = MODEL_KEYS[:1] if cfg.spm_model else MODEL_KEYS[1:]
    return f"task.{keys[0]}" if all(getattr(cfg, name) for name in keys) else ""


def _note_unused(cfg: TokenizerConfig) -> None:
    """Say which keys have no effect on a new tokenizer."""
    kind, given = f"task.tokenizer={cfg.tokenizer}", given_vocabulary(cfg)
    unused = {"vocab_size": given, "extra_ids": "" if cfg.tokenizer == "t5" else kind}
    of_training = given or (kind if cfg.tokenizer == "whitespace" else "")
    unused |= dict.fromkeys(("hard_vocab_limit", "spm_type", "character_coverage"), of_training)
    defaults = type(cfg)()
    for name, reason in unused.items():
        if reason and (value := getattr(cfg, name)) != getattr(defaults, name):
            logger.info("task.%s=%s has no effect with %s", name, value, reason)


def _check(cfg: TokenizerConfig) -> None:
    for name, kinds in KINDS.items():
        if getattr(cfg, name) and cfg.tokenizer not in kinds:
            raise ConfigError(f"task.{name} needs task.tokenizer={' or '.join(kinds)}; remove one of the two keys")
    if cfg.joined_dictionary:
        for name in ("source_spm_model", "target_spm_model", "tgtdict"):
            if getattr(cfg, name):
                raise ConfigError(f"task.{name} needs separate vocabularies; add task.joined_dictionary=false")
    if cfg.tokenizer == "pretrained" and not cfg.pretrained_tokenizer:
        raise ConfigError("task.pretrained_tokenizer is missing; set it to the folder of the tokenizer's files")


def _make(cfg: TokenizerConfig, name: str, model: str, dictionary: str, text: Callable[[], Iterable[str]]) -> Tokenizer:
    _note_unused(cfg)
    if cfg.tokenizer == "pretrained":
        folder = Path(cfg.pretrained_tokenizer)
        of_run = [folder / own for own in (name, "source_tokenizer", "tokenizer") if (folder / own).is_dir()]
        return load_tokenizer(of_run[0]) if of_run else load_pretrained_tokenizer(folder)
    if cfg.tokenizer == "bytes":
        return make_tokenizer(byte_files())
    given = Dictionary.load(dictionary) if dictionary else None
    if cfg.tokenizer == "whitespace":
        if given is None:
            counts = Counter(chain.from_iterable(line.split() for line in text()))
            given = Dictionary.from_counts(counts, cfg.vocab_size)
        return WhitespaceTokenizer(given)
    if model:
        content = read_model(Path(model))
    else:
        content = train_sentencepiece(
            text(),
            vocab_size=cfg.vocab_size,
            model_type=cfg.spm_type,
            character_coverage=cfg.character_coverage,
            hard_vocab_limit=cfg.hard_vocab_limit and not name.startswith("column_"),
            special_ids=T5_IDS if cfg.tokenizer == "t5" else FAIRSEQ_IDS,
        )
    location = model or "the SentencePiece model"
    if cfg.tokenizer == "t5":
        return make_tokenizer(t5_files(content, extra_ids=cfg.extra_ids, location=location))
    return SentencePieceTokenizer(content, given, location=location)
