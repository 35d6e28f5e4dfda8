"""A user's file that registers built-in components that have no names, so that a check can choose them."""

from __future__ import annotations

from collections.abc import Callable

from seqgen.core.processors import LogitsProcessor
from seqgen.decoding.building import Resources
from seqgen.decoding.processors.length import (
    ExponentialDecay,
    ForceEndAtMaximum,
    ForceFirst,
    ForceLast,
    MinimumLength,
)
from seqgen.decoding.processors.tokens import (
    BadWords,
    EncoderNoRepeatNgram,
    EncoderRepetitionPenalty,
    Forbid,
    ForbidFirst,
    NoRepeatNgram,
    RepetitionPenalty,
    SequenceBias,
    UnknownPenalty,
)
from seqgen.decoding.processors.warpers import (
    Epsilon,
    Eta,
    MinP,
    RemoveInvalid,
    Renormalize,
    Temperature,
    TopK,
    TopP,
    Typical,
)
from seqgen.registry import import_declared, register_logits_processor

ALLOWED = ["w1 w2", "w1 w3 w4", "w5", "w2 w2 w2"]


def trie_constraint(words: Resources) -> LogitsProcessor:
    """The processor of an add-on, without which only those tests are skipped that make it."""
    constraint = import_declared("seqgen.addons.catalogue.constraint", "the processor")
    trie = constraint.PrefixTrie.of([*words.ids(line), words.dictionary.eos()] for line in ALLOWED)
    return constraint.TrieConstraint(trie)


PROCESSORS: dict[str, Callable[[Resources], LogitsProcessor]] = {
    "bad_words": lambda words: BadWords([words.ids("w1 w2")], [words.dictionary.eos()]),
    "encoder_no_repeat_ngram": lambda words: EncoderNoRepeatNgram(1),
    "encoder_repetition_penalty": lambda words: EncoderRepetitionPenalty(1.2),
    "epsilon": lambda words: Epsilon(0.001),
    "eta": lambda words: Eta(0.001),
    "exponential_decay": lambda words: ExponentialDecay(2, 1.1),
    "forbid": lambda words: Forbid([words.token("w2")]),
    "forbid_first": lambda words: ForbidFirst([words.token("w2")]),
    "force_end_at_maximum": lambda words: ForceEndAtMaximum(),
    "force_first": lambda words: ForceFirst(words.token("w3")),
    "force_last": lambda words: ForceLast(words.token("w3")),
    "min_p": lambda words: MinP(0.1),
    "minimum_length": lambda words: MinimumLength(3),
    "no_repeat_ngram": lambda words: NoRepeatNgram(2),
    "allowed_outputs": trie_constraint,
    "remove_invalid": lambda words: RemoveInvalid(),
    "renormalize": lambda words: Renormalize(),
    "repetition_penalty": lambda words: RepetitionPenalty(1.2),
    "sequence_bias": lambda words: SequenceBias({words.ids("w1 w2"): 1.5, words.ids("w3"): -0.5}),
    "temperature": lambda words: Temperature(1.5),
    "top_k": lambda words: TopK(9),
    "top_p": lambda words: TopP(0.9),
    "typical": lambda words: Typical(0.9),
    "unigrams": lambda words: NoRepeatNgram(1),
    "unknown_penalty": lambda words: UnknownPenalty(words.dictionary.unk(), 1.0),
    "whole_vocabulary": lambda words: TopK(13),
}
"""The processors by the names that this file gives them."""


def register(name: str, make: Callable[[Resources], LogitsProcessor]) -> None:
    """Give a processor the name ``checked_NAME``."""

    class Registered(LogitsProcessor):
        @classmethod
        def build(cls, cfg: object, resources: Resources) -> LogitsProcessor:  # type: ignore[override]
            return make(resources)

    register_logits_processor(f"checked_{name}")(Registered)


for _name, _make in PROCESSORS.items():
    register(_name, _make)
