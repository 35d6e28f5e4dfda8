"""Tokenizers that are a pipeline of the ``tokenizers`` library, read from ``tokenizer.json`` or converted.

Their base class, and the tokenizers of T5, Pegasus, mBART, mBART-50 and NLLB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenizers import AddedToken, Tokenizer as Pipeline
from tokenizers.models import BPE

from seqgen.core.errors import DataError, shown
from seqgen.data.tokenizers import files as layout
from seqgen.data.tokenizers.base import SENTINEL
from seqgen.data.tokenizers.files import SpecialTokens, Token, TokenizerFiles, as_token
from seqgen.data.tokenizers.languages import MBART, MBART50, NLLB, AddedTokens, Languages, TargetLanguage
from seqgen.data.tokenizers.pipelines import build_pipeline, check_growth, read_model_file
from seqgen.data.tokenizers.pretrained_base import PretrainedTokenizer
from seqgen.system.error_messages import library_errors


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
            with library_errors(f"{files.location}: its added tokens cannot be used"):
                add_missing(pipeline, special)
        tokens = {index: token for token, index in pipeline.get_vocab(with_added_tokens=True).items()}
        super().__init__(files, special, tokens, vocab_size)

    def encode(self, text: str) -> list[int]:
        """See ``Tokenizer.encode``."""
        ids: list[int] = self._encode(text).ids
        return ids

    def _encode(self, text: str) -> Any:
        with library_errors(f"the tokenizer in {self.files.location} cannot encode the line {shown(text)}"):
            return self._pipeline.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """See ``PretrainedTokenizer.decode``."""
        with library_errors(f"the tokenizer in {self.files.location} cannot decode"):
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

    def added_tokens(self, text: str = "") -> list[int]:
        """The ids of a text with the tokens that the pipeline adds to each text.

        Args:
            text: the text; by default an empty one, so that only these tokens remain.
        """
        with library_errors(f"the tokenizer in {self.files.location} cannot encode {shown(text)}"):
            ids: list[int] = self._pipeline.encode(text, add_special_tokens=True).ids
        return ids

    def check_added_tokens(self, wanted: AddedTokens) -> None:
        """Check that the pipeline adds certain tokens to a text.

        Args:
            wanted: the tokens.

        Raises:
            DataError: it adds other tokens, or adds them elsewhere.
        """
        if self.added_tokens("a") != wanted.around(self.encode("a")):
            raise DataError(
                f"{self.files.location}/{layout.FAST_FILE} adds other tokens to a text than "
                f"{' and '.join(map(self.dictionary.symbol, wanted.around([])))}, which seqgen does not support for "
                "this kind of tokenizer; copy the original file"
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
        special.add_sentinels(100, alone=False)
        prefix = special.config.get("add_prefix_space")
        # as in transformers: if add_prefix_space is set, only version 5, which sets backend, reads tokenizer.json
        reads_fast_file = prefix is None or special.config.get("backend") == "tokenizers"
        if reads_fast_file and layout.FAST_FILE in files:
            pipeline = read_pipeline(files)
        else:  # transformers converts spiece.model, and adds the special tokens of its slow tokenizer
            prefix = prefix or "add_prefix_space" not in special.config
            legacy = special.config.get("legacy") is None or bool(special.config["legacy"])
            source = read_model_file(files.need(layout.MODEL_FILE), f"{files.location}/{layout.MODEL_FILE}")
            numbers = reversed(range(special.number("extra_ids", 100)))  # <extra_id_0> has the highest id
            vocabulary = [*source.vocabulary(), *((SENTINEL.format(number), 0.0) for number in numbers)]
            scheme = ("always" if legacy else "first") if prefix else "never"
            pipeline = build_pipeline(source, vocabulary, source.unk, scheme)
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
        DataError: the file is missing or damaged, or its steps can make a text too long.
    """
    check_growth(files.json(layout.FAST_FILE), f"{files.location}/{layout.FAST_FILE}")
    with library_errors(f"{files.location}/{layout.FAST_FILE} is not a tokenizer, or is damaged"):
        return Pipeline.from_str(files.need(layout.FAST_FILE).decode())


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
    flagged = [AddedToken(token) if isinstance(token, str) else token for token in tokens]
    for token in flagged:
        token.special = token.special or token.content in names
    pipeline.add_tokens(flagged)


