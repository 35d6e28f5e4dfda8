"""Which logits processors a configuration asks for, and in which order they work."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from seqgen.config import GenerationConfig
from seqgen.data.text import read_lines
from seqgen.errors import ConfigError, DataError, nearest
from seqgen.generation.compatibility import CUTOFFS, draws
from seqgen.generation.processors import warpers as cutoffs
from seqgen.generation.processors.base import (
    Forbid,
    ForbidFirst,
    ForceEndAtMaximum,
    ForcePrefix,
    LogitsProcessor,
    MinimumLength,
    NoRepeatNgram,
    UnknownPenalty,
)
from seqgen.generation.processors.bias import BadWords, SequenceBias
from seqgen.generation.processors.forced import ExponentialDecay, ForceFirst, ForceLast
from seqgen.generation.processors.prefix_trie import PrefixTrie, TrieConstraint
from seqgen.generation.processors.repetition import EncoderNoRepeatNgram, EncoderRepetitionPenalty, RepetitionPenalty
from seqgen.generation.processors.scaling import RemoveInvalid, Renormalize, Temperature
from seqgen.registry import LOGITS_PROCESSORS

if TYPE_CHECKING:
    from seqgen.data.dictionary import Dictionary

Encode: TypeAlias = Callable[[str], Sequence[int]]
"""Turns a text into ids, without end-of-sentence."""


def processors_from_config(
    cfg: GenerationConfig, dictionary: Dictionary, *, semantics: str, encode: Encode | None = None
) -> list[LogitsProcessor]:
    """The processors of every decoding, in the order of the toolkit whose rules are followed.

    By fairseq's rules padding is forbidden, end-of-sentence is forced at the maximum, and a given prefix overrules all
    but ``no_repeat_ngram_size``. By Hugging Face's rules neither of the first two holds, and a prefix overrules all.

    Args:
        cfg: the configuration.
        dictionary: the target vocabulary.
        semantics: ``"fairseq"`` or ``"huggingface"``.
        encode: turns texts of the target language into ids; without one, words are symbols of the vocabulary.

    Returns:
        The processors, those that the user registered among them; cut-offs are made by ``warpers_from_config``.

    Raises:
        ConfigError: a symbol or text is not in the vocabulary, a bias is not a number, or a name is not registered.
        DataError: the file of allowed outputs cannot be used.
    """
    asked = Asked(cfg, dictionary, semantics, encode)
    last = [] if draws(cfg) else asked.processors(("renormalize",))
    if semantics == "huggingface":
        exact = [ForceEndAtMaximum()] if cfg.match_source_len else []
        return [ForcePrefix([*asked.processors(HUGGINGFACE_ORDER), *exact, *asked.registered(), *last])]
    return [
        Forbid([dictionary.pad()]),
        *asked.processors(("remove_invalid", "unkpen")),
        ForceEndAtMaximum(),
        ForcePrefix(asked.processors(FAIRSEQ_ORDER)),
        *asked.processors(("no_repeat_ngram_size",)),
        *asked.registered(),
        *last,
    ]


def warpers_from_config(cfg: GenerationConfig, dictionary: Dictionary, *, semantics: str) -> list[LogitsProcessor]:
    """What narrows the distribution that is drawn from, after all other processors.

    Args:
        cfg: the configuration.
        dictionary: the target vocabulary.
        semantics: ``"fairseq"``, where the generator divides by the temperature before everything else, or
            ``"huggingface"``, where that is done here.

    Returns:
        The processors; none where nothing is drawn.
    """
    if not draws(cfg):
        return []
    temperature = ("temperature",) if semantics == "huggingface" else ()
    return Asked(cfg, dictionary, semantics, None).processors((*temperature, *CUTOFFS, "renormalize"))


def end_symbols_from_config(cfg: GenerationConfig, dictionary: Dictionary) -> list[int]:
    """The ids that end an output, end-of-sentence first.

    Args:
        cfg: the configuration.
        dictionary: the target vocabulary.

    Raises:
        ConfigError: a symbol is not in the vocabulary.
    """
    return [dictionary.eos(), *Asked(cfg, dictionary, "", None).further_ends()]


@dataclass(frozen=True)
class Asked:
    """What a configuration asks for, and what is needed to make it.

    Attributes:
        cfg: the configuration.
        dictionary: the target vocabulary.
        semantics: ``"fairseq"`` or ``"huggingface"``.
        encode: turns texts of the target language into ids; without one, words are symbols of the vocabulary.
    """

    cfg: GenerationConfig
    dictionary: Dictionary
    semantics: str
    encode: Encode | None

    def processors(self, keys: Sequence[str]) -> list[LogitsProcessor]:
        """Make the processors of some keys, where their values change anything."""
        neutral = {**vars(GenerationConfig()), "min_len": 0}
        return [MAKERS[key](self) for key in keys if getattr(self.cfg, key) != neutral[key]]

    def registered(self) -> list[LogitsProcessor]:
        """Make the processors that are asked for by name."""
        found = []
        for name in self.cfg.processors:
            entry = LOGITS_PROCESSORS.entry(name)
            if not issubclass(entry.component, LogitsProcessor):
                raise ConfigError(f"logits processor {name!r} ({entry.origin}) does not subclass LogitsProcessor")
            found.append(entry.component.build(LOGITS_PROCESSORS.config(name), self.dictionary))
        return found

    def symbol(self, key: str) -> int:
        """The id of the symbol that is the value of a key."""
        return self._symbol_id(getattr(self.cfg, key), key)

    def symbols(self, key: str) -> list[int]:
        """The ids of the symbols that are the value of a key."""
        return [self._symbol_id(symbol, key) for symbol in getattr(self.cfg, key)]

    def _symbol_id(self, symbol: str, key: str) -> int:
        if symbol not in self.dictionary:
            near = nearest(symbol, self.dictionary.symbols)
            raise ConfigError(f"generation.{key}: {symbol!r} is not in the target vocabulary{near}")
        return self.dictionary.index(symbol)

    def further_ends(self) -> list[int]:
        """The ids of ``end_symbols``, each once, without end-of-sentence."""
        return [symbol for symbol in dict.fromkeys(self.symbols("end_symbols")) if symbol != self.dictionary.eos()]

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text; of none, the text is empty, and with the unknown one, the model cannot write it."""
        if self.encode is not None:
            return tuple(self.encode(text))
        return tuple(self.dictionary.word_index(word) for word in text.split())

    def writable(self, text: str, key: str) -> tuple[int, ...]:
        """The ids of a text that is given in a key."""
        ids = self.ids(text)
        if not ids or self.dictionary.unk() in ids:
            why = "has words or characters that are not in the target vocabulary" if ids else "is empty"
            raise ConfigError(f"generation.{key}: {text!r} {why}, so that the model never writes it; leave it out")
        return ids

    def bias(self, entry: str) -> tuple[tuple[int, ...], float]:
        """Read ``TEXT=BIAS``."""
        text, _, number = entry.rpartition("=")
        try:
            bias = float(number)
        except ValueError:
            bias = math.nan
        if not text or not math.isfinite(bias):
            raise ConfigError(
                f"generation.sequence_bias: {entry!r} is not TEXT=BIAS with a finite number; what must not occur "
                "at all belongs into generation.bad_words"
            )
        return self.writable(text, "sequence_bias"), bias

    def biases(self) -> dict[tuple[int, ...], float]:
        """The biases by sequence; that of a text which is given twice adds up."""
        found: dict[tuple[int, ...], float] = {}
        for ids, bias in map(self.bias, self.cfg.sequence_bias):
            found[ids] = found.get(ids, 0.0) + bias
        return found

    def trie(self) -> PrefixTrie:
        """Read the file of allowed outputs."""
        path = Path(self.cfg.prefix_trie)
        trie = PrefixTrie.from_lines(self._allowed(path), self.ids, self.dictionary.eos())
        if not trie.following(()):
            raise DataError(f"generation.prefix_trie: {path} is empty; it has an output that is allowed on each line")
        return trie

    def _allowed(self, path: Path) -> Iterator[str]:
        for number, line in enumerate(read_lines(path), start=1):
            if self.dictionary.unk() in self.ids(line):
                raise DataError(
                    f"generation.prefix_trie: {path}, line {number} has words or characters that are not in the target "
                    "vocabulary; remove or correct it"
                )
            yield line

    @property
    def keep(self) -> int:
        """Tokens that a cut-off keeps.

        Where the candidates of one sentence's beams compete, there must be one that goes on besides all that end.
        """
        competing = self.cfg.beam > 1 and self.cfg.search not in ("", "sampling")
        return 2 + len(self.further_ends()) if competing else 1


