"""The settings of several models, which may share their target vocabulary or have different ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    """The settings of each model, without a forced first token that the target language replaces.

    Args:
        members: the models; at least one.
        settings: the layers above the model.

    Raises:
        ConfigError: the models have different languages, and nobody says what each of them reads.
    """
    if len(members) > 1 and not settings.get("member_sources", ()):
        check_languages(members)
    of_models = [dict(member.generation) for member in members]
    language = settings.get("target_lang") or of_models[0].get("target_lang")
    if language and begins_with_language(members[0].task):
        for values in of_models:
            values.pop("forced_first", None)  # which may be another language
    return of_models