PEGASUS_OFFSET = 103
PEGASUS_NAMED = {**layout.DEFAULTS, "mask_token": "<mask_2>"}
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
        self._offset = special.number("offset", PEGASUS_OFFSET)
        mask = special.config.get("mask_token_sent", SENTENCE_MASK)
        where = f"{files.location}/{layout.CONFIG_FILE}: mask_token_sent"
        self._sentence_mask = [] if mask is None else [str(as_token(mask, where))]
        special.fill(PEGASUS_NAMED)
        special.additional = self._additional(special)
        usual = all(str(special.named[key]) == token for key, token in layout.DEFAULTS.items())
        special.added = {}
        reads = layout.FAST_FILE in files and usual and not special.config.get("from_slow")
        if not reads:
            special.mark()
        pipeline = read_pipeline(files) if reads else self._converted(files, special)
        super().__init__(files, special, pipeline, vocab_size)
        if reads:
            self.check_added_tokens(AddedTokens([], [self.dictionary.eos()]))

    def _additional(self, special: SpecialTokens) -> list[Token]:
        """The special tokens without a name: the mask of sentences, those of the files, and unused ones."""
        if special.additional is None:
            return [*self._sentence_mask, *self._unused(2, self._offset)]
        given = [str(token) for token in special.additional]
        tokens = [*(token for token in self._sentence_mask if token not in given), *special.additional]
        tokens += self._unused(len(tokens), self._offset - 1)
        if len({str(token) for token in tokens}) != len(tokens):
            raise DataError(
                f"{special.location}/{layout.CONFIG_FILE}: its {len(given)} additional_special_tokens and the tokens "
                "<unk_i> that follow them are not all different; copy the file again"
            )
        return tokens

    @staticmethod
    def _unused(start: int, stop: int) -> list[str]:
        return [f"<unk_{i}>" for i in range(start, stop)]

    def _converted(self, files: TokenizerFiles, special: SpecialTokens) -> Any:
        source = read_model_file(files.need(layout.MODEL_FILE), f"{files.location}/{layout.MODEL_FILE}")
        pad, eos, mask = (str(special.named[f"{name}_token"]) for name in ("pad", "eos", "mask"))
        first = [pad, eos, *([*self._sentence_mask, mask] if self._sentence_mask else [])]
        vocabulary = [(token, 0.0) for token in first]
        vocabulary += [(token, -100.0) for token in self._unused(2, self._offset)]
        vocabulary += source.vocabulary(2)
        return build_pipeline(source, vocabulary, source.unk + self._offset, splits=True)


FAIRSEQ_FIRST = ("<s>", "<pad>", "</s>", "<unk>")
"""fairseq's first tokens. They replace the first three pieces of the model, so that the id of every other piece is
greater by one::

    id         0     1      2     3      4   5   6
    token      <s>   <pad>  </s>  <unk>  ,   .   ▁
    model      <unk> <s>    </s>  ,      .   ▁   s
"""

_NLLB_CODE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")


