"""Typed configuration: dataclasses whose fields each have a type, a default, a help text and a range."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Declare a configuration field::

        dropout: float = option(0.1, "probability of dropping a feature", minimum=0, maximum=1)

    Args:
        default: the default; a list is copied for each instance.
        help: one line that says what the value does, with its unit.
        choices: the only values allowed (of a string).
        minimum: smallest value allowed (of a number, or of each number in a list).
        maximum: largest value allowed.

    Returns:
        The dataclass field.
    """
    metadata = {"help": help, "choices": choices, "minimum": minimum, "maximum": maximum}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass
class CommonConfig:
    """What every command has in common."""

    device: str = option("auto", "where to compute", choices=("auto", "cpu", "cuda", "mps"))
    threads: int = option(0, "CPU threads; 0 takes one for each core", minimum=0)
    user_dir: list[str] = option(
        [],
        "files or folders with models, tasks, search strategies, ... of your own, imported first; run: those that the "
        "run was trained with",
    )


@dataclass
class TrainCommonConfig(CommonConfig):
    """What training has besides."""

    seed: int = option(1, "seed of everything random", minimum=0)
    bf16: bool = option(False, "train in bfloat16 autocast")
    fp16: bool = option(False, "train in float16 autocast with loss scaling")
    log_interval: int = option(50, "updates between two progress lines and log records", minimum=1)
    log_format: str = option(
        "auto", "progress: a bar on a terminal, else lines", choices=("auto", "bar", "lines", "none")
    )
    tensorboard: bool = option(True, "write TensorBoard events into the run folder")
    user_files: dict[str, str] = option({}, "the file that registered each component of your own, written by the run")


@dataclass
class DatasetConfig:
    """Which data, and how they are batched."""

    max_tokens: int | None = option(4096, "most tokens in a batch, padding included; null for no limit", minimum=1)
    batch_size: int | None = option(None, "most sentences in a batch; null for no limit", minimum=1)
    max_tokens_valid: int | None = option(None, "max_tokens in validation; null takes max_tokens", minimum=1)
    batch_size_valid: int | None = option(None, "batch_size in validation; null takes batch_size", minimum=1)
    pack: bool = option(False, "several training examples share a row, attention and positions kept apart")
    pack_length: int = option(512, "pack: most source tokens and most target tokens of a row", minimum=2)
    num_workers: int = option(1, "threads that prepare batches ahead; 0 prepares them in line", minimum=0)
    train_subset: str = option("train", "split to train on")
    valid_subset: str = option("valid", "split to validate on")
    validate_interval: int = option(1, "epochs between two validations; 0 for never", minimum=0)
    validate_interval_updates: int = option(0, "updates between two validations; 0 for only after epochs", minimum=0)
    validate_decode: int = option(0, "validation sentences to decode and score; -1 for all, 0 for none", minimum=-1)


DEFAULT_MAX_UPDATE = 2000


@dataclass
class OptimizationConfig:
    """How long and how fast to learn."""

    max_update: int | None = option(
        None, "updates after which training ends; 0 for no limit; null for 2000 unless another limit is set", minimum=0
    )
    max_epoch: int = option(0, "epochs after which training ends; 0 for no limit", minimum=0)
    stop_time_hours: float = option(0.0, "hours after which training ends; 0 for no limit", minimum=0)
    lr: list[float] = option([0.005], "learning rate of each epoch; the last one goes on", minimum=0)
    stop_min_lr: float = option(-1.0, "training ends when the learning rate falls to this; below 0 for never")
    clip_norm: float = option(1.0, "largest gradient norm; 0 for no clipping", minimum=0)
    update_freq: list[int] = option([1], "batches accumulated for an update, for each epoch", minimum=1)
    ema_decay: float = option(
        0.0, "decay of the averaged weights that are validated and decoded with; 0 for none", minimum=0, maximum=1
    )
    nonfinite_loss: str = option("stop", "what a loss that is NaN or infinite does", choices=("stop", "skip"))

    def last_update(self) -> int:
        """The update after which training ends, 0 for no limit; without any limit given, training still ends."""
        if self.max_update is not None:
            return self.max_update
        return 0 if self.max_epoch or self.stop_time_hours else DEFAULT_MAX_UPDATE


