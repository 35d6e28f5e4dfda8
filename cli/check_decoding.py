"""``seqgen-check search=NAME`` and the like: check the invariants of a decoding component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any, NamedTuple, NoReturn

import torch

from seqgen.checkpoints.loading import load_models
from seqgen.cli.check_report import report
from seqgen.cli.check_subjects import new_model, refuse_device, small_transformer
from seqgen.cli.command import log, run, set_up_device
from seqgen.config import SINGLE_COMPONENTS, CommonConfig, GenerationConfig, ReadingConfig, option
from seqgen.config.arguments import split_argument, text_values
from seqgen.config.values import text_list
from seqgen.data.dictionary import Dictionary
from seqgen.errors import ConfigError
from seqgen.generation.component import Component
from seqgen.generation.ensemble.combinations import Combination
from seqgen.generation.search.base import Search
from seqgen.lab.checks.advice import COMPONENT_ADVICE
from seqgen.lab.checks.checking import Invariants, check_all
from seqgen.lab.checks.components import COMBINATION, OBSERVER, STOPPING, changes_nothing
from seqgen.lab.checks.decoding import Decoding
from seqgen.lab.checks.processors import PROCESSOR
from seqgen.lab.checks.strategies import STRATEGY
from seqgen.lab.checks.subject import randomize_, tiny_dictionary
from seqgen.model import EncoderDecoderModel
from seqgen.registry import DECODING_COMPONENTS

WORDS = 9
"""Words of the vocabulary, besides its four special tokens: an odd number of tokens, and few, so that ties occur."""

OWN = ("beam", "semantics", "nbest", "min_len", "max_len", "end_symbols")
"""Keys of ``generation`` that the checks set themselves."""


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
    path: list[str] = option([], "run or checkpoint that decodes, in place of a random model; of a combination two")
    beam: int = option(4, "beam size of the decodes; a strategy that refuses it is checked with 1", minimum=1)
    semantics: str = option(
        "both", "rules of which toolkit the component is checked under", choices=("both", "fairseq", "huggingface")
    )
    tolerance: float = option(
        1e-9, "largest difference of scores that counts as equal, relative if they are above 1", minimum=0
    )
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def description(group: str) -> str:
    """What the check of a kind of component does, for ``--help``."""
    return (
        f"checks the invariants of {KINDS[group].what}, with a random model for a vocabulary of {WORDS + 4} tokens or "
        "with path=RUN, and with the other components that generation.KEY names, in float64 on the CPU. Prints a line "
        "for each invariant; if one fails, the first step, sentence and beam that differ, and the probable cause. Exit "
        "code: 0 if all invariants hold, 1 if one fails."
    )


def main(group: str, argv: Sequence[str]) -> NoReturn:
    """Entry point of the check of a decoding component.

    Args:
        group: its kind, one of ``KINDS``.
        argv: the arguments of the command.
    """
    name = option("", f"{KINDS[group].what}, by name")
    schema = make_dataclass(f"{group.title()}CheckConfig", [(group, str, name)], bases=(DecodingCheckConfig,))
    run(
        schema,
        lambda cfg: check_component(group, cfg),
        description(group),
        argv,
        complete=lambda overrides: with_chooser(group, overrides),
    )


def with_chooser(group: str, overrides: list[str]) -> list[str]:
    """Add the key of ``generation`` that selects the component, after the others of its kind.

    Args:
        group: the kind of component.
        overrides: the ``key=value`` arguments, with ``KIND=NAME``.

    Raises:
        ConfigError: the component is not registered, or a key is given that the check sets itself.
    """
    registry, chooser = DECODING_COMPONENTS[group]
    key = f"generation.{chooser}"
    name = dict(split_argument(override) for override in overrides)[group]
    registry.entry(name)  # the error message for a name that does not exist
    fixed = [f"generation.{own}" for own in OWN] + ([key] if group in SINGLE_COMPONENTS else [])
    for override in overrides:
        if (given := override.partition("=")[0]) in fixed:
            raise ConfigError(f"{given}: the check sets this key itself; leave it out")
    names = name if group in SINGLE_COMPONENTS else text_list([*text_values(overrides, key), name])
    return [*(override for override in overrides if not override.startswith(f"{key}=")), f"{key}={names}"]


def check_component(group: str, cfg: Any) -> int:
    """Check the invariants of a component, and print a line for each.

    Args:
        group: its kind.
        cfg: the configuration; ``generation`` names the component.

    Returns:
        The exit code: 0 if all invariants hold, 1 if one fails.

    Raises:
        UserError: the component or the model cannot be built.
    """
    refuse_device(cfg.common)
    set_up_device(cfg.common)
    subject = subject_of(group, cfg)
    code = report(check_all(KINDS[group].invariants, subject), COMPONENT_ADVICE, subject)
    if code == 0 and changes_nothing(subject):
        print(f"the {DECODING_COMPONENTS[group][0].kind} changes nothing: all decodes are those without it")
    return code


def subject_of(group: str, cfg: DecodingCheckConfig) -> Decoding:
    """What is checked: the component, and small random models or trained ones.

    Args:
        group: the kind of component.
        cfg: the configuration; ``generation`` names the component.

    Raises:
        UserError: the component or the models cannot be built, or do not fit.
    """
    registry, chooser = DECODING_COMPONENTS[group]
    chosen = getattr(cfg.generation, chooser)
    component = registry.entry(chosen if isinstance(chosen, str) else chosen[-1]).component
    generation, kind = replace(cfg.generation, beam=cfg.beam), KINDS[group].base or component
    if cfg.path:
        subject = _trained(group, cfg, generation, kind)
    else:
        model, words = cfg.model or small_transformer(), tiny_dictionary(WORDS)

        def build(words: Dictionary, seed: int) -> EncoderDecoderModel:
            return randomize_(new_model(model, words, seed), seed, factor=1.6)

        subject = Decoding(generation, group, build, words, words, kind, tolerance=cfg.tolerance)
        if group == "combination":
            subject.models.append(build(words, 1))
    subject.all_rules = ["fairseq", "huggingface"] if cfg.semantics == "both" else [cfg.semantics]
    return _accepted(subject)


def _trained(group: str, cfg: DecodingCheckConfig, generation: GenerationConfig, kind: type[Component]) -> Decoding:
    """The component with trained models.

    Raises:
        UserError: a model cannot be loaded, ``model`` is given as well, or the number or vocabularies do not fit.
    """
    if cfg.model is not None:
        raise ConfigError("give either model=NAME for a random model or path=RUN for a trained one")
    loaded = load_models(cfg.path, "cpu", cfg.reading, torch.float64)
    wanted = 2 if group == "combination" else 1
    if len(loaded) != wanted:
        raise ConfigError(f"path names {len(loaded)} models; a {group} is checked with {wanted}")
    for note in (note for one in loaded for note in one.notes):
        log(note)
    task, other = loaded[0].task, loaded[-1].task
    words, sources = task.target_dictionary, task.source_dictionary
    if words != other.target_dictionary or sources != other.source_dictionary:
        raise ConfigError("the models of path have different vocabularies; give two with the same")
    models = [one.model for one in loaded]
    return Decoding(
        generation,
        group,
        None,
        words,
        sources,
        kind,
        models=models,
        tokenizer=task.target_tokenizer,
        tolerance=cfg.tolerance,
    )


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
