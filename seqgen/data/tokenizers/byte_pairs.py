"""Tokenizers of byte-pair encoding (Radford et al. 2019, section 2.2): GPT-2's, BART's, Gemma's and Llama's."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer as Pipeline, decoders, models, normalizers, pre_tokenizers
from tokenizers.models import BPE

from seqgen.core.errors import DataError
from seqgen.data.tokenizers import files as layout
from seqgen.data.tokenizers.fast import FastTokenizer, read_pipeline
from seqgen.data.tokenizers.files import SpecialTokens, TokenizerFiles
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
        pipeline = read_pipeline(files) if layout.FAST_FILE in files else byte_level_pipeline(files)
        for name in ("bos", "eos", "unk"):
            special.named.setdefault(f"{name}_token", END_OF_TEXT)
        if special.named.get("pad_token") is None:
            special.named["pad_token"] = special.named["eos_token"]
        set_prefix_space(pipeline, bool(special.config.get("add_prefix_space", False)))
        super().__init__(files, special, pipeline, vocab_size)
        if layout.FAST_FILE in files:
            added = self.added_tokens()
        else:
            added = [self.dictionary.bos()] if special.config.get("add_bos_token") else []
        if added not in ([], [self.dictionary.eos()]):
            raise DataError(
                f"the tokenizer in {files.location} adds tokens other than end-of-sentence to each text, which "
                "seqgen does not support for a GPT-2"
            )
        self.begins_with_eos = bool(added)


def byte_level_pipeline(files: TokenizerFiles) -> Any:
    """Make the pipeline from ``vocab.json`` and ``merges.txt``.

    Args:
        files: the tokenizer's files.

    Returns:
        A ``tokenizers.Tokenizer``.

    Raises:
        DataError: a file is missing or damaged.
    """
    files.need(layout.VOCAB_FILE)
    where = f"{files.location}/{layout.MERGES_FILE}"
    try:
        lines = files.need(layout.MERGES_FILE).decode().split("\n")[1:-1]  # the first line is a comment
    except UnicodeDecodeError:
        raise DataError(f"{where} is not UTF-8; copy it again") from None
    merges = [tuple(line.split()) for line in lines]
    if not merges or not all(len(pair) == 2 for pair in merges):
        raise DataError(f"{where} is damaged: each line after the first must have two parts; copy it again")
    with library_errors(f"{files.location}: vocab.json and merges.txt are not a byte-pair encoding, or damaged"):
        pipeline = Pipeline(
            models.BPE(files.json(layout.VOCAB_FILE), merges, continuing_subword_prefix="", end_of_word_suffix="")
        )
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
        config = files.json(layout.CONFIG_FILE)
        reads = layout.FAST_FILE in files and not config.get("from_slow")
        special = SpecialTokens.read(files)
        special.fill(layout.FAIRSEQ_NAMED)
        if not reads:  # by the rules of the slow tokenizer of version 4, from which a fast one is converted
            special.fill(layout.FAIRSEQ_NAMED, lstrip=False, rstrip=False)
        special.fill({"mask_token": layout.MASK}, lstrip=True, rstrip=False)
        for key in ("cls_token", "sep_token"):
            if special.named[key] is None:
                raise DataError(f"{files.location}/{layout.CONFIG_FILE}: {key} is null, but BART needs it; set it")
        if not reads:
            special.mark()
        pipeline = read_pipeline(files) if reads else byte_level_pipeline(files)
        set_prefix_space(pipeline, bool(config.get("add_prefix_space", False)))
        super().__init__(files, special, pipeline, vocab_size)
        if reads:
            self.check_added_tokens(self.source_tokens())

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
            raise DataError(f"{files.location}/{layout.FAST_FILE} is not a byte-pair encoding, which Gemma's is")
        model.fuse_unk = model.byte_fallback = True
        if pipeline.token_to_id(layout.MASK) is not None:
            special.fill({"mask_token": layout.MASK})
        pipeline.normalizer = normalizers.Replace(" ", "▁")
        pipeline.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        pipeline.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        super().__init__(files, special, pipeline, vocab_size)
        config, bos, eos = self.special.config, self.dictionary.bos(), self.dictionary.eos()
        if "add_bos_token" in config or "add_eos_token" in config:
            before = [bos] if config.get("add_bos_token") else []
            after = [eos] if config.get("add_eos_token") else []
        else:
            added = self.added_tokens()
            before, after = [bos] if added[:1] == [bos] else [], [eos] if added[-1:] == [eos] else []
            self.check_added_tokens(AddedTokens(before, after))
        if not before and not after:
            raise DataError(
                f"the tokenizer in {files.location} adds no token to a text, so an empty source would have "
                f"none; set add_bos_token to true in its {layout.CONFIG_FILE}"
            )
        self._added = AddedTokens(before, after)

    def source_tokens(self, source_lang: str = "", target_lang: str = "") -> AddedTokens:
        """See ``Tokenizer.source_tokens``."""
        return self._added


LLAMA = "LlamaTokenizer"

PROMPT_NAMED: dict[str, dict[str, str]] = {
    "PreTrainedTokenizer": {},
    LLAMA: {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "Qwen2Tokenizer": dict.fromkeys(("unk_token", "eos_token", "pad_token"), END_OF_TEXT),
}
"""The special tokens if the files do not name them, for each class of ``PromptTokenizer``."""


class PromptTokenizer(FastTokenizer):
    """The tokenizer of a language model, read from ``tokenizer.json`` as it is: that of Llama, Qwen and many others.

    Without a padding token, end-of-sentence is padding, which language models mask by length; without an unknown
    token, padding is that.

    Args:
        name: the class in ``transformers``.
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: the file is missing or damaged, or it adds tokens after a text.
    """

    def __init__(self, name: str, files: TokenizerFiles, vocab_size: int | None = None):
        self.name = name
        special, where = SpecialTokens.read(files), f"{files.location}/{layout.CONFIG_FILE}"
        special.fill(PROMPT_NAMED[name])
        for key in ("pad", "unk"):
            if special.named.get(f"{key}_token") is None:
                special.named[f"{key}_token"] = special.named.get("pad_token") or special.named.get("eos_token")
        pipeline, is_llama, config = read_pipeline(files), name == LLAMA, special.config
        if is_llama and config.get("add_prefix_space") is False:  # by transformers only where it converts a model
            raise DataError(f"{where}: add_prefix_space=false is not supported for a {name}; remove the key")
        if not is_llama and "backend" not in config:  # which version 5 sets, where the pipeline has the space
            set_prefix_space(pipeline, bool(config.get("add_prefix_space", False)))
        self.byte_characters = isinstance(pipeline.decoder, decoders.ByteLevel)
        super().__init__(files, special, pipeline, vocab_size)
        eos = self.dictionary.eos()
        if is_llama or ("backend" in config and {"add_bos_token", "add_eos_token"} & set(config)):
            before = [self.dictionary.bos()] if config.get("add_bos_token", is_llama) else []
            after = bool(config.get("add_eos_token"))
        else:
            before, after = self.added_tokens(), self.added_tokens("a")[-1:] == [eos]
            before = before[: len(before) - after]
            self.check_added_tokens(AddedTokens(before, [eos] * after))
        if after:
            raise DataError(
                f"{where}: add_eos_token=true, or {layout.FAST_FILE}, adds end-of-sentence after a text, which is not "
                "supported, as prompts are continued; set it to false, or take it out of the post_processor"
            )
        self._added = AddedTokens(before, [])

    def source_tokens(self, source_lang: str = "", target_lang: str = "") -> AddedTokens:
        """See ``Tokenizer.source_tokens``; a prompt has no end-of-sentence."""
        return self._added

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.files, self.vocab_size)
