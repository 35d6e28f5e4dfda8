"""Tokenizers in Hugging Face's file layout: their classes, reading and writing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from seqgen.core.errors import DataError, nearest
from seqgen.data.tokenizers import byte_pairs, fast, files as layout, slow
from seqgen.data.tokenizers.base import SENTINEL, Tokenizer, register_tokenizer
from seqgen.data.tokenizers.files import TokenizerFiles, parse_object, read_file, to_json
from seqgen.data.tokenizers.language_tokens import LanguageTokenizer
from seqgen.data.tokenizers.pretrained_base import PretrainedTokenizer
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer, load_processor

T5, BYTES, GPT2 = "T5Tokenizer", "ByT5Tokenizer", "GPT2Tokenizer"
MARIAN, GEMMA = "MarianTokenizer", "GemmaTokenizer"


CLASSES: dict[str, Callable[..., PretrainedTokenizer]] = {
    T5: fast.FastT5Tokenizer,
    BYTES: slow.ByteTokenizer,
    GEMMA: byte_pairs.GemmaTokenizer,
    GPT2: byte_pairs.GPT2Tokenizer,
    "BartTokenizer": byte_pairs.FastBartTokenizer,
    "MBartTokenizer": fast.MBART_TOKENIZER,
    "MBart50Tokenizer": fast.MBART50_TOKENIZER,
    "NllbTokenizer": fast.NLLB_TOKENIZER,
    "M2M100Tokenizer": slow.M2M100Tokenizer,
    MARIAN: slow.MarianTokenizer,
    "PegasusTokenizer": fast.FastPegasusTokenizer,
    **{name: partial(byte_pairs.PromptTokenizer, name) for name in byte_pairs.PROMPT_NAMED},
}
"""The classes by their names in ``tokenizer_config.json``."""

ALIASES = {
    **{f"{name}Fast": name for name in CLASSES},
    **{"MT5Tokenizer": T5, "MT5TokenizerFast": T5},
    **{"RobertaTokenizer": "BartTokenizer", "RobertaTokenizerFast": "BartTokenizer"},
}
"""Other class names; of the two that version 4 of ``transformers`` has for a tokenizer, the fast one is meant."""

ANY = "TokenizersBackend"
"""The class that version 5 of ``transformers`` names for tokenizers without a class, such as umT5's."""

BY_MODEL = {
    "gpt2": GPT2,
    **{"llama": byte_pairs.LLAMA, "mistral": byte_pairs.LLAMA},
    **{"qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer"},
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text", "t5gemma", "t5gemma2"), GEMMA),
    "smollm3": "PreTrainedTokenizer",
    "bart": "BartTokenizer",
    "mbart": "MBartTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "marian": MARIAN,
    "pegasus": "PegasusTokenizer",
}
"""The class for each ``model_type`` of a ``config.json`` if the folder names none; any other is a T5."""


@register_tokenizer("pretrained")
class StoredTokenizer(PretrainedTokenizer):
    """A tokenizer that ``save`` of a ``PretrainedTokenizer`` wrote; ``load`` returns one of the class in the files."""

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """See ``Tokenizer.load``."""
        sizes = [settings.get(key) for key in ("vocab_size", "target_vocab_size")]
        if any(size is not None and type(size) is not int for size in sizes):
            raise DataError(
                f"{folder / 'tokenizer.json'} is damaged; copy the folder again or train the tokenizer again"
            )
        files = with_class(TokenizerFiles.read(folder / "pretrained"), folder / "pretrained")
        return cast(Self, make_tokenizer(files, sizes[0], str(settings.get("side", "")), sizes[1]))


def load_pretrained_tokenizer(folder: Path, vocab_size: int | None = None) -> PretrainedTokenizer:
    """Read a tokenizer in Hugging Face's layout, such as T5's, GPT-2's or Llama's.

    ``tokenizer_config.json`` names the class. If it does not, the class is the one that ``transformers`` chooses:
    ByT5's if ``config.json`` names ByT5's tokenizer, that of its ``model_type`` if it is a language model, otherwise
    T5's.

    Args:
        folder: the folder.
        vocab_size: number of rows of the model's embedding; ids above the tokenizer's decode to nothing. ``None`` for
            ``vocab_size`` of the folder's ``config.json``, or without one for the number of the tokenizer's ids.

    Returns:
        The tokenizer.

    Raises:
        DataError: a file is missing or damaged, the class is unknown, or there are more ids than ``vocab_size``.
    """
    files = with_class(TokenizerFiles.read(folder), folder)
    model = _model_config(folder)
    given, target = model.get("vocab_size"), model.get("decoder_vocab_size")
    target = given if target is None else target  # as transformers does
    source, target = (rows if type(rows) is int and rows <= layout.MAX_IDS else None for rows in (given, target))
    return make_tokenizer(files, source if vocab_size is None else vocab_size, target_vocab_size=target)


