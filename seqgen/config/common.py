"""The ``common`` group: keys that every command has."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config.options import option

MOST_WORKERS = 1024
"""Largest number of threads or processes that a key may ask for; far more end in a crash of the OpenMP library."""


@dataclass
class CommonConfig:
    """Keys that every command has."""

    device: str = option(
        "auto", "device to compute on; auto uses a GPU if there is one", choices=("auto", "cpu", "cuda", "mps")
    )
    threads: int = option(0, "CPU threads; 0 for one per core", minimum=0, maximum=MOST_WORKERS)
    keep_freed_memory: bool = option(
        True, "keep freed memory for reuse instead of returning it to the system (glibc only): faster on a CPU"
    )
    user_dir: list[str] = option(
        [],
        "Python files or folders with your own components (models, tasks, search strategies, ...), imported before "
        "anything else",
        role="code",
    )


@dataclass
class DecodingCommonConfig(CommonConfig):
    """The ``common`` group of commands that decode or score with trained models."""

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
        "lines",
        "how the progress of training is shown: lines; lines with all values, such as ppl and gnorm; or nothing",
        choices=("lines", "details", "none"),
    )
    tensorboard: bool = option(True, "write TensorBoard event files to the run folder")
    user_files: dict[str, str] = option(
        {}, "file that registered each of your own components and keys; recorded by training"
    )
