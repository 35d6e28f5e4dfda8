"""Modules and public names that were renamed; their old names work for one version, with a ``DeprecationWarning``."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_GENERATION = {
    "alignment": "text.alignment",
    "beam_allocation": "generation.search.beam_allocation",
    "combinations": "generation.compatibility",
    "constrained_beam_search": "generation.rules.huggingface_constraints",
    "constrained_search": "generation.search.constrained",
    "contrastive": "generation.search.contrastive",
    "cutoffs": "generation.processors.warpers",
    "decoding": "generation.session",
    "diverse_search": "generation.search.diverse",
    "drafting": "generation.speculative.drafters",
    "exact_search": "generation.search.exact",
    "forced_tokens": "generation.processors.length",
    "group_beam_search": "generation.rules.huggingface_groups",
    "grouped_hypotheses": "generation.rules.huggingface_finished_groups",
    "guidance": "generation.ensemble.combinations",
    "history": "generation.backpointers",
    "hypotheses": "generation.finished",
    "lexical_constraints": "generation.search.lexical_constraints",
    "logits_processors": "generation.processors.base",
    "look_ahead": "generation.speculative.look_ahead",
    "minimum_bayes_risk": "text.mbr",
    "prefix_trie": "generation.processors.prefix_trie",
    "procedure": "generation.search.base",
    "processor_setup": "generation.processor_options",
    "randomness": "generation.search.randomness",
    "repetition": "generation.processors.repetition",
    "rescaling": "generation.processors.scaling",
    "rolling": "generation.continuous_batching",
    "sampling": "generation.search.sampling",
    "scores": "metrics",
    "sequence_bias": "generation.processors.bias",
    "settings": "generation.model_settings",
    "streamers": "text.word_streaming",
    "unknown_words": "text.unknown_words",
}

MODULES: dict[str, str] = {
    **{f"seqgen.generation.{old}": f"seqgen.{new}" for old, new in _GENERATION.items()},
    "seqgen.data.byte_tokenizer": "seqgen.data.tokenizers.byte",
    "seqgen.data.fast_tokenizer": "seqgen.data.tokenizers.fast",
    "seqgen.data.pretrained_tokenizer": "seqgen.data.tokenizers.pretrained",
    "seqgen.data.records": "seqgen.data.record_lines",
    "seqgen.data.sentencepiece_conversion": "seqgen.data.tokenizers.sentencepiece_conversion",
    "seqgen.data.sentencepiece_tokenizer": "seqgen.data.tokenizers.sentencepiece_tokenizer",
    "seqgen.data.sentencepiece_training": "seqgen.data.tokenizers.sentencepiece_training",
    "seqgen.data.slow_tokenizer": "seqgen.data.tokenizers.slow",
    "seqgen.data.special_tokens": "seqgen.data.tokenizers.special_tokens",
    "seqgen.data.t5_tokenizer": "seqgen.data.tokenizers.t5",
    "seqgen.data.tokenizer": "seqgen.data.tokenizers.base",
    "seqgen.data.tokenizer_files": "seqgen.data.tokenizers.files",
    "seqgen.data.tokenizer_setup": "seqgen.data.tokenizers.setup",
    "seqgen.loading": "seqgen.checkpoints.loading",
    "seqgen.modules.beam_table_cache": "seqgen.modules.kv_cache.indirection",
    "seqgen.modules.key_value_cache": "seqgen.modules.kv_cache.growing",
    "seqgen.text_decoding": "seqgen.text.text_decoding",
    "seqgen.training.averaging": "seqgen.checkpoints.averaging",
    "seqgen.training.milestones": "seqgen.training.triggers",
    "seqgen.training.checkpoints": "seqgen.checkpoints.run_checkpoints",
    "seqgen.training.resume": "seqgen.checkpoints.resume",
    "seqgen.training.run_lock": "seqgen.checkpoints.run_lock",
    "seqgen.training.serialization": "seqgen.checkpoints.serialization",
    "seqgen.translation": "seqgen.text.results",
    "seqgen.translator": "seqgen.text.translator",
}
"""Old names of modules, and the modules that now have what was in them or most of it."""

PACKAGES: dict[str, str] = {
    "seqgen.generation.ensemble": "seqgen.generation.ensemble.ensemble",
    "seqgen.generation.search": "seqgen.generation.search.base",
    "seqgen.generation.speculative": "seqgen.generation.speculative.verification",
}
"""Packages that have the names of former modules, and the modules that now have most of what was in those."""

SPLIT: dict[str, tuple[str, ...]] = {
    "seqgen.generation.decoding": ("seqgen.generation.setup",),
    "seqgen.generation.ensemble": ("seqgen.generation.ensemble.member",),
    "seqgen.generation.logits_processors": (
        "seqgen.generation.context",
        "seqgen.generation.processors.tokens",
        "seqgen.generation.processors.length",
        "seqgen.generation.processors.repetition",
        "seqgen.generation.processors.prefix",
    ),
    "seqgen.generation.sampling": ("seqgen.generation.search.stochastic_beam", "seqgen.generation.search.beam"),
    "seqgen.generation.search": (
        "seqgen.generation.component",
        "seqgen.generation.search.beam",
        "seqgen.generation.options",
    ),
    "seqgen.training.training_loop": ("seqgen.training.train",),
}
"""Further modules that have something of what was in a module."""

NAMES: dict[str, str] = {
    "ConstrainedBeamSearch": "HuggingFaceConstrainedBeam",
    "ContrastiveDecoding": "ContrastiveSession",
    "Decoding": "Session",
    "DecodingContext": "StepContext",
    "ExactDecoding": "ExactSession",
    "GroupBeamSearch": "HuggingFaceDiverseBeam",
    "History": "BackPointers",
    "Milestones": "Triggers",
    "Peers": "ProcessGroup",
    "RollingDecoding": "ContinuousBatching",
    "SearchBatch": "BatchInfo",
    "SpeculativeDecoding": "SpeculativeSearch",
    "check_combinations": "check_compatible",
    "end_symbols_from_config": "end_tokens_from_config",
    "log_normalizer": "log_sum_exp",
    "peers_from_environment": "group_from_environment",
}
"""Old and new names of classes and functions."""


def former_names(module: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``, which finds what was in the former module of this name.

    Args:
        module: the name of the module, or its former one.
    """
    homes = ({**MODULES, **PACKAGES}.get(module, module), *SPLIT.get(module, ()))

    def find(name: str) -> Any:
        from importlib.util import find_spec  # not for every user of seqgen

        if name.startswith("__") or (module in PACKAGES and find_spec(f"{module}.{name}")):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        for home in homes:
            for now in (name, NAMES.get(name)):
                found = vars(importlib.import_module(home)).get(now) if now else None
                if found is not None:
                    if module not in MODULES or now != name:  # the import of a former module has warned
                        _warn(f"{module}.{name}", f"{home}.{now}")
                    return found
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


def _warn(old: str, new: str) -> None:
    """Warn about the line that uses an old name: it called the caller of this function."""
    warnings.warn(f"{old} is now {new}; the next version has only the new name", DeprecationWarning, stacklevel=3)


class _Renamed:
    """Finds and loads modules by their old names; each stands for what is now elsewhere."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        importlib.import_module(MODULES[name])
        module.__getattr__ = former_names(name)  # type: ignore[method-assign]
        _warn(name, MODULES[name])


def install() -> None:
    """Let the old names of modules be imported."""
    if not any(isinstance(finder, _Renamed) for finder in sys.meta_path):
        sys.meta_path.append(_Renamed())  # type: ignore[arg-type]
