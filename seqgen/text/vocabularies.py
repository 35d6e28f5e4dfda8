"""The settings of several models, which may share their target vocabulary or have different ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqgen.config.generation import keys_tagged
from seqgen.config.options import STRATEGY
from seqgen.config.settings import Settings
from seqgen.registry import import_declared
from seqgen.text.languages import TextModel, begins_with_language, check_languages


def cross_vocabulary(members: Sequence[TextModel]) -> Any:
    """What resolves the settings of models with different target vocabularies; ``None`` if they share one.

    Raises:
        MissingAddonError: the vocabularies differ, and the add-on is not installed.
    """
    first = members[0].task.target_dictionary
    if all(member.task.target_dictionary == first for member in members[1:]):
        return None
    what = "an ensemble of models with different target vocabularies"
    return import_declared("seqgen.addons.cross_vocabulary.ensemble", what).CrossVocabulary(members)


def settings_of_models(members: Sequence[TextModel], settings: Settings) -> list[dict[str, Any]]:
    """The settings of each model, without those that the layers above replace.

    With a search object, the models' settings of the search are ignored.

    Args:
        members: the models; at least one.
        settings: the layers above the model.

    Raises:
        ConfigError: the models have different languages, and nobody says what each of them reads.
    """
    if len(members) > 1 and not settings.get("member_sources", ()):
        check_languages(members)
    replaced = set() if isinstance(settings.get("search", ""), str) else {*keys_tagged(STRATEGY), "sampling"}
    language = settings.get("target_lang") or members[0].generation.get("target_lang")
    if language and begins_with_language(members[0].task):
        replaced.add("forced_first")  # which may be another language
    return [{key: value for key, value in member.generation.items() if key not in replaced} for member in members]
