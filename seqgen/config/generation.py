"""The ``generation`` and ``debug`` groups: how to decode."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Flag, auto
from typing import Any, Self

from seqgen.config.common import option

SINGLE_COMPONENTS = ("search", "combination", "inner_combination", "utility", "reranker")
"""Groups of decoding components of which exactly one is in use."""

WIDEST = 1 << 16
"""Largest beam: the scores of a vocabulary of 32,000 tokens then have 8 GiB."""

LONGEST = 1 << 30
"""Largest limit of the length of an output."""

DEFAULT_COMBINATION = "probability"
"""The combination of the members of an ensemble if none is named."""


class Fact(Flag):
    """What a key of the ``generation`` group means to the rest of the program.

    One of the first five says whose key it is.
    """

    MODEL = auto()
    """A model may have a setting of its own, which applies where the user gives none."""
    CALL = auto()
    """It is chosen for each decode."""
    INPUT = auto()
    """It says how input lines are read."""
    FILES = auto()
    """It names a file."""
    SPEED = auto()
    """It changes speed and memory, not outputs."""
    ENSEMBLE = auto()
    """It combines several models."""
    WARPER = auto()
    """It truncates the distribution before a token is drawn."""
    KEEPS_SCORES = auto()
    """It does not change the log-probabilities of tokens."""
    ACROSS_VOCABULARIES = auto()
    """It can be used with members that have different target vocabularies."""
    NOT_IN_TRAINING = auto()
    """It has no effect in a criterion that decodes."""
    SCORES_TARGETS = auto()
    """It has an effect on the scores of known targets."""


(
    MODEL,
    CALL,
    INPUT,
    FILES,
    SPEED,
    ENSEMBLE,
    WARPER,
    KEEPS_SCORES,
    ACROSS_VOCABULARIES,
    NOT_IN_TRAINING,
    SCORES_TARGETS,
) = Fact


def decoding_key(default: Any, help: str, facts: Fact, *, limit_from_files: float | None = None, **limits: Any) -> Any:
    """Declare a key of the ``generation`` group.

    Args:
        default: the default.
        help: one line for ``--help``.
        facts: what the key means to the rest of the program.
        limit_from_files: the maximum value of a model's own setting: a file from elsewhere cannot demand all memory or
            an endless output.
        limits: choices, minimum and maximum; see ``option``.
    """
    return option(default, help, **limits, facts=facts, limit_from_files=limit_from_files)


@dataclass
class GenerationConfig:
    """How to decode. docs/decoding.md explains every key and gives its name in other toolkits."""

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
        minimum=1,
        maximum=WIDEST,
        limit_from_files=1000,
    )
    nbest: int = decoding_key(
        1,
        "number of hypotheses returned per sentence",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES | NOT_IN_TRAINING,
        minimum=1,
        maximum=WIDEST,
        limit_from_files=1000,
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
        "split each line into sentences, decode these, and join their outputs with the white space of the line "
        "(sentences); or decode it whole and note sentences without attention (note); needs the package sentencex",
        INPUT | KEEPS_SCORES | NOT_IN_TRAINING,
        choices=("", "sentences", "note"),
    )
    input_split_lang: str = decoding_key(
        "",
        "language whose rules split lines into sentences, such as en; empty for that of the source",
        INPUT | KEEPS_SCORES | NOT_IN_TRAINING,
    )

    usual_ratio: float = decoding_key(
        1.0,
        "usual number of output tokens for each source token, with which notes compare outputs",
        MODEL | KEEPS_SCORES | NOT_IN_TRAINING,
        minimum=1e-6,
    )

    # output length
    max_len_a: float = decoding_key(
        0.0,
        "maximum output length is max_len_a * source length + max_len_b; -1 for a limit of prompt and output together",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
        minimum=-1,
        maximum=1e9,
        limit_from_files=1000.0,
    )
    max_len_b: int = decoding_key(
        200,
        "see max_len_a; in tokens without end-of-sentence",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
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
    )
    min_len: int = decoding_key(
        1, "minimum output length, in tokens without end-of-sentence", MODEL | ACROSS_VOCABULARIES, minimum=0
    )
    min_total_len: int = decoding_key(
        0,
        "language models: minimum length of prompt and output together, without the output's end-of-sentence",
        MODEL,
        minimum=0,
    )
    match_source_len: bool = decoding_key(False, "make every output as long as its source", MODEL)
    early_stopping: str = decoding_key(
        "false",
        "when the search of a sentence stops, once it has beam finished hypotheses: at once (true); when the best "
        "active hypothesis would not score better if it ended now (false) or at any length (never); "
        "semantics=huggingface only",
        MODEL | KEEPS_SCORES,
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
        "stop a batch after so many seconds and return the hypotheses found so far; 0 for never",
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
        minimum=-10,
        maximum=10,
    )
    length_penalty: str = decoding_key(
        "power",
        "scores are divided by length ** lenpen (power) or by ((5 + length) / 6) ** lenpen (wu)",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
        choices=("power", "wu"),
    )
    coverage_penalty: float = decoding_key(
        0.0,
        "weight of the penalty for source tokens with little total attention (Wu et al. 2016); 0 for none",
        MODEL,
        minimum=0,
    )

    # scores of tokens
    temperature: float = decoding_key(1.0, "divide logits by this value", MODEL | ACROSS_VOCABULARIES, minimum=1e-6)
    unkpen: float = decoding_key(
        0.0, "penalty subtracted from the score of the unknown token; negative values reward it", MODEL
    )
    suppress: list[str] = decoding_key([], "tokens of the target vocabulary that are never generated", MODEL)
    suppress_at_begin: list[str] = decoding_key([], "tokens that are not generated at the first position", MODEL)
    forced_first: str = decoding_key("", "token that every output begins with", MODEL)
    forced_last: str = decoding_key("", "token that is forced when an output reaches its maximum length", MODEL)
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
        0, "output length after which the score of end-of-sentence grows exponentially", MODEL, minimum=0
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
        MODEL | NOT_IN_TRAINING,
        choices=("", "ordered", "unordered"),
    )
    sampling: bool = decoding_key(
        False, "sample tokens at random; with search=beam_sampling, sample the candidates of beam search", MODEL
    )
    sampling_topk: int = decoding_key(
        0, "top-k: sample from the k most probable tokens; 0 for all tokens", MODEL | WARPER, minimum=0
    )
    sampling_topp: float = decoding_key(
        1.0,
        "top-p: sample from the smallest set of tokens with this total probability",
        MODEL | WARPER,
        minimum=0,
        maximum=1,
    )
    min_p: float = decoding_key(
        0.0,
        "sample from tokens with at least min_p times the highest probability",
        MODEL | WARPER,
        minimum=0,
        maximum=1,
    )
    typical_p: float = decoding_key(
        1.0,
        "typical sampling: sample from the most typical tokens with this total probability",
        MODEL | WARPER,
        minimum=1e-6,
        maximum=1,
    )
    epsilon_cutoff: float = decoding_key(
        0.0, "sample from tokens with at least this probability", MODEL | WARPER, minimum=0, maximum=1
    )
    eta_cutoff: float = decoding_key(
        0.0,
        "eta sampling: as epsilon_cutoff, but the threshold is lower where the entropy is high",
        MODEL | WARPER,
        minimum=0,
        maximum=1,
    )
    seed: int = decoding_key(
        1,
        "seed of sampling; random numbers depend only on the seed, the line number and the step",
        MODEL | KEEPS_SCORES,
        minimum=0,
    )
    draft: str = decoding_key(
        "",
        "speculative decoding: run or checkpoint of a smaller model that drafts tokens for this one",
        FILES | KEEPS_SCORES | NOT_IN_TRAINING,
    )
    draft_tokens: int = decoding_key(
        5, "speculative decoding: number of tokens drafted at a time", MODEL | KEEPS_SCORES, minimum=1
    )
    prompt_lookup: int = decoding_key(
        0,
        "n-gram drafter: maximum length of the output's last n-gram that is searched in the source; the tokens that "
        "follow it there are the draft; 0 for off",
        MODEL | KEEPS_SCORES,
        minimum=0,
    )
    mbr: str = decoding_key(
        "",
        "minimum Bayes risk: utility by which hypotheses are ranked, by name (chrf, bleu or your own)",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES,
    )
    rerank: str = decoding_key(
        "",
        "name of a registered reranker, by whose scores hypotheses are ranked",
        MODEL | KEEPS_SCORES | ACROSS_VOCABULARIES | NOT_IN_TRAINING,
    )
    prefix_trie: str = decoding_key(
        "",
        "file with the allowed outputs, one per line, with a tab and a prior in nats if wanted; FILE.ids has ids "
        "in place of text, FILE.safetensors is a trie written by seqgen-convert",
        FILES,
    )
    certificate: bool = decoding_key(
        False,
        "bound the scores of the outputs that beam search pruned; say for each line whether its list is exact",
        MODEL,
    )
    shortlist: str = decoding_key(
        "",
        "file with target tokens for each source token (made by examples/shortlist.py); each output contains only "
        "those of its source",
        FILES,
    )
    replace_unknown: str = decoding_key(
        "",
        "replace unknown words by the source word with the highest attention (source), or by its translation in a FILE "
        "with lines SOURCE<tab>TARGET",
        FILES | KEEPS_SCORES | NOT_IN_TRAINING,
    )

    observers: list[str] = decoding_key(
        [], "names of observers, which are called at every decoding step", CALL | KEEPS_SCORES
    )

    # ensembles
    combination: str = decoding_key(
        "",
        f"name of a registered combination of the members' scores; empty for {DEFAULT_COMBINATION}, and for a "
        "cross-vocabulary ensemble if the members have different target vocabularies",
        MODEL | ENSEMBLE | SCORES_TARGETS,
    )
    inner_combination: str = decoding_key(
        "",
        "name of the combination whose result, renormalized, is the only member of generation.combination",
        MODEL | ENSEMBLE,
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

    def component_values(self, group: str, name: str) -> dict[str, Any]:
        """The values that the user set for one component's own keys.

        Only one search, combination, utility and reranker is in use at a time, so their keys are ``search.FIELD``,
        ``combination.FIELD``, ``utility.FIELD`` and ``reranker.FIELD`` (``inner_combination.FIELD`` of a combination
        that another one wraps). The keys of other components contain the
        component's name: ``processor.NAME.FIELD``, ``stopping.NAME.FIELD`` and the like.

        Args:
            group: the prefix of the keys, such as ``"processor"``.
            name: the component's name.

        Returns:
            Values by field of the component's configuration class.
        """
        prefix = f"{group}." if group in SINGLE_COMPONENTS else f"{group}.{name}."
        return {key.removeprefix(prefix): value for key, value in self.components.items() if key.startswith(prefix)}


def keys_with(facts: Fact) -> tuple[str, ...]:
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
    trie_edges: bool = option(
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
