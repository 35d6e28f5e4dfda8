"""The keys of the loop of decoding: lengths and stopping, ranking, observers, ensembles, and speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqgen.config.options import (
    CALL,
    DEFAULT_COMBINATION,
    ENSEMBLE,
    KEEPS_SCORES,
    MODEL,
    NEEDS_STEPS,
    NOT_IN_TRAINING,
    SCORES_TARGETS,
    SPEED,
    WHOLE_LINE,
    Requirement,
    decoding_key,
)

_NORMALIZES = Requirement(
    lambda cfg: cfg.normalize_scores, "has no effect with generation.normalize_scores=false; remove one of them"
)
LONGEST = 1 << 30
"""Largest limit of the length of an output."""

_BATCHES = SPEED | KEEPS_SCORES | NOT_IN_TRAINING

_LIMITS_LENGTH = Requirement(
    lambda cfg: not cfg.match_source_len, "has no effect with generation.match_source_len=true; remove one of them"
)


@dataclass
class LengthOptions:
    """When outputs end, and when the search does."""

    max_len_a: float = decoding_key(
        0.0,
        "maximum output length is max_len_a * source length + max_len_b; -1 for a limit of prompt and output together",
        MODEL | KEEPS_SCORES,
        _LIMITS_LENGTH,
        minimum=-1,
        maximum=1e9,
        limit_from_files=1000.0,
    )
    max_len_b: int = decoding_key(
        200,
        "see max_len_a; in tokens without end-of-sentence",
        MODEL | KEEPS_SCORES,
        _LIMITS_LENGTH,
        minimum=0,
        maximum=LONGEST,
        limit_from_files=1 << 20,
    )
    max_len: int = decoding_key(
        0,
        "maximum output length for every source, in tokens with end-of-sentence; 0 for the model's maximum",
        MODEL | KEEPS_SCORES,
        minimum=0,
        maximum=LONGEST,
        limit_from_files=1 << 20,
        other_names=("max_length", "max_new_tokens"),
    )
    min_len: int = decoding_key(
        1,
        "minimum output length, in tokens without end-of-sentence",
        MODEL,
        _LIMITS_LENGTH,
        Requirement(
            lambda cfg: not cfg.max_len or cfg.min_len <= cfg.max_len,
            "is more than generation.max_len allows; decrease it, or increase generation.max_len",
        ),
        Requirement(
            lambda cfg: cfg.max_len_a > 0 or cfg.match_source_len or cfg.min_len <= cfg.effective_max_len_b,
            "is more than generation.max_len_b allows; decrease it, or increase generation.max_len_b",
        ),
        minimum=0,
        other_names=("min_length",),
    )
    min_total_len: int = decoding_key(
        0,
        "language models: minimum length of prompt and output together, without the output's end-of-sentence",
        MODEL,
        _LIMITS_LENGTH,
        minimum=0,
    )
    match_source_len: bool = decoding_key(False, "make every output as long as its source", MODEL)
    early_stopping: str = decoding_key(
        "false",
        "when the search of a sentence stops, once it has beam finished hypotheses: at once (true); when the best "
        "active hypothesis would not score better if it ended now (false) or at any length (never); "
        "semantics=huggingface only",
        MODEL | KEEPS_SCORES,
        Requirement(
            lambda cfg: cfg.declared("stops_early", bool(cfg.search or cfg.beam > 1 or cfg.is_constrained)),
            "determines when enough competing hypotheses have finished, but this search has none; remove it",
        ),
        Requirement(
            lambda cfg: cfg.semantics == "huggingface",
            "belongs to Hugging Face's rules; set generation.semantics=huggingface, or remove it",
        ),
        choices=("false", "true", "never"),
    )
    end_symbols: list[str] = decoding_key(
        [], "additional tokens that end an output, as end-of-sentence does", MODEL | KEEPS_SCORES
    )
    stop_strings: list[str] = decoding_key(
        [], "strings that end an output as soon as it contains one of them", MODEL | KEEPS_SCORES
    )
    stopping_rules: list[str] = decoding_key([], "names of additional stopping rules", MODEL)
    max_time: float = decoding_key(
        0.0,
        "stop a batch after this many seconds and return the hypotheses found so far; 0 for never",
        CALL | KEEPS_SCORES | NOT_IN_TRAINING,
        minimum=0,
    )


@dataclass
class RankingOptions:
    """How hypotheses are ranked."""

    normalize_scores: bool = decoding_key(
        True,
        "rank hypotheses by the mean of log-probabilities, with the length penalty; false: by their sum",
        MODEL | KEEPS_SCORES | SCORES_TARGETS,
    )
    length_penalty: float = decoding_key(
        1.0,
        "exponent of the length penalty; values above 1 favour longer outputs",
        MODEL | KEEPS_SCORES,
        _NORMALIZES,
        minimum=-10,
        maximum=10,
        other_names=("lenpen",),
    )
    length_penalty_form: str = decoding_key(
        "power",
        "scores are divided by length ** length_penalty (power) or by ((5 + length) / 6) ** length_penalty (wu)",
        MODEL | KEEPS_SCORES,
        _NORMALIZES,
        choices=("power", "wu"),
    )
    coverage_penalty: float = decoding_key(
        0.0,
        "weight of the penalty for source tokens with little total attention (Wu et al. 2016); 0 for none",
        MODEL,
        minimum=0,
    )


@dataclass
class TopTokensOptions:
    """The most probable tokens at each position."""

    top_tokens: int = decoding_key(
        0,
        "number of most probable tokens that are listed with their probabilities for each output token; 0 for none",
        CALL | KEEPS_SCORES | NEEDS_STEPS | NOT_IN_TRAINING,
        minimum=0,
        maximum=1000,
    )


@dataclass
class ObserverOptions:
    """What observes each step."""

    observers: list[str] = decoding_key(
        [], "names of observers, which are called at every decoding step", CALL | KEEPS_SCORES
    )


@dataclass
class EnsembleOptions:
    """How the members of an ensemble are combined, and what they read."""

    combination: str = decoding_key(
        "",
        f"name of a registered combination of the members' scores; empty for {DEFAULT_COMBINATION}, and for a "
        "cross-vocabulary ensemble if the members have different target vocabularies",
        MODEL | ENSEMBLE | SCORES_TARGETS,
    )
    member_sources: list[str] = decoding_key(
        [],
        "source of each model: input for the input line, empty for no tokens, fieldN for field N of a line with tabs, "
        "or the name of a registered source; by default, all models read the input line",
        CALL | ENSEMBLE | WHOLE_LINE | KEEPS_SCORES | NOT_IN_TRAINING,
        other_names=("members",),
    )


@dataclass
class SpeedOptions:
    """Batches, and the dtype of computation."""

    max_tokens: int = decoding_key(
        4096, "maximum source tokens per batch, padding included; see batch_size for wide beams", _BATCHES, minimum=1
    )
    batch_size: int = decoding_key(
        64,
        "maximum sentences per batch; with a beam above 16, each counts as beam / 16 sentences",
        _BATCHES | SCORES_TARGETS,
        minimum=1,
        other_names=("max_sentences",),
    )
    buffer_size: int = decoding_key(
        0, "number of input lines read before decoding starts; 0 for 1 on a terminal, else 4096", _BATCHES, minimum=0
    )
    dtype: str = decoding_key(
        "",
        "dtype of weights and computation; empty for float32",
        CALL | KEEPS_SCORES | NOT_IN_TRAINING,
        choices=("", "float32", "bfloat16", "float16", "int8"),
    )


@dataclass
class ComponentOptions:
    """The keys of components."""

    components: dict[str, Any] = decoding_key(
        {},
        "the decoding components' own keys, which are given as search.KEY=VALUE, processor.NAME.KEY=VALUE, ...",
        MODEL,
    )
