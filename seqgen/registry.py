"""Registries: the components of each kind (models, tasks, criteria, search strategies, logits processors, ...) by name.

A component is registered in the file that defines it, with its configuration and its presets::

    @register_model("lstm", config=LSTMConfig, presets={"lstm_tiny": LSTMConfig(hidden_size=32)})
    class LSTMModel(EncoderDecoderModel): ...

A configuration class belongs to one component, so that its instances determine which component is built.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, make_dataclass
from types import ModuleType
from typing import Any, TypeVar

from seqgen.core.contract import defined_in
from seqgen.core.errors import ConfigError, nearest

C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Entry:
    """A registered component.

    Attributes:
        name: the name that selects it.
        component: its class.
        config: its configuration class.
        presets: configurations by further names.
    """

    name: str
    component: type
    config: type
    presets: Mapping[str, Any] = field(default_factory=dict)

    @property
    def defined_in(self) -> str:
        """Where it is defined, as ``FILE:LINE``."""
        return defined_in(self.component)

    @property
    def is_user_own(self) -> bool:
        """True if its class is defined outside seqgen."""
        return self.component.__module__.partition(".")[0] != "seqgen"

    @property
    def can_be_chosen(self) -> bool:
        """True if a user can choose it; the task of a converted checkpoint comes with its run only."""
        return getattr(self.component, "can_be_chosen", True)


class MissingAddonError(ConfigError):
    """Something belongs to an add-on that is not installed."""


def import_declared(module: str, what: str) -> ModuleType:
    """Import a module that a table names.

    Args:
        module: dotted name of the module.
        what: what it defines, for the message.

    Raises:
        MissingAddonError: the module belongs to an add-on that is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package, name = "seqgen.addons", module.removeprefix("seqgen.addons.").partition(".")[0]
        if error.name not in (package, f"{package}.{name}") or not module.startswith(f"{package}."):
            raise
        raise MissingAddonError(f"{what} belongs to the add-on {name}, which is not installed") from None


class Registry:
    """The components of one kind, by name.

    Args:
        kind: what the components are, in words, for messages ("model", "learning-rate schedule").
        group: the configuration group that selects one ("model", "lr_scheduler").
        module: the module that registers the names for which no other one is declared; empty for none.

    Attributes:
        recorded: the users' files that registered names when a run was made, for the message if a name is missing.
    """

    def __init__(self, kind: str, group: str, module: str = ""):
        self.kind, self.group = kind, group
        self._entries: dict[str, Entry] = {}
        self._modules = {"": module} if module else {}
        self.recorded: dict[str, str] = {}

    def declare(self, prefix: str, module: str) -> None:
        """Declare the module that registers the names with a prefix; it is imported when such a name is looked up.

        Args:
            prefix: beginning of the names, such as ``"fconv"``.
            module: dotted name of the module.
        """
        self._modules[prefix] = module

    def register(
        self, name: str, *, config: type | None = None, presets: Mapping[str, Any] | None = None
    ) -> Callable[[C], C]:
        """Register the decorated class.

        Args:
            name: the name that selects it.
            config: its configuration, a dataclass whose fields all have defaults; ``None`` if it has no options.
            presets: instances of ``config`` by further names.

        Returns:
            The decorator; it returns the class unchanged.

        Raises:
            ConfigError: a name is taken, or the configuration class belongs to another component.
        """

        def decorator(component: C) -> C:
            schema = make_dataclass(f"{component.__name__}Config", []) if config is None else config
            self._add(Entry(name, component, schema, presets or {}))
            return component

        return decorator

    def _add(self, entry: Entry) -> None:
        if not is_dataclass(entry.config):
            raise ConfigError(f"{self.kind} {entry.name!r} ({entry.defined_in}): config must be a dataclass")
        for name in (entry.name, *entry.presets):
            if (taken := self.find(name)) is not None:
                raise ConfigError(
                    f"{self.kind} {name!r} is registered twice, in {taken.defined_in} and in {entry.defined_in}; "
                    "rename one"
                )
        for other in self._entries.values():
            if other.config is entry.config:
                raise ConfigError(
                    f"{self.kind}s {other.name!r} ({other.defined_in}) and {entry.name!r} ({entry.defined_in}) share "
                    f"the configuration {entry.config.__name__}; subclass it for one of them"
                )
        self._entries |= dict.fromkeys((entry.name, *entry.presets), entry)

    def find(self, name: str) -> Entry | None:
        """The entry of a name or preset, without importing any module; ``None`` if it is not registered."""
        return self._entries.get(name)

    def entry(self, name: str) -> Entry:
        """Look up a name or preset, and import the module that is declared for it.

        Args:
            name: a registered name or a preset.

        Returns:
            The component's entry.

        Raises:
            ConfigError: the name does not exist; the message lists the existing names and suggests a similar one.
        """
        if name not in self._entries:
            prefixes = [prefix for prefix in self._modules if name.startswith(prefix)]
            if prefixes:
                import_declared(self._modules[max(prefixes, key=len)], f"{self.kind} {name!r}")
        if name not in self._entries and name not in (known := self.names()):  # which imports all modules
            raise ConfigError(self._missing(name, known))
        return self._entries[name]

    def _missing(self, name: str, known: list[str]) -> str:
        """The error message for a name that is not registered."""
        if file := self.recorded.get(name):
            return (
                f"there is no {self.kind} {name!r}; it was registered in {file} when the run was made; to run that "
                f"file's code, if you trust it, set common.user_dir={file}, or import it in Python"
            )
        hint = nearest(name, known, count=3)
        if not known:
            names = "none is registered"
        elif len(known) <= 12:  # few enough for a message
            names = f"choose one of: {', '.join(known)}"
        else:
            choice = "" if hint else f"choose one of: {', '.join(entry.name for entry in self.entries())}; "
            names = f"{choice}--help {self.group} lists all {len(known)}"
        return f"there is no {self.kind} {name!r}{hint}; {names}; your own are imported with common.user_dir=FILE"

    def names(self) -> list[str]:
        """All names and presets, sorted; imports every declared module, except those of missing add-ons."""
        for prefix, module in self._modules.items():
            with contextlib.suppress(MissingAddonError):
                import_declared(module, prefix)
        return sorted(self._entries)

    def entries(self) -> list[Entry]:
        """All components, sorted by name; imports every declared module."""
        self.names()
        return [entry for name, entry in sorted(self._entries.items()) if name == entry.name]

    def config(self, name: str) -> Any:
        """Make the configuration of a name or preset.

        Args:
            name: a registered name, for the default values, or a preset.

        Returns:
            A new instance of the configuration class.

        Raises:
            ConfigError: the name does not exist.
        """
        entry = self.entry(name)
        return copy.deepcopy(entry.presets[name]) if name in entry.presets else entry.config()

    def of(self, config: Any) -> Entry:
        """Find the component of a configuration.

        Args:
            config: an instance of a registered configuration class.

        Returns:
            The component's entry.

        Raises:
            ConfigError: no component of this kind has this configuration class.
        """
        for entry in self._entries.values():
            if entry.config is type(config):
                return entry
        raise ConfigError(f"{type(config).__name__} is not the configuration of a registered {self.kind}")


