"""Streamers: they show the words of an output during decoding.

The generator calls ``put`` and ``end`` with new tokens (``generation.setup.Streamer``), for any number of sentences at
once. A streamer decodes the tokens and passes a word on when the next word begins, because more tokens could extend it
until then. The words that are passed on for a sentence, joined, are its final text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import IO


def continuation(decode: Callable[[Sequence[int]], str], prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """Turn an output into text that is correct after the text of its prompt.

    Decoded alone, the pieces ``▁dog s`` and the pieces ``dog s`` both give ``dogs``. After a prompt, they give
    `` dogs`` and ``dogs``: the text of an output is what it adds to the text of its prompt.

    Args:
        decode: turns ids into text.
        prompt: ids of the prompt; empty if the output does not continue anything.
        tokens: ids of the output.

    Returns:
        The text. If the output changes how the tokenizer decodes the prompt, it is the output decoded alone.
    """
    if not prompt:
        return decode(tokens)
    before, whole = decode(prompt), decode([*prompt, *tokens])
    return whole.removeprefix(before) if whole.startswith(before) else decode(tokens)


class WordStreamer:
    """Turns tokens into whole words; a subclass implements ``on_text``.

    The caller of the generator calls ``bind`` before decoding and ``close`` after it, as ``Translator`` does.
    """

    def bind(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Start a new decoding run.

        Args:
            decode: turns all tokens of an output so far into text.
        """
        self._decode = decode
        self._tokens: dict[int, list[int]] = {}
        self._shown: dict[int, int] = {}
        self._prompts: dict[int, list[int]] = {}

    def begin(self, sentence: int, prompt: Sequence[int]) -> None:
        """Note the prompt that the output of a sentence continues; without it, the output is decoded alone.

        Args:
            sentence: its number.
            prompt: the tokens; may be empty.
        """
        if prompt:
            self._prompts[sentence] = list(prompt)

    def put(self, sentence: int, tokens: Sequence[int]) -> None:
        """Receive the next tokens of a sentence.

        Args:
            sentence: its number.
            tokens: their ids.
        """
        generated = self._tokens.setdefault(sentence, [])
        generated.extend(tokens)
        text = self._text(sentence, generated)
        self._show(sentence, text, whole_words(text), last=False)

    def end(self, sentence: int) -> None:
        """Receive the end of a sentence, and pass on its last words."""
        text = self._text(sentence, self._tokens.pop(sentence, []))
        self._show(sentence, text, len(text), last=True)
        self._shown.pop(sentence, None)
        self._prompts.pop(sentence, None)

    def close(self) -> None:
        """Receive the end of decoding; does nothing by default."""

    def on_text(self, sentence: int, text: str, last: bool) -> None:
        """Receive the next words of a sentence.

        Args:
            sentence: its number.
            text: the words, with the white space before them; may be empty if ``last``.
            last: whether these are the last words of the sentence.
        """
        raise NotImplementedError

    def _text(self, sentence: int, tokens: Sequence[int]) -> str:
        return continuation(self._decode, self._prompts.get(sentence, []), tokens) if tokens else ""

    def _show(self, sentence: int, text: str, upto: int, last: bool) -> None:
        shown = self._shown.get(sentence, 0)
        if upto > shown or last:
            self._shown[sentence] = upto
            self.on_text(sentence, text[shown:upto], last)


def whole_words(text: str) -> int:
    """Count the characters of a text that later tokens cannot change: 5 of ``a dog ru``, all but the last word.

    The white space before the last word is excluded too, because some tokenizers join punctuation to the word before.
    """
    last = max(text.rfind(space) for space in " \t\n")
    return len(text[: last + 1].rstrip())


class TextStreamer(WordStreamer):
    """Writes words to a terminal or file, with one output line for each sentence, in order.

    Words of the first incomplete line are written at once; words of later lines are buffered.

    Args:
        file: an open text file; standard output if not given.
    """

    def __init__(self, file: IO[str] | None = None):
        self.file = file

    def bind(self, decode: Callable[[Sequence[int]], str]) -> None:
        """See ``WordStreamer.bind``."""
        super().bind(decode)
        self._line = 0
        self._waiting: dict[int, str] = {}

    def on_text(self, sentence: int, text: str, last: bool) -> None:
        """See ``WordStreamer.on_text``."""
        self._waiting[sentence] = self._waiting.get(sentence, "") + text.replace("\n", " ") + "\n" * last
        while self._line in self._waiting:
            words = self._waiting.pop(self._line)
            self._write(words)
            if not words.endswith("\n"):
                self._waiting[self._line] = ""
                break
            self._line += 1

    def close(self) -> None:
        """Write all buffered lines, for example if line numbers do not begin at 0; see ``WordStreamer.close``."""
        for line in sorted(self._waiting):
            self._write(self._waiting.pop(line).removesuffix("\n") + "\n")

    def _write(self, text: str) -> None:
        file = self.file or sys.stdout
        file.write(text)
        file.flush()
