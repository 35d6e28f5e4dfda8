"""The tokenizers of mBART, mBART-50 and NLLB: a SentencePiece model in fairseq's order of ids, and languages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenizers import AddedToken

from seqgen.data.tokenizers.fast import FastTokenizer, read_pipeline
from seqgen.data.tokenizers.files import (
    CONFIG_FILE,
    FAIRSEQ_MODEL_FILE,
    FAIRSEQ_NAMED,
    FAST_FILE,
    MASK,
    SpecialTokens,
    Token,
    TokenizerFiles,
)
from seqgen.data.tokenizers.languages import MBART, MBART50, NLLB, Languages, TargetLanguage
from seqgen.data.tokenizers.pipelines import build_pipeline, read_model_file

FIRST = ("<s>", "<pad>", "</s>", "<unk>")
"""fairseq's first tokens. They replace the first three pieces of the model, so that the id of every other piece is
greater by one::

    id         0     1      2     3      4   5   6
    token      <s>   <pad>  </s>  <unk>  ,   .   ▁
    model      <unk> <s>    </s>  ,      .   ▁   s
"""
OFFSET = 1

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
        special.fill({key: token for key, token in FAIRSEQ_NAMED.items() if self.has_bos or key != "bos_token"})
        if not self.in_vocabulary and slow:
            for key in ("bos_token", "pad_token", "eos_token", "unk_token"):
                special.named[key] = with_flags(special.named[key], normalized=False, special=True)
        mask = special.named.setdefault("mask_token", MASK)
        flags = {"lstrip": True, "special": not self.in_vocabulary}
        special.named["mask_token"] = with_flags(
            mask, **flags, normalized=not (slow and self.in_vocabulary and self.has_bos)
        )
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
        source, target = (config.get(key) for key in ("src_lang", "tgt_lang"))
        default = str(self.source_lang if source is None else source)
        languages = Languages(found, self.target, default, follows, str(target or ""))
        return languages.checked(f"{special.origin}/{CONFIG_FILE}")


def with_flags(token: Token | None, **flags: bool) -> Token | None:
    """Give a token flags if it has none.

    Args:
        token: the token; ``None`` stays ``None``.
        flags: the flags.
    """
    return AddedToken(token, **flags) if isinstance(token, str) else token


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
        reads = FAST_FILE in files and not special.config.get("from_slow")
        self.kind.fill(special, slow=not reads)
        if not reads:
            special.mark()
        pipeline = read_pipeline(files) if reads else self._converted(files)
        super().__init__(files, special, pipeline, vocab_size)
        self.languages = self.kind.languages(special, pipeline.get_vocab(with_added_tokens=True))

    def _converted(self, files: TokenizerFiles) -> Any:
        origin = f"{files.origin}/{FAIRSEQ_MODEL_FILE}"
        source = read_model_file(files.need(FAIRSEQ_MODEL_FILE), origin)
        further = [*self.kind.codes, MASK] if self.kind.in_vocabulary else []
        pieces = [(piece.text, piece.score) for piece in source.pieces[len(FIRST) - OFFSET :]]
        vocabulary = [*((token, 0.0) for token in FIRST), *pieces, *((token, 0.0) for token in further)]
        return build_pipeline(source, vocabulary, FIRST.index("<unk>"), origin)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.files, self.vocab_size)


MBART_TOKENIZER = partial(FairseqTokenizer, Kind(MBART, True, "en_XX", TargetLanguage.START, follows_eos=True))
MBART50_TOKENIZER = partial(FairseqTokenizer, Kind(MBART50, True, "en_XX", TargetLanguage.FIRST, has_bos=False))
NLLB_TOKENIZER = partial(FairseqTokenizer, Kind(NLLB, False, "eng_Latn", TargetLanguage.FIRST))
