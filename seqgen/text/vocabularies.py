"""Settings, checks and generators of models that share a target vocabulary, and of models with different ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from seqgen.config import GenerationConfig
from seqgen.config.settings import ResolvedSettings, Settings
from seqgen.core.errors import ConfigError
from seqgen.core.member import ModelOrMember
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.decoding.agreement.session import AgreementSearch
from seqgen.decoding.agreement.settings import NOTE, check_details, check_supported, supported_settings
from seqgen.decoding.options import build_setup
from seqgen.decoding.resolution import resolve
from seqgen.text.languages import (
    TextModel,
    begins_with_language,
    check_languages,
    force_target_language,
    forced_first_token,
    note_if_language_unset,
    notes_if_languages_unset,
)
from seqgen.text.results import Details


class SharedVocabulary:
    """Models that share one target vocabulary, so that each step combines their scores.

    Args:
        members: the models; at least one.
    """

    def __init__(self, members: Sequence[TextModel]):
        self.members = members
        self.task = members[0].task

    def resolve(self, settings: Settings) -> ResolvedSettings:
        """Complete settings by those of the models and the defaults; see ``resolution.resolve``.

        Args:
            settings: the layers above the model.

        Raises:
            ConfigError: a value has the wrong type or range, settings exclude each other, or the models have different
                languages and nobody says what each of them reads.
        """
        if len(self.members) > 1 and not settings.get("members", ()):
            check_languages(self.members)
        of_models = [dict(member.generation) for member in self.members]
        language = settings.get("target_lang") or of_models[0].get("target_lang")
        if language and begins_with_language(self.task):
            for values in of_models:
                values.pop("forced_first", None)  # which may be another language
        return self._resolve(settings, of_models)

    def _resolve(self, settings: Settings, of_models: Sequence[Mapping[str, Any]]) -> ResolvedSettings:
        return resolve(settings, of_models)

    def check(self, details: Details, streaming: bool) -> None:
        """Refuse results that are not possible.

        Raises:
            ConfigError: names the first.
        """

    def check_scorable(self) -> None:
        """Refuse models that cannot score known targets together.

        Raises:
            ConfigError: they cannot.
        """

    def language_notes(self, cfg: GenerationConfig) -> list[str]:
        """Notes for the user if nothing determines the language of the output."""
        note = note_if_language_unset(cfg, self.members[0])
        return [note] if note else []

    def build_generator(
        self, models: Sequence[ModelOrMember], cfg: GenerationConfig, **objects: Any
    ) -> SequenceGenerator:
        """Make the generator.

        Args:
            models: the models, some of them with a role.
            cfg: the configuration.
            objects: see ``build_setup``.

        Raises:
            ConfigError: keys contradict each other, or need something that the models do not have.
        """
        return self.task.build_generator(models, force_target_language(cfg, self.task), **objects)


class DifferentVocabularies(SharedVocabulary):
    """Models with different target vocabularies, which are decoded as a cross-vocabulary ensemble."""

    def _resolve(self, settings: Settings, of_models: Sequence[Mapping[str, Any]]) -> ResolvedSettings:
        kept, ignored = supported_settings(of_models)
        resolved = resolve(settings.over("vocabularies", {"semantics": "fairseq"}), kept)
        check_supported(resolved.generation, resolved.objects)
        unused = f"keys of the models' own settings that are not used: {', '.join(ignored)}"
        notes = (NOTE, *([unused] if ignored else []), *resolved.notes)
        return replace(resolved, settings=settings, notes=notes)

    def check(self, details: Details, streaming: bool) -> None:
        """See ``SharedVocabulary``."""
        wanted = {"attention": details.attention, "hidden": details.hidden, "internals": details.internals}
        check_details(**wanted, streaming=streaming)

    def check_scorable(self) -> None:
        """See ``SharedVocabulary``."""
        raise ConfigError(
            "known targets are scored by models with one target vocabulary, and these have different ones; score "
            "with each model alone"
        )

    def language_notes(self, cfg: GenerationConfig) -> list[str]:
        """See ``SharedVocabulary``."""
        return notes_if_languages_unset(cfg, self.members)

    def build_generator(
        self, models: Sequence[ModelOrMember], cfg: GenerationConfig, **objects: Any
    ) -> SequenceGenerator:
        """See ``SharedVocabulary``."""
        tokenizers = [member.task.target_tokenizer for member in self.members]
        first_tokens = [forced_first_token(member) for member in self.members]
        search = AgreementSearch(tokenizers, first_tokens, cfg.min_len, cfg.max_len)
        setup = build_setup(models, self.task.target_dictionary, cfg, self.task.target_tokenizer, **objects)
        return SequenceGenerator(replace(setup, search=search))


def vocabularies_of(members: Sequence[TextModel]) -> SharedVocabulary:
    """The kind of some models; see the classes."""
    first = members[0].task.target_dictionary
    different = any(member.task.target_dictionary != first for member in members[1:])
    return DifferentVocabularies(members) if different else SharedVocabulary(members)
