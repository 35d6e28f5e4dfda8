"""Typed configuration: dataclasses whose fields each have a type, a default, a help text and a range.

A name is loaded when it is used: a module that only declares keys does not import the groups that are made of them.
"""

from typing import TYPE_CHECKING

from seqgen.core.lazy_names import lazy_names

# Several names on a line, in alphabetical order; the formatter would give each a line of its own.
# fmt: off
# isort: off
if TYPE_CHECKING:
    from seqgen.config.common import MOST_WORKERS as MOST_WORKERS, CommonConfig, DecodingCommonConfig, TrainCommonConfig
    from seqgen.config.compose import sweep_values
    from seqgen.config.generate import (GenerateConfig, GenerateDatasetConfig, JobConfig, RayConfig, ReadingConfig,
        TraceConfig)
    from seqgen.config.generation import SINGLE_COMPONENTS, FastConfig, GenerationConfig, keys_tagged
    from seqgen.config.keys import did_you_mean, known_keys
    from seqgen.config.options import (DEFAULT_COMBINATION as DEFAULT_COMBINATION, FILES, INPUT,
        KEEPS_SCORES, LISTS_OUTPUTS, MODEL, NEEDS_STEPS, SCORES_TARGETS, SPEED, WHOLE_LINE, Requirement, decoding_key,
        like, option)
    from seqgen.config.settings import ResolvedSettings, Settings, given_settings
    from seqgen.config.training import (DEFAULT_MAX_UPDATE as DEFAULT_MAX_UPDATE, BaseConfig, CheckpointConfig,
        DatasetConfig, DistributedConfig, OptimizationConfig, TrainConfig)
    from seqgen.config.values import from_dict, split_argument, text_list, text_values, to_dict, value_text
# isort: on
# fmt: on

# Groups of keys
__all__ = ["BaseConfig", "CheckpointConfig", "CommonConfig", "DatasetConfig", "DecodingCommonConfig"]
__all__ += ["DistributedConfig", "FastConfig", "GenerateConfig", "GenerateDatasetConfig", "GenerationConfig"]
__all__ += ["JobConfig", "OptimizationConfig", "RayConfig", "ReadingConfig", "TraceConfig", "TrainCommonConfig"]
__all__ += ["TrainConfig"]
# Declaring keys
__all__ += ["FILES", "INPUT", "KEEPS_SCORES", "LISTS_OUTPUTS", "MODEL", "NEEDS_STEPS"]
__all__ += ["SCORES_TARGETS", "SINGLE_COMPONENTS", "SPEED", "WHOLE_LINE", "Requirement", "decoding_key"]
__all__ += ["did_you_mean", "keys_tagged", "known_keys", "like", "option"]
# Values
__all__ += ["from_dict", "split_argument", "sweep_values", "text_list", "text_values", "to_dict", "value_text"]
# Settings of a decode
__all__ += ["ResolvedSettings", "Settings", "given_settings"]

__getattr__, __dir__ = lazy_names(__name__)
