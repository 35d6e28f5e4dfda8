"""Conversion between ``generation_config.json`` of a Hugging Face folder and seqgen's ``GenerationConfig``.

Keys that differ only in their names are listed in tables; each other key has code and a comment. Keys that the
file does not have get the default of transformers, because seqgen's defaults differ (beam=5 instead of 1).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqgen.addons.huggingface.architecture import GENERATION_FILE, KEYS, JSONConfig
from seqgen.config import GenerationConfig, from_dict
from seqgen.decoding.resolution import TOOLKIT_LENGTH
from seqgen.extend import (
    DECODING_COMPONENTS,
    IDS,
    CheckpointError,
    ConfigError,
    Resources,
    Tokenizer,
    component_config,
    shown,
)

_SEARCHES, _ = DECODING_COMPONENTS["search"]

# The name in transformers, the name in seqgen, and the default of transformers, whose type is that of the value.
_ALWAYS: tuple[tuple[str, str, Any], ...] = (
    ("num_beams", "beam", 1),
    ("num_return_sequences", "nbest", 1),
    ("length_penalty", "length_penalty", 1.0),
    ("no_repeat_ngram_size", "no_repeat_ngram_size", 0),
    ("encoder_no_repeat_ngram_size", "encoder_no_repeat_ngram_size", 0),
    ("repetition_penalty", "repetition_penalty", 1.0),
    ("encoder_repetition_penalty", "encoder_repetition_penalty", 1.0),
    ("renormalize_logits", "renormalize", False),
    ("remove_invalid_values", "remove_invalid", False),
    ("guidance_scale", "guidance_scale", 1.0),
    ("max_time", "max_time", 0.0),
)
_SAMPLING: tuple[tuple[str, str, Any], ...] = (
    ("temperature", "temperature", 1.0),
    ("top_k", "top_k", 50),
    ("top_p", "top_p", 1.0),
    ("min_p", "min_p", 0.0),
    ("typical_p", "typical_p", 1.0),
    ("epsilon_cutoff", "epsilon_cutoff", 0.0),
    ("eta_cutoff", "eta_cutoff", 0.0),
)
_EXACT_CACHES = (None, "dynamic", "static", "offloaded", "offloaded_static")
"""Values of ``cache_implementation`` that do not change outputs; others round keys and values or drop old ones."""

_UNLIMITED = 1 << 20
"""Value of ``max_len_b`` for which only ``max_len`` limits the length."""


GENERATION_KEYS = frozenset(
    [*(key for key, _, _ in _ALWAYS + _SAMPLING), *KEYS["generation"], *KEYS["generation_ignored"]]
)
"""All keys that are read or known not to change outputs."""


def read_generation(
    folder: Path, tokenizer: Tokenizer, decoder_only: bool = False, defaults: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Read the decoding settings of a folder.

    Args:
        folder: the folder; where it has no ``generation_config.json``, the keys that old versions wrote into
            ``config.json`` are read.
        tokenizer: turns ids into tokens and texts.
        decoder_only: whether lengths without ``new_tokens`` in their names count the prompt, not the start token.
        defaults: values that hold where there is no ``generation_config.json`` and ``config.json`` lacks the key.

    Returns:
        Values by the names of ``GenerationConfig``'s fields, and notes for the user.

    Raises:
        CheckpointError: a value is of the wrong type, or an id is outside the vocabulary.
    """
    has_file = (folder / GENERATION_FILE).is_file()
    config = JSONConfig.read(folder / (GENERATION_FILE if has_file else "config.json"))
    if not has_file:
        config = JSONConfig(config.path, {**(defaults or {}), **config.values})
    reader = _Reader(config, tokenizer, decoder_only)
    values = {"semantics": "huggingface", **config.read_table(_ALWAYS), **reader.lengths(), **reader.strategy()}
    values |= reader.tokens() | reader.texts() | reader.ends()
    if (cache := config.value("cache_implementation")) not in _EXACT_CACHES:
        reader.note(f"cache_implementation={shown(cache)} is not supported and is ignored")
    if (scale := config.get("guidance_scale", 1.0)) != 1:
        reader.note(
            f"guidance_scale={scale} contrasts with the scores for an empty source, which transformers does not do; "
            "outputs differ from its outputs"
        )
    try:
        # only to check that all values are in their ranges
        cfg = from_dict(GenerationConfig, values, str(config.path), "generation.")
        if cfg.search:
            component_config(_SEARCHES, cfg.search, cfg)
    except ConfigError as error:
        raise CheckpointError(f"{config.path}: {str(error).removeprefix(f'{config.path}: ')}") from None
    if has_file:
        reader.notes += config.unknown(GENERATION_KEYS)
    return values, reader.notes


