"""The vocabulary: tokens and their ids; and the vocabularies that a model is built for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from seqgen.core.errors import ConfigError, DataError
from seqgen.data.text import read_chunks
from seqgen.system.error_messages import reading_errors
from seqgen.system.files import write_atomically
from seqgen.system.reading import parse_json, read_bytes

FAIRSEQ_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
"""The special tokens with the ids 0 to 3, which a ``dict.txt`` does not list."""

OVERWRITE_FLAG = "#fairseq:overwrite"
"""At the end of a line of a ``dict.txt``: the token may have occurred before, and gets this line's id."""


class Dictionary:
    """Tokens, their ids and their counts.

    A new dictionary has the four special tokens with fairseq's ids: ``<s>`` 0, ``<pad>`` 1, ``</s>`` 2, ``<unk>`` 3.

    Args:
        symbols: all tokens in the order of their ids, special ones included; ``None`` for the four special ones.
        counts: number of occurrences of each token; ``None`` for all 0.
        pad: id of padding.
        eos: id of end-of-sentence.
        unk: id of unknown tokens.
        bos: id of begin-of-sentence; ``None`` for none.

    Attributes:
        symbols: all tokens in the order of their ids.
        counts: the count of each.
        special_ids: the ids of ``pad``, ``eos``, ``unk`` and ``bos`` by name; ``None`` for one that it does not have.

    Raises:
        DataError: a token occurs twice, the numbers of tokens and counts differ, or a special id is outside the
            vocabulary.
    """

    def __init__(
        self,
        symbols: Iterable[str] | None = None,
        counts: Iterable[int] | None = None,
        *,
        pad: int = 1,
        eos: int = 2,
        unk: int = 3,
        bos: int | None = 0,
    ):
        self.symbols = list(FAIRSEQ_SPECIALS if symbols is None else symbols)
        self.counts = [0] * len(self.symbols) if counts is None else list(counts)
        self._pad, self._eos, self._unk, self._bos = pad, eos, unk, bos
        self.special_ids = {"pad": pad, "eos": eos, "unk": unk, "bos": bos}
        self._ids = {token: i for i, token in enumerate(self.symbols)}
        if len(self._ids) < len(self.symbols):
            twice = next(token for i, token in enumerate(self.symbols) if self._ids[token] != i)
            raise DataError(f"the vocabulary contains {twice!r} twice; remove one")
        if len(self.counts) != len(self.symbols):
            raise DataError(f"the vocabulary has {len(self.symbols)} tokens but {len(self.counts)} counts")
        for name, value in self.special_ids.items():
            if value is not None and not 0 <= value < len(self.symbols):
                raise DataError(f"{name} id {value} is outside the vocabulary of {len(self.symbols)} tokens")

    def pad(self) -> int:
        """Id of padding."""
        return self._pad

    def eos(self) -> int:
        """Id of end-of-sentence."""
        return self._eos

    def unk(self) -> int:
        """Id of unknown tokens."""
        return self._unk

    def bos(self) -> int:
        """Id of begin-of-sentence; that of end-of-sentence if the vocabulary has none."""
        return self._eos if self._bos is None else self._bos

    def index(self, token: str) -> int:
        """Id of a token; the unknown id if it is not in the vocabulary."""
        return self._ids.get(token, self._unk)

    def word_index(self, word: str) -> int:
        """Id of a word in a text; unlike ``index``, words such as ``</s>`` and ``<pad>`` are unknown."""
        index = self.index(word)
        return self._unk if index in (self._pad, self._eos, self._bos) else index

    def symbol(self, index: int) -> str:
        """Token of an id.

        Args:
            index: the id.

        Raises:
            IndexError: the id is outside the vocabulary.
        """
        if not 0 <= index < len(self.symbols):
            raise IndexError(f"id {index} is outside the vocabulary of {len(self.symbols)} tokens")
        return self.symbols[index]

    __getitem__ = symbol

    def __contains__(self, token: object) -> bool:
        return token in self._ids

    def __len__(self) -> int:
        return len(self.symbols)

    def __iter__(self) -> Iterator[str]:
        return iter(self.symbols)

    def __eq__(self, other: object) -> bool:
        """True if tokens, ids and special ids are equal; counts are not compared."""
        if not isinstance(other, Dictionary):
            return NotImplemented
        return self.symbols == other.symbols and self.special_ids == other.special_ids

    __hash__ = None  # type: ignore[assignment]  # tokens can be added

    def __repr__(self) -> str:
        return f"Dictionary({len(self)} tokens, {', '.join(f'{k} {v}' for k, v in self.special_ids.items())})"

    def add_symbol(self, token: str, count: int = 1) -> int:
        """Append a token, or increase its count if it exists.

        Args:
            token: the token.
            count: number of occurrences to add.

        Returns:
            The token's id.
        """
        index = self._ids.setdefault(token, len(self.symbols))
        if index == len(self.symbols):
            self.symbols.append(token)
            self.counts.append(0)
        self.counts[index] += count
        return index

    def fingerprint(self) -> str:
        """A hexadecimal SHA-256 of tokens and special ids; equal vocabularies have the same one in every process."""
        content = json.dumps([self.symbols, self.special_ids], ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], size: int | None = None) -> Self:
        """Make a vocabulary of the most frequent tokens, with fairseq's special ids.

        Args:
            counts: number of occurrences of each token.
            size: maximum number of tokens, special ones included; ``None`` for all.

        Returns:
            The vocabulary, sorted by decreasing count, then by token.
        """
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        dictionary = cls()
        room = None if size is None else max(0, size - len(dictionary))
        for token, count in [item for item in ordered if item[0] not in dictionary][:room]:
            dictionary.add_symbol(token, count)
        return dictionary

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a vocabulary.

        Args:
            path: a ``.json`` file written by ``save``, or any other name for a file in the format of fairseq's
                ``dict.txt``.

        Returns:
            The vocabulary.

        Raises:
            DataError: the file is missing, empty or damaged; the message names the line.
        """
        path = Path(path)
        return cls._load_json(path) if path.suffix == ".json" else cls._load_dict_txt(path)

    @classmethod
    def _load_dict_txt(cls, path: Path) -> Self:
        dictionary = cls()
        for chunk in read_chunks(path):
            for number, line in enumerate(chunk.decode(), chunk.first):
                try:
                    dictionary._add_line(line)
                except ValueError as error:
                    raise DataError(f"{path}, line {number}: {error}") from None
        if len(dictionary) == len(FAIRSEQ_SPECIALS):
            raise DataError(f"{path} is empty; a vocabulary has a token and its count on each line")
        return dictionary

    def _add_line(self, line: str) -> None:
        token, separator, count = line.rstrip().rpartition(" ")
        overwrite = count == OVERWRITE_FLAG
        if overwrite:
            token, separator, count = token.rpartition(" ")
        if not separator or not token or not (count.isascii() and count.isdigit() and len(count) < 19):
            raise ValueError(f"{line[:60]!r} is not a token, a space and a count")
        if token in self and not overwrite:
            raise ValueError(f"the token {token!r} occurs twice; remove one, or add {OVERWRITE_FLAG!r} to the line")
        if overwrite and token in self:  # the old id gets another name, such as the#7
            self.symbols[self._ids[token]] += f"#{self._ids[token]}"
        self._ids[token] = len(self.symbols)
        self.symbols.append(token)
        self.counts.append(int(count))

    @classmethod
    def _load_json(cls, path: Path) -> Self:
        with reading_errors(path, DataError):
            written = read_bytes(path)
        try:
            content = parse_json(written)
            special_ids = {name: content[name] for name in ("pad", "eos", "unk", "bos")}
            symbols, counts = content["symbols"], content["counts"]
            numbers = [*counts, *(value for name, value in special_ids.items() if name != "bos" or value is not None)]
            if not isinstance(symbols, list) or not all(isinstance(token, str) for token in symbols):
                raise TypeError("a token is not a string")
            if not all(type(value) is int for value in numbers):
                raise TypeError("a count or id is not a whole number")
            return cls(symbols, counts, **special_ids)
        except KeyError as error:
            raise DataError(f"{path} is not a vocabulary, or is damaged: it has no {error}") from None
        except (ValueError, TypeError, DataError) as error:
            raise DataError(f"{path} is not a vocabulary, or is damaged: {error}") from None

    def save(self, path: Path | str) -> None:
        """Write the vocabulary.

        Args:
            path: a ``.json`` file, which can represent every vocabulary, or any other name for the format of fairseq's
                ``dict.txt``.

        Raises:
            DataError: a ``dict.txt`` cannot represent the vocabulary.
            UserError: the file cannot be written.
        """
        path = Path(path)
        if path.suffix == ".json":
            content: dict[str, Any] = {**self.special_ids, "symbols": self.symbols, "counts": self.counts}
            text = json.dumps(content, ensure_ascii=False, indent=0)
        else:
            standard = {"pad": 1, "eos": 2, "unk": 3, "bos": 0}
            if self.special_ids != standard or tuple(self.symbols[:4]) != FAIRSEQ_SPECIALS:
                raise DataError(f"{path}: a dict.txt can only have the special ids {standard}; save as .json")
            for i, token in enumerate(self.symbols):
                if not token or "\n" in token or (i == len(FAIRSEQ_SPECIALS) and token.startswith("\ufeff")):
                    raise DataError(f"{path}: a dict.txt cannot contain the token {token!r}; save as .json")
            rows = zip(self.symbols[len(FAIRSEQ_SPECIALS) :], self.counts[len(FAIRSEQ_SPECIALS) :], strict=True)
            text = "".join(f"{token} {count}\n" for token, count in rows)
        write_atomically(path, text)


class Vocabularies(Protocol):
    """The vocabularies that a model is built for; every ``Task`` has them."""

    @property
    def source_dictionary(self) -> Dictionary:
        """The vocabulary of the source."""

    @property
    def target_dictionary(self) -> Dictionary:
        """The vocabulary of the target."""


def embedding_sizes(task: Vocabularies, vocab_size: int, decoder_start_token_id: int) -> tuple[int, int]:
    """The rows of the source's and of the target's embedding.

    Args:
        task: gives the dictionaries.
        vocab_size: the rows of each; 0 for the sizes of the dictionaries.
        decoder_start_token_id: the first decoder input; -1 for a token of the dictionary.

    Returns:
        Both numbers.

    Raises:
        ConfigError: ``vocab_size`` is too small for a dictionary, or the first decoder input has no row.
    """
    sizes = len(task.source_dictionary), len(task.target_dictionary)
    if vocab_size and vocab_size < (longer := max(sizes)):
        raise ConfigError(
            f"model.vocab_size={vocab_size} is too small for a vocabulary of {longer} tokens; set at least {longer}, "
            "or 0 for the size of the vocabulary"
        )
    source, target = (vocab_size or size for size in sizes)
    if decoder_start_token_id >= target:
        raise ConfigError(
            f"model.decoder_start_token_id={decoder_start_token_id} is outside the vocabulary of {target} tokens"
        )
    return source, target


def check_joined(task: Vocabularies, model: str) -> None:
    """Check that source and target have one vocabulary.

    Args:
        task: gives the dictionaries.
        model: the model that needs it, for the message.

    Raises:
        ConfigError: they differ.
    """
    source, target = task.source_dictionary, task.target_dictionary
    if not (source is target or source == target):
        raise ConfigError(
            f"model={model} has one embedding for source and target and needs one vocabulary for both; set "
            "task.joined_dictionary=true, or choose another model"
        )