def with_class(files: TokenizerFiles, folder: Path) -> TokenizerFiles:
    """The files of a tokenizer, whose configuration names one of ``CLASSES``; see ``load_pretrained_tokenizer``.

    Args:
        files: the files.
        folder: the folder, whose ``config.json`` is read if the files name no class, or ``ANY``.
    """
    config, model = files.json(layout.CONFIG_FILE), _model_config(folder)
    named, given = config.get("tokenizer_class"), model.get("tokenizer_class")
    of_5 = "backend" in config and named == byte_pairs.LLAMA
    if named not in (None, ANY) and not of_5:
        return files
    if named == ANY:
        config["extra_ids"] = 0  # all sentinels are listed
    by_model = BY_MODEL.get(str(model.get("model_type")), T5)
    if of_5 or (named == ANY and "model_type" in model and not model.get("is_encoder_decoder")):
        config["tokenizer_class"] = "PreTrainedTokenizerFast"  # whose pipeline is used as it is
    else:
        config["tokenizer_class"] = given if given in CLASSES or given in ALIASES else by_model
    return TokenizerFiles(files.location, {**files.contents, layout.CONFIG_FILE: to_json(config)})


def _model_config(folder: Path) -> dict[str, Any]:
    config = parse_object(read_file(folder / "config.json") or b"{}", f"{folder}/config.json")
    # T5Gemma's and Gemma 3's sizes are there; the vocab_size of the whole is not used
    sizes = config.get("encoder", config.get("text_config"))
    sizes = sizes.get("text_config", sizes) if isinstance(sizes, dict) else None  # in T5Gemma 2, those of text
    return {**config, "vocab_size": sizes.get("vocab_size")} if isinstance(sizes, dict) else config


def make_tokenizer(
    files: TokenizerFiles, vocab_size: int | None = None, side: str = "", target_vocab_size: int | None = None
) -> PretrainedTokenizer:
    """Make a tokenizer of the class that ``tokenizer_config.json`` names.

    Args:
        files: its files.
        vocab_size: see ``load_pretrained_tokenizer``.
        side: ``source`` or ``target`` for a tokenizer with two sides (Marian's); empty for its source and any other.
        target_vocab_size: number of rows of the decoder's embedding, if targets have separate ids (Marian's
            ``separate_vocabs``).

    Returns:
        The tokenizer.

    Raises:
        DataError: see ``load_pretrained_tokenizer``.
    """
    config = files.json(layout.CONFIG_FILE)
    named = str(config.get("tokenizer_class"))
    name = ALIASES.get(named, named)
    if name not in CLASSES:
        known = [*CLASSES, *ALIASES]
        raise DataError(
            f"{files.location}/{layout.CONFIG_FILE} names the class {named!r}{nearest(named, known)}, which seqgen "
            f"cannot read; it reads {', '.join(known)}"
        )
    further = (side or slow.SOURCE, target_vocab_size) if name == MARIAN else ()
    return CLASSES[name](files, vocab_size, *further)