MODELS = Registry("model", "model")
"""The models that are registered, by name."""
TASKS = Registry("task", "task")
CRITERIA = Registry("criterion", "criterion", "seqgen.training.criteria")
OPTIMIZERS = Registry("optimizer", "optimizer", "seqgen.training.optimizers")
LR_SCHEDULERS = Registry("learning-rate schedule", "lr_scheduler", "seqgen.training.lr_schedulers")
SEARCHES = Registry("search strategy", "search", "seqgen.decoding.search.diverse")
LOGITS_PROCESSORS = Registry("logits processor", "processor")
COMBINATIONS = Registry("combination", "combination", "seqgen.decoding.combinations")
STOPPING_RULES = Registry("stopping rule", "stopping")
OBSERVERS = Registry("observer", "observer")
UTILITIES = Registry("utility", "utility", "seqgen.text.reranking")
RERANKERS = Registry("reranker", "reranker")
REWRITERS = Registry("rewriter", "rewriter")
MEMBER_SOURCES = Registry("member source", "source")
FEATURES = Registry("feature", "feature", "seqgen.addons.confidence.features")
TRAINING_OBSERVERS = Registry("training observer", "training_observer")

GROUPS: dict[str, Registry] = {
    registry.group: registry for registry in (TASKS, MODELS, CRITERIA, OPTIMIZERS, LR_SCHEDULERS)
}
"""The registries whose components are configuration groups: ``model=NAME``, ``model.KEY``."""
DECODING_COMPONENTS: dict[str, tuple[Registry, str]] = {
    "search": (SEARCHES, "search"),
    "combination": (COMBINATIONS, "combination"),
    "utility": (UTILITIES, "mbr"),
    "reranker": (RERANKERS, "rerank"),
    "rewriter": (REWRITERS, "rewriters"),
    "processor": (LOGITS_PROCESSORS, "processors"),
    "stopping": (STOPPING_RULES, "stopping_rules"),
    "observer": (OBSERVERS, "observers"),
    "source": (MEMBER_SOURCES, "member_sources"),
    "feature": (FEATURES, "quality_features"),
}
"""By the prefix of the components' keys: the registry, and the key of ``generation`` that selects components."""
TRAINING_COMPONENTS: dict[str, tuple[Registry, str]] = {"training_observer": (TRAINING_OBSERVERS, "observers")}
"""The same for keys of ``training``."""


def add_format(name: str, value: Any, table: dict[str, Any], names: list[str]) -> None:
    """Add a value of a command's key ``format``.

    Args:
        name: its name.
        value: what writes it.
        table: what writes each format, by name.
        names: the values of the key.

    Raises:
        ConfigError: the name is taken.
    """
    if name in names:
        raise ConfigError(f"format={name} exists; rename yours")
    table[name] = value
    names.append(name)


register_model = MODELS.register
register_task = TASKS.register
register_criterion = CRITERIA.register
register_optimizer = OPTIMIZERS.register
register_lr_scheduler = LR_SCHEDULERS.register
register_search = SEARCHES.register
register_logits_processor = LOGITS_PROCESSORS.register
register_combination = COMBINATIONS.register
register_stopping_rule = STOPPING_RULES.register
register_observer = OBSERVERS.register
register_utility = UTILITIES.register
register_reranker = RERANKERS.register
register_rewriter = REWRITERS.register
register_member_source = MEMBER_SOURCES.register
register_feature = FEATURES.register
register_training_observer = TRAINING_OBSERVERS.register

# further strategies and combinations; models/ and tasks/ declare their components themselves
COMBINATIONS.declare("agreement", "seqgen.addons.cross_vocabulary.rule")
SEARCHES.declare("constrained", "seqgen.decoding.search.constrained")
SEARCHES.declare("sampling", "seqgen.decoding.search.sampling")
SEARCHES.declare("beam_sampling", "seqgen.decoding.search.sampling")
SEARCHES.declare("contrastive", "seqgen.addons.contrastive.search")
SEARCHES.declare("marian", "seqgen.addons.marian.search")