@dataclass
class CheckpointConfig:
    """What is saved, when, and for how long."""

    save_interval: int = option(1, "epochs between two checkpoints; 0 for only at the end", minimum=0)
    save_interval_updates: int = option(0, "updates between two checkpoints; 0 for only after epochs", minimum=0)
    keep_last_epochs: int = option(0, "epoch checkpoints to keep besides last and best; -1 for all", minimum=-1)
    keep_interval_updates: int = option(0, "update checkpoints to keep besides last and best; -1 for all", minimum=-1)
    best_checkpoint_metric: str = option(
        "loss", "validation score that chooses the best checkpoint: loss, ppl, bleu, ..."
    )
    patience: int = option(0, "validations without a better score after which training ends; 0 for never", minimum=0)
    finetune_from: str = option("", "checkpoint or run folder whose weights training starts from")


@dataclass
class DistributedConfig:
    """Several processes."""

    distributed_world_size: int = option(1, "processes that train together on this machine", minimum=1)
    distributed_backend: str = option("auto", "how they talk", choices=("auto", "gloo", "nccl"))
    timeout: int = option(
        600, "seconds that a process waits for the others, after which all end with an error", minimum=1
    )


SINGLE_COMPONENTS = ("search", "combination", "utility")
"""Groups of decoding components of which one is used at a time."""


