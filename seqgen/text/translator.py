"""The translator: loads models and decodes texts.

``seqgen-generate`` and the validation of ``seqgen-train`` decode with it, and so can Python code::

    translator = seqgen.Translator("runs/a")
    for translation in translator.translate(["a dog runs", "two men talk"], beam=5, nbest=3):
        print(translation.text, [hypothesis.score for hypothesis in translation.hypotheses])
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import torch

from seqgen.checkpoints.loading import load_model, load_models
from seqgen.config import GenerationConfig
from seqgen.config.generation import keys_tagged
from seqgen.config.options import CONSTRAINS, FILES, SCORES_TARGETS
from seqgen.config.settings import CALL, MODEL, USER, Layer, ResolvedSettings, Settings, by_whole_key
from seqgen.core.errors import CheckpointError, ConfigError, DataError
from seqgen.core.member import MemberSpec
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import Hypothesis
from seqgen.decoding.building import Resources, apply_keys
from seqgen.decoding.observers import Streamer
from seqgen.decoding.options import combination_from_config, members_from_config, with_guidance
from seqgen.decoding.resolution import resolve
from seqgen.decoding.scorer import SequenceScorer
from seqgen.modules.dtypes import dtype_to_load, note_on, to_dtype
from seqgen.system.reading import version_of
from seqgen.text.input_line import check_text
from seqgen.text.languages import LanguageReader
from seqgen.text.members import (
    TextModel,
    cross_vocabulary,
    note_if_language_unset,
    settings_of_models,
    share_vocabulary,
)
from seqgen.text.results import Details, Translation
from seqgen.text.text_decoding import TextDecoding
from seqgen.text.text_scoring import TextScoring, check_blocks

_DECODING = threading.RLock()
"""Held while texts are decoded: switches and the number of threads of PyTorch belong to the whole process."""
_ARGUMENTS = {"search": "search_strategy", "stopping_rules": "stopping"}
"""The parameters of ``build_generator`` that have another name than the key whose objects they take."""
_AFTER_SEARCH = ("rewriters", "mbr", "rerank")
"""The keys whose objects are not parts of the search."""

Model: TypeAlias = str | Path | TextModel
"""A path for ``load_model``, or a model that it returned."""


class Translator:
    """Decodes text with one model or an ensemble.

    Args:
        models: a path or a loaded model, or a sequence of them for an ensemble. Each model encodes the source with the
            tokenizer of its task. Models with different target vocabularies are decoded as a cross-vocabulary ensemble.
        device: the device of models that are loaded here.
        settings: layers below those of ``keys``.
        keys: the settings of ``translate``, for all calls; a call can override them. Keys that are not given come from
            the first model's settings, and otherwise from the defaults.

    Raises:
        CheckpointError: a model cannot be loaded.
        ConfigError: a key is unknown, a value has the wrong type or range, settings exclude each other, or the device
            is not available.
    """

    def __init__(
        self,
        models: Model | Sequence[Model],
        *,
        device: torch.device | str = "cpu",
        settings: Settings | None = None,
        **keys: Any,
    ):
        given = [models] if isinstance(models, str | Path) or not isinstance(models, Sequence) else list(models)
        if not given:
            raise ConfigError("there is no model to decode with; give a path, or several for an ensemble")
        self._settings = (settings or Settings()).with_layer(USER, keys)
        self.dtype = str(self._settings.get("dtype", ""))
        self.members: list[TextModel] = []
        for item in given:
            dtype = dtype_to_load(self.dtype)
            self.members.extend(
                load_models([str(item)], device, dtype=dtype) if isinstance(item, str | Path) else [item]
            )
        self._across = cross_vocabulary(self.members)
        # refuses settings that exclude each other
        self._resolved = self._key(self._settings), self._completed(self._settings)
        self.models = [to_dtype(one.model, self.dtype) if self.dtype else one.model for one in self.members]
        self.task = self.members[0].task
        self.device = next(self.models[0].parameters()).device
        self._generator: tuple[Any, tuple[SequenceGenerator, list[str]]] | None = None
        self._prepared: tuple[Any, TextDecoding] | None = None
        self._drafts: dict[str, TextModel] = {}

    @property
    def shares_vocabulary(self) -> bool:
        """True if all models have the same target vocabulary; otherwise they are a cross-vocabulary ensemble."""
        return self._across is None

    def settings(self, **settings: Any) -> GenerationConfig:
        """Resolve all settings of a call.

        Args:
            settings: those of the call. They override those of the constructor, which override the first model's,
                which override the defaults.

        Returns:
            The configuration of the call.

        Raises:
            ConfigError: a key is unknown, a value has the wrong type or range, or settings exclude each other.
        """
        return GenerationConfig(**vars(self.resolve(settings).generation))

    def _key(self, settings: Settings) -> tuple[Any, ...]:
        """Equal for calls that resolve to the same settings: the layers above the models, and those of the models."""
        return settings, *(Layer(MODEL, member.generation).comparable for member in self.members)

    def _completed(self, settings: Settings) -> ResolvedSettings:
        """Complete settings by those of the models and the defaults."""
        of_models = settings_of_models(self.members, settings)
        return resolve(settings, of_models) if self._across is None else self._across.resolve(settings, of_models)

    def resolve(self, keys: Mapping[str, Any]) -> ResolvedSettings:
        """Resolve all settings of a call.

        Args:
            keys: see ``settings``.

        Returns:
            The settings, whose values the caller may change.

        Raises:
            ConfigError: see ``settings``.
        """
        found = self._resolve(self._settings.with_layer(CALL, keys))
        cfg, fast = copy.deepcopy(found.generation), copy.copy(found.fast)
        return replace(found, generation=cfg, fast=fast, objects={**found.objects})

    def _resolve(self, settings: Settings) -> ResolvedSettings:
        if settings.get("dtype", "") != self.dtype:
            raise ConfigError(
                f"generation.dtype={settings.get('dtype')} applies to all calls of a translator; pass it to the "
                "constructor"
            )
        key, last = self._key(settings), self._resolved
        if last[0] != key:
            self._resolved = last = key, self._completed(settings)
        return last[1]

    def translate(
        self,
        texts: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        streamer: Streamer | None = None,
        return_attention: bool = False,
        return_scores: bool = False,
        return_hidden: bool = False,
        return_internals: bool = False,
        **settings: Any,
    ) -> list[Translation]:
        """Decode texts. Calls in several threads are done one after the other.

        Args:
            texts: one line each; the output of an empty line is empty.
            prefixes: the forced beginning of each output.
            streamer: receives tokens or words as they are generated; ``beam`` is then 1.
            return_attention: whether hypotheses have attention and alignment.
            return_scores: whether they have the score of all models together, and of each model for every token.
            return_hidden: whether they have the last hidden features of the decoders.
            return_internals: whether they have the hidden states and attention weights of all layers.
            settings: keys of ``GenerationConfig``, and with their prefixes the keys of components and of
                ``FastConfig`` (``**{"search.groups": 3, "fast.use_cache": False}``). ``search``, ``combination``,
                ``processors``, ``stopping_rules``, ``observers``, ``rewriters``, ``mbr``, ``rerank`` and
                ``member_sources`` (``MemberSpec``) may also be objects.

        Returns:
            One translation for each text, in order, with ``nbest`` hypotheses, best first.

        Raises:
            ConfigError: a key is unknown, a value has the wrong type or range, or settings exclude each other.
            DataError: the numbers of texts and prefixes differ.
        """
        _check_lists(texts=texts, prefixes=() if prefixes is None else prefixes)
        details = Details(return_attention, return_scores, return_hidden, return_internals)
        _survive_forks()
        with _DECODING:
            wanted = self._settings.with_layer(CALL, settings)
            if streamer is not None:
                return list(self._prepare(details, streamer, wanted).translate(texts, prefixes))
            return list(self._decoding(details, wanted).translate(texts, prefixes))

    def _decoding(self, details: Details, settings: Settings) -> TextDecoding:
        """The preparation of a call; that of the last call if it has the same settings, details and files."""
        key, last = (*self._key(settings), details), self._prepared
        if last is None or last[0] != (key, _versions(last[1].cfg)):
            files = _versions(self._resolve(settings).generation)  # before they are read
            self._prepared = last = (key, files), self._prepare(details, None, settings)
        return last[1]

    def prepare(
        self, details: Details | None = None, streamer: Streamer | None = None, **settings: Any
    ) -> TextDecoding:
        """Prepare the decoding of lines that are read one after the other, as ``seqgen-generate`` reads them.

        Args:
            details: which optional fields of hypotheses are computed.
            streamer: receives tokens or words as they are generated; ``beam`` is then 1.
            settings: as for ``translate``.

        Returns:
            An object whose ``translate`` decodes lines with these settings.

        Raises:
            ConfigError: a key is unknown, a value has the wrong type or range, or settings exclude each other.
        """
        return self._prepare(details or Details(), streamer, self._settings.with_layer(CALL, settings))

    def _prepare(self, details: Details, streamer: Streamer | None, settings: Settings) -> TextDecoding:
        streaming = streamer is not None
        if streaming:
            _check_streamable({key: settings.get(key) for key in ("beam", *keys_tagged(CONSTRAINS))})
            settings = settings.with_layer(CALL, {"beam": 1})
        resolved = self._resolve(settings)
        cfg, given, notes = resolved.generation, resolved.settings, list(resolved.notes)
        if self.dtype and (note := note_on(self.dtype, self.device)):
            notes.append(note)
        if self._across is not None:
            wanted_details = {"attention": details.attention, "hidden": details.hidden, "internals": details.internals}
            self._across.check(**wanted_details, streaming=streaming)
        elif note := note_if_language_unset(cfg, self.members[0]):
            notes.append(note)
        draft = self._draft(path) if (path := getattr(cfg, "draft", "")) else None
        need_attention = details.attention or bool(getattr(cfg, "replace_unknown", ""))
        generator, of_setup = self._build(resolved, need_attention, draft)
        writable = generator.setup.limits.max_len
        notes += [
            f"generation.{name}={given.get(name)} is more than the {writable} tokens that can be generated"
            for name in ("max_len", "max_len_b")
            if given.get(name, 0) > writable
        ]
        notes += of_setup
        return TextDecoding(self.members, resolved, generator, details, streamer, notes, draft)

    def _build(
        self, resolved: ResolvedSettings, need_attention: bool, draft: TextModel | None
    ) -> tuple[SequenceGenerator, list[str]]:
        """The generator of a call, with notes on it; that of the last call if it has the same settings and files."""
        key, last = (resolved, _versions(resolved.generation), need_attention), self._generator
        if last is None or last[0] != key:
            objects = {name: value for name, value in resolved.objects.items() if name not in _AFTER_SEARCH}
            models = self._specified(objects.pop("member_sources", None))
            further = {_ARGUMENTS.get(name, name): value for name, value in objects.items()}
            if draft is not None:
                further["draft"] = draft.model
            further |= {"fast": resolved.fast, "need_attention": need_attention}
            further["resources"] = {"models": self.members, "ensemble": resolved.ensemble}
            languages = LanguageReader(self.members, resolved.generation)
            cfg = languages.force_target(resolved.generation, self.task.target_dictionary)
            generator = self.task.build_generator(models, cfg, **further)
            self._generator = last = key, (generator, sorted(generator.setup.notes))
        return last[1]

    def _specified(self, specs: Sequence[MemberSpec | None] | None) -> list[Any]:
        """The models, each replaced by its ``MemberSpec`` if there is one.

        Raises:
            ConfigError: the spec at a position has another model.
        """
        pairs = list(zip_longest(specs or (), self.models))
        for number, (spec, model) in enumerate(pairs, start=1):
            if spec is not None and (spec.model is not model or spec.companion):
                raise ConfigError(
                    f"entry {number} of member_sources must be a source, or a MemberSpec of model {number}; "
                    "companions are not possible here"
                )
        return [spec or model for spec, model in pairs if spec or model is not None]

    def _draft(self, path: str) -> TextModel:
        """Load the draft model, once for each path."""
        if path not in self._drafts:
            draft: TextModel = load_model(path, self.device, dtype_to_load(self.dtype))
            if not share_vocabulary(self.members[0], draft):
                known, other = self.task.target_dictionary, draft.task.target_dictionary
                raise CheckpointError(
                    f"generation.draft={path} has another target vocabulary ({len(other)} tokens) than model 1 "
                    f"({len(known)} tokens); a draft needs a model trained with the same one"
                )
            if self.dtype:
                to_dtype(draft.model, self.dtype)
            self._drafts[path] = draft
        return self._drafts[path]

    def score(
        self,
        sources: Sequence[str],
        references: Sequence[str],
        *,
        numbers: Sequence[int] | None = None,
        **settings: Any,
    ) -> Iterator[Hypothesis]:
        """Compute the log-probabilities of known targets.

        Args:
            sources: the source lines.
            references: the target of each.
            numbers: the line number of each, on which the sources of members may depend; by default counted from 0.
            settings: ``normalize_scores``, ``combination`` and its keys, ``batch_size``, ``source_lang`` and
                ``target_lang`` of ``GenerationConfig``.

        Yields:
            The target of each line with its scores, in order. An empty line is scored like any other.

        Raises:
            ConfigError: another setting is given, or a language does not exist.
            DataError: the numbers of lines differ, or a line is longer than a model can process.
        """
        sources, references = _checked("source", sources), _checked("reference", references)
        if len(sources) != len(references):
            raise DataError(f"{len(sources)} sources cannot have {len(references)} references; give one for each")
        numbers = range(len(sources)) if numbers is None else numbers
        yield from self._scoring(settings).lines(sources, references, numbers)

    def score_text(
        self, lines: Sequence[str], *, tokens_per_sample: int = 0, context_window: int = 0, **settings: Any
    ) -> Iterator[Hypothesis]:
        """Find the log-probabilities that language models give to text; see ``docs/models.md``.

        Args:
            lines: the text.
            tokens_per_sample: 0 scores each line alone. Otherwise the lines are one text, which is scored in blocks of
                so many tokens, context included.
            context_window: the tokens of each block that are context: the model sees them, and they are scored in the
                block before.
            settings: ``normalize_scores``, ``combination`` and its keys, and ``batch_size`` of ``GenerationConfig``.

        Yields:
            For each line, in order, its tokens with scores. An empty line has one token, end-of-sentence.

        Raises:
            ConfigError: a model is not a language model, there is another setting, or the blocks are longer than a
                model can read.
            DataError: a line is longer than a model can read.
        """
        lines = _checked("text", lines)
        check_blocks(self.models, tokens_per_sample, context_window)
        if not tokens_per_sample:
            yield from self.score([""] * len(lines), lines, **settings)
            return
        yield from self._scoring(settings).running_text(lines, tokens_per_sample, context_window)

    def _scoring(self, settings: Mapping[str, Any]) -> TextScoring:
        known = keys_tagged(SCORES_TARGETS)
        given = {key.removeprefix("generation.") for key in by_whole_key(settings)}
        if unused := sorted(key for key in given.difference(known) if not key.startswith("combination.")):
            raise ConfigError(
                f"{', '.join(unused)} has no effect on the scores of known targets; use only: {', '.join(known)}"
            )
        if not self.shares_vocabulary:
            raise ConfigError(
                "only models with the same target vocabulary can score known targets together, and these have "
                "different ones; score with each model alone"
            )
        resolved = self.resolve(settings)
        cfg, objects = resolved.generation, resolved.objects
        target, tokenizer = self.task.target_dictionary, self.task.target_tokenizer
        further = {"models": self.members, "ensemble": resolved.ensemble, "device": self.device}
        resources = Resources.of(cfg, target, tokenizer, source_dictionary=self.task.source_dictionary, **further)
        combination = combination_from_config(cfg, resources, objects.get("combination"))
        members = members_from_config(self._specified(objects.get("member_sources")), cfg)
        # a scale of the model's settings is for decoding: scores would not be log-probabilities
        scale = resolved.settings.get("guidance_scale", 1.0)
        ensemble = with_guidance(members, combination, scale)
        of_members = (target.pad(), target.eos(), cfg.normalize_scores, ensemble.combination)
        scorer = apply_keys("scorer", SequenceScorer(ensemble.members, *of_members), cfg)
        return TextScoring(self.members, resources, scorer)


@cache
def _survive_forks() -> None:
    """Let the processes decode that are forked from now on, also those forked while another thread decodes."""
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=_begin_child)


def _begin_child() -> None:
    """Replace what a forked process has without the threads that it belongs to: a lock, and PyTorch's pool."""
    global _DECODING  # noqa: PLW0603  # the lock of the process
    _DECODING = threading.RLock()
    torch.set_num_threads(1)


