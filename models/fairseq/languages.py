"""The languages of fairseq's multilingual checkpoints, such as M2M-100 (task ``translation_multi_simple_epoch``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.languages import Languages, TargetLanguage
from seqgen.errors import CheckpointError, DataError
from seqgen.system.reading import read_bytes

MULTILINGUAL = "translation_multi_simple_epoch"
"""The task."""

FRAMES = {"multilingual": "__{}__", "mbart": "[{}]"}
"""The token of a language for each ``lang_tok_style``."""

MASK = "<mask>"
SUFFIXES = {"dae": "_dae", "mined": "_mined"}
"""What the kinds of data that have tokens of their own append to a language, by the end of their names."""


@dataclass(frozen=True)
class FairseqLanguages:
    """How a multilingual checkpoint is told the languages.

    Attributes:
        codes: the languages in the order of their tokens; empty if the options do not list them.
        file: name of the file with the languages (``lang_dict``); empty for none.
        pairs: the pairs of the training data, such as ``en-de``.
        dictionary: name of the file of the dictionary that is the same for all languages; empty for none.
        frame: the token of a language, such as ``__{}__``.
        source: whose token sources begin with: ``src``, ``tgt``, or empty for none.
        by_target: whether targets begin with the token of their language.
        kinds: the kinds of training data that have tokens of languages.
        has_mask: whether the vocabulary has a mask token after the tokens of languages.
    """

    codes: Sequence[str]
    file: str
    pairs: Sequence[str]
    dictionary: str
    frame: str
    source: str
    by_target: bool
    kinds: Sequence[str]
    has_mask: bool

    def find_codes(self, path: Path, dictionary: Dictionary, given: str) -> list[str]:
        """Find the languages: in the given file, the options, the file that they name, the dictionary, or the pairs.

        Args:
            path: the checkpoint.
            dictionary: its dictionary as in the file, which may have the tokens of languages.
            given: a file with one language on each line; empty for none.

        Raises:
            DataError: the given file cannot be read, or there are no languages.
        """
        beside = path.parent / Path(self.file).name if self.file else path
        if given or (not self.codes and beside is not path and beside.is_file()):
            file = Path(given) if given else beside
            try:
                return read_bytes(file).decode().split()
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"cannot read the languages in {file}: {error}") from None
        token = re.compile(re.escape(self.frame).replace(re.escape("{}"), r"([a-z]{2,3}(?:[_-]\w+)?)"))
        listed = [found[1] for word in dictionary if (found := token.fullmatch(word))]
        listed = [code for code in listed if not code.endswith(tuple(SUFFIXES.values()))]
        codes = list(self.codes) or listed or sorted({code for pair in self.pairs for code in pair.split("-")})
        if not codes:
            raise DataError(f"{path} does not list its languages; give reading.lang_dict=FILE, with one on each line")
        return codes

    def add_tokens(self, dictionary: Dictionary, codes: Sequence[str]) -> None:
        """Append the tokens that the file of the dictionary lacks.

        Args:
            dictionary: the dictionary, which is changed.
            codes: the languages.
        """
        for kind in self.kinds:
            suffix = next((own for end, own in SUFFIXES.items() if kind.endswith(end)), "")
            for code in codes:
                dictionary.add_symbol(self.frame.format(code + suffix))
        if self.has_mask:
            dictionary.add_symbol(MASK)

    def convention(self, codes: Sequence[str]) -> Languages:
        """How languages are chosen.

        Args:
            codes: the languages.
        """
        place = TargetLanguage.FIRST if self.by_target else TargetLanguage.SOURCE
        default = ("en" if "en" in codes else codes[0]) if self.source == "src" else ""
        return Languages({}, place, default, frame=self.frame)


def read_languages(options: Mapping[str, Any], path: Path) -> FairseqLanguages:
    """Read the options of the task.

    Args:
        options: the options of the task, as plain values.
        path: the checkpoint, for messages.

    Raises:
        CheckpointError: an option is not supported.
    """
    source, target = options.get("encoder_langtok"), "tgt" if options.get("decoder_langtok") else None
    langtoks = options.get("langtoks")  # fairseq adds what the two options above mean as "main"
    main = langtoks.get("main") if isinstance(langtoks, Mapping) else None
    if isinstance(main, list | tuple) and len(main) == 2:
        source, target = main
    if options.get("lang_tok_replacing_bos_eos"):
        raise CheckpointError(f"{path} was trained with lang_tok_replacing_bos_eos, which seqgen does not support")
    if (source or "", target or "") not in (("src", "tgt"), ("", "tgt"), ("tgt", "")):
        raise CheckpointError(
            f"{path} was trained with encoder_langtok={source} and decoder_langtok={target == 'tgt'}; seqgen supports "
            "the token of the target language in the target, with or without that of the source language in the "
            "source, or the token of the target language in the source"
        )
    style = str(options.get("lang_tok_style") or "multilingual")
    if style not in FRAMES:
        raise CheckpointError(f"{path} was trained with lang_tok_style={style}; there are: {', '.join(FRAMES)}")
    extra = options.get("extra_data")
    return FairseqLanguages(
        codes=_texts(options.get("langs")),
        file=str(options.get("lang_dict") or ""),
        pairs=_texts(options.get("lang_pairs")),
        dictionary=str(options.get("fixed_dictionary") or options.get("source_dict") or ""),
        frame=FRAMES[style],
        source=str(source or ""),
        by_target=target == "tgt",
        kinds=_texts(options.get("langtoks_specs")) or ["main"],
        has_mask=style == "mbart" or (isinstance(extra, Mapping) and "mono_dae" in extra),
    )


def _texts(value: Any) -> list[str]:
    """A list of texts, which old versions save as one text with commas."""
    if isinstance(value, str):
        return [part for part in value.split(",") if part]
    return [str(item) for item in value] if isinstance(value, list | tuple) else []
