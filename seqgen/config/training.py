"""The configuration of ``seqgen-train`` and its groups."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from seqgen.config.common import MOST_WORKERS, TrainCommonConfig
from seqgen.config.generation import ComponentKeys, GenerationConfig
from seqgen.config.options import option


@dataclass
class DatasetConfig:
    """The splits that are used, and how examples are put into batches."""

    max_tokens: int | None = option(
        4096,
        "maximum tokens per batch, padding included; a longer example is a batch of its own; null for no limit",
        minimum=1,
    )
    batch_size: int | None = option(
        None,
        "maximum sentences per batch; null for no limit",
        minimum=1,
        other_names=("max_sentences", "per_device_train_batch_size"),
    )
    max_tokens_valid: int | None = option(
        None, "max_tokens for validation; null for the value of max_tokens", minimum=1
    )
    batch_size_valid: int | None = option(
        None,
        "batch_size for validation; null for the value of batch_size",
        minimum=1,
        other_names=("max_sentences_valid",),
    )
    pack: bool = option(False, "put several training examples into one row; each keeps its own attention and positions")
    pack_length: int = option(512, "with pack: maximum source tokens and maximum target tokens per row", minimum=2)
    num_workers: int = option(
        1,
        "threads that prepare batches in advance; 0 prepares them in the main thread",
        minimum=0,
        maximum=MOST_WORKERS,
        other_names=("num_workers_per_gpu",),
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
        "stop training after this many updates; 0 for no limit; null for 2000 unless another limit is set",
        minimum=0,
    )
    max_epoch: int = option(
        0, "stop training after this many epochs; 0 for no limit", minimum=0, other_names=("num_train_epochs", "epochs")
    )
    stop_time_hours: float = option(0.0, "stop training after this many hours; 0 for no limit", minimum=0)
    lr: list[float] = option(
        [0.005],
        "learning rate per epoch; the last value is reused for later epochs",
        minimum=0,
        other_names=("learning_rate",),
    )
    stop_min_lr: float = option(
        -1.0, "stop training when the learning rate falls to this value; negative for never", other_names=("min_lr",)
    )
    clip_norm: float = option(1.0, "clip gradients to this norm; 0 for no clipping", minimum=0)
    update_freq: list[int] = option(
        [1],
        "number of batches accumulated for an update, one value per epoch; the last value is reused",
        minimum=1,
        other_names=("gradient_accumulation_steps",),
    )
    freeze: list[str] = option(
        [],
        "names of parameters that training does not change, such as encoder.*; * matches any characters; "
        "encoder.*:1000 for those that the first 1000 updates do not change",
    )
    groups: dict[str, Any] = option(
        {},
        "learning rate and weight decay of parameters: NAME:{lr_scale:0.1,weight_decay:0.0}, where * matches any "
        "characters and the first name that matches holds; lr_scale multiplies the learning rate",
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
        "what to do when memory runs out in an update: stop training, or skip the update (one process)",
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
    """The times at which checkpoints are saved, and the checkpoints that are kept."""

    save_interval: int = option(
        1, "number of epochs between two checkpoints; 0 for only at the end of training", minimum=0
    )
    save_interval_updates: int = option(
        0, "number of updates between two checkpoints; 0 for only at the end of epochs", minimum=0
    )
    save_interval_minutes: float = option(
        10.0, "save last again when the newest checkpoint is this many minutes old; 0 for never", minimum=0
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
    patience: int = option(0, "stop training after this many validations without improvement; 0 for never", minimum=0)
    finetune_from: str = option(
        "",
        "run folder, checkpoint or Hugging Face folder that provides the initial weights, other defaults of the "
        "learning rate and warm-up, and also the model, unless model=NAME is given; see docs/training.md",
        role="input_path",
        other_names=("finetune_from_model", "restore_file"),
    )
    other_languages: bool = option(
        False, "allow text in other languages than those of the model of finetune_from, as in transfer learning"
    )


@dataclass
class BaseConfig:
    """The keys of a model that extends a trained one, whose weights are not in its checkpoints."""

    base: str = option("", "the trained model; checkpoint.finetune_from sets it", role="input_path")
    base_digest: str = option("", "checksum of the trained model; checkpoint.finetune_from sets it")


@dataclass
class DistributedConfig:
    """Training with several processes."""

    distributed_world_size: int = option(
        1,
        "number of processes that train together; torchrun starts them, and the command sets this key",
        minimum=1,
        maximum=MOST_WORKERS,
        other_names=("data_parallel_world_size",),
    )
    distributed_backend: str = option(
        "auto", "backend of torch.distributed; auto uses nccl on GPUs, else gloo", choices=("auto", "gloo", "nccl")
    )
    sharding: str = option(
        "ddp",
        "how several processes share the model: ddp, each has all of it; fsdp, each stores a part of the weights, "
        "gradients and optimizer state",
        choices=("ddp", "fsdp"),
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
        600, "seconds that a process waits for the others; after that, all stop with an error", minimum=1
    )


@dataclass
class ObserverConfig(ComponentKeys):
    """Components that are told what happens in training."""

    observers: list[str] = option(
        [], "names of training observers, which are called at each epoch, update, validation and checkpoint"
    )
    components: dict[str, Any] = option({}, "the keys of training observers: training_observer.NAME.KEY=VALUE")


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
    training: ObserverConfig = dataclasses.field(default_factory=ObserverConfig)
    common: TrainCommonConfig = dataclasses.field(default_factory=TrainCommonConfig)
    generation: GenerationConfig = dataclasses.field(default_factory=GenerationConfig)
    run_dir: str = option(
        "",
        "run folder to write to; empty for runs/TASK-MODEL",
        role="output_path",
        other_names=("save_dir", "output_dir"),
    )
    prepare_only: bool = option(False, "only train the tokenizer and encode the text, as a later training would do")
