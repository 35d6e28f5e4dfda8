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

        dropout: float = option(0.1, "dropout probability of features", minimum=0, maximum=1)

    Args:
        default: the default; a list is copied for each instance.
        help: one line that says what the value does, with its unit.
        choices: the allowed values of a string.
        minimum: smallest allowed value of a number, or of each number in a list.
        maximum: largest allowed value, likewise.

    Returns:
        The dataclass field.
    """
    metadata = {"help": help, "choices": choices, "minimum": minimum, "maximum": maximum}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass
class CommonConfig:
    """Keys that every command has."""

    device: str = option(
        "auto", "device to compute on; auto uses a GPU if there is one", choices=("auto", "cpu", "cuda", "mps")
    )
    threads: int = option(0, "CPU threads; 0 for one per core", minimum=0)
    keep_freed_memory: bool = option(
        True, "keep freed memory for reuse instead of returning it to the system (glibc only): faster on a CPU"
    )
    user_dir: list[str] = option(
        [],
        "Python files or folders with your own components (models, tasks, search strategies, ...), imported before "
        "anything else; the value run imports the files that were used in training",
    )


@dataclass
class DecodingCommonConfig(CommonConfig):
    """The ``common`` group of commands that decode or score with trained models."""

    device_map: str = option(
        "",
        "distribute the layers of each model over several devices: auto, by free memory, or a list in quotes such as "
        "'encoder.layers=cuda:0,decoder.layers=cuda:1'; other layers and all other modules are on common.device; "
        "empty for one device",
    )
    map_weights: bool = option(
        True,
        "let weights stay in their safetensors files, which are mapped into memory, if device and dtype allow: needs "
        "less memory, and several processes share it; false reads files as a whole",
    )


@dataclass
class TrainCommonConfig(CommonConfig):
    """The ``common`` group of ``seqgen-train``: the keys of every command, and those that only training has."""

    seed: int = option(1, "seed of initial weights, data order, dropout and everything else that is random", minimum=0)
    bf16: bool = option(False, "compute in bfloat16 (autocast); weights stay in float32")
    fp16: bool = option(False, "compute in float16 (autocast) with loss scaling; weights stay in float32")
    log_interval: int = option(50, "number of updates between two progress lines and log records", minimum=1)
    log_format: str = option(
        "auto",
        "how progress is shown; auto shows a bar on a terminal, else lines",
        choices=("auto", "bar", "lines", "none"),
    )
    tensorboard: bool = option(True, "write TensorBoard event files to the run folder")
    user_files: dict[str, str] = option({}, "file that registered each of your own components; recorded by training")


@dataclass
class DatasetConfig:
    """Which splits are used, and how examples are put into batches."""

    max_tokens: int | None = option(4096, "maximum tokens per batch, padding included; null for no limit", minimum=1)
    batch_size: int | None = option(None, "maximum sentences per batch; null for no limit", minimum=1)
    max_tokens_valid: int | None = option(
        None, "max_tokens for validation; null for the value of max_tokens", minimum=1
    )
    batch_size_valid: int | None = option(
        None, "batch_size for validation; null for the value of batch_size", minimum=1
    )
    pack: bool = option(False, "put several training examples into one row; each keeps its own attention and positions")
    pack_length: int = option(512, "with pack: maximum source tokens and maximum target tokens per row", minimum=2)
    num_workers: int = option(
        1, "threads that prepare batches in advance; 0 prepares them in the main thread", minimum=0
    )
    train_subset: str = option("train", "split used for training")
    valid_subset: str = option("valid", "split used for validation")
    validate_interval: int = option(
        1, "number of epochs between two validations; 0 for no validation at the end of epochs", minimum=0
    )
    validate_interval_updates: int = option(
        0, "number of updates between two validations; 0 for only at the end of epochs", minimum=0
    )
    validate_decode: int = option(
        0, "number of validation sentences to decode and score (BLEU, ...); -1 for all, 0 for none", minimum=-1
    )


DEFAULT_MAX_UPDATE = 2000


@dataclass
class OptimizationConfig:
    """Length of training, learning rate, gradient clipping and accumulation."""

    max_update: int | None = option(
        None,
        "stop training after so many updates; 0 for no limit; null for 2000 unless another limit is set",
        minimum=0,
    )
    max_epoch: int = option(0, "stop training after so many epochs; 0 for no limit", minimum=0)
    stop_time_hours: float = option(0.0, "stop training after so many hours; 0 for no limit", minimum=0)
    lr: list[float] = option([0.005], "learning rate per epoch; the last value is reused for later epochs", minimum=0)
    stop_min_lr: float = option(-1.0, "stop training when the learning rate falls to this value; negative for never")
    clip_norm: float = option(1.0, "clip gradients to this norm; 0 for no clipping", minimum=0)
    update_freq: list[int] = option(
        [1], "number of batches accumulated for an update, one value per epoch; the last value is reused", minimum=1
    )
    freeze: list[str] = option(
        [], "names of parameters that training does not change, such as encoder.*; * matches any characters"
    )
    ema_decay: float = option(
        0.0,
        "decay of an exponential moving average of the weights, used to validate and decode; 0 for none",
        minimum=0,
        maximum=1,
    )
    checkpoint_activations: bool = option(
        False, "do not store the activations inside layers, but compute them again in the backward pass"
    )
    out_of_memory: str = option(
        "stop",
        "what to do when memory runs out in an update: stop training, or skip the update in all processes",
        choices=("stop", "skip"),
    )
    nonfinite_loss: str = option(
        "stop",
        "what to do when the loss is NaN or infinite: stop training, or skip the update",
        choices=("stop", "skip"),
    )

    def last_update(self) -> int:
        """The update after which training stops; 0 for no limit. If no limit is set, it is ``DEFAULT_MAX_UPDATE``."""
        if self.max_update is not None:
            return self.max_update
        return 0 if self.max_epoch or self.stop_time_hours else DEFAULT_MAX_UPDATE


@dataclass
class CheckpointConfig:
    """When checkpoints are saved, and which ones are kept."""

    save_interval: int = option(
        1, "number of epochs between two checkpoints; 0 for only at the end of training", minimum=0
    )
    save_interval_updates: int = option(
        0, "number of updates between two checkpoints; 0 for only at the end of epochs", minimum=0
    )
    keep_last_epochs: int = option(
        0, "number of epoch checkpoints to keep in addition to last and best; -1 for all", minimum=-1
    )
    keep_interval_updates: int = option(
        0, "number of update checkpoints to keep in addition to last and best; -1 for all", minimum=-1
    )
    best_checkpoint_metric: str = option(
        "loss", "validation metric that selects the best checkpoint: loss, ppl, bleu, ..."
    )
    patience: int = option(0, "stop training after so many validations without improvement; 0 for never", minimum=0)
    finetune_from: str = option(
        "",
        "run folder, checkpoint or Hugging Face folder that provides the initial weights; a checkpoint of another "
        "toolkit also provides the model, unless model=NAME is given",
    )


@dataclass
class DistributedConfig:
    """Training with several processes."""

    distributed_world_size: int = option(1, "number of processes that train together on this machine", minimum=1)
    distributed_backend: str = option(
        "auto", "backend of torch.distributed; auto uses nccl on GPUs, else gloo", choices=("auto", "gloo", "nccl")
    )
    sharding: str = option(
        "ddp",
        "how several processes share the model: ddp, each has all of it; fsdp, each stores a part of the weights, "
        "gradients and optimizer state; none, for one process only",
        choices=("none", "ddp", "fsdp"),
    )
    param_dtype: str = option(
        "",
        "fsdp: data type to which weights are converted for forward and backward pass; empty for that of the model",
        choices=("", "bfloat16", "float16"),
    )
    reduce_dtype: str = option(
        "",
        "data type in which gradients are summed over processes; empty for their own",
        choices=("", "bfloat16", "float16"),
    )
    timeout: int = option(
        600, "seconds that a process waits for the other ones; after that, all stop with an error", minimum=1
    )


SINGLE_COMPONENTS = ("search", "combination", "utility", "reranker")
"""Groups of decoding components of which exactly one is in use."""


@dataclass
class GenerationConfig:
    """How to decode. docs/decoding.md explains every key and gives its name in other toolkits."""

    semantics: str = option(
        "",
        "toolkit whose rules decide when hypotheses are finished and how they are ranked; empty for huggingface with "
        "models in Hugging Face's layout, else fairseq",
        choices=("", "fairseq", "huggingface"),
    )
    beam: int = option(5, "beam size: hypotheses kept at each step; 1 for greedy search", minimum=1)
    nbest: int = option(1, "number of hypotheses returned per sentence", minimum=1)

    # languages
    source_lang: str = option(
        "", "multilingual models: language of the source, or fieldN for the code in field N of a line with tabs"
    )
    target_lang: str = option(
        "", "multilingual models: language of the output, or fieldN for the code in field N of a line with tabs"
    )

    # output length
    max_len_a: float = option(
        0.0,
        "maximum output length is max_len_a * source length + max_len_b; -1 for a limit of prompt and output together",
        minimum=-1,
    )
    max_len_b: int = option(200, "see max_len_a; in tokens without end-of-sentence", minimum=0)
    max_len: int = option(
        0,
        "maximum output length for every source, in tokens with end-of-sentence; 0 for the model's maximum",
        minimum=0,
    )
    min_len: int = option(1, "minimum output length, in tokens without end-of-sentence", minimum=0)
    min_total_len: int = option(
        0,
        "language models: minimum length of prompt and output together, without the output's end-of-sentence",
        minimum=0,
    )
    match_source_len: bool = option(False, "make every output as long as its source")
    early_stopping: str = option(
        "false",
        "when the search of a sentence stops, once it has beam finished hypotheses: at once (true); when the best "
        "active hypothesis would not score better if it ended now (false) or at any length (never); "
        "semantics=huggingface only",
        choices=("false", "true", "never"),
    )
    end_symbols: list[str] = option([], "additional tokens that end an output, as end-of-sentence does")
    stop_strings: list[str] = option([], "strings that end an output as soon as it contains one of them")
    stopping_rules: list[str] = option([], "names of additional stopping rules")
    max_time: float = option(
        0.0, "stop a batch after so many seconds and return the hypotheses found so far; 0 for never", minimum=0
    )

    # ranking of hypotheses
    unnormalized: bool = option(False, "rank hypotheses by the sum of log-probabilities, without a length penalty")
    lenpen: float = option(
        1.0, "exponent of the length penalty; values above 1 favour longer outputs", minimum=-10, maximum=10
    )
    length_penalty: str = option(
        "power",
        "scores are divided by length ** lenpen (power) or by ((5 + length) / 6) ** lenpen (wu)",
        choices=("power", "wu"),
    )
    coverage_penalty: float = option(
        0.0,
        "weight of the penalty for source tokens with little total attention (Wu et al. 2016); 0 for none",
        minimum=0,
    )

    # scores of tokens
    temperature: float = option(1.0, "divide logits by this value", minimum=1e-6)
    unkpen: float = option(0.0, "penalty subtracted from the score of the unknown token; negative values reward it")
    suppress: list[str] = option([], "tokens of the target vocabulary that are never generated")
    suppress_at_begin: list[str] = option([], "tokens that are not generated at the first position")
    forced_first: str = option("", "token that every output begins with")
    forced_last: str = option("", "token that is forced when an output reaches its maximum length")
    bad_words: list[str] = option([], "strings that are never generated")
    sequence_bias: list[str] = option([], "TEXT=BIAS: value added to the score of a token that would complete the text")
    no_repeat_ngram_size: int = option(
        0, "n-grams of this size occur at most once in an output; 0 for no limit", minimum=0
    )
    encoder_no_repeat_ngram_size: int = option(
        0, "n-grams of this size that occur in the source are not generated; 0 for no limit", minimum=0
    )
    repetition_penalty: float = option(
        1.0, "above 1, tokens that were already generated get lower scores; 1 for no effect", minimum=1e-6
    )
    encoder_repetition_penalty: float = option(
        1.0, "above 1, tokens that do not occur in the source get lower scores; 1 for no effect", minimum=1e-6
    )
    exponential_decay_start: int = option(
        0, "output length after which the score of end-of-sentence grows exponentially", minimum=0
    )
    exponential_decay_factor: float = option(1.0, "base of that exponential growth; 1 for no effect", minimum=1e-6)
    guidance_scale: float = option(
        1.0, "scale of classifier-free guidance against the scores for an empty source; 1 for none", minimum=0
    )
    renormalize: bool = option(False, "renormalize probabilities after logits processors have changed them")
    remove_invalid: bool = option(
        False, "replace NaN and infinite scores by finite values instead of stopping with an error"
    )
    processors: list[str] = option([], "names of additional logits processors, applied after all other ones")

    # decoding strategy
    search: str = option(
        "",
        "search strategy, by name; empty for the one selected by diverse_beam_groups, diversity_rate, constraints or "
        "sampling, else beam search",
    )
    diverse_beam_groups: int = option(
        -1, "diverse beam search: number of groups that the beam is split into; -1 for off", minimum=-1
    )
    diverse_beam_strength: float = option(
        0.5, "diverse beam search: penalty on a token for each earlier group that chose it at this step", minimum=0
    )
    diversity_rate: float = option(
        -1.0, "diverse siblings: penalty per rank of a candidate among the continuations of its beam; -1 for off"
    )
    constraints: str = option(
        "",
        "every output must contain the phrases that follow tabs in its input line, in this order (ordered) or in any "
        "order (unordered); a|b requires one of two phrases",
        choices=("", "ordered", "unordered"),
    )
    sampling: bool = option(
        False, "sample tokens at random; with search=beam_sampling, sample the candidates of beam search"
    )
    sampling_topk: int = option(0, "top-k: sample from the k most probable tokens; 0 for all tokens", minimum=0)
    sampling_topp: float = option(
        1.0, "top-p: sample from the smallest set of tokens with this total probability", minimum=0, maximum=1
    )
    min_p: float = option(
        0.0, "sample from tokens with at least min_p times the highest probability", minimum=0, maximum=1
    )
    typical_p: float = option(
        1.0,
        "typical sampling: sample from the most typical tokens with this total probability",
        minimum=1e-6,
        maximum=1,
    )
    epsilon_cutoff: float = option(0.0, "sample from tokens with at least this probability", minimum=0, maximum=1)
    eta_cutoff: float = option(
        0.0,
        "eta sampling: as epsilon_cutoff, but the threshold is lower where the entropy is high",
        minimum=0,
        maximum=1,
    )
    seed: int = option(
        1, "seed of sampling; random numbers depend only on the seed, the line number and the step", minimum=0
    )
    penalty_alpha: float = option(0.6, "contrastive search: weight of the similarity penalty", minimum=0, maximum=1)
    contrastive_topk: int = option(4, "contrastive search: number of candidates per step", minimum=1)
    draft: str = option(
        "", "speculative decoding: run or checkpoint of a smaller model that drafts tokens for this one"
    )
    draft_tokens: int = option(5, "speculative decoding: number of tokens drafted at a time", minimum=1)
    prompt_lookup: int = option(
        0,
        "n-gram drafter: maximum length of the output's last n-gram that is searched in the source; the tokens that "
        "follow it there are the draft; 0 for off",
        minimum=0,
    )
    mbr: str = option(
        "", "minimum Bayes risk: utility by which hypotheses are ranked, by name (chrf, bleu or your own)"
    )
    rerank: str = option("", "name of a registered reranker, by whose scores hypotheses are ranked")
    prefix_trie: str = option("", "file with the allowed outputs, one per line")
    shortlist: str = option(
        "",
        "file with target tokens for each source token (made by seqgen-shortlist); each output contains only those of "
        "its source",
    )
    replace_unknown: str = option(
        "",
        "replace unknown words by the source word with the highest attention (source), or by its translation in a FILE "
        "with lines SOURCE<tab>TARGET",
    )

    observers: list[str] = option([], "names of observers, which are called at every decoding step")

    # ensembles
    combination: str = option(
        "", "name of a registered combination of the members' scores; empty for the average that ensemble_average names"
    )
    ensemble_average: str = option(
        "probability", "average the members' probabilities or log-probabilities", choices=("probability", "log")
    )
    members: list[str] = option(
        [],
        "source of each model: input for the input line, empty for no tokens, fieldN for field N of a line with tabs, "
        "or the name of a registered source; by default, all models read the input line",
    )
    ensemble_weights: list[float] = option([], "weight of each ensemble member; empty for equal weights", minimum=0)

    # speed
    max_tokens: int = option(4096, "maximum source tokens per batch, padding included", minimum=1)
    batch_size: int = option(64, "maximum sentences per batch", minimum=1)
    buffer_size: int = option(
        0, "number of input lines read before decoding starts; 0 for 1 on a terminal, else 4096", minimum=0
    )
    dtype: str = option(
        "",
        "dtype of weights and computation; empty for float32",
        choices=("", "float32", "bfloat16", "float16", "int8"),
    )
    bit_exact: bool = option(
        False,
        "tokens and scores of a sentence have the same bits in every batch, order and number of threads; slower",
    )

    components: dict[str, Any] = option(
        {}, "the decoding components' own keys, which are given as search.KEY=VALUE, processor.NAME.KEY=VALUE, ..."
    )

    def component_values(self, group: str, name: str) -> dict[str, Any]:
        """The values that the user set for one component's own keys.

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
    shared_encoders: bool = option(True, "run identical encoders of an ensemble's members once")
    skip_log_softmax: bool = option(True, "search on logits if no component needs normalized log-probabilities")
    two_stage_candidates: bool = option(True, "find the top candidates via the maxima of vocabulary blocks")
    shortlist_columns: bool = option(
        True, "with a shortlist, compute only the scores of tokens that are in the shortlist of any sentence"
    )
    prepacked_weights: bool = option(True, "use weights prepacked in the memory layout that is fastest on this CPU")
    lazy_compaction: bool = option(
        True, "remove finished sentences from a batch when an eighth of it is finished, not immediately"
    )
    continuous_batching: bool = option(True, "add waiting sentences to a running batch as soon as others finish")