class _Reader:
    """Reads groups of values; see ``read_generation``."""

    def __init__(self, config: JSONConfig, tokenizer: Tokenizer, decoder_only: bool):
        self.config = config
        self.tokenizer = tokenizer
        self.decoder_only = decoder_only
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Add a note about the file."""
        self.notes.append(f"{self.config.path}: {text}")

    def lengths(self) -> dict[str, Any]:
        """Limits of the length; those without ``new_tokens`` in their names count the prompt, or else the start token.

        With ``max_len_a`` -1, ``max_len_b`` limits prompt and output together.
        """
        get = self.config.get
        values: dict[str, Any] = {"max_len_a": 0.0, "max_len_b": _UNLIMITED}
        longest, least = get("max_length", TOOLKIT_LENGTH, minimum=1), get("min_length", 0)
        # A limit of 20 is the default, whether given or not, and means 20 new tokens.
        is_default = longest == TOOLKIT_LENGTH
        if not self.decoder_only:
            values["max_len"] = get("max_new_tokens", longest if is_default else max(longest - 1, 1), minimum=1)
            return {**values, "min_len": get("min_new_tokens", max(least - 1, 0))}
        new, shortest = get("max_new_tokens", 0), get("min_new_tokens", 0)
        if new or is_default:
            values["max_len"] = new or TOOLKIT_LENGTH
        else:
            values |= {"max_len_a": -1.0, "max_len_b": longest - 1}
        return {**values, "min_len": shortest, "min_total_len": 0 if shortest else least}

    def strategy(self) -> dict[str, Any]:
        """The search strategy and its values."""
        early = self.config.value("early_stopping") or False
        if early not in (True, False, "never"):
            raise self.config.wrong("early_stopping", early, "true, false or 'never'")
        values: dict[str, Any] = {"early_stopping": str(early).lower()}
        get = self.config.get
        beams, groups, drafted = get("num_beams", 1), get("num_beam_groups", 1), get("prompt_lookup_num_tokens", 0)
        if get("do_sample", False):
            values |= {"sampling": True, **self.config.read_table(_SAMPLING)}
            if beams > 1:
                values["search"] = "beam_sampling"
            if groups > 1:
                self.note(f"num_beam_groups={groups} has no effect with do_sample=true")
        elif beams == 1 and (alpha := get("penalty_alpha", 0.0)) > 0 and (topk := get("top_k", 50)) > 1:
            components = {"search.penalty_alpha": alpha, "search.contrastive_topk": topk}
            values |= {"search": "contrastive", "components": components}
        elif groups > 1:
            components = {"search.groups": groups, "search.strength": get("diversity_penalty", 0.0)}
            values |= {"search": "diverse_beam", "components": components}
        if drafted and (beams > 1 or "search" in values):
            self.note(f"prompt_lookup_num_tokens={drafted} has no effect on this search")
        elif drafted:
            values |= {"draft_tokens": drafted, "prompt_lookup": get("max_matching_ngram_size", 2)}
        return values

    def tokens(self) -> dict[str, Any]:
        """Tokens that are forbidden or forced."""
        values: dict[str, Any] = {}
        for foreign, local in (("suppress_tokens", "suppress"), ("begin_suppress_tokens", "suppress_at_begin")):
            if ids := self._ids(foreign):
                values[local] = list(map(self.tokenizer.dictionary.symbol, ids))
        for foreign, local in (("forced_bos_token_id", "forced_first"), ("forced_eos_token_id", "forced_last")):
            ids = self._ids(foreign)
            if ids and local == "forced_first" and self.decoder_only:
                self.note(f"{foreign}={ids[0]} is ignored, because outputs follow a prompt")
            elif ids:
                values[local] = self.tokenizer.dictionary.symbol(ids[0])
                if len(ids) > 1:
                    self.note(f"only the first id of {foreign}, {ids[0]}, is forced")
        return values

    def ends(self) -> dict[str, Any]:
        """Further tokens that end an output, besides the tokenizer's end-of-sentence."""
        eos = self.tokenizer.dictionary.eos()
        ids = self._ids("eos_token_id")
        # Without this key in the file, version 4 of transformers has no end-of-sentence, version 5 that of config.json.
        missing = self.config.path.name == GENERATION_FILE and not self.config.written_by(5)
        if eos not in ids and (ids or missing):
            self.note(
                f"eos_token_id is {ids or 'missing'}; in seqgen, outputs also end at the tokenizer's end-of-sentence, "
                f"{eos}"
            )
        others = [self.tokenizer.dictionary.symbol(index) for index in ids if index != eos]
        return {"end_symbols": others} if others else {}

    def texts(self) -> dict[str, Any]:
        """Texts that end an output, are forbidden, or are more or less likely."""
        values: dict[str, Any] = {}
        stops = self.config.value("stop_strings")
        if stops:
            values["stop_strings"] = [stops] if isinstance(stops, str) else list(map(str, self._list("stop_strings")))
        if forbidden := self._sequences("bad_words_ids", self._list("bad_words_ids")):
            values["bad_words"] = forbidden
        biased = []
        for pair in self._list("sequence_bias"):
            ids, bias = self._pair("sequence_bias", pair)
            biased += [f"{text}={bias}" for text in self._sequences("sequence_bias", [ids])]
        if biased:
            values["sequence_bias"] = biased
        if decay := self._list("exponential_decay_length_penalty"):
            start, factor = self._pair("exponential_decay_length_penalty", decay)
            if isinstance(start, int) and start > (most := self.config.largest):
                raise CheckpointError(f"{self.config.path}: exponential_decay_length_penalty starts after {most}")
            values |= {"exponential_decay_start": start, "exponential_decay_factor": factor}
        return values

    def _pair(self, name: str, value: Any) -> tuple[Any, float]:
        """A pair of any value and a number."""
        number = value[1] if isinstance(value, list) and len(value) == 2 else None
        if not isinstance(number, int | float) or (isinstance(number, int) and abs(number) > sys.float_info.max):
            raise CheckpointError(
                f"{self.config.path}: {name} has {shown(value)}, which should be a pair ending in a number"
            )
        return value[0], float(number)

    def _sequences(self, name: str, sequences: Sequence[Any]) -> list[str]:
        """Sequences of ids as texts, or as ids where no text is encoded as these; see ``Resources.sequence``."""
        texts = []
        for ids in sequences:
            self._check_ids(name, ids)
            text = self.tokenizer.decode(ids)
            is_text = list(self.tokenizer.encode(text)) == ids and self.tokenizer.dictionary.unk() not in ids
            texts.append(
                text if is_text and not text.startswith(IDS) and "\0" not in text else IDS + " ".join(map(str, ids))
            )
        return texts

    def _list(self, name: str) -> list[Any]:
        value = self.config.value(name, [])
        if not isinstance(value, list):
            raise self.config.wrong(name, value, "a list")
        return value

    def _ids(self, name: str) -> list[int]:
        value = self.config.value(name, [])
        ids = value if isinstance(value, list) else [value]
        if ids:
            self._check_ids(name, ids)
        return ids

    def _check_ids(self, name: str, ids: Any) -> None:
        size = len(self.tokenizer.dictionary)
        if not isinstance(ids, list) or not ids or not all(type(index) is int and 0 <= index < size for index in ids):
            raise self.config.wrong(name, ids, f"ids from 0 to {size - 1}")


