"""The ``generation`` and ``debug`` groups: how to decode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self, TypeAlias

from seqgen.config.common import option
from seqgen.core.errors import ConfigError
from seqgen.registry import DECODING_COMPONENTS, SEARCHES

WIDEST = 1 << 16
"""Largest beam: the scores of a vocabulary of 32,000 tokens then have 8 GiB."""

LONGEST = 1 << 30
"""Largest limit of the length of an output."""

DEFAULT_COMBINATION = "probability"
"""The combination of the members of an ensemble if none is named."""

Facts: TypeAlias = frozenset[str]
"""The meaning of a key of the ``generation`` group to the rest of the program: a union of the constants below."""

MODEL: Facts = frozenset({"MODEL"})
"""A model may have a setting, which applies where the user gives none."""
CALL: Facts = frozenset({"CALL"})
"""Chosen for each decode."""
INPUT: Facts = frozenset({"INPUT"})
"""Determines how input lines are read."""
FILES: Facts = frozenset({"FILES"})
"""Names a file."""
SPEED: Facts = frozenset({"SPEED"})
"""Changes speed and memory, not outputs."""
SCOPES = MODEL | CALL | INPUT | FILES | SPEED
"""The facts that say whose key it is; each key has one of them."""

ENSEMBLE: Facts = frozenset({"ENSEMBLE"})
"""Combines several models."""
STRATEGY: Facts = frozenset({"STRATEGY"})
"""Chooses or configures a built-in search strategy."""
WARPER: Facts = frozenset({"WARPER"})
"""Truncates the distribution before a token is drawn."""
KEEPS_SCORES: Facts = frozenset({"KEEPS_SCORES"})
"""Does not change the log-probabilities of tokens."""
KEEPS_CONFIDENCE: Facts = frozenset({"KEEPS_CONFIDENCE"})
"""The probability that an output is good enough does not depend on it."""
ACROSS_VOCABULARIES: Facts = frozenset({"ACROSS_VOCABULARIES"})
"""Can be used with members that have different target vocabularies."""
DEMANDS_PHRASES: Facts = frozenset({"DEMANDS_PHRASES"})
"""Outputs must contain phrases, which selects a strategy that takes constraints."""
NOT_IN_TRAINING: Facts = frozenset({"NOT_IN_TRAINING"})
"""Has no effect in a criterion that decodes."""
SCORES_TARGETS: Facts = frozenset({"SCORES_TARGETS"})
"""Has an effect on the scores of known targets."""


class Need(NamedTuple):
    """A requirement of a key on the other keys, which applies if the key is given.

    Attributes:
        met: returns a true value if a configuration meets the requirement.
        sentence: the error message without its beginning "generation.KEY=VALUE ".
    """

    met: Callable[[GenerationConfig], object]
    sentence: str


_SAMPLES = Need(
    lambda cfg: cfg.is_stochastic,
    "truncates the distribution for sampling, which is not in use; set generation.sampling=true, or remove it",
)
_NORMALIZES = Need(
    lambda cfg: not cfg.unnormalized, "has no effect with generation.unnormalized=true; remove one of them"
)
_LIMITS_LENGTH = Need(
    lambda cfg: not cfg.match_source_len, "has no effect with generation.match_source_len=true; remove one of them"
)
_HAS_CONFIDENCE = Need(lambda cfg: cfg.confidence, "has no effect without generation.confidence=FILE; set both")
_SEVERAL_OUTPUTS = Need(
    lambda cfg: cfg.beam > 1 and not cfg.declared("generates_one", False),
    "compares hypotheses, but only one is generated; set generation.beam to 2 or more, and do not use greedy or "
    "contrastive search, which ignore the beam",
)
_CONSTRAINED = (
    Need(
        lambda cfg: all(getattr(cfg, key) == getattr(GenerationConfig, key) for key in keys_with(WARPER)),  # type: ignore[has-type]
        "needs the tokens of the phrases where they are improbable, and sampling_topk, sampling_topp and the other "
        "keys that truncate the distribution forbid them; remove these keys",
    ),
    Need(
        lambda cfg: cfg.beam > 1,
        "with one beam would begin every output with the phrases; set generation.beam to 2 or more",
    ),
)

_UNCONSTRAINED = Need(
    lambda cfg: not cfg.is_constrained,
    "drafts tokens, which generation.constraints and generation.glossary exclude; choose one",
)


def decoding_key(
    default: Any, help: str, facts: Facts, *needs: Need, limit_from_files: float | None = None, **declaration: Any
) -> Any:
    """Declare a key of the ``generation`` group.

    Args:
        default: the default.
        help: one line for ``--help``.
        facts: the meaning of the key to the rest of the program, with one of ``SCOPES``.
        needs: requirements on the other keys, in the order in which they are checked.
        limit_from_files: the maximum value of a model's setting: a file from elsewhere cannot demand all memory or
            an endless output.
        declaration: choices, minimum, maximum, role and other names; see ``option``.
    """
    return option(default, help, **declaration, facts=facts, needs=needs, limit_from_files=limit_from_files)


@dataclass
class GenerationConfig:
    """The settings of decoding. docs/decoding.md explains every key and gives its name in other toolkits."""

    semantics: str = decoding_key(
        "",
        "toolkit whose rules decide when hypotheses are finished and how they are ranked; empty for huggingface with "
        "models in Hugging Face's layout, else fairseq",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
        choices=("", "fairseq", "huggingface"),
    )
    beam: int = decoding_key(
        5,
        "beam size: hypotheses kept at each step; 1 for greedy search",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
        Need(
            lambda cfg: cfg.beam == 1 or not cfg.declared("generates_one", False),
            "has no effect, because greedy and contrastive search generate one output whatever the beam; "
            "remove it, or choose another search",
        ),
        minimum=1,
        maximum=WIDEST,
        limit_from_files=1000,
        other_names=("num_beams",),
    )
    nbest: int = decoding_key(
        1,
        "number of hypotheses returned per sentence",
        MODEL | KEEPS_SCORES | KEEPS_CONFIDENCE | ACROSS_VOCABULARIES | NOT_IN_TRAINING,
        Need(
            lambda cfg: cfg.nbest <= cfg.beam, "is more than generation.beam; decrease it, or increase generation.beam"
        ),
        Need(
            lambda cfg: cfg.search != "greedy",
            "is more than 1, but greedy search generates one hypothesis; choose another search",
        ),
        minimum=1,
        maximum=WIDEST,
        limit_from_files=1000,
        other_names=("num_return_sequences",),
    )

    # languages
    source_lang: str = decoding_key(
        "",
        "multilingual models: language of the source, or fieldN for the code in field N of a line with tabs",
        MODEL | KEEPS_SCORES | NOT_IN_TRAINING | SCORES_TARGETS,
    )
    target_lang: str = decoding_key(
        "",
        "multilingual models: language of the output, or fieldN for the code in field N of a line with tabs",
        MODEL | NOT_IN_TRAINING | SCORES_TARGETS,
    )

    # paragraphs
    input_split: str = decoding_key(
        "",
        "sentences: split each line into sentences, decode these, and join their outputs with the white space of the "
        "line; needs the package sentencex",
        INPUT | KEEPS_SCORES | KEEPS_CONFIDENCE | NOT_IN_TRAINING,
        Need(
            lambda cfg: not (cfg.nbest > 1 or cfg.constraints or cfg.members or cfg.certificate),
            "gives one output of the whole line, without generation.nbest, generation.constraints, "
            "generation.members and generation.certificate; remove one of them",
        ),
        choices=("", "sentences"),
    )
    input_split_lang: str = decoding_key(
        "",
        "language whose rules split lines into sentences, such as en; empty for that of the source",
        INPUT | KEEPS_SCORES | KEEPS_CONFIDENCE | NOT_IN_TRAINING,
        Need(lambda cfg: cfg.input_split, "has no effect without generation.input_split; set both or neither"),
    )

    # output length
    max_len_a: float = decoding_key(
        0.0,
        "maximum output length is max_len_a * source length + max_len_b; -1 for a limit of prompt and output together",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
        _LIMITS_LENGTH,
        minimum=-1,
        maximum=1e9,
        limit_from_files=1000.0,
    )
    max_len_b: int = decoding_key(
        200,
        "see max_len_a; in tokens without end-of-sentence",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
        _LIMITS_LENGTH,
        minimum=0,
        maximum=LONGEST,
        limit_from_files=1 << 20,
    )
    max_len: int = decoding_key(
        0,
        "maximum output length for every source, in tokens with end-of-sentence; 0 for the model's maximum",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
        minimum=0,
        maximum=LONGEST,
        limit_from_files=1 << 20,
        other_names=("max_length", "max_new_tokens"),
    )
    min_len: int = decoding_key(
        1,
        "minimum output length, in tokens without end-of-sentence",
        MODEL | ACROSS_VOCABULARIES,
        _LIMITS_LENGTH,
        Need(
            lambda cfg: not cfg.max_len or cfg.min_len <= cfg.max_len,
            "is more than generation.max_len allows; decrease it, or increase generation.max_len",
        ),
        Need(
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
        Need(
            lambda cfg: cfg.declared("stops_early", bool(cfg.search or cfg.beam > 1 or cfg.is_constrained)),
            "determines when enough competing hypotheses have finished, and here none compete; remove it",
        ),
        Need(
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

    # ranking of hypotheses
    unnormalized: bool = decoding_key(
        False,
        "rank hypotheses by the sum of log-probabilities, without a length penalty",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES | SCORES_TARGETS,
    )
    lenpen: float = decoding_key(
        1.0,
        "exponent of the length penalty; values above 1 favour longer outputs",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
        _NORMALIZES,
        minimum=-10,
        maximum=10,
        other_names=("length_penalty",),
    )
    length_penalty: str = decoding_key(
        "power",
        "scores are divided by length ** lenpen (power) or by ((5 + length) / 6) ** lenpen (wu)",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
        _NORMALIZES,
        choices=("power", "wu"),
    )
    coverage_penalty: float = decoding_key(
        0.0,
        "weight of the penalty for source tokens with little total attention (Wu et al. 2016); 0 for none",
        MODEL,
        minimum=0,
    )

    # scores of tokens
    temperature: float = decoding_key(
        1.0,
        "divide logits by this value",
        MODEL | ACROSS_VOCABULARIES,
        Need(
            lambda cfg: cfg.semantics != "huggingface" or cfg.is_stochastic,
            "has an effect on sampling alone by Hugging Face's rules; set generation.sampling=true or remove it",
        ),
        minimum=1e-6,
    )
    unkpen: float = decoding_key(
        0.0, "penalty subtracted from the score of the unknown token; negative values reward it", MODEL
    )
    suppress: list[str] = decoding_key([], "tokens of the target vocabulary that are never generated", MODEL)
    suppress_at_begin: list[str] = decoding_key([], "tokens that are not generated at the first position", MODEL)
    forced_first: str = decoding_key("", "token that every output begins with", MODEL)
    forced_last: str = decoding_key(
        "",
        "token that is forced when an output reaches its maximum length",
        MODEL,
        Need(
            lambda cfg: cfg.semantics == "huggingface",
            "belongs to Hugging Face's rules, and by fairseq's every output ends with end-of-sentence; set "
            "generation.semantics=huggingface, or remove it",
        ),
    )
    bad_words: list[str] = decoding_key([], "strings, or ids:ID ID, that are never generated", MODEL)
    sequence_bias: list[str] = decoding_key(
        [], "TEXT=BIAS, or ids:ID ID=BIAS: value added to the score of a token that would complete the text", MODEL
    )
    no_repeat_ngram_size: int = decoding_key(
        0, "n-grams of this size occur at most once in an output; 0 for no limit", MODEL, minimum=0
    )
    encoder_no_repeat_ngram_size: int = decoding_key(
        0, "n-grams of this size that occur in the source are not generated; 0 for no limit", MODEL, minimum=0
    )
    repetition_penalty: float = decoding_key(
        1.0, "above 1, tokens that were already generated get lower scores; 1 for no effect", MODEL, minimum=1e-6
    )
    encoder_repetition_penalty: float = decoding_key(
        1.0, "above 1, tokens that do not occur in the source get lower scores; 1 for no effect", MODEL, minimum=1e-6
    )
    exponential_decay_start: int = decoding_key(
        0,
        "output length after which the score of end-of-sentence grows exponentially",
        MODEL,
        Need(
            lambda cfg: cfg.exponential_decay_factor != 1,
            "has no effect without generation.exponential_decay_factor; set both or neither",
        ),
        minimum=0,
    )
    exponential_decay_factor: float = decoding_key(
        1.0, "base of that exponential growth; 1 for no effect", MODEL, minimum=1e-6
    )
    guidance_scale: float = decoding_key(
        1.0,
        "scale of classifier-free guidance against the scores for an empty source; 1 for none",
        MODEL | ENSEMBLE,
        minimum=0,
    )
    renormalize: bool = decoding_key(
        False, "renormalize probabilities after logits processors have changed them", MODEL
    )
    remove_invalid: bool = decoding_key(
        False, "replace NaN and infinite scores by finite values instead of stopping with an error", MODEL
    )
    processors: list[str] = decoding_key(
        [], "names of additional logits processors, applied after all other ones", MODEL
    )

    # decoding strategy
    search: str = decoding_key(
        "", "search strategy, by name; empty for the one selected by constraints or sampling, else beam search", MODEL
    )
    constraints: str = decoding_key(
        "",
        "every output must contain the phrases that follow tabs in its input line, in this order (ordered) or in any "
        "order (unordered); a|b requires one of two phrases",
        MODEL | STRATEGY | NOT_IN_TRAINING | DEMANDS_PHRASES,
        *_CONSTRAINED,
        choices=("", "ordered", "unordered"),
    )
    glossary: str = decoding_key(
        "",
        "file with lines SOURCE<tab>TARGET: the translation of a line with a source term must contain the target term, "
        "or one of several (a|b)",
        FILES | NOT_IN_TRAINING | DEMANDS_PHRASES,
        *_CONSTRAINED,
        role="input_path",
    )
    sampling: bool = decoding_key(
        False,
        "sample tokens at random; with search=beam_sampling, sample the candidates of beam search",
        MODEL,
        Need(
            lambda cfg: cfg.declared("is_stochastic", None) is not False,
            "draws at random, and the strategy that generation.search names does not; choose one",
        ),
        other_names=("do_sample",),
    )
    sampling_topk: int = decoding_key(
        0,
        "top-k: sample from the k most probable tokens; 0 for all tokens",
        MODEL | WARPER,
        _SAMPLES,
        minimum=0,
        other_names=("top_k",),
    )
    sampling_topp: float = decoding_key(
        1.0,
        "top-p: sample from the smallest set of tokens with this total probability",
        MODEL | WARPER,
        _SAMPLES,
        minimum=0,
        maximum=1,
        other_names=("top_p",),
    )
    min_p: float = decoding_key(
        0.0,
        "sample from tokens with at least min_p times the highest probability",
        MODEL | WARPER,
        _SAMPLES,
        minimum=0,
        maximum=1,
    )
    typical_p: float = decoding_key(
        1.0,
        "typical sampling: sample from the most typical tokens with this total probability",
        MODEL | WARPER,
        _SAMPLES,
        minimum=1e-6,
        maximum=1,
    )
    epsilon_cutoff: float = decoding_key(
        0.0, "sample from tokens with at least this probability", MODEL | WARPER, _SAMPLES, minimum=0, maximum=1
    )
    eta_cutoff: float = decoding_key(
        0.0,
        "eta sampling: as epsilon_cutoff, but the threshold is lower where the entropy is high",
        MODEL | WARPER,
        _SAMPLES,
        minimum=0,
        maximum=1,
    )
    seed: int = decoding_key(
        1,
        "seed of sampling; random numbers depend only on the seed, the line number and the step",
        MODEL | STRATEGY | KEEPS_SCORES,
        Need(
            lambda cfg: cfg.uses_seed,
            "has no effect, because the search strategy does not use it; set generation.sampling=true, or remove it",
        ),
        minimum=0,
    )
    draft: str = decoding_key(
        "",
        "speculative decoding: run or checkpoint of a smaller model that drafts tokens for this one",
        FILES | KEEPS_SCORES | NOT_IN_TRAINING,
        Need(lambda cfg: cfg.prompt_lookup == 0, "and generation.prompt_lookup both draft; choose one"),
        _UNCONSTRAINED,
        role="input_path",
    )
    draft_tokens: int = decoding_key(
        5,
        "speculative decoding: number of tokens drafted at a time",
        MODEL | KEEPS_SCORES,
        Need(
            lambda cfg: cfg.draft or cfg.prompt_lookup > 0,
            "has no effect without a draft; set generation.draft or generation.prompt_lookup, or remove it",
        ),
        minimum=1,
    )
    prompt_lookup: int = decoding_key(
        0,
        "n-gram drafter: maximum length of the output's last n-gram that is searched in the source; the tokens that "
        "follow it there are the draft; 0 for off",
        MODEL | KEEPS_SCORES,
        _UNCONSTRAINED,
        minimum=0,
    )
    mbr: str = decoding_key(
        "",
        "minimum Bayes risk: utility by which hypotheses are ranked, by name (chrf, bleu or your own)",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
        _SEVERAL_OUTPUTS,
    )
    rerank: str = decoding_key(
        "",
        "name of a registered reranker, by whose scores hypotheses are ranked",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES | NOT_IN_TRAINING,
        Need(lambda cfg: not cfg.mbr, "and generation.mbr both rank the hypotheses; choose one"),
        _SEVERAL_OUTPUTS,
    )
    prefix_trie: str = decoding_key(
        "",
        "file with the allowed outputs, one per line; FILE.ids has ids "
        "in place of text, FILE.safetensors is a trie written by seqgen-convert",
        FILES,
        role="input_path",
    )
    certificate: bool = decoding_key(
        False,
        "bound the scores of the outputs that beam search pruned; report for each line whether its list is exact",
        MODEL,
        Need(
            lambda cfg: not (cfg.mbr or cfg.rerank),
            "certifies the order of scores, which generation.mbr or generation.rerank changes; choose one",
        ),
    )
    shortlist: str = decoding_key(
        "",
        "file with target tokens for each source token (made by examples/shortlist.py, or Marian's lex.*.bin); each "
        "output contains only those of its source",
        FILES,
        Need(
            lambda cfg: not cfg.prefix_trie,
            "and generation.prefix_trie both limit the tokens, and together they may allow no output; choose one",
        ),
        role="input_path",
    )

    top_tokens: int = decoding_key(
        0,
        "number of most probable tokens that are listed with their probabilities for each output token; 0 for none",
        CALL | KEEPS_SCORES | NOT_IN_TRAINING,
        minimum=0,
        maximum=1000,
    )
    replace_unknown: str = decoding_key(
        "",
        "replace unknown words by the source word with the highest attention (source), or by its translation in a FILE "
        "with lines SOURCE<tab>TARGET",
        FILES | KEEPS_SCORES | NOT_IN_TRAINING,
        role="input_path",
    )

    observers: list[str] = decoding_key(
        [], "names of observers, which are called at every decoding step", CALL | KEEPS_SCORES | KEEPS_CONFIDENCE
    )

    # how sure an output is
    features: list[str] = decoding_key(
        [],
        "names of features of the best hypothesis that predict its quality, such as mean_lprob",
        CALL | KEEPS_SCORES | KEEPS_CONFIDENCE | NOT_IN_TRAINING,
    )
    confidence: str = decoding_key(
        "",
        "calibration (made by seqgen-calibrate) that gives each output the probability of being good enough",
        FILES | KEEPS_SCORES | KEEPS_CONFIDENCE | NOT_IN_TRAINING,
        role="input_path",
    )
    review_share: float = decoding_key(
        0.0,
        "with confidence: share of the lines to mark for review, such as 0.1; exact for the lines with which "
        "the calibration was made",
        CALL | KEEPS_SCORES | KEEPS_CONFIDENCE | NOT_IN_TRAINING,
        _HAS_CONFIDENCE,
        minimum=0,
        maximum=1,
    )
    review_risk: float = decoding_key(
        1.0,
        "with confidence: mark enough lines for review that at most this share of lines is bad and unmarked, such as "
        "0.05; 1 for no mark",
        CALL | KEEPS_SCORES | KEEPS_CONFIDENCE | NOT_IN_TRAINING,
        _HAS_CONFIDENCE,
        Need(lambda cfg: not cfg.review_share, "and generation.review_share both mark lines; remove one of them"),
        minimum=1e-6,
        maximum=1,
    )

    # ensembles
    combination: str = decoding_key(
        "",
        f"name of a registered combination of the members' scores; empty for {DEFAULT_COMBINATION}, and for a "
        "cross-vocabulary ensemble if the members have different target vocabularies",
        MODEL | ENSEMBLE | SCORES_TARGETS,
    )
    members: list[str] = decoding_key(
        [],
        "source of each model: input for the input line, empty for no tokens, fieldN for field N of a line with tabs, "
        "or the name of a registered source; by default, all models read the input line",
        CALL | ENSEMBLE | KEEPS_SCORES | ACROSS_VOCABULARIES | NOT_IN_TRAINING,
    )

    # speed
    max_tokens: int = decoding_key(
        4096,
        "maximum source tokens per batch, padding included; see batch_size for wide beams",
        SPEED | KEEPS_SCORES | ACROSS_VOCABULARIES | NOT_IN_TRAINING,
        minimum=1,
    )
    batch_size: int = decoding_key(
        64,
        "maximum sentences per batch; with a beam above 16, each counts as beam / 16 sentences",
        SPEED | KEEPS_SCORES | ACROSS_VOCABULARIES | NOT_IN_TRAINING | SCORES_TARGETS,
        minimum=1,
        other_names=("max_sentences",),
    )
    buffer_size: int = decoding_key(
        0,
        "number of input lines read before decoding starts; 0 for 1 on a terminal, else 4096",
        SPEED | KEEPS_SCORES | ACROSS_VOCABULARIES | NOT_IN_TRAINING,
        minimum=0,
    )
    dtype: str = decoding_key(
        "",
        "dtype of weights and computation; empty for float32",
        CALL | KEEPS_SCORES | ACROSS_VOCABULARIES | NOT_IN_TRAINING,
        choices=("", "float32", "bfloat16", "float16", "int8"),
    )
    bit_exact: bool = decoding_key(
        False,
        "tokens and scores of a sentence have the same bits in every batch, order and number of threads; slower",
        MODEL | SCORES_TARGETS,
    )

    components: dict[str, Any] = decoding_key(
        {},
        "the decoding components' own keys, which are given as search.KEY=VALUE, processor.NAME.KEY=VALUE, ...",
        MODEL | ACROSS_VOCABULARIES,
    )

    @property
    def is_stochastic(self) -> bool:
        """True if the configuration asks for sampling."""
        return self.sampling or bool(self.declared("is_stochastic", None))

    @property
    def is_constrained(self) -> bool:
        """True if outputs must contain phrases."""
        return any(getattr(self, key) for key in keys_with(DEMANDS_PHRASES))

    @property
    def uses_seed(self) -> bool:
        """True if the search strategy uses ``generation.seed``; a user's strategy has a seed key among its keys."""
        return bool(self.declared("is_stochastic", self.sampling and not self.search))

    @property
    def effective_max_len_b(self) -> int:
        """``max_len_b``; its default is raised to ``max_len`` if that is larger and given alone."""
        given = (self.max_len_a, self.max_len_b) != (GenerationConfig.max_len_a, GenerationConfig.max_len_b)
        return self.max_len_b if given else max(self.max_len, self.max_len_b)

    def declared(self, name: str, unknown: bool | None) -> bool | None:
        """A property that the class of the search strategy declares.

        Args:
            name: a class variable of ``Search``.
            unknown: the value if ``search`` is empty or names no built-in strategy.
        """
        try:
            entry = SEARCHES.entry(self.search) if self.search else None
        except ConfigError:  # the message for a name that is not registered comes from where the strategy is built
            entry = None
        if entry is None or entry.is_user_own:
            return unknown
        declared: bool | None = getattr(entry.component, name)
        return declared

    def component_values(self, group: str, name: str) -> dict[str, Any]:
        """The values that the user set for the keys of one component.

        Only one search, combination, utility and reranker is in use at a time, so their keys are ``search.FIELD``,
        ``combination.FIELD``, ``utility.FIELD`` and ``reranker.FIELD``. The keys of other components contain the
        component's name: ``processor.NAME.FIELD``, ``stopping.NAME.FIELD`` and the like.

        Args:
            group: the prefix of the keys, such as ``"processor"``.
            name: the component's name.

        Returns:
            Values by field of the component's configuration class.
        """
        prefix = f"{group}." if group in SINGLE_COMPONENTS else f"{group}.{name}."
        return {key.removeprefix(prefix): value for key, value in self.components.items() if key.startswith(prefix)}