def save_pretrained_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer in Hugging Face's layout; ``transformers`` reads it and gives the same ids.

    Args:
        tokenizer: a ``PretrainedTokenizer``, or a SentencePiece model with its own ids.
        folder: where to; it is created if it does not exist.

    Raises:
        DataError: the layout does not support this tokenizer, or the folder contains files of another one.
        UserError: a file cannot be written.
    """
    if isinstance(tokenizer, PretrainedTokenizer):
        files = _readable(tokenizer.files)
    elif isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.native:
        files = t5_files(tokenizer.model, extra_ids=0, legacy=True)
    elif isinstance(tokenizer, LanguageTokenizer) and isinstance(tokenizer.text, PretrainedTokenizer):
        files = _with_languages(tokenizer, tokenizer.text)
    else:
        raise DataError(
            f"a {type(tokenizer).__name__} cannot be written in Hugging Face's layout, which is for the "
            "tokenizers that seqgen reads from it, and for SentencePiece models with their own ids"
        )
    files.write(folder)


def _with_languages(tokenizer: LanguageTokenizer, text: PretrainedTokenizer) -> TokenizerFiles:
    """The files of a tokenizer, with tokens for further languages and for ids without a token before them.

    Raises:
        DataError: the class of the tokenizer has a fixed list of languages, or none.
    """
    files, (tokens, _), words = _readable(text.files), text.tokens_and_added(), tokenizer.dictionary
    config, named = files.json(layout.CONFIG_FILE), {index for index, token in enumerate(tokens) if token is not None}
    new = [words.symbol(index) for index in range(len(words)) if index not in named]
    config["additional_special_tokens"] = [*map(str, text.special.additional or []), *new]
    files = TokenizerFiles(files.location, {**files.contents, layout.CONFIG_FILE: to_json(config)})
    read, wanted = make_tokenizer(files, len(words)), tokenizer.languages
    ids = None if read.languages is None else read.languages.ids
    if wanted is None or read.dictionary != words or ids != wanted.ids:
        raise DataError(
            f"a {config['tokenizer_class']} with added languages ({', '.join(tokenizer.codes)}) cannot be written in "
            "Hugging Face's layout, where only NLLB's tokenizer can get further ones, with codes such as gsw_Latn"
        )
    return files


def _readable(files: TokenizerFiles) -> TokenizerFiles:
    """The same files; if version 5 of ``transformers`` saved them, with a configuration for version 4 as well."""
    config = files.json(layout.CONFIG_FILE)
    if "backend" not in config:
        return files
    if ALIASES.get(named := config["tokenizer_class"], named) == T5:
        config.pop("add_prefix_space", None)  # version 5 ignores it; version 4 would convert spiece.model
    if files.json(layout.FAST_FILE).get("model", {}).get("type") == "BPE":
        config["clean_up_tokenization_spaces"] = False  # version 5 ignores it
    config["additional_special_tokens"] = config.pop("extra_special_tokens", [])
    return TokenizerFiles(files.location, {**files.contents, layout.CONFIG_FILE: to_json(config)})


def t5_files(
    model: bytes, *, extra_ids: int = 100, legacy: bool = False, location: str = "the SentencePiece model"
) -> TokenizerFiles:
    """The files of a new T5 tokenizer.

    Its sentinels do not remove the spaces before and after them. So ``a <extra_id_0> b`` has the ids that span
    corruption makes of an encoded text, in which the space is the beginning of the piece ``▁b``.

    Args:
        model: a SentencePiece model with the pieces ``<pad>``, ``</s>`` and ``<unk>``.
        extra_ids: number of sentinels; their ids follow those of the pieces, and ``<extra_id_0>`` has the highest.
        legacy: whether SentencePiece adds a space after each special token, even if the text has none there.
        location: the model's file, for messages.

    Raises:
        DataError: it is not a SentencePiece model.
    """
    top = int(load_processor(model, location).vocab_size()) + extra_ids - 1
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    added = {str(top - i): {"content": SENTINEL.format(i), **flags} for i in range(extra_ids)}
    config = {"tokenizer_class": T5, "legacy": legacy, "add_prefix_space": True, "added_tokens_decoder": added}
    return _new_files({**config, "extra_ids": extra_ids}, {layout.MODEL_FILE: model})


def byte_files(extra_ids: int = 125) -> TokenizerFiles:
    """The files of ByT5's tokenizer.

    Args:
        extra_ids: number of sentinels; ``<extra_id_0>`` has the id 259, the next one 260, and so on.
    """
    return _new_files({"tokenizer_class": BYTES, "extra_ids": extra_ids}, {})


def _new_files(config: dict[str, Any], further: dict[str, bytes]) -> TokenizerFiles:
    sentinels = [SENTINEL.format(i) for i in range(config["extra_ids"])]
    special = {**layout.DEFAULTS, "additional_special_tokens": sentinels}
    config = {**config, "clean_up_tokenization_spaces": False, **special}
    contents = {layout.CONFIG_FILE: to_json(config), layout.SPECIAL_TOKENS_FILE: to_json(special), **further}
    return TokenizerFiles("the tokenizer", contents)
