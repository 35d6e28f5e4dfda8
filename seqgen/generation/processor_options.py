"""Which logits processors a configuration asks for, and in which order they work."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from seqgen.config import GenerationConfig
from seqgen.data.dictionary import Dictionary
from seqgen.data.text import read_lines
from seqgen.errors import ConfigError, DataError, nearest
from seqgen.generation.compatibility import CUTOFFS, draws
from seqgen.generation.component import Resources
from seqgen.generation.processors import warpers
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.processors.bias import BadWords, SequenceBias
from seqgen.generation.processors.length import ExponentialDecay, ForceFirst, ForceLast, MinimumLength
from seqgen.generation.processors.prefix_trie import PrefixTrie, TrieConstraint
from seqgen.generation.processors.repetition import (
    EncoderNoRepeatNgram,
    EncoderRepetitionPenalty,
    NoRepeatNgram,
    RepetitionPenalty,
)
from seqgen.generation.processors.scaling import RemoveInvalid, Renormalize, Temperature
from seqgen.generation.processors.tokens import Forbid, ForbidFirst, UnknownPenalty
from seqgen.generation.registered import build
from seqgen.generation.rules import FAIRSEQ, Rules
from seqgen.registry import LOGITS_PROCESSORS

Encode: TypeAlias = Callable[[str], Sequence[int]]
"""Turns a text into ids, without end-of-sentence."""


def processors_from_config(
    cfg: GenerationConfig, dictionary: Dictionary, rules: Rules, encode: Encode | None = None
) -> list[LogitsProcessor]:
    """All processors of a configuration, warpers last, in the order of the rules.

    Args:
        cfg: the configuration.
        dictionary: the target vocabulary.
        rules: put them in order.
        encode: turns texts of the target language into ids; without one, words are tokens of the vocabulary.

    Returns:
        The processors, those that the user registered among them.

    Raises:
        ConfigError: a token or text is not in the vocabulary, a bias is not a number, or a name is not registered.
        DataError: the file of allowed outputs cannot be used.
    """
    wanted = Wanted(cfg, dictionary, rules, encode)
    processors = rules.order(wanted.processors, cfg, wanted.registered())
    if not draws(cfg):
        return [*processors, *wanted.processors(("renormalize",))]
    temperature = () if rules.divides_by_temperature_first else ("temperature",)
    return [*processors, *wanted.processors((*temperature, *CUTOFFS, "renormalize"))]


def end_tokens_from_config(cfg: GenerationConfig, dictionary: Dictionary) -> list[int]:
    """The ids that end an output, end-of-sentence first.

    Args:
        cfg: the configuration.
        dictionary: the target vocabulary.

    Raises:
        ConfigError: a token is not in the vocabulary.
    """
    return [dictionary.eos(), *Wanted(cfg, dictionary, FAIRSEQ, None).further_ends()]


@dataclass(frozen=True)
class Wanted:
    """What a configuration asks for, and what is needed to make it.

    Attributes:
        cfg: the configuration.
        dictionary: the target vocabulary.
        rules: fairseq's or Hugging Face's.
        encode: turns texts of the target language into ids; without one, words are tokens of the vocabulary.
    """

    cfg: GenerationConfig
    dictionary: Dictionary
    rules: Rules
    encode: Encode | None

    def processors(self, keys: Sequence[str]) -> list[LogitsProcessor]:
        """Make the processors of some keys, where their values are not neutral."""
        neutral = {**vars(GenerationConfig()), "min_len": 0}
        return [MAKERS[key](self) for key in keys if key in ALWAYS or getattr(self.cfg, key) != neutral[key]]

    def registered(self) -> list[LogitsProcessor]:
        """Make the processors that are wanted for by name."""
        resources = Resources(self.dictionary, self.encode)
        return [build(LOGITS_PROCESSORS, name, LogitsProcessor, self.cfg, resources) for name in self.cfg.processors]

    def token_id(self, key: str) -> int:
        """The id of the token that is the value of a key."""
        return self._id(getattr(self.cfg, key), key)

    def token_ids(self, key: str) -> list[int]:
        """The ids of the tokens that are the value of a key."""
        return [self._id(token, key) for token in getattr(self.cfg, key)]

    def _id(self, token: str, key: str) -> int:
        if token not in self.dictionary:
            near = nearest(token, self.dictionary.symbols)
            raise ConfigError(f"generation.{key}: {token!r} is not in the target vocabulary{near}")
        return self.dictionary.index(token)

    def further_ends(self) -> list[int]:
        """The ids of ``end_symbols``, each once, without end-of-sentence."""
        return [token for token in dict.fromkeys(self.token_ids("end_symbols")) if token != self.dictionary.eos()]

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
                "at all is a value of generation.bad_words"
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

        Where the candidates of one sentence's beams compete, at least one must continue besides all that end.
        """
        competing = self.cfg.beam > 1 and self.cfg.search not in ("", "sampling")
        return 2 + len(self.further_ends()) if competing else 1


