"""Builds a ``DecodingSetup`` from a configuration, with its processors in the order in which they are applied."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

import torch

from seqgen.config import DEFAULT_COMBINATION, FastConfig, GenerationConfig
from seqgen.config.compose import check_component_keys
from seqgen.config.generation import keys_tagged
from seqgen.config.options import NEEDS_STEPS, STRATEGY, WARPER
from seqgen.config.values import DEFAULTS, check_compatible
from seqgen.core.combinations import Combination
from seqgen.core.component import with_fields
from seqgen.core.contract import check_returned
from seqgen.core.ensemble import Ensemble
from seqgen.core.errors import ConfigError
from seqgen.core.finished import Ranking
from seqgen.core.member import EMPTY, FastPaths, MemberSpec, ModelOrMember
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.observers import Observer
from seqgen.core.processors import LogitsProcessor
from seqgen.core.rules import StoppingRule
from seqgen.core.search import Search
from seqgen.core.session import Session, has_steps
from seqgen.core.setup import DecodingSetup, Limits
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.decoding.building import Resources, apply_keys, build_component, name_key_in_errors
from seqgen.decoding.combinations import Guidance
from seqgen.decoding.members import PlannedMember, field_of, input_of
from seqgen.decoding.observers import TopTokens
from seqgen.decoding.processors import length, tokens, warpers
from seqgen.decoding.rules import ToolkitRules, rules_named
from seqgen.decoding.search.constrained import ConstrainedSearch
from seqgen.decoding.search.sampling import RandomSearch
from seqgen.decoding.stopping import stopping_from_config
from seqgen.modules.kernel_choice import fastest_threads
from seqgen.registry import COMBINATIONS, LOGITS_PROCESSORS, OBSERVERS, SEARCHES, import_declared
from seqgen.system.switches import KERNEL_CHOICE, PREPACKED_WEIGHTS, apply_switches


def build_setup(
    models: Sequence[ModelOrMember],
    tgt_dict: Dictionary,
    cfg: GenerationConfig,
    tokenizer: Tokenizer | None = None,
    draft: EncoderDecoderModel | None = None,
    *,
    source_dictionary: Dictionary | None = None,
    resources: Mapping[str, Any] | None = None,
    search_strategy: Search | None = None,
    combination: Combination | None = None,
    processors: Sequence[LogitsProcessor] = (),
    stopping: Sequence[StoppingRule] = (),
    observers: Sequence[Observer] = (),
    need_attention: bool = False,
    fast: FastConfig | None = None,
) -> DecodingSetup:
    """Make the setup that the ``generation`` group of a configuration asks for.

    Args:
        models: one or more models that share the target vocabulary; ``MemberSpec`` gives a model a role.
        tgt_dict: the target vocabulary.
        cfg: the configuration.
        tokenizer: the target tokenizer, for keys whose values are texts.
        draft: the model that ``cfg.draft`` names; it has the same target vocabulary.
        source_dictionary: the source vocabulary, for keys that need it.
        resources: further attributes of the ``Resources`` of components, such as ``models``.
        search_strategy: used instead of the strategy of the configuration.
        combination: used instead of the combination of the configuration.
        processors: further logits processors, applied after those of the configuration.
        stopping: further stopping rules.
        observers: further observers.
        need_attention: whether hypotheses have attention weights and alignments.
        fast: switches of optimizations.

    Raises:
        ConfigError: two keys contradict each other, or a component is not registered.
    """
    rules = rules_named(cfg.semantics)
    check_compatible(cfg)
    name = search_name(cfg, rules) if search_strategy is None else type(search_strategy).__name__
    objects = {"search": search_strategy, "combination": combination}
    check_component_keys(cfg, [group for group, given in objects.items() if given is not None])
    if search_strategy is not None:
        _check_search_keys(cfg, search_strategy)
    device = next(Ensemble(models).models[0].parameters(), torch.empty(0)).device
    further = {"source_dictionary": source_dictionary, "device": device, **(resources or {})}
    known = Resources.of(cfg, tgt_dict, tokenizer, **further)
    search = search_strategy or search_from_config(cfg, name, known)
    if cfg.is_constrained and not search.enforces_constraints:
        search = ConstrainedSearch(cfg.constraints == "ordered", search)
    search = rules.search(search)
    if draft is not None or any(getattr(cfg, key, None) for key in ("draft", "prompt_lookup")):
        drafters = import_declared("seqgen.addons.speculative.drafters", "generation.draft")
        search = drafters.with_drafts(search, cfg, draft)
    beam = check_returned(search, "rows", search.rows(cfg.beam), int)
    if cfg.nbest > beam:
        raise ConfigError(
            f"generation.nbest={cfg.nbest}: the search strategy {name} returns at most {beam} per sentence; "
            "lower generation.nbest, or choose another strategy"
        )
    for key in keys_tagged(NEEDS_STEPS):
        if (value := getattr(cfg, key)) and search.session_class is not None:
            raise ConfigError(
                f"generation.{key}={value} is not supported by {type(search).__name__}, which has its own decoding "
                "loop; remove it, or use beam search, greedy search or sampling"
            )
    members = members_from_config(models, cfg)
    ensemble = with_guidance(members, combination_from_config(cfg, known, combination), cfg.guidance_scale)
    longest = min(cfg.max_len or sys.maxsize, *(model.max_positions()[1] for model in ensemble.models))
    of_config = processors_from_config(cfg, rules, known)
    fast = fast or FastConfig()
    named = [build_component(OBSERVERS, name, Observer, cfg, known) for name in cfg.observers]
    setup = DecodingSetup(
        ensemble=ensemble,
        rules=rules,
        search=search,
        processors=[*of_config, *processors],
        stopping=[*stopping_from_config(cfg, known, tokenizer), *stopping],
        observers=[*named, *observers, *([TopTokens(cfg.top_tokens)] if cfg.top_tokens else [])],
        ranking=Ranking(cfg.normalize_scores, cfg.length_penalty, cfg.length_penalty_form, cfg.coverage_penalty),
        limits=Limits(cfg.max_len_a, cfg.effective_max_len_b, longest, cfg.match_source_len),
        beam_size=beam,
        temperature=cfg.temperature if rules.divides_by_temperature_first else 1.0,
        early_stopping=cfg.early_stopping,
        eos=tgt_dict.eos(),
        pad=tgt_dict.pad(),
        end_tokens=[tgt_dict.eos(), *known.extra_end_tokens],
        vocab_size=len(tgt_dict),
        need_attention=need_attention,
        fast=fast_paths(fast),
        member=PlannedMember,
        around=[partial(_switches, fast)],
        around_step=[_threads],
    )
    setup = apply_keys("setup", apply_keys("setup", setup, fast, known), cfg, known)
    if not has_steps(search) and (owners := with_fields(setup.components)):
        names = [type(one).__name__ for one in (owners[0], search)]
        raise ConfigError(
            "{} records values at each step, but {} does not decode step by step; remove one of them".format(*names)
        )
    return setup


def fast_paths(fast: FastConfig) -> FastPaths:
    """The optimizations of sessions and members that a configuration switches on."""
    return FastPaths(**{path.name: getattr(fast, path.name) for path in fields(FastPaths)})


def _switches(fast: FastConfig, setup: DecodingSetup) -> AbstractContextManager[None]:
    """The switches of optimizations that modules read; see ``seqgen/system/switches.py``."""
    measured = fast.kernel_choice == "measured"
    return apply_switches({PREPACKED_WEIGHTS: fast.prepacked_weights, KERNEL_CHOICE: measured})


def _threads(session: Session, phase: str) -> AbstractContextManager[None]:
    """The number of threads that is the fastest for a step."""
    if phase != "step":
        return nullcontext()
    return fastest_threads(session.scores.numel(), session.scores.device)


def processors_from_config(cfg: GenerationConfig, rules: ToolkitRules, resources: Resources) -> list[LogitsProcessor]:
    """Build all processors of a configuration, in the order of the rules; warpers come last.

    Args:
        cfg: the configuration.
        rules: fairseq's or Hugging Face's.
        resources: the target vocabulary and its tokenizer.

    Returns:
        The processors of the keys of ``processor_makers``, and those that ``generation.processors`` names.

    Raises:
        ConfigError: a token or text is not in the vocabulary, a bias is not a number, or a name is not registered.
        DataError: the file of allowed outputs cannot be used.
    """
    makers, neutral = processor_makers(cfg, rules, resources), {**DEFAULTS, "min_len": 0}
    others = {"temperature", *keys_tagged(WARPER), "renormalize"}
    usual = [key for key in makers if key in neutral and key not in others]  # an add-on may be missing

    def make(*keys: str) -> dict[str, LogitsProcessor]:
        found = {}
        for key in keys:
            if (value := getattr(cfg, key)) != neutral[key]:
                with name_key_in_errors(f"generation.{key}"):
                    found[key] = makers[key](value)
        return found

    registered = []
    for name in cfg.processors:
        with name_key_in_errors(f"processor.{name}"):
            registered.append(build_component(LOGITS_PROCESSORS, name, LogitsProcessor, cfg, resources))
    words = resources.dictionary
    processors = rules.order(make(*usual), registered, None if words.pad() == words.eos() else words.pad())
    if not cfg.is_stochastic:
        return [*processors, *make("renormalize").values()]
    temperature = () if rules.divides_by_temperature_first else ("temperature",)
    return [*processors, *make(*temperature, *keys_tagged(WARPER), "renormalize").values()]


def processor_makers(
    cfg: GenerationConfig, rules: ToolkitRules, resources: Resources
) -> dict[str, Callable[[Any], LogitsProcessor]]:
    """For each key of the ``generation`` group that selects a processor, the function that makes the processor.

    The keys are in the order in which transformers' ``generate`` applies their processors.
    """
    ends, eos, unk = resources.extra_end_tokens, resources.dictionary.eos(), resources.dictionary.unk()
    yields = rules.max_len_overrides_min_len
    # if the beams of a sentence compete, a warper must keep one token besides all end tokens
    keep = 2 + len(ends) if cfg.beam > 1 and search_name(cfg, rules) != "sampling" else 1
    return {
        "unkpen": lambda penalty: tokens.UnknownPenalty(unk, penalty),
        "sequence_bias": lambda entries: tokens.SequenceBias(tokens.biases_of_texts(entries, resources)),
        "encoder_repetition_penalty": tokens.EncoderRepetitionPenalty,
        "repetition_penalty": tokens.RepetitionPenalty,
        "no_repeat_ngram_size": tokens.NoRepeatNgram,
        "encoder_no_repeat_ngram_size": tokens.EncoderNoRepeatNgram,
        "bad_words": lambda texts: tokens.BadWords(list(map(resources.sequence, texts)), [eos, *ends]),
        "min_len": lambda least: length.MinimumLength(least, ends, yields),
        "min_total_len": lambda least: length.MinimumLength(least, ends, yields, counts_prompt=True),
        "match_source_len": lambda _: length.MinimumLength(sys.maxsize, ends),
        "allowed_outputs": lambda file: import_declared(
            "seqgen.addons.catalogue.constraint", "generation.allowed_outputs"
        ).constraint_of_file(file, resources),
        "forced_first": lambda token: length.ForceFirst(resources.token(token), rules.keeps_forced_score),
        "forced_last": lambda token: length.ForceLast(resources.token(token)),
        "remove_invalid": lambda _: warpers.RemoveInvalid(),
        "exponential_decay_factor": lambda factor: length.ExponentialDecay(cfg.exponential_decay_start, factor, ends),
        "suppress": lambda names: tokens.Forbid(resources.tokens(names)),
        "suppress_at_begin": lambda names: tokens.ForbidFirst(resources.tokens(names), 1 if cfg.forced_first else 0),
        "temperature": warpers.Temperature,
        "top_k": lambda k: warpers.TopK(k, keep),
        "top_p": lambda p: warpers.TopP(p, keep),
        "min_p": lambda p: warpers.MinP(p, keep),
        "typical_p": lambda mass: warpers.Typical(mass, keep),
        "epsilon_cutoff": lambda epsilon: warpers.Epsilon(epsilon, keep),
        "eta_cutoff": lambda epsilon: warpers.Eta(epsilon, keep),
        "renormalize": lambda _: warpers.Renormalize(),
    }


def search_name(cfg: GenerationConfig, rules: ToolkitRules) -> str:
    """The name of the strategy that a configuration asks for."""
    return cfg.search or ("constrained" if cfg.is_constrained and not cfg.sampling else rules.default_search(cfg))


def _check_search_keys(cfg: GenerationConfig, search: Search) -> None:
    """Refuse keys of the ``generation`` group that configure a strategy if the strategy is given as an object.

    ``constraints`` is allowed, because it also determines how lines are read, unless the strategy has another order.

    Raises:
        ConfigError: the first such key.
    """
    ordered = getattr(search, "ordered", None)
    agrees = not search.enforces_constraints or ordered in (None, cfg.constraints == "ordered")
    for key in keys_tagged(STRATEGY):
        if (value := getattr(cfg, key)) != DEFAULTS[key] and not (key == "constraints" and agrees):
            raise ConfigError(
                f"generation.{key}={value} does not apply to the search object {type(search).__name__}; set the value "
                "in the object, or give the strategy's name instead"
            )


def search_from_config(cfg: GenerationConfig, name: str, resources: Resources) -> Search:
    """Make the strategy of a name, see ``search_name``.

    Built-in strategies have the seed and the order of constraints from the keys of the ``generation`` group.

    Raises:
        ConfigError: it is not registered.
    """
    search = build_component(SEARCHES, name, Search, cfg, resources)
    if cfg.uses_seed and isinstance(search, RandomSearch):
        search.seed = cfg.seed
    elif name == "constrained" and isinstance(search, ConstrainedSearch):
        search.ordered = cfg.constraints == "ordered"
    return search


def combination_from_config(
    cfg: GenerationConfig, resources: Resources, given: Combination | None = None
) -> Combination:
    """Make the combination that a configuration names.

    Args:
        cfg: the configuration.
        resources: what the combinations may use.
        given: the combination as an object, in place of the name.

    Raises:
        ConfigError: it is not registered.
    """
    return given or build_component(COMBINATIONS, cfg.combination or DEFAULT_COMBINATION, Combination, cfg, resources)


def members_from_config(models: Sequence[ModelOrMember], cfg: GenerationConfig) -> list[ModelOrMember]:
    """The models, each with the source that ``generation.member_sources`` gives it.

    Args:
        models: the models; a ``MemberSpec`` is returned as it is.
        cfg: its ``member_sources`` has one source for each model; if it is empty, all models read the input line.

    Raises:
        ConfigError: the number of entries is not the number of models, an entry is not a source, or a ``MemberSpec``
            has a different source.
    """
    if not cfg.member_sources:
        return list(models)
    if len(cfg.member_sources) != len(models):
        raise ConfigError(
            f"generation.member_sources has {len(cfg.member_sources)} entries for {len(models)} models; give one for "
            "each of them"
        )
    members: list[ModelOrMember] = []
    for model, source in zip(models, cfg.member_sources, strict=True):
        field_of(source)  # raises ``ConfigError`` if this is not a source
        member = model if isinstance(model, MemberSpec) else MemberSpec(model, source)
        if input_of(member) != source:
            raise ConfigError(
                f"generation.member_sources gives the source {source} to a MemberSpec whose source is {member.source}; "
                "give the source in one place only"
            )
        members.append(member)
    return members


def with_guidance(models: Sequence[ModelOrMember], combination: Combination, guidance_scale: float) -> Ensemble:
    """The ensemble; for classifier-free guidance, each model is also a member that reads an empty source.

    Args:
        models: the models or members.
        combination: combines their scores.
        guidance_scale: 1 for no guidance.
    """
    plain = Ensemble(models, combination)
    if guidance_scale == 1:
        return plain
    unconditional = [MemberSpec(model, EMPTY, companion=True) for model in plain.models]
    return Ensemble([*plain.members, *unconditional], Guidance(combination, guidance_scale))