SINGLE_COMPONENTS = tuple(
    group for group, (_, key) in DECODING_COMPONENTS.items() if isinstance(getattr(GenerationConfig, key, None), str)
)
"""Groups of decoding components of which exactly one is in use: the key that selects it holds one name."""


@functools.cache
def keys_with(facts: Facts) -> tuple[str, ...]:
    """The keys of the ``generation`` group that have one of the facts, in the order of their declaration."""
    return tuple(field.name for field in fields(GenerationConfig) if field.metadata["facts"] & facts)


@dataclass
class DebugConfig:
    """Switches of the optimizations of decoding. Without them, decoding is slower; outputs differ only by rounding."""

    use_cache: bool = option(
        True,
        "keep keys and values of earlier positions (incremental state); if false, every step computes all positions",
    )
    beam_table: str = option(
        "auto",
        "cache indirection: keep keys and values in place and read them by an indirection table, or reorder them; auto "
        "chooses the faster one",
        choices=("auto", "on", "off"),
    )
    share_encoder_output: bool = option(True, "store the encoder output once per sentence instead of once per beam")
    skip_log_softmax: bool = option(True, "search on logits if no component needs normalized log-probabilities")
    two_stage_candidates: bool = option(True, "find the top candidates via the maxima of vocabulary blocks")
    shortlist_columns: bool = option(
        True, "with a shortlist, compute only the scores of tokens that are in the shortlist of any sentence"
    )
    narrowed_scores: bool = option(
        True, "with a trie of allowed outputs, let the search choose among the scores of allowed tokens alone"
    )
    prepacked_weights: bool = option(True, "use weights arranged in the memory layout that is fastest on this CPU")
    kernel_choice: str = option(
        "measured",
        "choose the kernels of matrix products by timing them on this CPU at the first use, or use fixed ones",
        choices=("measured", "fixed"),
    )
    lazy_compaction: bool = option(
        True, "remove finished sentences from a batch when an eighth of it is finished, not immediately"
    )
    captured_steps: bool = option(
        False, "on a GPU, record a step of the decoder once for each size and replay it (CUDA graphs)"
    )
    continuous_batching: bool = option(True, "add waiting sentences to a running batch as soon as others finish")

    @classmethod
    def off(cls, *names: str) -> Self:
        """The switches with some optimizations turned off.

        Args:
            names: their fields; all if none is given.
        """
        switched = {each.name: each.metadata.get("choices") for each in fields(cls)}
        off: dict[str, Any] = {name: (switched[name] or [False])[-1] for name in names or switched}
        return cls(**off)
