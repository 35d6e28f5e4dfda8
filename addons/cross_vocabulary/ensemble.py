"""An ensemble of models with different target vocabularies: its settings, and its search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from seqgen.addons.cross_vocabulary.session import AgreementSearch
from seqgen.addons.cross_vocabulary.vocabulary_trie import MemberTexts
from seqgen.config import GenerationConfig, ResolvedSettings, Settings
from seqgen.decoding.resolution import resolve
from seqgen.extend import ConfigError, Resources, TextModel
from seqgen.text.members import note_if_language_unset

KEYS = (
    *("beam", "nbest", "min_len", "max_len", "max_len_a", "max_len_b", "temperature", "mbr", "rerank", "dtype"),
    *("normalize_scores", "length_penalty", "length_penalty_form", "member_sources"),
    *("max_tokens", "batch_size", "buffer_size"),
)
"""The keys of the ``generation`` group that can be used."""

COMPONENT_KEYS = ("combination.weights", "utility.", "reranker.")
"""The beginnings of the components' keys that can be used."""

OBJECTS = ("mbr", "rerank", "member_sources")
"""The decoding components that can be given as objects."""

NOTE = (
    "the members have different target vocabularies, so they are decoded as a cross-vocabulary ensemble: each "
    "member generates its own tokens, and the score is the weighted mean of the members' scores"
)


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
        resolved = resolve(settings.over("vocabularies", {"semantics": "fairseq"}), kept)
        cfg = resolved.generation
        _check(cfg, resolved.objects)
        first_tokens = [next(iter(_tokens_of(member, "forced_first")), None) for member in self.members]
        search = AgreementSearch(self.texts, first_tokens, cfg.min_len, cfg.max_len)
        unused = f"keys of the models' own settings that are not used: {', '.join(ignored)}"
        untold = [
            f"model {number} chooses the language of the output itself: members with different target vocabularies "
            "cannot be told the language"
            for number, (member, token) in enumerate(zip(self.members, first_tokens, strict=True), start=1)
            if token is None and note_if_language_unset(cfg, member)
        ]
        notes = (NOTE, *([unused] if ignored else []), *resolved.notes, *untold)
        return replace(resolved, settings=settings, objects={**resolved.objects, "search": search}, notes=notes)


def _tokens_of(model: TextModel, key: str) -> list[int]:
    """The ids of the token or the tokens that a key of a model's settings names, without end-of-sentence."""
    named = model.generation.get(key) or ()
    ids = Resources(model.task.target_dictionary).tokens([named] if isinstance(named, str) else named)
    return [index for index in dict.fromkeys(ids) if index != model.task.target_dictionary.eos()]


def _check(cfg: GenerationConfig, objects: Mapping[str, Any]) -> None:
    """Refuse settings that need one vocabulary, or another search.

    Raises:
        ConfigError: names the first such setting.
    """
    allowed = {"semantics": "fairseq", "search": "beam", "combination": "log", "components": cfg.components}
    refused = {
        f"generation.{key}": value
        for key, default in vars(GenerationConfig()).items()
        if key not in KEYS and (value := getattr(cfg, key)) not in (default, allowed.get(key))
    }
    refused |= {key: value for key, value in cfg.components.items() if not key.startswith(COMPONENT_KEYS)}
    refused |= {key: type(value).__name__ for key, value in objects.items() if key not in OBJECTS}
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