def _versions(cfg: GenerationConfig) -> list[Any]:
    """The versions of the files that settings name."""
    named = [getattr(cfg, key) for key in keys_tagged(FILES)]
    return [version_of(Path(path)) for path in named if path and Path(path).exists()]


def _check_lists(**lists: Any) -> None:
    """Check that texts are given as lists or other iterables.

    Raises:
        DataError: an argument is one text, or cannot be iterated over.
    """
    for name, texts in lists.items():
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise DataError(f"{name} must be a list of texts, such as [text], not of type {type(texts).__name__}")


def _checked(what: str, texts: Iterable[str]) -> list[str]:
    """The lines of known targets or of their sources, which are checked."""
    _check_lists(**{f"{what}s": texts})
    lines = list(texts)
    for number, line in enumerate(lines, start=1):
        check_text(line, f"{what}, line {number}")
    return lines


def _check_streamable(values: Mapping[str, Any]) -> None:
    """Refuse settings, given by key, under which generated tokens may still change."""
    for key, value in values.items():
        if value and value != 1:
            needs = "" if key == "beam" else "it needs several beams, and "
            reason = f"{needs}the best beam may still change"
            raise ConfigError(
                f"generation.{key}={value} cannot be streamed, because {reason}; remove the key, or do not stream"
            )
