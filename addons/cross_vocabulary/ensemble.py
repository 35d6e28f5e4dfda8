"""An ensemble of models with different target vocabularies: its settings, and its search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from seqgen.addons.cross_vocabulary.rule import TextRule
from seqgen.addons.cross_vocabulary.vocabulary_trie import MemberTexts
from seqgen.config import GenerationConfig, ResolvedSettings, Settings
from seqgen.decoding.resolution import resolve
from seqgen.extend import DECODING_COMPONENTS, ConfigError, Resources, TextModel
from seqgen.text.members import note_if_language_unset

KEYS = (
    *("beam", "nbest", "min_len", "max_len", "max_len_a", "max_len_b", "temperature", "mbr", "rerank", "dtype"),
    *("normalize_scores", "length_penalty", "length_penalty_form", "member_sources"),
    *("max_tokens", "batch_size", "buffer_size"),
)
"""The keys of the ``generation`` group that can be used."""

FURTHER = ("combination", "constraints", "components", "max_time", "semantics")
"""Other keys that lines are read with, that notes name, or that are checked here."""

NOTE = "the members have different target vocabularies, so they are decoded as a cross-vocabulary ensemble: "

OBJECTS = ("mbr", "rerank", "member_sources", "combination")
"""The decoding components that can be given as objects with every rule."""


class CrossVocabulary:
    """Models with different target vocabularies, which are decoded together.

    Args:
        members: the models; two or more.
    """

    def __init__(self, members: Sequence[TextModel]):
        self.members = members

    @cached_property
    def texts(self) -> MemberTexts:
        """The texts of the tokens of all members."""
        ends = [_tokens_of(member, "end_symbols") for member in self.members]
        return MemberTexts([member.task.target_tokenizer for member in self.members], ends)

    @cached_property
    def first_tokens(self) -> list[int | None]:
        """For each member the token that its outputs begin with; ``None`` if there is none."""
        return [next(iter(_tokens_of(member, "forced_first")), None) for member in self.members]

    def check(self, **wanted: bool) -> None:
        """Refuse what is not computed for such members.

        Args:
            wanted: what the user wants, by name.

        Raises:
            ConfigError: names the first.
        """
        for name, value in wanted.items():
            if value:
                raise _impossible(name)

    def resolve(self, settings: Settings, of_models: Sequence[Mapping[str, Any]]) -> ResolvedSettings:
        """Complete settings, with the search for such members as an object.

        Args:
            settings: the layers above the model.
            of_models: the settings of each model; those that cannot be used are left out, with a note.

        Raises:
            ConfigError: a value has the wrong type or range, or needs one vocabulary or another search.
        """
        kept, ignored = _supported(of_models)
        resolved = resolve(settings.over("vocabularies", {"semantics": "fairseq", "combination": "agreement"}), kept)
        cfg, objects = resolved.generation, dict(resolved.objects)
        registry, given = DECODING_COMPONENTS["combination"][0], objects.get("combination")
        rule: Any = given or registry.entry(cfg.combination or "agreement").component
        if not issubclass(rule if isinstance(rule, type) else type(rule), TextRule):
            raise _impossible(f"generation.combination={cfg.combination or type(rule).__name__}")
        _check(cfg, objects, rule.keys)
        search = rule.search(self, resolved)
        unused = f"keys of the models' own settings that are not used: {', '.join(ignored)}"
        untold = [
            f"model {number} chooses the language of the output itself: members with different target vocabularies "
            "cannot be told the language"
            for number, (member, token) in enumerate(zip(self.members, self.first_tokens, strict=True), start=1)
            if token is None and note_if_language_unset(cfg, member)
        ]
        notes = (NOTE + rule.note, *([unused] if ignored else []), *resolved.notes, *untold)
        # the search has the other settings
        cfg = type(cfg)(**{key: value for key, value in vars(cfg).items() if key in (*KEYS, *FURTHER)})
        components = {key: value for key, value in cfg.components.items() if _chooser(key) in (*KEYS, *OBJECTS)}
        vars(cfg)["components"] = components
        objects = {key: value for key, value in objects.items() if key in OBJECTS} | {"search": search}
        return replace(resolved, settings=settings, generation=cfg, objects=objects, notes=notes)


def _tokens_of(model: TextModel, key: str) -> list[int]:
    """The ids of the token or the tokens that a key of a model's settings names, without end-of-sentence."""
    named = model.generation.get(key) or ()
    ids = Resources(model.task.target_dictionary).tokens([named] if isinstance(named, str) else named)
    return [index for index in dict.fromkeys(ids) if index != model.task.target_dictionary.eos()]


def _chooser(key: str) -> str:
    """The key of the ``generation`` group that chooses the component to which a key belongs."""
    return DECODING_COMPONENTS[key.partition(".")[0]][1]


def _check(cfg: GenerationConfig, objects: Mapping[str, Any], further: Sequence[str]) -> None:
    """Refuse settings that need one vocabulary, or another rule.

    Args:
        cfg: the settings.
        objects: the values that are objects.
        further: the keys that can be used besides ``KEYS``.

    Raises:
        ConfigError: names the first such setting.
    """
    allowed, known = (
        {"semantics": "fairseq", "search": "beam", "components": cfg.components},
        (*KEYS, *OBJECTS, *further),
    )
    refused = {
        f"generation.{key}": value
        for key, default in vars(GenerationConfig()).items()
        if key not in known and (value := getattr(cfg, key)) not in (default, allowed.get(key))
    }
    refused |= {key: value for key, value in cfg.components.items() if _chooser(key) not in known}
    given = {key: value if isinstance(value, list) else [value] for key, value in objects.items() if key not in known}
    refused |= {key: ",".join(type(one).__name__ for one in each) for key, each in given.items()}
    for key, value in refused.items():
        raise _impossible(f"{key}={str(value).lower() if isinstance(value, bool) else value}")
    if 0 in cfg.components.get("combination.weights", ()):
        raise ConfigError(
            "a member with the weight 0 would still restrict the text on which members with different target "
            "vocabularies agree; remove its model from path"
        )


def _impossible(what: str) -> ConfigError:
    return ConfigError(
        f"{what} is not possible with members that have different target vocabularies; remove it, or give models "
        "with the same target vocabulary"
    )


def _supported(of_models: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Leave out the settings of models that ``_check`` would refuse.

    Returns:
        The other settings of each model, and the names of those of the first model that are left out.
    """
    defaults = vars(GenerationConfig())
    kept = [{key: value for key, value in settings.items() if key in KEYS} for settings in of_models]
    ignored = [
        key
        for key, value in of_models[0].items()
        if key not in {*KEYS, "forced_first", "end_symbols"} and value not in (defaults[key], "fairseq", "beam")
    ]
    return kept, sorted(ignored)
