"""Keys of a configuration that are misspelt, of another type, outside their limits, or without a place."""

from __future__ import annotations

import seqgen.models
import seqgen.tasks  # noqa: F401  # declare the built-in components
from seqgen.config import TrainConfig
from seqgen.config.compose import compose
from tests.refusals import Row, refusals


def key(override: str, *words: str) -> Row:
    return lambda: compose(TrainConfig, [override]), *words


test_keys = refusals(
    key("optimization.max_updates=3", "optimization.max_updates", "did you mean 'optimization.max_update'"),
    key("generation.beem=3", "generation.beem", "did you mean 'generation.beam'"),
    key("model=fconv_tinny", "fconv_tinny", "did you mean 'fconv_tiny'", "--help model lists all"),
    key("model=xyz", "choose one of: ", "fconv", "t5", "transformer_lm"),
    key("model.no_such=1", "model.no_such"),
    key("generation.beam=2.5", "generation.beam=2.5"),
    key("generation.temperature=nan", "generation.temperature=nan", "finite"),
    key("optimization.lr=[1e-3,nan]", "optimization.lr=nan", "finite"),
    key("optimization.lr=[1e-3", "optimization.lr=[1e-3", "a list of numbers, such as"),
    key("optimization.lr=1e-3,2e-3", "a list of numbers", "write optimization.lr=[1e-3,2e-3]"),
    key("optimization.clip_norm=1,2", "a number; seqgen-train -m"),
    key("optimization.freeze=a,b", "write optimization.freeze=[a,b]", 'optimization.freeze=["a,b"] for one'),
    key("optimization.update_freq=abc", "update_freq=abc", "a list of whole numbers"),
    key("dataset.max_tokens=abc", "a whole number, or null"),
    key("dataset.pack=maybe", "true or false"),
    key("batch_size=4", "'dataset.batch_size' or 'generation.batch_size'"),
    key("arch=x", "did you mean 'model'"),
    key("common.device=gpu", "common.device=gpu", "cpu, cuda", "did you mean 'cuda'"),
    key("+common.seed=3", "+common.seed"),
    key("hydra.run.dir=x", "hydra"),
    key("generation=3", "generation.KEY=VALUE"),
    key("nonsense", "key=value"),
    key(f"generation.beam={'[' * 1000}{']' * 1000}", "generation.beam=[[[", "a whole number"),
    key("common.seed=1,2", "common.seed=1,2"),
    key("optimization.lr=0,001", "such as [0.1,0.2]; write optimization.lr=0.001"),
    key("optimization.clip_norm=0,5", "a number; write optimization.clip_norm=0.5"),
    key("epochs=3", "did you mean 'optimization.max_epoch'"),
    key("model=fconv_tiny,transformer_tiny", "has several names; seqgen-train -m trains one run with each"),
    key("task.train=x", "task=number_names", "add task=translation, task.source_lang, task.target_lang"),
    key("model_name_or_paths=x", "unknown key 'model_name_or_paths'; --help lists the keys"),
)