@dataclass
class TrainConfig:
    """The configuration of ``seqgen-train``."""

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
    run_dir: str = option("", "run folder to write to; empty for runs/TASK-MODEL")


@dataclass
class GenerateDatasetConfig:
    """Which split of the task is decoded."""

    gen_subset: str = option("test", "split of the task to decode if input is empty")
    gen_source: str = option(
        "",
        "task=text_to_text: source of the mixture; its template is applied to the input lines, or its split is "
        "decoded; task=multilingual_translation: pair, such as en-de, whose languages are used and whose split is "
        "decoded",
    )


@dataclass
class ReadingConfig:
    """Files and settings that another toolkit's checkpoint needs, if they are not found with the checkpoint."""

    dictionary: str = option("", "dict.txt shared by both languages; empty for the files in the checkpoint's folder")
    source_dictionary: str = option("", "dict.txt of the source language")
    target_dictionary: str = option("", "dict.txt of the target language")
    sentencepiece: str = option(
        "",
        "SentencePiece model of both languages; empty for one in the checkpoint's folder; none if text is tokenized",
    )
    source_sentencepiece: str = option("", "SentencePiece model of the source language")
    target_sentencepiece: str = option("", "SentencePiece model of the target language")
    lang_dict: str = option(
        "", "file with the languages of a multilingual checkpoint, one on each line, in the order of their tokens"
    )
    architecture: str = option(
        "", "architecture to use if the checkpoint names one that seqgen does not know, such as transformer"
    )
    ignore: list[str] = option(
        [],
        "options of the checkpoint to ignore: unknown to seqgen, while you know that they do not change the model",
    )


