"""Typed configuration: dataclasses whose fields each have a type, a default, a help text and a range.

A name is loaded when it is used: a module that only declares keys does not import the groups that are made of them.
"""

from typing import TYPE_CHECKING

from seqgen.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from seqgen.config.common import (
        MOST_WORKERS as MOST_WORKERS,
        CommonConfig as CommonConfig,
        DecodingCommonConfig as DecodingCommonConfig,
        TrainCommonConfig as TrainCommonConfig,
    )
    from seqgen.config.generate import (
        GenerateConfig as GenerateConfig,
        GenerateDatasetConfig as GenerateDatasetConfig,
        JobConfig as JobConfig,
        RayConfig as RayConfig,
        ReadingConfig as ReadingConfig,
        TraceConfig as TraceConfig,
    )
    from seqgen.config.generation import (
        SINGLE_COMPONENTS as SINGLE_COMPONENTS,
        FastConfig as FastConfig,
        GenerationConfig as GenerationConfig,
        keys_tagged as keys_tagged,
    )
    from seqgen.config.options import (
        ACROSS_VOCABULARIES as ACROSS_VOCABULARIES,
        DEFAULT_COMBINATION as DEFAULT_COMBINATION,
        FILES as FILES,
        LISTS_OUTPUTS as LISTS_OUTPUTS,
        MODEL as MODEL,
        NEEDS_STEPS as NEEDS_STEPS,
        SCORES_TARGETS as SCORES_TARGETS,
        SPEED as SPEED,
        WHOLE_LINE as WHOLE_LINE,
        Requirement as Requirement,
        decoding_key as decoding_key,
        like as like,
        option as option,
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

__getattr__, __dir__ = lazy_names(__name__)
