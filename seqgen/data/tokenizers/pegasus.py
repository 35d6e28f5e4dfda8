"""Pegasus's tokenizer: SentencePiece after 103 ids of tokens that only pretraining used."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken

from seqgen.data.tokenizers.fast import FastTokenizer, read_pipeline
from seqgen.data.tokenizers.files import CONFIG_FILE, FAST_FILE, MODEL_FILE, TokenizerFiles
from seqgen.data.tokenizers.pipelines import build_pipeline, read_model_file
from seqgen.data.tokenizers.special_tokens import DEFAULTS, SpecialTokens, as_token
from seqgen.errors import DataError

OFFSET = 103
NAMED = {**DEFAULTS, "mask_token": "<mask_2>"}
SENTENCE_MASK = "<mask_1>"


class PegasusTokens:
    """The tokens with the first ids, in front of the pieces.

    Args:
        special: the special tokens, which get the defaults.

    Attributes:
        offset: the difference between the id of a piece and its number in the model.
        sentence_mask: the token that replaces sentences; ``None`` for none.
    """

    def __init__(self, special: SpecialTokens):
        self.offset = special.number("offset", OFFSET)
        mask = special.config.get("mask_token_sent", SENTENCE_MASK)
        where = f"{special.origin}/{CONFIG_FILE}: mask_token_sent"
        self.sentence_mask = None if mask is None else str(as_token(mask, where))
        special.fill(NAMED)
        self.special = special
        if special.additional is None:
            special.additional = [*self._sentence(), *self._unused()]
            return
        given = [str(token) for token in special.additional]
        special.additional = [*(token for token in self._sentence() if token not in given), *special.additional]
        special.additional += [f"<unk_{i}>" for i in range(len(special.additional), self.offset - 1)]
        names = [str(token) for token in special.additional]
        if len(set(names)) != len(names):
            raise DataError(
                f"{special.origin}/{CONFIG_FILE}: its {len(given)} additional_special_tokens and the tokens <unk_i> "
                "that follow them are not different; copy the file again"
            )

    def _sentence(self) -> list[str]:
        return [] if self.sentence_mask is None else [self.sentence_mask]

    def _unused(self) -> list[str]:
        return [f"<unk_{i}>" for i in range(2, self.offset)]

    def added(self) -> dict[int, AddedToken]:
        """The tokens by id, as added tokens."""
        named = self.special.named
        masks = [] if self.sentence_mask is None else [self.sentence_mask, str(named["mask_token"])]
        first = [str(named["pad_token"]), str(named["eos_token"]), *masks]
        return {i: AddedToken(token, special=True) for i, token in enumerate([*first, *self._unused()])}


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
        tokens = PegasusTokens(special)
        usual = all(str(special.named[key]) == token for key, token in DEFAULTS.items())
        special.added = {}
        reads = FAST_FILE in files and usual and not special.config.get("from_slow")
        if not reads:
            special.mark()
        pipeline = read_pipeline(files) if reads else self._converted(files, tokens)
        super().__init__(files, special, pipeline, vocab_size)
        if reads:
            self.check_frame([], [self.dictionary.eos()])

    @staticmethod
    def _converted(files: TokenizerFiles, tokens: PegasusTokens) -> Any:
        origin = f"{files.origin}/{MODEL_FILE}"
        source = read_model_file(files.need(MODEL_FILE), origin)
        first = list(tokens.added().values())
        vocabulary = [(token.content, -100.0 if token.content.startswith("<unk_") else 0.0) for token in first]
        vocabulary += [(piece.text, piece.score) for piece in source.pieces[2:]]
        return build_pipeline(source, vocabulary, source.unk + tokens.offset, origin, splits=True)
