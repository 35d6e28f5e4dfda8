"""Gemma's tokenizer: a byte-pair encoding in which a space is ``▁`` and characters without a token are bytes."""

from __future__ import annotations

from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from seqgen.data.tokenizers.fast import FastTokenizer, read_pipeline
from seqgen.data.tokenizers.files import CONFIG_FILE, FAST_FILE, TokenizerFiles
from seqgen.data.tokenizers.special_tokens import SpecialTokens
from seqgen.errors import DataError, library_errors

_NAMED = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk")}
_MASK = "<mask>"


class GemmaTokenizer(FastTokenizer):
    """Gemma's tokenizer, read from ``tokenizer.json``.

    As in version 5 of transformers, only the vocabulary, the merges, the added tokens and the frame come from that
    file. A source usually begins with begin-of-sentence and has no end-of-sentence.

    Args:
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: the file is missing or damaged, is of another kind, or adds other tokens to a text than
            begin-of-sentence, end-of-sentence or both.
    """

    def __init__(self, files: TokenizerFiles, vocab_size: int | None = None):
        special = SpecialTokens.read(files)
        special.fill(_NAMED)
        pipeline = read_pipeline(files)
        model = pipeline.model
        if not isinstance(model, BPE):
            raise DataError(f"{files.origin}/{FAST_FILE} is not a byte-pair encoding, which Gemma's tokenizer is")
        model.fuse_unk = model.byte_fallback = True
        if pipeline.token_to_id(_MASK) is not None:
            special.fill({"mask_token": _MASK})
        pipeline.normalizer = normalizers.Replace(" ", "▁")
        pipeline.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        pipeline.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        super().__init__(files, special, pipeline, vocab_size)
        self._before, self._after = self._frame()

    def _frame(self) -> tuple[list[int], list[int]]:
        """The ids before and after each text.

        Raises:
            DataError: they are neither begin-of-sentence, nor end-of-sentence, nor both.
        """
        config, bos, eos = self.special.config, self.dictionary.bos(), self.dictionary.eos()
        if "add_bos_token" in config or "add_eos_token" in config:
            before = [bos] if config.get("add_bos_token") else []
            after = [eos] if config.get("add_eos_token") else []
        else:
            with library_errors(f"the tokenizer in {self.files.origin} cannot encode an empty text"):
                added = self._pipeline.encode("", add_special_tokens=True).ids
            before, after = [bos] if added[:1] == [bos] else [], [eos] if added[-1:] == [eos] else []
            self.check_frame(before, after)
        if not before and not after:
            raise DataError(
                f"the tokenizer in {self.files.origin} adds no token to a text, so that an empty source would have "
                f"none; set add_bos_token to true in its {CONFIG_FILE}"
            )
        return before, after

    def encode_source(self, text: str, source_lang: str = "", target_lang: str = "") -> list[int]:
        """See ``Tokenizer.encode_source``."""
        return [*self._before, *self.encode(text), *self._after]

    @property
    def source_beginning(self) -> list[int]:
        """See ``Tokenizer.source_beginning``."""
        return self._before

    @property
    def tail(self) -> int:
        """See ``Tokenizer.tail``."""
        return len(self._after)