@dataclass
class GenerationConfig:
    """How to decode. docs/decoding.md explains every key, with the names that other toolkits give it."""

    semantics: str = option(
        "",
        "whose rules end and rank hypotheses; empty for huggingface where the model is from there, else fairseq",
        choices=("", "fairseq", "huggingface"),
    )
    beam: int = option(5, "hypotheses kept at each step; 1 is greedy", minimum=1)
    nbest: int = option(1, "hypotheses returned for a sentence", minimum=1)

    # how long
    max_len_a: float = option(0.0, "longest output is max_len_a * source length + max_len_b", minimum=0)
    max_len_b: int = option(200, "see max_len_a; end-of-sentence not counted", minimum=0)
    max_len: int = option(
        0, "longest output whatever the source, end-of-sentence counted; 0 for what the model can write", minimum=0
    )
    min_len: int = option(1, "shortest output; end-of-sentence not counted", minimum=0)
    match_source_len: bool = option(False, "every output is as long as its source")
    early_stopping: str = option(
        "false",
        "when a sentence with beam finished hypotheses is done: at once (true), when the best going on looks worse "
        "(false), or when it must be worse (never); huggingface's semantics only",
        choices=("false", "true", "never"),
    )
    end_symbols: list[str] = option([], "further symbols that end an output as end-of-sentence does")
    stop_strings: list[str] = option([], "texts that end an output as soon as it contains one")
    stopping_rules: list[str] = option([], "stopping rules of your own by name")
    max_time: float = option(0.0, "seconds after which a batch is ended with what there is; 0 for never", minimum=0)

    # how hypotheses rank
    unnormalized: bool = option(False, "rank by the sum of log-probabilities rather than by a mean")
    lenpen: float = option(1.0, "power of the length that a sum is divided by: above 1 favours longer outputs")
    length_penalty: str = option(
        "power", "what a sum is divided by: length ** lenpen, or ((5 + length) / 6) ** lenpen", choices=("power", "wu")
    )
    coverage_penalty: float = option(
        0.0, "weight of the penalty for source words that got little attention (Wu et al. 2016); 0 for none", minimum=0
    )

    # which tokens
    temperature: float = option(1.0, "logits are divided by this", minimum=1e-6)
    unkpen: float = option(0.0, "subtracted from the score of the unknown word; below 0 rewards it")
    suppress: list[str] = option([], "symbols of the target vocabulary that are never written")
    suppress_at_begin: list[str] = option([], "symbols that are not written first")
    forced_first: str = option("", "symbol that every output begins with")
    forced_last: str = option("", "symbol that an output of the longest length ends with")
    bad_words: list[str] = option([], "texts that are never written")
    sequence_bias: list[str] = option([], "TEXT=BIAS: what the last token of a text gains where the text would occur")
    no_repeat_ngram_size: int = option(0, "n-grams of this size occur at most once; 0 for any", minimum=0)
    encoder_no_repeat_ngram_size: int = option(
        0, "n-grams of this size that the source has are not written; 0 for any", minimum=0
    )
    repetition_penalty: float = option(1.0, "above 1, tokens written before lose; 1 for nothing", minimum=1e-6)
    encoder_repetition_penalty: float = option(
        1.0, "above 1, tokens that the source lacks lose; 1 for nothing", minimum=1e-6
    )
    exponential_decay_start: int = option(0, "tokens after which end-of-sentence gains more and more", minimum=0)
    exponential_decay_factor: float = option(1.0, "base of that growth; 1 for nothing", minimum=1e-6)
    guidance_scale: float = option(
        1.0, "above 1, classifier-free guidance away from what an empty source would give", minimum=0
    )
    renormalize: bool = option(False, "whether changed scores are made to sum to one again")
    remove_invalid: bool = option(False, "whether NaN and infinite scores are replaced rather than an error")
    processors: list[str] = option([], "logits processors of your own by name, after all others")

    # search strategies
    search: str = option("", "search strategy by name, yours too; empty for what the next keys ask, or beam search")
    diverse_beam_groups: int = option(-1, "groups of beams that avoid each other's tokens; -1 for none", minimum=-1)
    diverse_beam_strength: float = option(0.5, "what a token loses for each use by an earlier group", minimum=0)
    diversity_rate: float = option(-1.0, "what the i-th best child of a beam loses, times i; -1 for nothing")
    constraints: str = option(
        "",
        "phrases after tabs in an input line must occur, in this order or in any; a|b for one of several",
        choices=("", "ordered", "unordered"),
    )
    sampling: bool = option(False, "draw outputs at random; with search=beam_sampling, the candidates of a beam search")
    sampling_topk: int = option(0, "draw among so many most probable tokens; 0 for all", minimum=0)
    sampling_topp: float = option(1.0, "draw among the fewest tokens with this much probability", minimum=0, maximum=1)
    min_p: float = option(0.0, "draw among tokens with this share of the best one's probability", minimum=0, maximum=1)
    typical_p: float = option(1.0, "draw among the most typical tokens with this mass", minimum=1e-6, maximum=1)
    epsilon_cutoff: float = option(0.0, "draw among tokens of at least this probability", minimum=0, maximum=1)
    eta_cutoff: float = option(0.0, "the same, relaxed where the distribution is flat", minimum=0, maximum=1)
    seed: int = option(1, "seed of what is drawn, which depends on it, the line and the step alone", minimum=0)
    penalty_alpha: float = option(0.6, "contrastive search: weight of the penalty for likeness", minimum=0, maximum=1)
    contrastive_topk: int = option(4, "contrastive search: candidates at each step", minimum=1)
    draft: str = option("", "run or checkpoint of a smaller model that drafts for this one (speculative decoding)")
    draft_tokens: int = option(5, "tokens drafted at a time", minimum=1)
    prompt_lookup: int = option(
        0, "longest n-gram looked up in the source to draft what follows it; 0 for none", minimum=0
    )
    mbr: str = option("", "choose the hypothesis that is most like the others", choices=("", "chrf", "bleu"))
    prefix_trie: str = option("", "file with the outputs that are allowed, one on a line")
    replace_unknown: str = option(
        "", "replace unknown words by the source words they attend to (source), or by FILE's lines SOURCE<tab>TARGET"
    )

    observers: list[str] = option([], "observers by name, which are told of every decoding step")

    # ensembles
    combination: str = option("", "combination of the members' scores by name; empty for ensemble_average")
    ensemble_average: str = option("probability", "what an ensemble averages", choices=("probability", "log"))
    ensemble_weights: list[float] = option([], "weight of each ensemble member; empty for equal ones", minimum=0)

    # how fast
    max_tokens: int = option(4096, "most source tokens in a batch, padding included", minimum=1)
    batch_size: int = option(64, "most sentences in a batch", minimum=1)
    buffer_size: int = option(
        0, "input lines read before they are decoded; 0 takes 1 on a terminal, else 4096", minimum=0
    )
    dtype: str = option(
        "", "dtype to compute in; empty for float32", choices=("", "float32", "bfloat16", "float16", "int8")
    )

    components: dict[str, Any] = option(
        {}, "values of the components' own keys, such as search.groups; set them as search.KEY=VALUE and so on"
    )

    def component_values(self, group: str, name: str) -> dict[str, Any]:
        """The values that were given for the keys of one component, by field.

        Keys are ``search.FIELD``, ``combination.FIELD`` and ``utility.FIELD``, of which there is one at a time, and
        ``processor.NAME.FIELD``, ``stopping.NAME.FIELD`` and ``observer.NAME.FIELD``.
        """
        prefix = f"{group}." if group in SINGLE_COMPONENTS else f"{group}.{name}."
        return {key.removeprefix(prefix): value for key, value in self.components.items() if key.startswith(prefix)}


