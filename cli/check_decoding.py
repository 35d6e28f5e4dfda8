"""``seqgen-check search=NAME`` and the like: check the invariants of a decoding component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any, NamedTuple, NoReturn

from seqgen.cli.check_report import report
from seqgen.cli.check_subjects import new_model, refuse_device, small_transformer
from seqgen.cli.command import log, run, set_up_device
from seqgen.component_keys import parse_component_value
from seqgen.config import SINGLE_COMPONENTS, CommonConfig, GenerationConfig, option
from seqgen.errors import ConfigError
from seqgen.generation.component import Component
from seqgen.generation.ensemble.combinations import Combination
from seqgen.generation.search.base import Search
from seqgen.laws.checking import Invariants, check_all
from seqgen.laws.component_diagnosis import diagnose
from seqgen.laws.decoding import Decoding
from seqgen.laws.processors import PROCESSOR
from seqgen.laws.rules import COMBINATION, OBSERVER, STOPPING
from seqgen.laws.strategies import STRATEGY
from seqgen.laws.subject import randomize_, tiny_dictionary
from seqgen.registry import DECODING_COMPONENTS

WORDS = 9
"""Words of the vocabulary, besides its four special tokens: an odd number of tokens, and few, so that ties occur."""


class Kind(NamedTuple):
    """A kind of component.

    Attributes:
        what: what its check is about.
        invariants: its invariants.
        base: its base class, if the rules may replace a component by a variant of their own.
    """

    what: str
    invariants: Invariants[Decoding]
    base: type[Component] | None = None


KINDS = {
    "search": Kind("a search strategy", STRATEGY, Search),
    "processor": Kind("a logits processor", PROCESSOR),
    "combination": Kind("a combination of an ensemble's members, with two models", COMBINATION, Combination),
    "stopping": Kind("a stopping rule", STOPPING),
    "observer": Kind("an observer of the search", OBSERVER),
}
"""The kinds of decoding components that can be checked, by the prefix of their keys."""


@dataclass
class DecodingCheckConfig:
    """The configuration of the check of a decoding component."""

    model: Any = None
    beam: int = option(4, "beam size of the decodes; a strategy that refuses it is checked with 1", minimum=1)
    semantics: str = option(
        "both", "rules of which toolkit the component is checked under", choices=("both", "fairseq", "huggingface")
    )
    tolerance: float = option(
        1e-9, "largest difference of scores that counts as equal, relative if they are above 1", minimum=0
    )
    common: CommonConfig = field(default_factory=CommonConfig)


def description(group: str) -> str:
    """What the check of a kind of component does, for ``--help``."""
    return (
        f"checks the invariants of {KINDS[group].what}, with a random model for a vocabulary of {WORDS + 4} tokens, in "
        "float64 on the CPU. Prints a line for each invariant; if one fails, the first step, sentence and beam that "
        "differ, and the probable cause. Exit code: 0 if all invariants hold, 1 if one fails."
    )


def main(group: str, argv: Sequence[str]) -> NoReturn:
    """Entry point of the check of a decoding component.

    Args:
        group: its kind, one of ``KINDS``.
        argv: the arguments of the command.
    """
    keys: dict[str, str] = {}

    def without_keys(overrides: list[str]) -> list[str]:
        pairs = [override.partition("=") for override in overrides]
        keys.update({key: value for key, _, value in pairs if key.startswith(f"{group}.")})
        return [override for override in overrides if not override.startswith(f"{group}.")]

    name = option("", f"{KINDS[group].what}, by name")
    schema = make_dataclass(f"{group.title()}CheckConfig", [(group, str, name)], bases=(DecodingCheckConfig,))
    run(schema, lambda cfg: check_component(group, cfg, keys), description(group), argv, complete=without_keys)


def check_component(group: str, cfg: Any, keys: dict[str, str]) -> int:
    """Check the invariants of a component, and print a line for each.

    Args:
        group: its kind.
        cfg: the configuration.
        keys: values of the component's own keys, as the user typed them.

    Returns:
        The exit code: 0 if all invariants hold, 1 if one fails.

    Raises:
        UserError: the component or the model cannot be built.
    """
    refuse_device(cfg.common)
    set_up_device(cfg.common)
    subject = subject_of(group, cfg, select(group, getattr(cfg, group), keys))
    invariants = KINDS[group].invariants
    return report(check_all(invariants, subject), lambda outcomes: diagnose(subject, outcomes))


def select(group: str, name: str, keys: dict[str, str]) -> GenerationConfig:
    """The configuration of decoding that selects a component.

    Args:
        group: its kind.
        name: its name.
        keys: values of its own keys, as the user typed them.

    Raises:
        ConfigError: the component is not registered, or a key or value is wrong.
    """
    registry, chooser = DECODING_COMPONENTS[group]
    registry.entry(name)  # the error message for a name that does not exist
    single = group in SINGLE_COMPONENTS
    prefix = f"{group}." if single else f"{group}.{name}."
    for key in keys:
        if not key.startswith(prefix):
            raise ConfigError(f"{key!r} is not a key of {registry.kind} {name}; its keys begin with {prefix!r}")
    chosen: dict[str, Any] = {chooser: name if single else [name]}
    generation = GenerationConfig(**chosen)
    values = {key: parse_component_value(generation, key, value) for key, value in keys.items()}
    return replace(generation, components=values)


def subject_of(group: str, cfg: DecodingCheckConfig, generation: GenerationConfig) -> Decoding:
    """What is checked: the component, and small random models.

    Args:
        group: the kind of component.
        cfg: the configuration.
        generation: selects the component.

    Raises:
        UserError: the component or the model cannot be built.
    """
    registry, chooser = DECODING_COMPONENTS[group]
    chosen = getattr(generation, chooser)
    component = registry.entry(chosen if isinstance(chosen, str) else chosen[0]).component
    model = cfg.model or small_transformer()
    subject = Decoding(
        replace(generation, beam=cfg.beam),
        lambda words, seed: randomize_(new_model(model, words, seed), seed, factor=1.6),
        tiny_dictionary(WORDS),
        KINDS[group].base or component,
        tolerance=cfg.tolerance,
    )
    if group == "combination":
        subject.models.append(subject.build(subject.dictionary, 1))
    subject.all_rules = ["fairseq", "huggingface"] if cfg.semantics == "both" else [cfg.semantics]
    return _accepted(subject)


def _accepted(subject: Decoding) -> Decoding:
    """The subject under the rules that accept the component, with a beam of 1 if the strategy has no beams.

    Raises:
        ConfigError: no rules accept it.
    """
    beams = [subject.generation.beam] if subject.generation.beam == 1 else [subject.generation.beam, 1]
    refusals = []
    for beam in beams:
        subject.generation = replace(subject.generation, beam=beam)
        accepted = []
        for rules in subject.all_rules:
            subject.rules = rules
            try:
                subject.decode(subject.batch([1]))
            except ConfigError as error:
                refusals.append(error)
            except Exception:  # an error of the component, which the checks report
                accepted.append(rules)
            else:
                accepted.append(rules)
        if accepted:
            if beam != beams[0]:
                log(f"checked with beam=1: {refusals[0]}")
            subject.all_rules = accepted
            return subject
    raise refusals[len(subject.all_rules) - 1]  # with the beam of the user
