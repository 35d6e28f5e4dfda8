"""Modules, public names and members of classes that were renamed or removed.

An old name works for one version, with a ``DeprecationWarning``. The error for a removed name says what to use instead.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from itertools import chain
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

C = TypeVar("C", bound=type)
P = ParamSpec("P")
T = TypeVar("T")

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
    "seqgen.modules.number_formats": "seqgen.modules.dtypes",
    "seqgen.text_decoding": "seqgen.text.text_decoding",
    "seqgen.training.averaging": "seqgen.checkpoints.averaging",
    "seqgen.training.checkpoints": "seqgen.checkpoints.run_checkpoints",
    "seqgen.training.milestones": "seqgen.training.triggers",
    "seqgen.training.resume": "seqgen.checkpoints.resume",
    "seqgen.training.run_lock": "seqgen.checkpoints.run_lock",
    "seqgen.training.serialization": "seqgen.checkpoints.serialization",
    "seqgen.translation": "seqgen.text.results",
    "seqgen.translator": "seqgen.text.translator",
}
"""Old names of modules, and the modules that now have most of their contents."""

PACKAGES: dict[str, str] = {
    "seqgen.generation.ensemble": "seqgen.generation.ensemble.ensemble",
    "seqgen.generation.search": "seqgen.generation.search.base",
    "seqgen.generation.speculative": "seqgen.generation.speculative.verification",
}
"""Packages with the names of former modules, and the modules that now have most of the contents of those."""

SPLIT: dict[str, tuple[str, ...]] = {
    "seqgen.compose": (
        "seqgen.arguments",
        "seqgen.component_keys",
        "seqgen.config_dicts",
        "seqgen.config_keys",
        "seqgen.config_values",
        "seqgen.registry",
        "seqgen.sweep",
    ),
    "seqgen.generation.decoding": ("seqgen.generation.setup",),
    "seqgen.generation.ensemble": ("seqgen.generation.ensemble.member",),
    "seqgen.generation.logits_processors": (
        "seqgen.generation.context",
        "seqgen.generation.processors.tokens",
        "seqgen.generation.processors.length",
        "seqgen.generation.processors.repetition",
        "seqgen.generation.processors.prefix",
    ),
    "seqgen.generation.processor_setup": ("seqgen.generation.rules.fairseq", "seqgen.generation.rules.huggingface"),
    "seqgen.generation.sampling": ("seqgen.generation.search.stochastic_beam", "seqgen.generation.search.beam"),
    "seqgen.generation.search": (
        "seqgen.generation.component",
        "seqgen.generation.search.beam",
        "seqgen.generation.options",
    ),
    "seqgen.modules.key_value_cache": ("seqgen.modules.kv_cache.static",),
    "seqgen.training.training_loop": ("seqgen.training.train",),
}
"""Further modules that have some of the contents of a module."""

NAMES: dict[str, str] = {
    "BeamTable": "IndirectionTable",
    "ConstrainedBeamSearch": "HuggingFaceConstrainedBeam",
    "ContrastiveDecoding": "ContrastiveSession",
    "Cutoff": "Warper",
    "Decoding": "Session",
    "DecodingContext": "StepContext",
    "EndSymbols": "EndTokens",
    "ExactDecoding": "ExactSession",
    "FAIRSEQ_ORDER": "OVERRULED_BY_PREFIX",
    "GroupBeamSearch": "HuggingFaceDiverseBeam",
    "HUGGINGFACE_ORDER": "ORDER",
    "History": "BackPointers",
    "LookedUp": "NgramDraft",
    "Milestones": "Triggers",
    "NUMBER_FORMATS": "DTYPES",
    "NoiseSymbols": "NoiseTokens",
    "Peers": "ProcessGroup",
    "Reader": "CheckpointLoader",
    "RollingDecoding": "ContinuousBatching",
    "SearchBatch": "BatchInfo",
    "Slots": "ModuleState",
    "Speculation": "SpeculativeSession",
    "SpeculativeDecoding": "SpeculativeSearch",
    "WEIGHT_FORMATS": "WEIGHT_DTYPES",
    "check_combinations": "check_compatible",
    "declare_reader": "declare_checkpoint_loader",
    "end_symbols_from_config": "end_tokens_from_config",
    "log_normalizer": "log_sum_exp",
    "peers_from_environment": "group_from_environment",
    "reader_of": "checkpoint_loader_of",
    "register_reader": "register_checkpoint_loader",
    "starts_of_rows": "start_offsets_of_rows",
    "to_number_format": "to_dtype",
}
"""Old and new names of classes and functions."""

MEMBERS: dict[str, str] = {
    "can_truncate": "can_roll_back",
    "generate_rolling": "generate_continuously",
    "get_slots": "get_state",
    "has_late_starts": "has_start_offsets",
    "joins": "can_merge",
    "max_truncation": "max_roll_back",
    "merge_slots": "merge_states",
    "reorder_slots": "reorder_state",
    "reorder_slots_within_beams": "reorder_state_within_beams",
    "reorder_starts": "reorder_start_offsets",
    "select_slots": "select_state",
    "set_slots": "set_state",
    "start_symbol": "start_token",
    "starts": "start_offsets",
    "symbols": "noise_tokens",
    "trim": "crop_left",
    "trim_slots": "crop_state",
    "truncate": "roll_back",
    "truncate_slots": "roll_back_state",
}
"""Old and new names of methods and attributes, in classes that have the new one."""

REMOVED: dict[str, str] = {
    "Asked": "call processors_from_config of seqgen.generation.processor_options, which takes a Rules object",
    "BLEU_ORDER": "set BleuConfig.max_ngram_order of seqgen.text.mbr",
    "BeamTableCache": "use IndirectionCache of seqgen.modules.kv_cache.indirection, itself a layer's state",
    "FeaturesMember": "call Member.next_output(tokens, need_features=True) of seqgen.generation.ensemble.member",
    "Procedure": "subclass Search of seqgen.generation.search.base, and set session_class if it needs its own loop",
    "bleu_of_pairs": "call Bleu()(texts) of seqgen.text.mbr",
    "chrf_of_pairs": "call Chrf()(texts) of seqgen.text.mbr",
    "guide": "use the combination Guidance of seqgen.generation.ensemble.combinations",
    "of_a_user": "read Entry.is_user_own of seqgen.registry.SEARCHES.entry(NAME)",
    "speculation_from_config": "call SequenceGenerator.from_config with draft=MODEL",
    "warpers_from_config": "call processors_from_config of seqgen.generation.processor_options, for warpers too",
}
"""Names that were removed, and what to do instead."""


HOOKS: dict[str, str] = {
    "LogitsProcessor.reads_tokens": "leave it out, because context.tokens is always available",
    "Search.decode": "for a loop of your own, set session_class to a subclass of Session",
}
"""Hooks of base classes that were removed, and what to do instead."""


def former_names(module: str) -> Callable[[str], Any]:
    """Make a module's ``__getattr__``, which finds the former names of its contents.

    Args:
        module: the name of the module, or its former one.

    Returns:
        A function from a name to the class or function that now has it. It raises an ``ImportError`` for a removed
        name and an ``AttributeError`` for an unknown one.
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
        if name in REMOVED:  # no AttributeError: ``from module import name`` would replace its message
            raise ImportError(f"{module}.{name} was removed; {REMOVED[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


def _warn(old: str, new: str) -> None:
    """Warn about the line that uses an old name: that of the caller's caller."""
    warnings.warn(f"{old} is now {new}; the next version has only the new name", DeprecationWarning, stacklevel=3)


def renamed_parameters(**names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function be called with the old names of its keyword arguments.

    Args:
        names: the new name of each old one.

    Returns:
        A decorator.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for old in names.keys() & kwargs.keys():
                if names[old] in kwargs:
                    raise TypeError(f"{function.__qualname__} got {names[old]} and its old name, {old}")
                _warn(f"the argument {old} of {function.__qualname__}", names[old])
                kwargs[names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


class _FormerMember:
    """The old name of a member, which reads and sets the member of the new name.

    Every class that defines the new name has one of its own, so that ``super().old(...)`` calls the implementation of
    the base class.
    """

    def __init__(self, cls: type, old: str, new: str):
        self.cls, self.old, self.new = cls, old, new

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        _warn(f"{self.cls.__name__}.{self.old}", self.new)
        if self.new in getattr(instance, "__dict__", ()):
            return instance.__dict__[self.new]
        value = vars(self.cls)[self.new]
        return value.__get__(instance, owner) if hasattr(value, "__get__") else value

    def __set__(self, instance: Any, value: Any) -> None:
        _warn(f"{self.cls.__name__}.{self.old}", self.new)
        setattr(instance, self.new, value)


def keep_former_members(cls: C) -> C:
    """Let the members that a class defines be used by their old names; a class decorator."""
    for old, new in MEMBERS.items():
        if new in vars(cls) and old not in vars(cls):
            setattr(cls, old, _FormerMember(cls, old, new))
    return cls


class RenamedMembers:
    """A base class whose subclasses may use the former names of ``MEMBERS``.

    Old names can be read, set and called. A subclass that defines one, in its body, in that of a mixin or in its table
    of flags, defines the member of the new name.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        found = [(old, new) for old, new in MEMBERS.items() if hasattr(cls, new) and _adopt(cls, old, new)]
        flags = vars(cls).get("flags", {})
        if isinstance(flags, Mapping) and not MEMBERS.keys().isdisjoint({*flags, *chain(*flags.values())}):
            cls.flags = {  # type: ignore[attr-defined]
                MEMBERS.get(flag, flag): tuple(MEMBERS.get(method, method) for method in methods)
                for flag, methods in flags.items()
            }
        if found:
            names = ", ".join(f"{cls.__name__}.{old} is now {new}" for old, new in found)
            text = f"{names}; the next version has only the new name{'s' if len(found) > 1 else ''}"
            warnings.warn(text, DeprecationWarning, stacklevel=_levels_of_class_body())
        super().__init_subclass__(**kwargs)
        keep_former_members(cls)


def _adopt(cls: type, old: str, new: str) -> bool:
    """Define a member by what is the nearest definition, if that has the old name; whether it has."""
    home = next(one for one in cls.__mro__ if new in vars(one) or _defines(one, old))
    if new in vars(home):
        return False
    setattr(cls, new, vars(home)[old])
    if home is cls:
        delattr(cls, old)
    return True


def _defines(cls: type, old: str) -> bool:
    return old in vars(cls) and not isinstance(vars(cls)[old], _FormerMember)


def _levels_of_class_body() -> int:
    """The ``stacklevel`` of the ``class`` statement, for an ``__init_subclass__`` that calls this."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_name == "__init_subclass__":
        frame, level = frame.f_back, level + 1
    return level


class _Renamed:
    """Finds and loads modules by their old names; each gives the contents of the new module."""

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