@dataclass
class TraceConfig:
    """The ``trace_options`` group of ``seqgen-generate``."""

    sentences: int = option(
        1000, "with trace: number of lines that are traced, from the first one; 0 for all", minimum=0
    )
    candidates: int = option(
        0, "with trace: number of candidates of each step, besides those that survive; 0 for all", minimum=0
    )
    max_megabytes: float = option(
        200.0,
        "with trace: no further line is traced after so many megabytes, before compression; 0 for no limit",
        minimum=0,
    )
    members: bool = option(True, "with trace: the members' scores of each candidate")
    forbidden: bool = option(True, "with trace: which processor forbids a token that would otherwise survive")
    attention: bool = option(False, "with trace: the attention of the best output, by another pass of the models")
    reference_scores: bool = option(
        False, "with trace and reference: the models' scores of the whole references, by another pass of the models"
    )


@dataclass
class JobGenerationConfig(GenerationConfig):
    """The ``generation`` group of ``seqgen-generate``: how to decode, and how a job divides the work."""

    workers: int = option(
        0,
        "processes that decode the parts of a job, each with a copy of the models; 0 for one; with engine=ray "
        "the largest number of actors, 0 for no limit",
        minimum=0,
    )
    part_lines: int = option(4096, "lines of each part of a job", minimum=1)