ALWAYS = frozenset({"forbidden_padding"})
"""Names in the order of rules that are no keys of a configuration."""

MAKERS: dict[str, Callable[[Wanted], LogitsProcessor]] = {
    "forbidden_padding": lambda wanted: Forbid([wanted.dictionary.pad()]),
    "unkpen": lambda wanted: UnknownPenalty(wanted.dictionary.unk(), wanted.cfg.unkpen),
    "sequence_bias": lambda wanted: SequenceBias(wanted.biases()),
    "encoder_repetition_penalty": lambda wanted: EncoderRepetitionPenalty(wanted.cfg.encoder_repetition_penalty),
    "repetition_penalty": lambda wanted: RepetitionPenalty(wanted.cfg.repetition_penalty),
    "no_repeat_ngram_size": lambda wanted: NoRepeatNgram(wanted.cfg.no_repeat_ngram_size),
    "encoder_no_repeat_ngram_size": lambda wanted: EncoderNoRepeatNgram(wanted.cfg.encoder_no_repeat_ngram_size),
    "bad_words": lambda wanted: BadWords(
        [wanted.writable(text, "bad_words") for text in wanted.cfg.bad_words],
        [wanted.dictionary.eos(), *wanted.further_ends()],
    ),
    "min_len": lambda wanted: MinimumLength(wanted.cfg.min_len, wanted.further_ends(), wanted.rules.minimum_yields),
    "match_source_len": lambda wanted: MinimumLength(sys.maxsize, wanted.further_ends()),
    "prefix_trie": lambda wanted: TrieConstraint(wanted.trie()),
    "forced_first": lambda wanted: ForceFirst(
        wanted.token_id("forced_first"), keep_score=wanted.rules.keeps_forced_score
    ),
    "forced_last": lambda wanted: ForceLast(wanted.token_id("forced_last")),
    "remove_invalid": lambda wanted: RemoveInvalid(),
    "exponential_decay_factor": lambda wanted: ExponentialDecay(
        wanted.cfg.exponential_decay_start, wanted.cfg.exponential_decay_factor, wanted.further_ends()
    ),
    "suppress": lambda wanted: Forbid(wanted.token_ids("suppress")),
    "suppress_at_begin": lambda wanted: ForbidFirst(
        wanted.token_ids("suppress_at_begin"), step=1 if wanted.cfg.forced_first else 0
    ),
    "temperature": lambda wanted: Temperature(wanted.cfg.temperature),
    "sampling_topk": lambda wanted: warpers.TopK(wanted.cfg.sampling_topk, wanted.keep),
    "sampling_topp": lambda wanted: warpers.TopP(wanted.cfg.sampling_topp, wanted.keep),
    "min_p": lambda wanted: warpers.MinP(wanted.cfg.min_p, wanted.keep),
    "typical_p": lambda wanted: warpers.Typical(wanted.cfg.typical_p, wanted.keep),
    "epsilon_cutoff": lambda wanted: warpers.Epsilon(wanted.cfg.epsilon_cutoff, wanted.keep),
    "eta_cutoff": lambda wanted: warpers.Eta(wanted.cfg.eta_cutoff, wanted.keep),
    "renormalize": lambda wanted: Renormalize(),
}
"""How the processor of each key is made."""
