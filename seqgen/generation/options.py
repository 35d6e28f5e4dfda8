"""Builds a ``DecodingSetup`` from a configuration, with its processors in the order in which they are applied."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seqgen.config import DebugConfig, GenerationConfig
from seqgen.config.compose import check_component_keys
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.data.vocabulary_map import VocabularyMap
from seqgen.errors import ConfigError
from seqgen.generation.compatibility import NEUTRAL, WARPERS, check_compatible, max_len_b
from seqgen.generation.component import Resources, build, naming
from seqgen.generation.ensemble.combinations import Combination, Guidance, Nested
from seqgen.generation.ensemble.ensemble import Ensemble
from seqgen.generation.ensemble.member import EMPTY, MemberSpec, field_of, input_of
from seqgen.generation.finished import Ranking
from seqgen.generation.observers import Observer
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.rules import Rules, draws, rules_named
from seqgen.generation.search.base import Search
from seqgen.generation.setup import DecodingSetup, Limits, longest_output
from seqgen.generation.shortlist import Shortlist
from seqgen.generation.speculative.drafters import ModelDrafter, PromptLookup
from seqgen.generation.speculative.verification import SpeculativeSearch
from seqgen.generation.stopping import StoppingRule, stopping_from_config
from seqgen.model import EncoderDecoderModel
from seqgen.registry import COMBINATIONS, LOGITS_PROCESSORS, OBSERVERS, SEARCHES

FLAT_KEYS = {
    "unkpen": "unknown_penalty.penalty",
    "sequence_bias": "sequence_bias.biases",
    "encoder_repetition_penalty": "encoder_repetition_penalty.penalty",
    "repetition_penalty": "repetition_penalty.penalty",
    "no_repeat_ngram_size": "no_repeat_ngram.size",
    "encoder_no_repeat_ngram_size": "encoder_no_repeat_ngram.size",
    "bad_words": "bad_words.texts",
    "min_len": "minimum_length.min_len",
    "min_total_len": "minimum_length.min_len",
    "match_source_len": "minimum_length",
    "prefix_trie": "prefix_trie.file",
    "forced_first": "force_first.token",
    "forced_last": "force_last.token",
    "remove_invalid": "remove_invalid",
    "exponential_decay_factor": "exponential_decay.factor",
    "suppress": "forbid.tokens",
    "suppress_at_begin": "forbid_first.tokens",
    "temperature": "temperature.temperature",
    "sampling_topk": "top_k.k",
    "sampling_topp": "top_p.p",
    "min_p": "min_p.p",
    "typical_p": "typical.mass",
    "epsilon_cutoff": "epsilon.epsilon",
    "eta_cutoff": "eta.epsilon",
    "renormalize": "renormalize",
}
"""Keys of the ``generation`` group that select a processor: its name, and the field of its configuration."""

FLAT_SEARCH_KEYS: dict[str, dict[str, str]] = {
    "diverse_beam": {"groups": "diverse_beam_groups", "strength": "diverse_beam_strength"},
    "diverse_siblings": {"rate": "diversity_rate"},
    "sampling": {"seed": "seed"},
    "beam_sampling": {"seed": "seed"},
    "stochastic_beam": {"seed": "seed"},
    "contrastive": {"penalty_alpha": "penalty_alpha", "contrastive_topk": "contrastive_topk"},
}
"""For each strategy, the fields of its configuration that flat keys of the ``generation`` group set."""

SEARCH_KEYS = frozenset({key for fields in FLAT_SEARCH_KEYS.values() for key in fields.values()} | {"constraints"})
"""Keys of the ``generation`` group that choose or configure a strategy."""


def setup_from_config(
    models: Sequence[EncoderDecoderModel | MemberSpec],
    tgt_dict: Dictionary,
    cfg: GenerationConfig,
    tokenizer: Tokenizer | None = None,
    draft: EncoderDecoderModel | None = None,
    *,
    shortlist: VocabularyMap | None = None,
    search_strategy: Search | None = None,
    combination: Combination | None = None,
    processors: Sequence[LogitsProcessor] = (),
    stopping: Sequence[StoppingRule] = (),
    observers: Sequence[Observer] = (),
    need_attention: bool = False,
    debug: DebugConfig | None = None,
) -> DecodingSetup:
    """Make the setup that a configuration asks for; see ``SequenceGenerator.from_config``.

    Raises:
        ConfigError: the configuration contradicts itself, or names a component that does not exist.
    """
    rules = rules_named(cfg.semantics)
    check_compatible(cfg)
    cfg = replace(cfg, search=search_name(cfg, rules))
    objects = {"search": search_strategy, "combination": combination}
    check_component_keys(cfg, [group for group, given in objects.items() if given is not None])
    if search_strategy is not None:
        _check_search_keys(cfg, search_strategy)
    ends = end_tokens_from_config(cfg, tgt_dict)
    encode, decode = (None, None) if tokenizer is None else (tokenizer.encode, tokenizer.decode)
    resources = Resources(tgt_dict, encode, decode, ends[1:])
    search = rules.search(search_strategy or search_from_config(cfg, resources))
    search = _with_drafts(search, cfg, draft)
    beam = search.rows(cfg.beam)
    if cfg.nbest > beam:
        raise ConfigError(
            f"generation.nbest={cfg.nbest}: the search strategy {cfg.search} returns at most {beam} per sentence; "
            "lower generation.nbest, or choose another strategy"
        )
    members = members_from_config(models, cfg)
    ensemble = with_guidance(members, combination_from_config(cfg, resources, combination), cfg.guidance_scale)
    of_config = processors_from_config(cfg, rules, resources)
    named = [build(OBSERVERS, name, Observer, cfg, resources) for name in cfg.observers]
    return DecodingSetup(
        ensemble=ensemble,
        rules=rules,
        search=search,
        processors=[*of_config, *processors],
        stopping=[*stopping_from_config(cfg, tgt_dict, tokenizer, cfg.stopping_rules), *stopping],
        observers=[*named, *observers],
        ranking=Ranking(not cfg.unnormalized, cfg.lenpen, cfg.length_penalty, cfg.coverage_penalty),
        limits=Limits(cfg.max_len_a, max_len_b(cfg), longest_output(ensemble, cfg.max_len), cfg.match_source_len),
        beam_size=beam,
        temperature=cfg.temperature if rules.divides_by_temperature_first else 1.0,
        early_stopping=cfg.early_stopping,
        eos=tgt_dict.eos(),
        pad=tgt_dict.pad(),
        end_tokens=ends,
        vocab_size=len(tgt_dict),
        need_attention=need_attention,
        debug=debug or DebugConfig(),
        shortlist=_shortlist(cfg, search, shortlist, resources),
        bit_exact=cfg.bit_exact,
    )


def _shortlist(
    cfg: GenerationConfig, search: Search, candidates: VocabularyMap | None, resources: Resources
) -> Shortlist | None:
    """The shortlist, which contains the tokens that the configuration forces.

    Raises:
        ConfigError: the configuration names a shortlist, but ``candidates`` is ``None``; or the strategy has its own
            decoding loop.
    """
    if candidates is None:
        if cfg.shortlist:
            raise ConfigError(
                f"generation.shortlist={cfg.shortlist} names a file that has not been read; give its VocabularyMap as "
                "shortlist=MAP where the generator is built"
            )
        return None
    if search.session_class is not None:
        raise ConfigError(
            f"generation.shortlist={cfg.shortlist} is not supported by {type(search).__name__}, which has its own "
            "decoding loop; leave it out, or use beam search, greedy search or sampling"
        )
    forced = [resources.token(token) for token in (cfg.forced_first, cfg.forced_last) if token]
    return Shortlist(candidates, resources.dictionary, forced)


def processors_from_config(cfg: GenerationConfig, rules: Rules, resources: Resources) -> list[LogitsProcessor]:
    """Build all processors of a configuration, in the order of the rules; warpers come last.

    Args:
        cfg: the configuration.
        rules: fairseq's or Hugging Face's.
        resources: the target vocabulary and its tokenizer.

    Returns:
        The processors of ``FLAT_KEYS``, and those that ``generation.processors`` names.

    Raises:
        ConfigError: a token or text is not in the vocabulary, a bias is not a number, or a name is not registered.
        DataError: the file of allowed outputs cannot be used.
    """
    defaults = _defaults(cfg, rules, resources)
    without_keys, neutral = replace(cfg, components={}), {**NEUTRAL, "min_len": 0}

    def make(keys: Sequence[str]) -> list[LogitsProcessor]:
        found = []
        for key in keys:
            if (value := getattr(cfg, key)) != neutral[key]:
                name, _, field = FLAT_KEYS[key].partition(".")
                flat = {**defaults.get(name, {}), **({field: value} if field else {}), **_further(cfg, key)}
                with naming(f"generation.{key}"):
                    found.append(build(LOGITS_PROCESSORS, name, LogitsProcessor, without_keys, resources, **flat))
        return found

    registered = []
    for name in cfg.processors:
        entry = LOGITS_PROCESSORS.entry(name)
        with naming(f"processor.{name}"):
            flat = defaults.get(entry.name, {})
            registered.append(build(LOGITS_PROCESSORS, name, LogitsProcessor, cfg, resources, **flat))
    words = resources.dictionary
    processors = rules.order(make, cfg, registered, None if words.pad() == words.eos() else words.pad())
    if not draws(cfg):
        return [*processors, *make(("renormalize",))]
    temperature = () if rules.divides_by_temperature_first else ("temperature",)
    return [*processors, *make((*temperature, *WARPERS, "renormalize"))]


def _further(cfg: GenerationConfig, key: str) -> dict[str, Any]:
    """Values of a processor that follow from the key that selects it, or from other keys."""
    if key == "min_total_len":
        return {"counts_prompt": True}
    if key == "match_source_len":
        return {"min_len": sys.maxsize, "yields": True}
    if key == "exponential_decay_factor":
        return {"start": cfg.exponential_decay_start}
    return {"step": 1 if cfg.forced_first else 0} if key == "suppress_at_begin" else {}


def _defaults(cfg: GenerationConfig, rules: Rules, resources: Resources) -> dict[str, dict[str, Any]]:
    """Configuration values whose defaults depend on the rules or on the strategy, by name of the processor."""
    # if the beams of a sentence compete, a warper must keep one token besides all end tokens
    competing = cfg.beam > 1 and cfg.search not in ("", "sampling")
    keep = {"keep": 2 + len(resources.extra_end_tokens) if competing else 1}
    return {
        "minimum_length": {"yields": rules.minimum_yields},
        "force_first": {"keep_score": rules.keeps_forced_score},
        **{FLAT_KEYS[key].partition(".")[0]: keep for key in WARPERS},
    }


def end_tokens_from_config(cfg: GenerationConfig, dictionary: Dictionary) -> list[int]:
    """The ids of the tokens that end an output, without repetitions, end-of-sentence first.

    Args:
        cfg: the configuration.
        dictionary: the target vocabulary.

    Raises:
        ConfigError: a token is not in the vocabulary.
    """
    with naming("generation.end_symbols"):
        further = map(Resources(dictionary).token, cfg.end_symbols)
        return list(dict.fromkeys([dictionary.eos(), *further]))


def search_name(cfg: GenerationConfig, rules: Rules) -> str:
    """The name of the strategy that a configuration asks for.

    Raises:
        ConfigError: it asks for two different strategies.
    """
    wanted = {
        "search": cfg.search,
        "diverse_beam_groups": "diverse_beam" if cfg.diverse_beam_groups > 0 else "",
        "diversity_rate": "diverse_siblings" if cfg.diversity_rate > 0 else "",
        "constraints": "constrained" if cfg.constraints else "",
    }
    names = {key: name for key, name in wanted.items() if name}
    if len(set(names.values())) > 1:
        first, second, *_ = names
        raise ConfigError(f"generation.{first} and generation.{second} are two search strategies; choose one")
    return next(iter(names.values())) if names else rules.default_search(cfg)


def _check_search_keys(cfg: GenerationConfig, search: Search) -> None:
    """Refuse keys of the ``generation`` group that configure a strategy if the strategy is given as an object.

    ``constraints`` is allowed for a strategy that takes constraints, because it also determines how lines are read.

    Raises:
        ConfigError: the first such key.
    """
    ordered = getattr(search, "ordered", None)
    agrees = search.takes_constraints and ordered in (None, cfg.constraints == "ordered")
    for key in sorted(SEARCH_KEYS - ({"constraints"} if agrees else set())):
        if (value := getattr(cfg, key)) != NEUTRAL[key]:
            raise ConfigError(
                f"generation.{key}={value} does not apply to the search object {type(search).__name__}; set the value "
                "in the object, or give the strategy's name instead"
            )


def search_from_config(cfg: GenerationConfig, resources: Resources) -> Search:
    """Make the strategy that ``cfg.search`` names.

    A flat key sets a field if its value is not the default. ``search.KEY`` sets the same field directly.

    Raises:
        ConfigError: it is not registered.
    """
    fields = FLAT_SEARCH_KEYS.get(cfg.search, {})
    flat = {field: getattr(cfg, key) for field, key in fields.items() if getattr(cfg, key) != NEUTRAL[key]}
    if cfg.search == "constrained" and cfg.constraints:
        flat["ordered"] = cfg.constraints == "ordered"
    return build(SEARCHES, cfg.search, Search, cfg, resources, **flat)


def combination_from_config(
    cfg: GenerationConfig, resources: Resources, given: Combination | None = None
) -> Combination:
    """Make the combination that a configuration names, around the inner one if it names one.

    Args:
        cfg: the configuration.
        resources: what the combinations may use.
        given: the combination as an object, in place of the name.

    Raises:
        ConfigError: it is not registered, or an inner combination is named and the outer one does nothing.
    """
    name = cfg.combination or cfg.ensemble_average
    flat: dict[str, Any] = {"weights": cfg.ensemble_weights} if cfg.ensemble_weights else {}
    outer = given or build(COMBINATIONS, name, Combination, cfg, resources, **flat)
    if not cfg.inner_combination:
        return outer
    inner = build(COMBINATIONS, cfg.inner_combination, Combination, cfg, resources, "inner_combination")
    return Nested(outer, inner)


def members_from_config(
    models: Sequence[EncoderDecoderModel | MemberSpec], cfg: GenerationConfig
) -> list[EncoderDecoderModel | MemberSpec]:
    """The models, each with the source that ``generation.members`` gives it.

    Args:
        models: the models; a ``MemberSpec`` is returned as it is.
        cfg: its ``members`` has one source for each model; if it is empty, all models read the input line.

    Raises:
        ConfigError: the number of entries is not the number of models, an entry is not a source, or a ``MemberSpec``
            has a different source.
    """
    if not cfg.members:
        return list(models)
    if len(cfg.members) != len(models):
        raise ConfigError(
            f"generation.members has {len(cfg.members)} entries for {len(models)} models; give one for each of them"
        )
    for model, source in zip(models, cfg.members, strict=True):
        field_of(source)  # raises ``ConfigError`` if this is not a source
        if isinstance(model, MemberSpec) and input_of(model) != source:
            raise ConfigError(
                f"generation.members gives the source {source} to a MemberSpec whose source is {model.source}; give "
                "the source in one place only"
            )
    return [
        model if isinstance(model, MemberSpec) else MemberSpec(model, source)
        for model, source in zip(models, cfg.members, strict=True)
    ]


def with_guidance(
    models: Sequence[EncoderDecoderModel | MemberSpec], combination: Combination, guidance_scale: float
) -> Ensemble:
    """The ensemble; for classifier-free guidance, each model is also a member that reads an empty source.

    Args:
        models: the models or members.
        combination: combines their scores.
        guidance_scale: 1 for no guidance.
    """
    if guidance_scale == 1:
        return Ensemble(models, combination)
    plain = Ensemble(models, combination)
    unconditional = [MemberSpec(model, EMPTY, companion=True) for model in plain.models]
    return Ensemble([*plain.members, *unconditional], Guidance(combination, guidance_scale))


def _with_drafts(search: Search, cfg: GenerationConfig, draft: EncoderDecoderModel | None) -> Search:
    """The strategy, wrapped in speculative search if the configuration asks for drafts.

    Raises:
        ConfigError: the configuration names a draft model, but ``draft`` is ``None``.
    """
    if draft is not None:
        return SpeculativeSearch(ModelDrafter(draft), cfg.draft_tokens, search)
    if cfg.draft:
        raise ConfigError(
            f"generation.draft={cfg.draft} names a model that has not been loaded; give it as draft=MODEL where the "
            "generator is built"
        )
    if cfg.prompt_lookup:
        return SpeculativeSearch(PromptLookup(cfg.prompt_lookup), cfg.draft_tokens, search)
    return search