@dataclass
class JobConfig:
    """The ``job`` group of ``seqgen-generate``: decoding in parts, which can be killed and continued."""

    folder: str = option("", "folder for the parts of a job; empty for the output file's name with .parts")
    format: str = option(
        "auto",
        "format of the input of a job; auto chooses by the file name: .jsonl, .ndjson, .parquet, else text; .gz is "
        "decompressed",
        choices=("auto", "text", "jsonl", "parquet"),
    )
    column: str = option("text", "field of JSON lines, or column of Parquet files, with the text to decode")
    progress: float = option(
        30.0, "seconds between two lines of progress where no bar is shown; 0 for no lines", minimum=0
    )


@dataclass
class RayConfig:
    """The ``ray`` group of ``seqgen-generate``."""

    address: str = option(
        "",
        "address of the Ray cluster, such as HOST:6379, or auto to find it; empty to start Ray on this machine",
    )
    actors_per_node: int = option(1, "actors on each node; each holds a copy of the models", minimum=1)
    gpus: float = option(0.0, "GPUs of each actor, such as 0.5; actors with fractions share a GPU", minimum=0)
    cpus: float = option(1.0, "CPU cores of each actor", minimum=0)


@dataclass
class GenerateConfig:
    """The configuration of ``seqgen-generate``."""

    path: list[str] = option(
        [],
        "run folder, checkpoint in one, fairseq model.pt, Hugging Face folder, or hf:ORGANIZATION/NAME[@REVISION] for "
        "a model of the Hugging Face Hub; [A,B] or A:B for an ensemble",
    )
    input: str = option(
        "",
        "text file to decode; - for standard input; empty for the split dataset.gen_subset; a job also reads folders, "
        "wildcards, JSON lines and Parquet",
    )
    output: str = option("-", "output file; - for standard output")
    reference: str = option("", "text file with reference outputs; outputs are then scored")
    prefix: str = option("", "text file whose line n is the forced beginning of output n")
    format: str = option("text", "output format", choices=("text", "json", "fairseq"))
    print_alignment: bool = option(False, "with format=fairseq: write alignment lines (A-)")
    remove_bpe: str = option(
        "",
        "join the subwords of outputs, for checkpoints whose text was split outside: subword_nmt's marks @@, or "
        "sentencepiece's",
        choices=("", "subword_nmt", "sentencepiece"),
    )
    detokenize: str = option(
        "", "language of the Moses detokenizer to apply to outputs, such as de; empty for none; needs sacremoses"
    )
    stream: bool = option(False, "write words as soon as they are decoded; needs format=text and nbest=1")
    trace: str = option("", "file for a trace of every step (.jsonl or .jsonl.gz), which seqgen-trace shows as a page")
    replay: str = option("", "trace whose n-best lists are computed again, without models; needs no path and no input")
    record: str = option("", "file (.json) for the record that is needed to repeat the decode, with config=FILE.json")
    trace_options: TraceConfig = dataclasses.field(default_factory=TraceConfig)
    dataset: GenerateDatasetConfig = dataclasses.field(default_factory=GenerateDatasetConfig)
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: DecodingCommonConfig = dataclasses.field(default_factory=DecodingCommonConfig)
    generation: JobGenerationConfig = dataclasses.field(default_factory=JobGenerationConfig)
    debug: DebugConfig = dataclasses.field(default_factory=DebugConfig)
    engine: str = option(
        "local", "what runs the workers of a job: processes of this machine, or Ray", choices=("local", "ray")
    )
    job: JobConfig = dataclasses.field(default_factory=JobConfig)
    ray: RayConfig = dataclasses.field(default_factory=RayConfig)