@dataclass
class DebugConfig:
    """Switches of the optimizations of decoding. None changes an output beyond rounding; each makes decoding slower."""

    use_cache: bool = option(True, "decode from an incremental state; if false, every step computes all positions")
    beam_table: str = option(
        "auto",
        "keys and values stay in place, with an indirection table: always (on), never (off), or where it is faster",
        choices=("auto", "on", "off"),
    )
    share_encoder_output: bool = option(True, "keep the encoder's output once for each sentence, not for each beam")
    skip_log_softmax: bool = option(True, "search logits where no component needs normalized scores")
    two_stage_candidates: bool = option(True, "find candidates by the maxima of blocks of the vocabulary")
    prepacked_weights: bool = option(True, "multiply by weights in the layout that the processor wants")
    lazy_compaction: bool = option(True, "drop finished sentences when an eighth of the batch is done, not at once")
    continuous_batching: bool = option(True, "let waiting sentences join a running batch")


@dataclass
class TrainConfig:
    """Everything that ``seqgen-train`` is told."""

    task: Any = None
    model: Any = None
    criterion: Any = None
    optimizer: Any = None
    lr_scheduler: Any = None
    dataset: DatasetConfig = dataclasses.field(default_factory=DatasetConfig)
    optimization: OptimizationConfig = dataclasses.field(default_factory=OptimizationConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    distributed_training: DistributedConfig = dataclasses.field(default_factory=DistributedConfig)
    common: TrainCommonConfig = dataclasses.field(default_factory=TrainCommonConfig)
    generation: GenerationConfig = dataclasses.field(default_factory=GenerationConfig)
    run_dir: str = option("", "folder of the run; empty for runs/TASK-MODEL")


@dataclass
class GenerateDatasetConfig:
    """Which of the task's data are decoded."""

    gen_subset: str = option("test", "split of the task to decode where no input is given")
    gen_source: str = option(
        "", "source of a task=text_to_text run: its template is put around the input's lines, or its split is decoded"
    )


@dataclass
class ReadingConfig:
    """What a checkpoint of another toolkit does not say and does not have beside it."""

    dictionary: str = option("", "dict.txt of both languages; empty for the files beside the checkpoint")
    source_dictionary: str = option("", "dict.txt of the source alone")
    target_dictionary: str = option("", "dict.txt of the target alone")
    sentencepiece: str = option(
        "", "SentencePiece model of both languages; empty for a file beside the checkpoint; none for tokenized text"
    )
    source_sentencepiece: str = option("", "SentencePiece model of the source alone")
    target_sentencepiece: str = option("", "SentencePiece model of the target alone")
    architecture: str = option("", "known architecture that the checkpoint's own one is a variant of")
    ignore: list[str] = option([], "options of the checkpoint that are unknown but play no part in what it computes")


@dataclass
class GenerateConfig:
    """Everything that ``seqgen-generate`` is told."""

    path: list[str] = option(
        [], "run folder, a checkpoint inside one, a fairseq model.pt, a Hugging Face folder, or several: [A,B] or A:B"
    )
    input: str = option("", "text file to decode, - for standard input; empty for the split dataset.gen_subset")
    output: str = option("-", "file to write, - for standard output")
    reference: str = option("", "text file with the right answers, for scores")
    prefix: str = option("", "text file whose line n is what output n begins with")
    format: str = option("text", "what is written", choices=("text", "json", "fairseq"))
    print_alignment: bool = option(False, "whether format=fairseq has lines with alignments (A-)")
    stream: bool = option(False, "write words as they come; format=text, and one output for a line")
    dataset: GenerateDatasetConfig = dataclasses.field(default_factory=GenerateDatasetConfig)
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: CommonConfig = dataclasses.field(default_factory=CommonConfig)
    generation: GenerationConfig = dataclasses.field(default_factory=GenerationConfig)
    debug: DebugConfig = dataclasses.field(default_factory=DebugConfig)
