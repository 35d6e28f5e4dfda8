"""M2M-100's tokenizer: SentencePiece, a vocabulary with the ids, and languages."""

from __future__ import annotations

from seqgen.data.tokenizers.files import CONFIG_FILE, FAIRSEQ_MODEL_FILE, VOCAB_FILE, TokenizerFiles
from seqgen.data.tokenizers.languages import M2M100, WMT21, Languages, TargetLanguage
from seqgen.data.tokenizers.sentencepiece_tokenizer import load_processor
from seqgen.data.tokenizers.slow import SentencePieceSlowTokenizer
from seqgen.data.tokenizers.special_tokens import MAX_IDS, SpecialTokens
from seqgen.errors import DataError, nearest

CODES = {"m2m100": M2M100, "wmt21": WMT21}
FRAME = "__{}__"
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class M2M100Tokenizer(SentencePieceSlowTokenizer):
    """M2M-100's tokenizer. The ids of the languages follow those of the vocabulary.

    Args:
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.

    Raises:
        DataError: a file is missing or damaged.
        ConfigError: a language in the configuration does not exist.
    """

    def __init__(self, files: TokenizerFiles, vocab_size: int | None = None):
        special = SpecialTokens.read(files)
        special.fill(NAMED)
        processor = load_processor(files.need(FAIRSEQ_MODEL_FILE), f"{files.origin}/{FAIRSEQ_MODEL_FILE}")
        self._ids = read_vocabulary(files, VOCAB_FILE, str(special.named["unk_token"]))
        name = str(special.config.get("language_codes", "m2m100"))
        if name not in CODES:
            raise DataError(
                f"{files.origin}/{CONFIG_FILE}: language_codes is {name!r}{nearest(name, CODES)}; it must be one of "
                f"{', '.join(CODES)}"
            )
        codes = {code: len(self._ids) + i for i, code in enumerate(CODES[name])}
        self._language_ids = {FRAME.format(code): index for code, index in codes.items()}
        pieces = {index: piece for piece, index in self._ids.items()}
        unlisted = {index: token for token, index in self._language_ids.items()}
        super().__init__(processor, files, special, pieces, len(pieces), vocab_size, unlisted)
        source, target = (special.config.get(key) for key in ("src_lang", "tgt_lang"))
        languages = Languages(
            codes,
            TargetLanguage.FIRST,
            str("en" if source is None else source),
            target_lang=str(target or ""),
            frame=FRAME,
        )
        self.languages = languages.checked(f"{files.origin}/{CONFIG_FILE}")

    def piece_id(self, piece: str) -> int:
        """See ``SlowTokenizer.piece_id``."""
        if piece in self._language_ids:
            return self._language_ids[piece]
        return self._ids.get(piece, self._ids[str(self.special.named["unk_token"])])


def read_vocabulary(files: TokenizerFiles, name: str, *needed: str) -> dict[str, int]:
    """Read a file with the id of each piece.

    Args:
        files: the tokenizer's files.
        name: the file.
        needed: tokens that it must contain.

    Raises:
        DataError: the file is missing or damaged.
    """
    files.need(name)
    ids, where = files.json(name), f"{files.origin}/{name}"
    if not ids or len(ids) > MAX_IDS or not all(type(index) is int for index in ids.values()):
        raise DataError(f"{where} does not contain pieces with their ids; copy it again")
    if sorted(ids.values()) != list(range(len(ids))):
        raise DataError(f"{where} is damaged: its {len(ids)} ids are not the numbers from 0 to {len(ids) - 1}")
    for token in needed:
        if token not in ids:
            raise DataError(f"{where} does not contain {token!r}, which {CONFIG_FILE} names; copy both files again")
    return ids
