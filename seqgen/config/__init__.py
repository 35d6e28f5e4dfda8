"""Typed configuration: dataclasses whose fields each have a type, a default, a help text and a range."""

from __future__ import annotations

from seqgen.config.common import (
    MOST_WORKERS as MOST_WORKERS,
    CommonConfig as CommonConfig,
    DecodingCommonConfig as DecodingCommonConfig,
    TrainCommonConfig as TrainCommonConfig,
    like as like,
    option as option,
)
from seqgen.config.generate import (
    GenerateConfig as GenerateConfig,
    GenerateDatasetConfig as GenerateDatasetConfig,
    JobConfig as JobConfig,
    JobGenerationConfig as JobGenerationConfig,
    RayConfig as RayConfig,
    ReadingConfig as ReadingConfig,
    TraceConfig as TraceConfig,
)
from seqgen.config.generation import (
    DEFAULT_COMBINATION as DEFAULT_COMBINATION,
    SINGLE_COMPONENTS as SINGLE_COMPONENTS,
    SPEED as SPEED,
    DebugConfig as DebugConfig,
    GenerationConfig as GenerationConfig,
    keys_with as keys_with,
)
from seqgen.config.training import (
    DEFAULT_MAX_UPDATE as DEFAULT_MAX_UPDATE,
    BaseConfig as BaseConfig,
    CheckpointConfig as CheckpointConfig,
    DatasetConfig as DatasetConfig,
    DistributedConfig as DistributedConfig,
    OptimizationConfig as OptimizationConfig,
    TrainConfig as TrainConfig,
)
