"""A user's file that registers built-in components that have no names, so that a check can choose them."""

from collections.abc import Callable

from seqgen.decoding.processors import length, tokens, warpers
from seqgen.extend import LogitsProcessor, Resources
from seqgen.registry import import_declared, register_logits_processor

ALLOWED = ["w1 w2", "w1 w3 w4", "w5", "w2 w2 w2"]


def trie_constraint(words: Resources) -> LogitsProcessor:
    """The processor of an add-on, without which only those tests are skipped that make it."""
    constraint = import_declared("seqgen.addons.catalogue.constraint", "the processor")
    trie = constraint.PrefixTrie.of([*words.ids(line), words.dictionary.eos()] for line in ALLOWED)
    return constraint.TrieConstraint(trie)


PROCESSORS: dict[str, Callable[[Resources], LogitsProcessor]] = {
    "bad_words": lambda words: tokens.BadWords([words.ids("w1 w2")], [words.dictionary.eos()]),
    "encoder_no_repeat_ngram": lambda words: tokens.EncoderNoRepeatNgram(1),
    "encoder_repetition_penalty": lambda words: tokens.EncoderRepetitionPenalty(1.2),
    "epsilon": lambda words: warpers.Epsilon(0.001),
    "eta": lambda words: warpers.Eta(0.001),
    "exponential_decay": lambda words: length.ExponentialDecay(2, 1.1),
    "forbid": lambda words: tokens.Forbid([words.token("w2")]),
    "forbid_first": lambda words: tokens.ForbidFirst([words.token("w2")]),
    "force_end_at_maximum": lambda words: length.ForceEndAtMaximum(),
    "force_first": lambda words: length.ForceFirst(words.token("w3")),
    "force_last": lambda words: length.ForceLast(words.token("w3")),
    "min_p": lambda words: warpers.MinP(0.1),
    "minimum_length": lambda words: length.MinimumLength(3),
    "no_repeat_ngram": lambda words: tokens.NoRepeatNgram(2),
    "allowed_outputs": trie_constraint,
    "remove_invalid": lambda words: warpers.RemoveInvalid(),
    "renormalize": lambda words: warpers.Renormalize(),
    "repetition_penalty": lambda words: tokens.RepetitionPenalty(1.2),
    "sequence_bias": lambda words: tokens.SequenceBias({words.ids("w1 w2"): 1.5, words.ids("w3"): -0.5}),
    "temperature": lambda words: warpers.Temperature(1.5),
    "top_k": lambda words: warpers.TopK(9),
    "top_p": lambda words: warpers.TopP(0.9),
    "typical": lambda words: warpers.Typical(0.9),
    "unigrams": lambda words: tokens.NoRepeatNgram(1),
    "unknown_penalty": lambda words: tokens.UnknownPenalty(words.dictionary.unk(), 1.0),
    "whole_vocabulary": lambda words: warpers.TopK(13),
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