MAKERS: dict[str, Callable[[Asked], LogitsProcessor]] = {
    "unkpen": lambda asked: UnknownPenalty(asked.dictionary.unk(), asked.cfg.unkpen),
    "sequence_bias": lambda asked: SequenceBias(asked.biases()),
    "encoder_repetition_penalty": lambda asked: EncoderRepetitionPenalty(asked.cfg.encoder_repetition_penalty),
    "repetition_penalty": lambda asked: RepetitionPenalty(asked.cfg.repetition_penalty),
    "no_repeat_ngram_size": lambda asked: NoRepeatNgram(asked.cfg.no_repeat_ngram_size),
    "encoder_no_repeat_ngram_size": lambda asked: EncoderNoRepeatNgram(asked.cfg.encoder_no_repeat_ngram_size),
    "bad_words": lambda asked: BadWords(
        [asked.writable(text, "bad_words") for text in asked.cfg.bad_words],
        [asked.dictionary.eos(), *asked.further_ends()],
    ),
    "min_len": lambda asked: MinimumLength(asked.cfg.min_len, asked.further_ends(), asked.semantics == "fairseq"),
    "match_source_len": lambda asked: MinimumLength(sys.maxsize, asked.further_ends()),
    "prefix_trie": lambda asked: TrieConstraint(asked.trie()),
    "forced_first": lambda asked: ForceFirst(asked.symbol("forced_first"), keep_score=asked.semantics == "fairseq"),
    "forced_last": lambda asked: ForceLast(asked.symbol("forced_last")),
    "remove_invalid": lambda asked: RemoveInvalid(),
    "exponential_decay_factor": lambda asked: ExponentialDecay(
        asked.cfg.exponential_decay_start, asked.cfg.exponential_decay_factor, asked.further_ends()
    ),
    "suppress": lambda asked: Forbid(asked.symbols("suppress")),
    "suppress_at_begin": lambda asked: ForbidFirst(
        asked.symbols("suppress_at_begin"), step=1 if asked.cfg.forced_first else 0
    ),
    "temperature": lambda asked: Temperature(asked.cfg.temperature),
    "sampling_topk": lambda asked: cutoffs.TopK(asked.cfg.sampling_topk, asked.keep),
    "sampling_topp": lambda asked: cutoffs.TopP(asked.cfg.sampling_topp, asked.keep),
    "min_p": lambda asked: cutoffs.MinP(asked.cfg.min_p, asked.keep),
    "typical_p": lambda asked: cutoffs.Typical(asked.cfg.typical_p, asked.keep),
    "epsilon_cutoff": lambda asked: cutoffs.Epsilon(asked.cfg.epsilon_cutoff, asked.keep),
    "eta_cutoff": lambda asked: cutoffs.Eta(asked.cfg.eta_cutoff, asked.keep),
    "renormalize": lambda asked: Renormalize(),
}
"""How the processor of each key is made."""

HUGGINGFACE_ORDER = (
    "unkpen",  # which transformers does not have
    "sequence_bias",
    "encoder_repetition_penalty",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words",
    "min_len",
    "match_source_len",
    "prefix_trie",
    "forced_first",
    "forced_last",
    "remove_invalid",
    "exponential_decay_factor",
    "suppress",
    "suppress_at_begin",
)
"""As transformers' ``generate`` applies them."""

FAIRSEQ_ORDER = (
    "min_len",
    "match_source_len",
    "suppress",
    "suppress_at_begin",
    "sequence_bias",
    "encoder_repetition_penalty",
    "repetition_penalty",
    "encoder_no_repeat_ngram_size",
    "bad_words",
    "prefix_trie",
    "forced_first",
    "exponential_decay_factor",
)
"""Those that a prefix overrules; the first few are fairseq's own."""
