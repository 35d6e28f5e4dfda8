"""The ``generation`` and ``fast`` groups: how to decode."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from seqgen.config.options import CALL, CONSTRAINS, DEFAULT_COMBINATION, Tags, option
from seqgen.core.errors import ConfigError
from seqgen.registry import DECODING_COMPONENTS, SEARCHES, MissingAddonError, import_declared

OPTIONS = (
    ("seqgen.decoding.search.options", "BeamOptions"),
    ("seqgen.text.options", "LanguageOptions"),
    ("seqgen.addons.paragraphs.options", "ParagraphOptions"),
    ("seqgen.addons.prompts.options", "PromptOptions"),
    ("seqgen.addons.protect.options", "ProtectOptions"),
    ("seqgen.decoding.engine_options", "LengthOptions"),
    ("seqgen.decoding.engine_options", "RankingOptions"),
    ("seqgen.decoding.processors.options", "ProcessorOptions"),
    ("seqgen.decoding.search.options", "StrategyOptions"),
    ("seqgen.addons.glossary.options", "GlossaryOptions"),
    ("seqgen.decoding.search.options", "SamplingOptions"),
    ("seqgen.addons.speculative.options", "DraftOptions"),
    ("seqgen.text.options", "RerankingOptions"),
    ("seqgen.addons.catalogue.options", "CatalogueOptions"),
    ("seqgen.decoding.engine_options", "TopTokensOptions"),
    ("seqgen.addons.rewriting.options", "RewritingOptions"),
    ("seqgen.decoding.engine_options", "ObserverOptions"),
    ("seqgen.addons.confidence.options", "ConfidenceOptions"),
    ("seqgen.decoding.engine_options", "EnsembleOptions"),
    ("seqgen.decoding.engine_options", "SpeedOptions"),
    ("seqgen.addons.bit_exact.options", "BitExactOptions"),
    ("seqgen.decoding.engine_options", "ComponentOptions"),
)
"""The classes with the keys of the ``generation`` group, in the order of ``--help``: module and name of each.

