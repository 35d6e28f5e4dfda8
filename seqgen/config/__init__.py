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
    from seqgen.config.generate import (GenerateConfig, GenerateDatasetConfig, JobConfig, RayConfig, ReadingConfig,
        TraceConfig)
    from seqgen.config.generation import SINGLE_COMPONENTS, FastConfig, GenerationConfig, keys_tagged
    from seqgen.config.keys import did_you_mean, known_keys
    from seqgen.config.options import (CALL, CONSTRAINED, CONSTRAINS,
        DEFAULT_COMBINATION as DEFAULT_COMBINATION, FILES, INPUT, KEEPS_SCORES, LISTS_OUTPUTS, MODEL, NEEDS_STEPS,
        NOT_IN_TRAINING, SCORES_TARGETS, SPEED, WHOLE_LINE, Requirement, decoding_key, like, option)
    from seqgen.config.settings import ResolvedSettings, Settings
    from seqgen.config.training import (DEFAULT_MAX_UPDATE as DEFAULT_MAX_UPDATE, BaseConfig, CheckpointConfig,
        DatasetConfig, DistributedConfig, OptimizationConfig, TrainConfig)
    from seqgen.config.values import (DEFAULTS, LARGEST_FLOAT, from_dict, non_default_values, split_argument,
        takes_text, text_list, text_values, to_dict, value_text)
# isort: on
# fmt: on

# Groups of keys
__all__ = ["BaseConfig", "CheckpointConfig", "CommonConfig", "DatasetConfig", "DecodingCommonConfig"]
__all__ += ["DistributedConfig", "FastConfig", "GenerateConfig", "GenerateDatasetConfig", "GenerationConfig"]
__all__ += ["JobConfig", "OptimizationConfig", "RayConfig", "ReadingConfig", "TraceConfig", "TrainCommonConfig"]
__all__ += ["TrainConfig"]
# Declaring keys
__all__ += ["CALL", "CONSTRAINED", "CONSTRAINS", "FILES", "INPUT", "KEEPS_SCORES"]
__all__ += ["LISTS_OUTPUTS", "MODEL", "NEEDS_STEPS", "NOT_IN_TRAINING", "SCORES_TARGETS", "SINGLE_COMPONENTS"]
__all__ += ["SPEED", "WHOLE_LINE", "Requirement", "decoding_key", "did_you_mean", "keys_tagged", "known_keys", "like"]
__all__ += ["option"]
# Values
__all__ += ["DEFAULTS", "LARGEST_FLOAT", "from_dict", "non_default_values", "split_argument", "takes_text"]
__all__ += ["text_list", "text_values", "to_dict", "value_text"]
# Settings of a decode
__all__ += ["ResolvedSettings", "Settings"]

__getattr__, __dir__ = lazy_names(__name__)
