"""The models of a decode: their settings, vocabularies and languages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from seqgen.checkpoints.loaders import LoadedModel
from seqgen.config import GenerationConfig
from seqgen.config.settings import Settings
from seqgen.core.errors import ConfigError
from seqgen.data.tokenizers.languages import TargetLanguage
from seqgen.registry import import_declared
from seqgen.task import ModelInMemory, other_languages

TextModel: TypeAlias = LoadedModel | ModelInMemory
"""A model with its task and decoding settings."""


def share_vocabulary(one: TextModel, other: TextModel) -> bool:
    """Whether two models generate the same tokens; special ids may differ if both are decoder-only.

    These read no start token: a base model and the one that was tuned for instructions have different ends.
    """
    first, second = one.task.target_dictionary, other.task.target_dictionary
    decoder_only = one.model.continues_source and other.model.continues_source
    return first.symbols == second.symbols if decoder_only else first == second


def cross_vocabulary(members: Sequence[TextModel]) -> Any:
    """What resolves the settings of models with different target vocabularies; ``None`` if they share one.

    Raises:
        MissingAddonError: the vocabularies differ, and the add-on is not installed.
    """
    if all(share_vocabulary(members[0], member) for member in members[1:]):
        return None
    return import_declared("seqgen.addons.cross_vocabulary.ensemble", "mixing of vocabularies").CrossVocabulary(members)


def settings_of_models(members: Sequence[TextModel], settings: Settings) -> list[dict[str, Any]]:
    """The settings of each model, without a forced first token that the target language replaces.

    Args:
        members: the models; at least one.
        settings: the layers above the model.

    Raises:
        ConfigError: the models have different languages, and nobody says what each of them reads.
    """
    first = members[0].task
    for number, member in enumerate(members[1:], start=2) if not settings.get("member_sources", ()) else ():
        if other_languages(first.language_pair, member.task.language_pair):
            pairs = ["-".join(task.language_pair) for task in (first, member.task)]
            raise ConfigError(
                f"model 1 translates {pairs[0]}, and model {number} {pairs[1]}; an ensemble has one pair of languages, "
                "unless generation.member_sources says what each model reads, such as "
                f"[{','.join(['input'] * len(members))}]"
            )
    of_models, languages = [dict(member.generation) for member in members], first.source_tokenizer.languages
    named = settings.get("target_lang") or of_models[0].get("target_lang")
    if named and languages is not None and languages.target is TargetLanguage.FIRST:
        for values in of_models:
            values.pop("forced_first", None)  # which may be another language
    return of_models


def note_if_language_unset(cfg: GenerationConfig, model: TextModel) -> str | None:
    """A note for the user if nothing determines the language of the output.

    Args:
        cfg: the configuration of decoding.
        model: the model.
    """
    languages = model.task.source_tokenizer.languages
    if languages is None or cfg.target_lang or cfg.forced_first or languages.in_text:
        return None
    start_token = model.model.start_token(model.task.target_dictionary.eos())
    if languages.target is TargetLanguage.START and start_token in languages.ids.values():
        return None
    return (
        f"the model has {len(languages.ids)} languages; it chooses that of the output itself unless you set "
        "generation.target_lang=CODE"
    )