The modules import ``seqgen.config.options`` only, or its names from ``seqgen.config``, so that a command reads its
keys without importing the features.
"""

SWITCHES = (("seqgen.addons.cuda_graphs.options", "CapturedOptions"),)
"""Likewise the classes with the keys that add-ons declare in the ``fast`` group."""

KEYS_OF_ADDONS = {
    "allowed_outputs": ("catalogue", ""),
    "bit_exact": ("bit_exact", False),
    "certificate": ("catalogue", False),
    "chat": ("prompts", False),
    "check_outputs": ("protect", False),
    "confidence": ("confidence", ""),
    "cuda_graphs": ("cuda_graphs", False),
    "draft": ("speculative", ""),
    "draft_tokens": ("speculative", 5),
    "examples": ("prompts", ""),
    "glossary": ("glossary", ""),
    "input_split": ("paragraphs", ""),
    "input_split_lang": ("paragraphs", ""),
    "prompt": ("prompts", ""),
    "prompt_lookup": ("speculative", 0),
    "protect": ("protect", []),
    "quality_features": ("confidence", []),
    "replace_unknown": ("rewriting", ""),
    "review_risk": ("confidence", 1.0),
    "review_share": ("confidence", 0.0),
    "rewriters": ("rewriting", []),
    "shortlist": ("catalogue", ""),
    "system_message": ("prompts", ""),
}
"""By key without its group, ``generation`` or ``fast``: the add-on that declares it, and its default."""


def _classes(table: Sequence[tuple[str, str]]) -> Iterator[type]:
    """The classes of a table, last first, without those of add-ons that are not installed."""
    for module, name in reversed(table):
        with suppress(MissingAddonError):
            yield getattr(import_declared(module, name), name)


if TYPE_CHECKING:
    from seqgen.addons.bit_exact.options import BitExactOptions
    from seqgen.addons.catalogue.options import CatalogueOptions
    from seqgen.addons.confidence.options import ConfidenceOptions
    from seqgen.addons.cuda_graphs.options import CapturedOptions
    from seqgen.addons.glossary.options import GlossaryOptions
    from seqgen.addons.paragraphs.options import ParagraphOptions
    from seqgen.addons.prompts.options import PromptOptions
    from seqgen.addons.protect.options import ProtectOptions
    from seqgen.addons.rewriting.options import RewritingOptions
    from seqgen.addons.speculative.options import DraftOptions
    from seqgen.decoding.engine_options import (
        ComponentOptions,
        EnsembleOptions,
        LengthOptions,
        ObserverOptions,
        RankingOptions,
        SpeedOptions,
        TopTokensOptions,
    )
    from seqgen.decoding.processors.options import ProcessorOptions
    from seqgen.decoding.search.options import BeamOptions, SamplingOptions, StrategyOptions
    from seqgen.text.options import LanguageOptions, RerankingOptions

    class Options(
        ComponentOptions,
        BitExactOptions,
        SpeedOptions,
        EnsembleOptions,
        ConfidenceOptions,
        ObserverOptions,
        RewritingOptions,
        TopTokensOptions,
        CatalogueOptions,
        RerankingOptions,
        DraftOptions,
        SamplingOptions,
        GlossaryOptions,
        StrategyOptions,
        ProcessorOptions,
        RankingOptions,
        LengthOptions,
        ProtectOptions,
        PromptOptions,
        ParagraphOptions,
        LanguageOptions,
        BeamOptions,
    ):
        """The keys of all features."""

else:  # fields of the last base come first
    Options = type("Options", tuple(_classes(OPTIONS)), {})


class ComponentKeys:
    """A group that chooses components, whose keys it holds in ``components``."""

    components: dict[str, Any]

    def component_values(self, group: str, name: str) -> dict[str, Any]:
        """The values that the user set for the keys of one component.

        Only one search, combination, utility and reranker is in use at a time, so their keys are ``search.FIELD``,
        ``combination.FIELD``, ``utility.FIELD`` and ``reranker.FIELD``. The keys of other components contain the
        component's name: ``processor.NAME.FIELD``, ``stopping.NAME.FIELD`` and the like.

        Args:
            group: the prefix of the keys, such as ``"processor"``.
            name: the component's name.

        Returns:
            Values by field of the component's configuration class.
        """
        prefix = f"{group}." if group in SINGLE_COMPONENTS else f"{group}.{name}."
        return {key.removeprefix(prefix): value for key, value in self.components.items() if key.startswith(prefix)}


@dataclass
class GenerationConfig(Options, ComponentKeys):
    """The settings of decoding. docs/decoding.md explains every key and gives its name in other toolkits."""

    @property
    def is_stochastic(self) -> bool:
        """True if the configuration asks for sampling."""
        return self.sampling or bool(self.declared("is_stochastic", None))

    @property
    def is_constrained(self) -> bool:
        """True if outputs must contain phrases."""
        return self.uses(CONSTRAINS)

    def uses(self, facts: Tags) -> bool:
        """True if a key that has one of the facts has not its default."""
        return any(getattr(self, key) != getattr(GenerationConfig, key, []) for key in keys_tagged(facts))

    @property
    def uses_seed(self) -> bool:
        """True if the search strategy uses ``generation.seed``; a user's strategy has a seed key among its keys."""
        return bool(self.declared("is_stochastic", self.sampling and not self.search))

    @property
    def effective_max_len_b(self) -> int:
        """``max_len_b``; its default is raised to ``max_len`` if that is larger and given alone."""
        given = (self.max_len_a, self.max_len_b) != (GenerationConfig.max_len_a, GenerationConfig.max_len_b)
        return self.max_len_b if given else max(self.max_len, self.max_len_b)

    def declared(self, name: str, unknown: bool | None) -> bool | None:
        """A property that the class of the search strategy declares.

        Args:
            name: a class variable of ``Search``.
            unknown: the value if ``search`` is empty or names no built-in strategy.
        """
        try:
            entry = SEARCHES.entry(self.search) if self.search else None
        except ConfigError:  # the message for a name that is not registered comes from where the strategy is built
            entry = None
        if entry is None or entry.is_user_own:
            return unknown
        declared: bool | None = getattr(entry.component, name)
        return declared