def write_generation(cfg: GenerationConfig, tokenizer: Tokenizer | None, decoder_only: bool = False) -> dict[str, Any]:
    """The content of a ``generation_config.json``.

    Args:
        cfg: the decoding settings; those without a counterpart in the file are left out.
        tokenizer: turns tokens and texts into ids; without one, settings with tokens or texts are left out.
        decoder_only: see ``read_generation``.

    Returns:
        Values by key.
    """
    tables = (*_ALWAYS, *_SAMPLING) if cfg.sampling else _ALWAYS
    values = {foreign: getattr(cfg, local) for foreign, local, default in tables if getattr(cfg, local) != default}
    if decoder_only and not cfg.max_len and cfg.max_len_a == -1:
        values["max_length"] = cfg.max_len_b + 1
    else:
        values["max_new_tokens"] = cfg.max_len or cfg.max_len_b + 1
    if decoder_only:
        lengths = {"min_new_tokens": cfg.min_len, "min_length": cfg.min_total_len}
        values |= {name: length for name, length in lengths.items() if length}
    elif cfg.min_len:
        values["min_length"] = cfg.min_len + 1  # in the file, this limit counts the start token
    if cfg.early_stopping != "false":
        values["early_stopping"] = True if cfg.early_stopping == "true" else cfg.early_stopping
    if cfg.sampling:
        values["do_sample"] = True
    if cfg.search == "contrastive":
        contrastive = component_config(_SEARCHES, "contrastive", cfg)
        values |= {"penalty_alpha": contrastive.penalty_alpha, "top_k": contrastive.contrastive_topk}
    if cfg.search == "diverse_beam":
        diverse = component_config(_SEARCHES, "diverse_beam", cfg)
        values |= {"num_beam_groups": diverse.groups, "diversity_penalty": diverse.strength}
    if size := getattr(cfg, "prompt_lookup", 0):
        values |= {"prompt_lookup_num_tokens": cfg.draft_tokens, "max_matching_ngram_size": size}
    if cfg.exponential_decay_factor != 1:
        values["exponential_decay_length_penalty"] = [cfg.exponential_decay_start, cfg.exponential_decay_factor]
    if cfg.stop_strings:
        values["stop_strings"] = cfg.stop_strings
    return values if tokenizer is None else values | _ids_of(cfg, tokenizer)


def _ids_of(cfg: GenerationConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """The settings that are ids in the file and tokens or texts in seqgen."""
    index, sequence = tokenizer.dictionary.index, Resources(tokenizer.dictionary, tokenizer.encode).sequence
    values: Mapping[str, Any] = {
        "suppress_tokens": [index(token) for token in cfg.suppress],
        "begin_suppress_tokens": [index(token) for token in cfg.suppress_at_begin],
        "forced_bos_token_id": index(cfg.forced_first) if cfg.forced_first else None,
        "forced_eos_token_id": index(cfg.forced_last) if cfg.forced_last else None,
        "bad_words_ids": [list(sequence(text)) for text in cfg.bad_words],
        "sequence_bias": [
            [list(sequence(text)), float(bias)]
            for text, _, bias in (item.rpartition("=") for item in cfg.sequence_bias)
        ],
        "eos_token_id": [tokenizer.dictionary.eos(), *map(index, cfg.end_symbols)] if cfg.end_symbols else None,
    }
    return {name: value for name, value in values.items() if value not in (None, [])}
