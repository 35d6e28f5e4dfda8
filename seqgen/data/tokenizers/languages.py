"""The language codes of multilingual models, in the order of their ids, and the languages of a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib import resources
from typing import Any, NamedTuple, Self

from seqgen.core.errors import ConfigError, nearest
from seqgen.system.reading import read_lists

_CODES = read_lists(__package__, "language_codes.txt")
MBART, M2M100, WMT21, NLLB = (_CODES[name] for name in ("mbart", "m2m100", "wmt21", "nllb"))
MBART50 = [*MBART, *_CODES["mbart50"]]
"""The codes of languages of models, in the order of their ids."""


def _language(code: str) -> str:
    """The language of a code, without script and country: ``deu`` for ``deu_Latn``."""
    return re.split("[-_]", code.lower())[0]


class AddedTokens(NamedTuple):
    """The tokens that are added to the ids of a text.

    Attributes:
        before: ids before the text.
        after: ids after the text, usually end-of-sentence.
    """

    before: Sequence[int]
    after: Sequence[int]

    def around(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text with the added tokens.

        Args:
            ids: the ids of the text.
        """
        return [*self.before, *ids, *self.after]


class TargetLanguage(Enum):
    """The place of the token of the output's language."""

    FIRST = "first"
    """The language's token is the first token of the output (M2M-100, NLLB, mBART-50)."""
    START = "start"
    """It is the start token of the decoder (mBART)."""
    SOURCE = "source"
    """It is the first token of the source (Marian)."""


@dataclass(frozen=True)
class Languages:
    """The languages of a multilingual tokenizer.

    Attributes:
        ids: the id of each language's token, by the language's code.
        target: how the language of the output is chosen.
        source_lang: code of the source language if the user names none; empty if sources have no token of their
            language.
        follows_eos: whether the token of the source language follows end-of-sentence, or is the first one.
        target_lang: code of the target language of references if the user names none; empty for none.
        token_format: the token of a language, such as ``__{}__``.
        in_text: whether a line of text can begin with the token of its target language.
    """

    ids: Mapping[str, int]
    target: TargetLanguage
    source_lang: str = ""
    follows_eos: bool = False
    target_lang: str = ""
    token_format: str = "{}"
    in_text: bool = False

    def code(self, name: str, key: str) -> str:
        """Check the name of a language.

        Args:
            name: a code such as ``de``, or the token of the language, such as ``__de__``.
            key: where the name comes from, for messages.

        Returns:
            The code.

        Raises:
            ConfigError: there is no such language.
        """
        before, after = self.token_format.split("{}")
        code = name.removeprefix(before).removesuffix(after)
        if code not in self.ids:
            raise ConfigError(
                f"{key}: the model has no language {name!r}{self._nearest(code)}; seqgen-show path=MODEL "
                f"languages=true lists its {len(self.ids)} languages"
            )
        return code

    def _nearest(self, code: str) -> str:
        """A phrase with the codes of the language with this English name or ISO code, or else with a similar code."""
        rows = map(str.split, resources.files(__package__).joinpath("languages.txt").read_text("utf-8").splitlines())
        wanted = _language(code)
        same = {wanted}.union(*(row for row in rows if wanted in row))
        found = [known for known in self.ids if _language(known) in same]
        return nearest(code, self.ids) if not found else f" (did you mean {' or '.join(map(repr, found[:3]))}?)"

    def source_tokens(self, eos: int, source_lang: str, target_lang: str) -> AddedTokens:
        """The tokens of a source besides its text: end-of-sentence, and the token of a language.

        Args:
            eos: id of end-of-sentence.
            source_lang: code of the source language; empty for the default.
            target_lang: code of the target language; empty for none.
        """
        if self.target is TargetLanguage.SOURCE:
            return AddedTokens([self.ids[target_lang]] if target_lang else [], [eos])
        language = [self.ids[source_lang or self.source_lang]] if self.source_lang else []
        return AddedTokens([], [eos, *language]) if self.follows_eos else AddedTokens(language, [eos])

    def beginning(self, target_lang: str) -> list[int]:
        """The token of the target language, if outputs begin with it.

        Args:
            target_lang: code of the target language; empty for none.
        """
        return [self.ids[target_lang]] if target_lang and self.target is TargetLanguage.FIRST else []

    def checked(self, location: str, config: Mapping[str, Any]) -> Self:
        """The same languages, after a check that the default languages exist.

        Args:
            location: the tokenizer's file, for messages.
            config: its content, which can name other default languages.

        Raises:
            ConfigError: one does not exist.
        """
        source, target = config.get("src_lang"), config.get("tgt_lang")
        source, target = self.source_lang if source is None else str(source), str(target or self.target_lang)
        return replace(
            self,
            source_lang=self.code(source, f"{location}: src_lang") if source else "",
            target_lang=self.code(target, f"{location}: tgt_lang") if target else "",
        )