_keys = {field.name for field in fields(GenerationConfig)}
for _group in [group for group, (_, key) in DECODING_COMPONENTS.items() if key not in _keys]:
    del DECODING_COMPONENTS[_group]  # of an add-on that is not installed

SINGLE_COMPONENTS = tuple(
    group for group, (_, key) in DECODING_COMPONENTS.items() if isinstance(getattr(GenerationConfig, key, None), str)
)
"""Groups of decoding components of which one is in use: the key that selects it holds one name."""


def name_in_use(group: str, chosen: Any) -> Any:
    """The value of the key that chooses a decoding component: an empty one is the default, if the group has one."""
    return chosen or (DEFAULT_COMBINATION if group == "combination" else "")


def check_installed(key: str) -> None:
    """Refuse an unknown key that belongs to an add-on.

    Args:
        key: the key, with its group.

    Raises:
        MissingAddonError: it belongs to an add-on, which is not installed.
    """
    group, _, name = key.partition(".")
    if group in ("generation", "fast") and name in KEYS_OF_ADDONS:
        addon, _ = KEYS_OF_ADDONS[name]
        raise MissingAddonError(f"unknown key {key!r}; it belongs to the add-on {addon}, which is not installed")


@functools.cache
def keys_tagged(facts: Tags) -> tuple[str, ...]:
    """The keys of the ``generation`` group that have one of the facts, in the order of their declaration."""
    return tuple(field.name for field in fields(GenerationConfig) if field.metadata.get("facts", CALL) & facts)


@dataclass
class Switches:
    """The keys of the ``fast`` group that no add-on declares."""

    use_cache: bool = option(
        True,
        "keep keys and values of earlier positions (incremental state); if false, every step computes all positions",
    )
    beam_indirection: str = option(
        "auto",
        "cache indirection: keep keys and values in place and read them by an indirection table, or reorder them; auto "
        "chooses the faster one",
        choices=("auto", "on", "off"),
        other_names=("beam_table",),
    )
    share_encoder_output: bool = option(True, "store the encoder output once per sentence instead of once per beam")
    skip_log_softmax: bool = option(True, "search on logits if no component needs normalized log-probabilities")
    two_stage_candidates: bool = option(True, "find the top candidates via the maxima of vocabulary blocks")
    narrowed_scores: bool = option(
        True,
        "compute the scores of allowed tokens alone: those of a shortlist, or of a trie of allowed outputs",
        other_names=("shortlist_columns", "trie_edges"),
    )
    prepacked_weights: bool = option(True, "use weights arranged in the memory layout that is fastest on this CPU")
    kernel_choice: str = option(
        "measured",
        "choose the kernels of matrix products by timing them on this CPU at the first use, or use fixed ones",
        choices=("measured", "fixed"),
    )
    lazy_compaction: bool = option(
        True, "remove finished sentences from a batch when an eighth of it is finished, not immediately"
    )
    continuous_batching: bool = option(True, "add waiting sentences to a running batch as soon as others finish")


if TYPE_CHECKING:

    class AllSwitches(CapturedOptions, Switches):
        """The keys of the ``fast`` group."""

else:
    AllSwitches = type("AllSwitches", (*_classes(SWITCHES), Switches), {})


@dataclass
class FastConfig(AllSwitches):
    """Switches of the optimizations of decoding. Without them, decoding is slower; outputs differ only by rounding."""

    @classmethod
    def off(cls, *names: str) -> Self:
        """The switches with some optimizations turned off.

        Args:
            names: their fields; all if none is given.
        """
        switched = {each.name: each.metadata.get("choices") for each in fields(cls)}
        off: dict[str, Any] = {name: (switched[name] or [False])[-1] for name in names or switched}
        return cls(**off)