@dataclass(frozen=True)
class Kind:
    """The differences between the three tokenizers.

    Attributes:
        codes: the languages if the files do not list them.
        in_vocabulary: whether the vocabulary has the languages and the mask token; otherwise they are added tokens.
        source_lang: the default source language.
        target: how the language of the output is chosen.
        follows_eos: whether the language of the source follows end-of-sentence by default.
        has_bos: whether there is a begin-of-sentence token even if the files do not name it.
    """

    codes: list[str]
    in_vocabulary: bool
    source_lang: str
    target: TargetLanguage
    follows_eos: bool = False
    has_bos: bool = True

    def fill(self, special: SpecialTokens, slow: bool) -> None:
        """Complete the special tokens as ``transformers`` does.

        Args:
            special: the special tokens of the files, which are changed.
            slow: whether by the rules of the slow tokenizer of version 4, from which a fast one is converted.
        """
        special.fill({key: token for key, token in layout.FAIRSEQ_NAMED.items() if self.has_bos or key != "bos_token"})
        if not self.in_vocabulary and slow:
            special.fill({**layout.DEFAULTS, "bos_token": "<s>"}, normalized=False, special=True)
        normalized = not (slow and self.in_vocabulary and self.has_bos)
        special.fill({"mask_token": layout.MASK}, lstrip=True, special=not self.in_vocabulary, normalized=normalized)
        given = special.additional or []
        names = {str(token): token for token in given}
        if not self.in_vocabulary:
            special.additional = list(self.codes) if special.additional is None else given
        elif self.has_bos:  # mBART: the codes first
            special.additional = [names.pop(code, code) for code in self.codes] + list(names.values())
        else:
            special.additional = [*given, *(code for code in self.codes if code not in names)]

    def languages(self, special: SpecialTokens, ids: Mapping[str, int]) -> Languages:
        """The languages.

        Args:
            special: the special tokens.
            ids: the ids of all tokens.

        Raises:
            ConfigError: a language in the configuration does not exist.
        """
        config, codes = special.config, self.codes
        if not self.in_vocabulary:
            codes = sorted(filter(_NLLB_CODE.fullmatch, ids), key=ids.__getitem__)
        follows = self.follows_eos or (not self.in_vocabulary and bool(config.get("legacy_behaviour")))
        found = {code: ids[code] for code in codes if code in ids}
        languages = Languages(found, self.target, self.source_lang, follows)
        return languages.checked(f"{special.location}/{layout.CONFIG_FILE}", config)


class FairseqTokenizer(FastTokenizer):
    """The fast tokenizer of mBART, mBART-50 or NLLB, read from ``tokenizer.json`` or converted.

    Args:
        kind: which of the three.
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: a file is missing or damaged.
        ConfigError: a language in the configuration does not exist.
    """

    def __init__(self, kind: Kind, files: TokenizerFiles, vocab_size: int | None = None):
        self.kind = kind
        special = SpecialTokens.read(files)
        reads = layout.FAST_FILE in files and not special.config.get("from_slow")
        self.kind.fill(special, slow=not reads)
        if not reads:
            special.mark()
        pipeline = read_pipeline(files) if reads else self._converted(files)
        super().__init__(files, special, pipeline, vocab_size)
        self.languages = self.kind.languages(special, pipeline.get_vocab(with_added_tokens=True))

    def _converted(self, files: TokenizerFiles) -> Any:
        source = read_model_file(files.need(layout.FAIRSEQ_MODEL_FILE), f"{files.location}/{layout.FAIRSEQ_MODEL_FILE}")
        further = [*self.kind.codes, layout.MASK] if self.kind.in_vocabulary else []
        vocabulary = [(token, 0.0) for token in FAIRSEQ_FIRST] + source.vocabulary(3)
        vocabulary += [(token, 0.0) for token in further]
        return build_pipeline(source, vocabulary, FAIRSEQ_FIRST.index("<unk>"))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.files, self.vocab_size)


MBART_TOKENIZER = partial(FairseqTokenizer, Kind(MBART, True, "en_XX", TargetLanguage.START, follows_eos=True))
MBART50_TOKENIZER = partial(FairseqTokenizer, Kind(MBART50, True, "en_XX", TargetLanguage.FIRST, has_bos=False))
NLLB_TOKENIZER = partial(FairseqTokenizer, Kind(NLLB, False, "eng_Latn", TargetLanguage.FIRST))
