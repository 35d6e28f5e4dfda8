"""Tokenizers of byte-level byte-pair encoding (Radford et al. 2019, section 2.2): GPT-2's and BART's."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer as Pipeline, decoders, models, normalizers, pre_tokenizers
from tokenizers.models import BPE

from seqgen.core.errors import DataError
from seqgen.data.tokenizers.fast import FastTokenizer, read_pipeline
from seqgen.data.tokenizers.files import (
    CONFIG_FILE,
    FAIRSEQ_NAMED,
    FAST_FILE,
    MASK,
    MERGES_FILE,
    VOCAB_FILE,
    SpecialTokens,
    TokenizerFiles,
)
from seqgen.data.tokenizers.languages import AddedTokens
from seqgen.system.error_messages import library_errors

END_OF_TEXT = "<|endoftext|>"


class GPT2Tokenizer(FastTokenizer):
    """GPT-2's tokenizer, read from ``tokenizer.json`` or from ``vocab.json`` and ``merges.txt``.

    A tokenizer without a padding token uses end-of-sentence as padding, which language models mask by length.

    Args:
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Attributes:
        begins_with_eos: whether ``transformers`` adds end-of-sentence before a text; ``encode`` does not.

    Raises:
        DataError: a file is missing or damaged.
    """

    byte_characters = True

    def __init__(self, files: TokenizerFiles, vocab_size: int | None = None):
        special = SpecialTokens.read(files)
        pipeline = read_pipeline(files) if FAST_FILE in files else byte_level_pipeline(files)
        for name in ("bos", "eos", "unk"):
            special.named.setdefault(f"{name}_token", END_OF_TEXT)
        if special.named.get("pad_token") is None:
            special.named["pad_token"] = special.named["eos_token"]
        set_prefix_space(pipeline, bool(special.config.get("add_prefix_space", False)))
        super().__init__(files, special, pipeline, vocab_size)
        self.begins_with_eos = self._begins_with_eos()

    def _begins_with_eos(self) -> bool:
        """True if ``transformers`` adds begin-of-sentence, which is the same token as end-of-sentence, to a text.

        Raises:
            DataError: it adds something else.
        """
        if FAST_FILE not in self.files:
            added = [self.dictionary.bos()] if self.special.config.get("add_bos_token") else []
        else:
            with library_errors(f"the tokenizer in {self.files.location} cannot encode an empty text"):
                added = self._pipeline.encode("", add_special_tokens=True).ids
        if added not in ([], [self.dictionary.eos()]):
            raise DataError(
                f"the tokenizer in {self.files.location} adds tokens other than end-of-sentence to each text, which "
                "seqgen does not support for a GPT-2"
            )
        return bool(added)


def byte_level_pipeline(files: TokenizerFiles) -> Any:
    """Make the pipeline from ``vocab.json`` and ``merges.txt``.

    Args:
        files: the tokenizer's files.

    Returns:
        A ``tokenizers.Tokenizer``.

    Raises:
        DataError: a file is missing or damaged.
    """
    vocab = files.json(VOCAB_FILE)
    files.need(VOCAB_FILE)
    where = f"{files.location}/{MERGES_FILE}"
    try:
        lines = files.need(MERGES_FILE).decode().split("\n")[1:-1]  # the first line is a comment
    except UnicodeDecodeError:
        raise DataError(f"{where} is not UTF-8; copy it again") from None
    merges = [tuple(line.split()) for line in lines]
    if not merges or not all(len(pair) == 2 for pair in merges):
        raise DataError(f"{where} is damaged: each line after the first must have two parts; copy it again")
    with library_errors(f"{files.location}: {VOCAB_FILE} and {MERGES_FILE} are not a byte-pair encoding, or damaged"):
        pipeline = Pipeline(models.BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    return pipeline


def set_prefix_space(pipeline: Any, wanted: bool) -> None:
    """Set whether a space is added before a text, as ``transformers`` does if ByteLevel is the only step.

    Args:
        pipeline: the pipeline, which is changed.
        wanted: whether a space is added.
    """
    step = pipeline.pre_tokenizer
    if isinstance(step, pre_tokenizers.ByteLevel) and step.add_prefix_space != wanted:
        step.add_prefix_space = wanted
        pipeline.pre_tokenizer = step


def read_special_tokens(files: TokenizerFiles, slow: bool) -> SpecialTokens:
    """Read the special tokens, and complete them as ``transformers`` does.

    Args:
        files: the tokenizer's files.
        slow: whether by the rules of the slow tokenizer of version 4, from which a fast one is converted.

    Raises:
        DataError: a file is damaged.
    """
    special = SpecialTokens.read(files)
    special.fill(FAIRSEQ_NAMED)
    if slow:
        special.fill(FAIRSEQ_NAMED, lstrip=False, rstrip=False)
    mask = special.named.setdefault("mask_token", MASK)
    special.named["mask_token"] = AddedToken(mask, lstrip=True, rstrip=False) if isinstance(mask, str) else mask
    for key in ("cls_token", "sep_token"):
        if special.named[key] is None:
            raise DataError(f"{files.location}/{CONFIG_FILE}: {key} is null, but BART's tokenizer needs it; set it")
    return special


class FastBartTokenizer(FastTokenizer):
    """BART's fast tokenizer, read from ``tokenizer.json`` or from ``vocab.json`` and ``merges.txt``.

    Sources and targets begin with ``cls_token`` and end with ``sep_token``.

    Args:
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: a file is missing or damaged, or adds other tokens to a text than ``cls_token`` and ``sep_token``.
    """

    byte_characters = True

    def __init__(self, files: TokenizerFiles, vocab_size: int | None = None):
        config = files.json(CONFIG_FILE)
        reads = FAST_FILE in files and not config.get("from_slow")
        special = read_special_tokens(files, slow=not reads)
        if not reads:
            special.mark()
        pipeline = read_pipeline(files) if reads else byte_level_pipeline(files)
        set_prefix_space(pipeline, bool(config.get("add_prefix_space", False)))
        super().__init__(files, special, pipeline, vocab_size)
        if reads:
            self.check_added_tokens(*self.source_tokens())

    def source_tokens(self, source_lang: str = "", target_lang: str = "") -> AddedTokens:
        """See ``Tokenizer.source_tokens``."""
        first, last = (self.dictionary.index(str(self.special.named[key])) for key in ("cls_token", "sep_token"))
        return AddedTokens([first], [last])

    def target_tokens(self, target_lang: str = "") -> AddedTokens:
        """See ``Tokenizer.target_tokens``."""
        return AddedTokens(self.source_tokens().before, [self.dictionary.eos()])


_GEMMA_NAMED = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk")}


class GemmaTokenizer(FastTokenizer):
    """Gemma's tokenizer, read from ``tokenizer.json``.

    As in version 5 of transformers, only the vocabulary, the merges and the added tokens come from that file. A source
    usually begins with begin-of-sentence and has no end-of-sentence.

    Args:
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: the file is missing or damaged, is of another kind, or adds other tokens to a text than
            begin-of-sentence, end-of-sentence or both.
    """

    def __init__(self, files: TokenizerFiles, vocab_size: int | None = None):
        special = SpecialTokens.read(files)
        special.fill(_GEMMA_NAMED)
        pipeline = read_pipeline(files)
        model = pipeline.model
        if not isinstance(model, BPE):
            raise DataError(f"{files.location}/{FAST_FILE} is not a byte-pair encoding, which Gemma's tokenizer is")
        model.fuse_unk = model.byte_fallback = True
        if pipeline.token_to_id(MASK) is not None:
            special.fill({"mask_token": MASK})
        pipeline.normalizer = normalizers.Replace(" ", "▁")
        pipeline.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        pipeline.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        super().__init__(files, special, pipeline, vocab_size)
        self._added = self._added_tokens()

    def _added_tokens(self) -> AddedTokens:
        """The tokens that are added to each text.

        Raises:
            DataError: they are neither begin-of-sentence, nor end-of-sentence, nor both.
        """
        config, bos, eos = self.special.config, self.dictionary.bos(), self.dictionary.eos()
        if "add_bos_token" in config or "add_eos_token" in config:
            before = [bos] if config.get("add_bos_token") else []
            after = [eos] if config.get("add_eos_token") else []
        else:
            with library_errors(f"the tokenizer in {self.files.location} cannot encode an empty text"):
                added = self._pipeline.encode("", add_special_tokens=True).ids
            before, after = [bos] if added[:1] == [bos] else [], [eos] if added[-1:] == [eos] else []
            self.check_added_tokens(before, after)
        if not before and not after:
            raise DataError(
                f"the tokenizer in {self.files.location} adds no token to a text, so an empty source would have "
                f"none; set add_bos_token to true in its {CONFIG_FILE}"
            )
        return AddedTokens(before, after)

    def source_tokens(self, source_lang: str = "", target_lang: str = "") -> AddedTokens:
        """See ``Tokenizer.source_tokens``."""
        return self._added
