"""A tokenizer with one more token for each of several languages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import (
    TokenBytes,
    Tokenizer,
    load_tokenizer,
    register_tokenizer,
    save_tokenizer,
    write_settings,
)
from seqgen.data.tokenizers.languages import Languages, TargetLanguage
from seqgen.errors import ConfigError, DataError

FRAME = "__{}__"
"""The token of a language if the tokenizer has no languages of its own, as in M2M-100."""
TEXT = "text"
"""The folder of the tokenizer of the text, in the folder of the whole."""


@register_tokenizer("language_tokens")
class LanguageTokenizer(Tokenizer):
    """A tokenizer whose vocabulary also has a token for each of several languages.

    New tokens follow those of the tokenizer of the text, which keep their ids::

        text        <s> <pad> </s> <unk> a b
        whole       <s> <pad> </s> <unk> a b __en__ __de__

    Args:
        text: the tokenizer of the text.
        codes: the codes of the languages, in the order of their tokens.
        convention: how languages are chosen. The ``ids`` are those of the languages that ``text`` has already.

    Raises:
        ConfigError: source and target have different tokenizers.
    """

    def __init__(self, text: Tokenizer, codes: Sequence[str], convention: Languages):
        if text.target_side is not text:
            raise ConfigError(
                f"a {type(text).__name__} has other pieces for targets than for sources, so that tokens of the "
                f"languages {', '.join(codes)} cannot be added"
            )
        words = Dictionary(text.dictionary.symbols, text.dictionary.counts, **text.dictionary.special_ids)  # type: ignore[arg-type]
        added = {code: words.add_symbol(convention.frame.format(code), 0) for code in codes}
        super().__init__(words)
        self.text, self.codes, self.whole_words = text, list(codes), text.whole_words
        self.languages = replace(convention, ids={**convention.ids, **added})
        self._language_ids = frozenset(self.languages.ids.values())

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer.encode``."""
        return self.text.encode(text)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """See ``Tokenizer.encode_lines``."""
        return self.text.encode_lines(lines)

    def sample(self, text: str, seed: int) -> list[int]:
        """See ``Tokenizer.sample``."""
        return self.text.sample(text, seed)

    def unknown(self, text: str) -> list[str]:
        """See ``Tokenizer.unknown``."""
        return self.text.unknown(text)

    def encode_source(self, text: str, source_lang: str = "", target_lang: str = "") -> list[int]:
        """See ``Tokenizer.encode_source``; the token of a language precedes a begin-of-sentence of the text."""
        assert self.languages is not None
        ids = [*self.source_beginning, *self.encode(text)]
        return self.languages.frame_source(ids, self.dictionary.eos(), source_lang, target_lang)

    @property
    def source_beginning(self) -> list[int]:
        """See ``Tokenizer.source_beginning``."""
        return self.text.source_beginning

    def beginning(self, target_lang: str = "") -> list[int]:
        """See ``Tokenizer.beginning``."""
        own = [] if self.text.languages is not None else self.text.beginning()
        return [*super().beginning(target_lang), *own]

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer.decode``; the tokens of languages are skipped."""
        return self.text.decode([index for index in ids if index not in self._language_ids])

    def token_bytes(self) -> TokenBytes:
        """See ``Tokenizer.token_bytes``."""
        known = self.text.token_bytes()
        known = [*known, *[None] * (len(self.dictionary) - len(known))]
        return [None if index in self._language_ids else own for index, own in enumerate(known)]

    def fingerprint(self) -> str:
        """See ``Tokenizer.fingerprint``."""
        return f"language_tokens:{self.text.fingerprint()}:{self.dictionary.fingerprint()}"

    def save(self, folder: Path) -> None:
        """See ``Tokenizer.save``."""
        own = self.languages
        assert own is not None
        convention = {"source_lang": own.source_lang, "target_lang": own.target_lang, "follows_eos": own.follows_eos}
        settings = {"codes": self.codes, "target": own.target.value, "frame": own.frame, **convention}
        write_settings(folder, {"tokenizer": "language_tokens", **settings})
        save_tokenizer(self.text, folder / TEXT)

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """See ``Tokenizer.load``."""
        text = load_tokenizer(folder / TEXT)
        try:
            codes, frame = [str(code) for code in settings["codes"]], str(settings["frame"])
            names = [str(settings[key]) for key in ("source_lang", "target_lang")]
            convention = Languages(
                ids=text.languages.ids if text.languages is not None else {},
                target=TargetLanguage(settings["target"]),
                source_lang=names[0],
                follows_eos=settings["follows_eos"] is True,
                target_lang=names[1],
                frame=frame,
            )
            _before, _after = frame.split("{}")
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{folder / 'tokenizer.json'} is damaged; copy the folder again or make the tokenizer again"
            ) from None
        made = cls(text, codes, convention)
        assert made.languages is not None
        made.languages = made.languages.checked(str(folder / "tokenizer.json"))
        return made


def with_languages(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], side: str = "") -> Tokenizer:
    """A tokenizer with a token for each language of some pairs.

    Args:
        tokenizer: the tokenizer of the text, which may have languages already.
        pairs: codes of the source and the target language of each pair.
        side: ``source`` if the token of the target language is the first one of sources; ``target`` if sources and
            targets begin with the tokens of their own languages; empty for the tokenizer's convention, and for
            ``source`` if it has no languages.

    Returns:
        The tokenizer itself if it has all languages, otherwise one with further tokens.

    Raises:
        ConfigError: the tokenizer has languages, and another convention.
    """
    languages = tokenizer.languages
    if languages is not None and side and (side == "source") != (languages.target is TargetLanguage.SOURCE):
        raise ConfigError(
            f"task.language_token={side} differs from what the model of the tokenizer was trained with; remove the key"
        )
    if languages is None:
        by_source = side != "target"
        place = TargetLanguage.SOURCE if by_source else TargetLanguage.FIRST
        languages = Languages({}, place, "" if by_source else pairs[0][0], frame=FRAME)
    # the token of a source language is needed only where sources have one
    every = [code for pair in pairs for code in (pair if languages.source_lang else pair[1:])]
    new = [code for code in dict.fromkeys(every) if code not in languages.ids]
    return LanguageTokenizer(tokenizer, new, languages) if new else tokenizer
