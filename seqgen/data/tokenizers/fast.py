"""Tokenizers that are a pipeline of the ``tokenizers`` library: their base class, and T5's fast tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer as Pipeline
from tokenizers.models import BPE

from seqgen.data.tokenizers.files import (
    CONFIG_FILE,
    DEFAULTS,
    FAST_FILE,
    MODEL_FILE,
    SpecialTokens,
    Token,
    TokenizerFiles,
    as_token,
)
from seqgen.data.tokenizers.pipelines import build_pipeline, read_model_file, to_pipeline
from seqgen.data.tokenizers.pretrained_base import PretrainedTokenizer
from seqgen.errors import DataError, library_errors, shown


class FastTokenizer(PretrainedTokenizer):
    """A pipeline of the ``tokenizers`` library; ``transformers`` calls these tokenizers fast.

    Args:
        files: the files.
        special: the special and added tokens.
        pipeline: a ``tokenizers.Tokenizer``, to which the tokens of ``special`` are added.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: the added tokens cannot be used.
    """

    def __init__(self, files: TokenizerFiles, special: SpecialTokens, pipeline: Any, vocab_size: int | None = None):
        self._pipeline = pipeline
        pipeline.no_truncation()
        pipeline.no_padding()
        pipeline.encode_special_tokens = bool(special.config.get("split_special_tokens"))
        if special.config.get("backend") != "tokenizers":  # version 5 of transformers, which sets it, saves all tokens
            with library_errors(f"{files.origin}: its added tokens cannot be used"):
                add_missing(pipeline, special)
        tokens = {index: token for token, index in pipeline.get_vocab(with_added_tokens=True).items()}
        super().__init__(files, special, tokens, vocab_size)

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer.encode``."""
        ids: list[int] = self._encode(text).ids
        return ids

    def _encode(self, text: str) -> Any:
        with library_errors(f"the tokenizer in {self.files.origin} cannot encode the line {shown(text)}"):
            return self._pipeline.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """See ``PretrainedTokenizer.decode``."""
        with library_errors(f"the tokenizer in {self.files.origin} cannot decode"):
            text = self._pipeline.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return self.clean_up(text)

    def clean_up(self, text: str) -> str:
        """See ``PretrainedTokenizer.clean_up``; version 5 of transformers does so only without byte-pair encoding."""
        ignored = self.special.config.get("backend") == "tokenizers" and isinstance(self._pipeline.model, BPE)
        return text if ignored else super().clean_up(text)

    def tokens_and_added(self) -> tuple[list[str | None], set[int]]:
        """See ``PretrainedTokenizer.tokens_and_added``."""
        tokens = [self._pipeline.id_to_token(i) for i in range(len(self.dictionary))]
        return tokens, set(self._pipeline.get_added_tokens_decoder())

    def check_added_tokens(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Check that the pipeline adds certain tokens to a text.

        Args:
            before: ids of the tokens before the text.
            after: ids of those after it.

        Raises:
            DataError: it adds other tokens.
        """
        with library_errors(f"the tokenizer in {self.files.origin} cannot encode a text"):
            found = self._pipeline.encode("a", add_special_tokens=True).ids
        if found != [*before, *self.encode("a"), *after]:
            wanted = " and ".join(self.dictionary.symbol(index) for index in [*before, *after])
            raise DataError(
                f"{self.files.origin}/{FAST_FILE} adds other tokens to a text than {wanted}, which seqgen does not "
                "support for this kind of tokenizer; copy the original file"
            )

    def unknown(self, text: str) -> list[str]:
        """See ``Tokenizer.unknown``."""
        encoding = self._encode(text)
        unk = self.dictionary.unk()
        offsets = [span for index, span in zip(encoding.ids, encoding.offsets, strict=True) if index == unk]
        unknown = [text[start:end].strip() for start, end in offsets]
        return [word for word in unknown if word and word != self.dictionary.symbol(unk)]


class FastT5Tokenizer(FastTokenizer):
    """T5's fast tokenizer, read from ``tokenizer.json`` or converted from ``spiece.model``.

    Args:
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: a file is missing or damaged.
    """

    def __init__(self, files: TokenizerFiles, vocab_size: int | None = None):
        special = SpecialTokens.read(files)
        extra_ids = special.number("extra_ids", 100)
        special.add_t5_sentinels()
        prefix = special.config.get("add_prefix_space")
        # as in transformers: if add_prefix_space is set, only version 5, which sets backend, reads tokenizer.json
        reads_fast_file = prefix is None or special.config.get("backend") == "tokenizers"
        if reads_fast_file and FAST_FILE in files:
            pipeline = read_pipeline(files)
        else:  # transformers converts spiece.model, and adds the special tokens of its slow tokenizer
            prefix = prefix or "add_prefix_space" not in special.config
            legacy = special.config.get("legacy") is None or bool(special.config["legacy"])
            origin = f"{files.origin}/{MODEL_FILE}"
            pipeline = to_pipeline(files.need(MODEL_FILE), extra_ids, prefix, legacy, origin)
            special.fill(special=True)
        special.fill()
        super().__init__(files, special, pipeline, vocab_size)


def read_pipeline(files: TokenizerFiles) -> Any:
    """Read ``tokenizer.json``.

    Args:
        files: the tokenizer's files.

    Returns:
        The pipeline, a ``tokenizers.Tokenizer``.

    Raises:
        DataError: the file is missing or damaged.
    """
    files.json(FAST_FILE)  # checks its syntax
    with library_errors(f"{files.origin}/{FAST_FILE} is not a tokenizer, or is damaged"):
        return Pipeline.from_str(files.need(FAST_FILE).decode())


def add_missing(pipeline: Any, special: SpecialTokens) -> None:
    """Complete a pipeline with added and special tokens that it does not have, or has with other flags.

    Args:
        pipeline: the pipeline, which is changed.
        special: the tokens from the tokenizer's other files.
    """
    present = pipeline.get_added_tokens_decoder()
    known = {repr(token) for token in present.values()}
    tokens: list[Token] = [token for _, token in sorted(special.added.items()) if repr(token) not in known]
    contents = {token.content for token in present.values()} | {str(token) for token in tokens}
    names = {str(token) for token in special.all()}
    # a token given with flags replaces the pipeline's; a token given as a string is added only if it is missing
    tokens += [t for t in special.all() if (t not in contents if isinstance(t, str) else t not in tokens)]
    pipeline.add_tokens([_with_flag(token, names) for token in tokens])


def _with_flag(token: Token, special: set[str]) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=token in special)
    token.special = token.special or token.content in special
    return token


OFFSET = 103
NAMED = {**DEFAULTS, "mask_token": "<mask_2>"}
SENTENCE_MASK = "<mask_1>"


class FastPegasusTokenizer(FastTokenizer):
    """Pegasus's fast tokenizer, read from ``tokenizer.json`` or converted from ``spiece.model``.

    Args:
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: a file is missing or damaged, or adds tokens to a text other than end-of-sentence.
    """

    def __init__(self, files: TokenizerFiles, vocab_size: int | None = None):
        special = SpecialTokens.read(files)
        self._offset = special.number("offset", OFFSET)
        mask = special.config.get("mask_token_sent", SENTENCE_MASK)
        where = f"{files.origin}/{CONFIG_FILE}: mask_token_sent"
        self._sentence_mask = [] if mask is None else [str(as_token(mask, where))]
        special.fill(NAMED)
        special.additional = self._additional(special)
        usual = all(str(special.named[key]) == token for key, token in DEFAULTS.items())
        special.added = {}
        reads = FAST_FILE in files and usual and not special.config.get("from_slow")
        if not reads:
            special.mark()
        pipeline = read_pipeline(files) if reads else self._converted(files, special)
        super().__init__(files, special, pipeline, vocab_size)
        if reads:
            self.check_added_tokens([], [self.dictionary.eos()])

    def _additional(self, special: SpecialTokens) -> list[Token]:
        """The special tokens without a name: the mask of sentences, those of the files, and unused ones."""
        if special.additional is None:
            return [*self._sentence_mask, *self._unused(2, self._offset)]
        given = [str(token) for token in special.additional]
        tokens = [*(token for token in self._sentence_mask if token not in given), *special.additional]
        tokens += self._unused(len(tokens), self._offset - 1)
        if len({str(token) for token in tokens}) != len(tokens):
            raise DataError(
                f"{special.origin}/{CONFIG_FILE}: its {len(given)} additional_special_tokens and the tokens <unk_i> "
                "that follow them are not different; copy the file again"
            )
        return tokens

    @staticmethod
    def _unused(start: int, stop: int) -> list[str]:
        return [f"<unk_{i}>" for i in range(start, stop)]

    def _converted(self, files: TokenizerFiles, special: SpecialTokens) -> Any:
        origin = f"{files.origin}/{MODEL_FILE}"
        source = read_model_file(files.need(MODEL_FILE), origin)
        pad, eos, mask = (str(special.named[f"{name}_token"]) for name in ("pad", "eos", "mask"))
        first = [pad, eos, *([*self._sentence_mask, mask] if self._sentence_mask else [])]
        vocabulary = [(token, 0.0) for token in first]
        vocabulary += [(token, -100.0) for token in self._unused(2, self._offset)]
        vocabulary += [(piece.text, piece.score) for piece in source.pieces[2:]]
        return build_pipeline(source, vocabulary, source.unk + self._offset, origin, splits=True)
