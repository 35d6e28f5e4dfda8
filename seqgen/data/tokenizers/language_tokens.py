"""A tokenizer with one more token for each of several languages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from seqgen.core.errors import ConfigError, DataError
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer, load_tokenizer, register_tokenizer, save_tokenizer, write_settings
from seqgen.data.tokenizers.languages import AddedTokens, Languages, TargetLanguage

LANG_TOKEN_FORMAT = "__{}__"
"""The token of a language if the tokenizer has no languages, as in M2M-100."""
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
                f"a {type(text).__name__} has other pieces for targets than for sources, so tokens of the "
                f"languages {', '.join(codes)} cannot be added"
            )
        words = Dictionary(text.dictionary.symbols, text.dictionary.counts, **text.dictionary.special_ids)  # type: ignore[arg-type]
        added = {code: words.add_symbol(convention.token_format.format(code), 0) for code in codes}
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

    def unknown(self, text: str) -> list[str]:
        """See ``Tokenizer.unknown``."""
        return self.text.unknown(text)

    def source_tokens(self, source_lang: str = "", target_lang: str = "") -> AddedTokens:
        """See ``Tokenizer.source_tokens``; the token of a language precedes a begin-of-sentence of the text."""
        return self._joined(super().source_tokens(source_lang, target_lang), self.text.source_tokens())

    def target_tokens(self, target_lang: str = "") -> AddedTokens:
        """See ``Tokenizer.target_tokens``."""
        return self._joined(super().target_tokens(target_lang), self.text.target_tokens())

    def _joined(self, added: AddedTokens, of_text: AddedTokens) -> AddedTokens:
        """The tokens of languages, and those that begin a text, unless these are tokens of languages, too."""
        has_languages = self.text.languages is not None
        return added if has_languages else added._replace(before=[*added.before, *of_text.before])

    def decode(self, ids: Sequence[int]) -> str:
        """See ``Tokenizer.decode``; the tokens of languages are skipped."""
        return self.text.decode([index for index in ids if index not in self._language_ids])

    def token_bytes(self) -> list[bytes | None]:
        """See ``Tokenizer.token_bytes``."""
        known = self.text.token_bytes()
        known = [*known, *[None] * (len(self.dictionary) - len(known))]
        return [None if index in self._language_ids else content for index, content in enumerate(known)]

    def fingerprint(self) -> str:
        """See ``Tokenizer.fingerprint``."""
        return f"language_tokens:{self.text.fingerprint()}:{self.dictionary.fingerprint()}"

    def save(self, folder: Path) -> None:
        """See ``Tokenizer.save``."""
        languages = self.languages
        assert languages is not None
        kept = {key: getattr(languages, key) for key in ("source_lang", "target_lang", "follows_eos", "token_format")}
        settings = {"codes": self.codes, "target": languages.target.value, **kept}
        write_settings(folder, {"tokenizer": "language_tokens", **settings})
        save_tokenizer(self.text, folder / TEXT)

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """See ``Tokenizer.load``."""
        text = load_tokenizer(folder / TEXT)
        try:
            codes = [str(code) for code in settings["codes"]]
            texts: dict[str, Any] = {key: str(settings[key]) for key in ("source_lang", "target_lang", "token_format")}
            convention = Languages(
                ids=text.languages.ids if text.languages is not None else {},
                target=TargetLanguage(settings["target"]),
                follows_eos=settings["follows_eos"] is True,
                **texts,
            )
            _before, _after = convention.token_format.split("{}")
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{folder / 'tokenizer.json'} is damaged; copy the folder again or make the tokenizer again"
            ) from None
        made = cls(text, codes, convention)
        assert made.languages is not None
        made.languages = made.languages.checked(str(folder / "tokenizer.json"), {})
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
        languages = Languages({}, place, "" if by_source else pairs[0][0], token_format=LANG_TOKEN_FORMAT)
    # the token of a source language is needed only where sources have one
    every = [code for pair in pairs for code in (pair if languages.source_lang else pair[1:])]
    new = [code for code in dict.fromkeys(every) if code not in languages.ids]
    return LanguageTokenizer(tokenizer, new, languages) if new else tokenizer
