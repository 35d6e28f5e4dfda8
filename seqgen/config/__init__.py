"""Typed configuration: dataclasses whose fields each have a type, a default, a help text and a range."""

from __future__ import annotations

from seqgen.config.common import MOST_WORKERS, CommonConfig, DecodingCommonConfig, TrainCommonConfig, option
from seqgen.config.generate import (
    GenerateConfig,
    GenerateDatasetConfig,
    JobConfig,
    JobGenerationConfig,
    RayConfig,
    ReadingConfig,
    TraceConfig,
)
from seqgen.config.generation import SINGLE_COMPONENTS, DebugConfig, GenerationConfig
from seqgen.config.training import (
    DEFAULT_MAX_UPDATE,
    CheckpointConfig,
    DatasetConfig,
    DistributedConfig,
    OptimizationConfig,
    TrainConfig,
)

__all__ = [
    "DEFAULT_MAX_UPDATE",
    "MOST_WORKERS",
    "SINGLE_COMPONENTS",
    "CheckpointConfig",
    "CommonConfig",
    "DatasetConfig",
    "DebugConfig",
    "DecodingCommonConfig",
    "DistributedConfig",
    "GenerateConfig",
    "GenerateDatasetConfig",
    "GenerationConfig",
    "JobConfig",
    "JobGenerationConfig",
    "OptimizationConfig",
    "RayConfig",
    "ReadingConfig",
    "TraceConfig",
    "TrainCommonConfig",
    "TrainConfig",
    "option",
]
