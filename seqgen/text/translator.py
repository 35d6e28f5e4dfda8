"""The translator: loads models and decodes texts.

``seqgen-generate`` and the validation of ``seqgen-train`` decode with it, and so can Python code::

    translator = seqgen.Translator("runs/a")
    for translation in translator.translate(["a dog runs", "two men talk"], beam=5, nbest=3):
        print(translation.text, [hypothesis.score for hypothesis in translation.hypotheses])
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from seqgen.checkpoints.loading import load_model, load_models
from seqgen.config import DebugConfig, GenerationConfig
from seqgen.config_dicts import from_dict
from seqgen.data.collate import Example
from seqgen.errors import CheckpointError, ConfigError, DataError
from seqgen.generation.component import Resources
from seqgen.generation.ensemble.member import INPUT, MemberSpec
from seqgen.generation.model_settings import kept_components, resolve_settings
from seqgen.generation.options import SEARCH_KEYS, combination_from_config, members_from_config
from seqgen.generation.scorer import SequenceScorer
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.generation.setup import Streamer
from seqgen.language_model import LanguageModel
from seqgen.model import EncoderDecoderModel
from seqgen.modules.dtypes import note_on, to_dtype
from seqgen.structures import Batch, Hypothesis
from seqgen.task import Task
from seqgen.text.languages import (
    LanguageReader,
    begins_with_language,
    chooses_itself,
    encode_source,
    encode_target,
    force_target_language,
)
from seqgen.text.member_sources import source_text, sources_from_config
from seqgen.text.object_settings import KEYS_BY_ARGUMENT, identities, separate_dotted_keys, separate_objects
from seqgen.text.results import Translation
from seqgen.text.running_text import blocks, line_hypothesis, score_running_text
from seqgen.text.text_decoding import Details, TextDecoding
from seqgen.text.text_model import TextModel
from seqgen.text.word_streaming import IteratorStreamer, StreamedText


@dataclass(frozen=True)
class ModelInMemory:
    """A model that was not loaded from a file, such as one that is being trained.

    Attributes:
        task: encodes and decodes text.
        model: the model.
        generation: the model's own decoding settings, by the names of ``GenerationConfig``'s fields.
    """

    task: Task
    model: EncoderDecoderModel
    generation: Mapping[str, Any] = field(default_factory=dict)


OF_SCORING = ("unnormalized", "ensemble_average", "ensemble_weights", "batch_size", "source_lang", "target_lang")
"""The settings that ``Translator.score`` accepts."""

_SCORED_TOKENS = 4096
"""Most tokens of running text that are scored at once; each needs one score for every token of the vocabulary."""

Model: TypeAlias = str | Path | TextModel
"""A path for ``load_model``, or a model that it returned."""


class Translator:
    """Decodes text with one model or an ensemble.

    Args:
        models: a path or a loaded model, or a sequence of them for an ensemble. Each model encodes the source with the
            tokenizer of its own task.
        device: the device of models that are loaded here.
        settings: the settings of ``translate``, for all calls; a call can override them. Keys that are not given come
            from the first model's own settings, and otherwise from the defaults.

    Raises:
        CheckpointError: a model cannot be loaded, or the members' target vocabularies differ.
        ConfigError: a key is unknown, a value has the wrong type or range, settings exclude each other, or the device
            is not available.
    """

    def __init__(
        self,
        models: Model | Sequence[Model],
        *,
        device: torch.device | str = "cpu",
        **settings: Any,
    ):
        given = [models] if isinstance(models, str | Path) or not isinstance(models, Sequence) else list(models)
        if not given:
            raise ConfigError("there is no model to decode with; give a path, or several for an ensemble")
        self._given_objects, settings = separate_objects(settings)
        settings, self.debug = separate_dotted_keys(settings)
        from_dict(GenerationConfig, settings, "generation")  # spelling is checked before anything is loaded
        from_dict(DebugConfig, self.debug, "debug")
        self.given = settings
        self.members: list[TextModel] = []
        for item in given:
            self.members.extend(load_models([str(item)], device) if isinstance(item, str | Path) else [item])
        self._resolve(settings, self._given_objects)  # compatibility needs the models' own settings
        self.dtype = str(settings.get("dtype", ""))
        self.models = [self._in_dtype(member.model) for member in self.members]
        self.task = self.members[0].task
        self.device = next(self.models[0].parameters()).device
        for number, member in enumerate(self.members[1:], start=2):
            self._check_vocabulary(member, f"model {number} of the ensemble", "an ensemble needs models")
        self._generators: dict[tuple[Any, ...], SequenceGenerator] = {}
        self._objects_in_use: dict[str, Any] = {}
        self._drafts: dict[str, TextModel] = {}

    def _in_dtype(self, model: EncoderDecoderModel) -> EncoderDecoderModel:
        return to_dtype(model, self.dtype) if self.dtype else model

    def settings(self, **settings: Any) -> GenerationConfig:
        """Resolve all settings of a call.

        Args:
            settings: those of the call. They override those of the constructor, which override the first model's own,
                which override the defaults.

        Returns:
            The configuration of the call.

        Raises:
            ConfigError: a key is unknown, a value has the wrong type or range, or settings exclude each other.
        """
        objects, plain = self._with_constructor_objects(settings)
        return self._settings(separate_dotted_keys(plain)[0], objects)[0]

    def _with_constructor_objects(self, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Separate objects from settings, and add the constructor's objects that the call does not override."""
        objects, plain = separate_objects(settings)
        kept = {name: value for name, value in self._given_objects.items() if KEYS_BY_ARGUMENT[name] not in settings}
        return {**kept, **objects}, plain

    def _resolve(self, settings: Mapping[str, Any], objects: Mapping[str, Any]) -> tuple[GenerationConfig, list[str]]:
        """See ``resolve_settings``. With a search object, the models' own settings of the search are ignored."""
        replaced = {*SEARCH_KEYS, "sampling"} if "search_strategy" in objects else set()
        first = self.members[0]
        if (settings.get("target_lang") or first.generation.get("target_lang")) and begins_with_language(first.task):
            replaced.add("forced_first")  # which may be another language
        own = [
            {key: value for key, value in member.generation.items() if key not in replaced} for member in self.members
        ]
        return resolve_settings(own, settings)

    def _settings(self, settings: Mapping[str, Any], objects: Mapping[str, Any]) -> tuple[GenerationConfig, list[str]]:
        """The configuration of a call, and notes for the user about it."""
        given = self._over_given(settings)
        if given.get("dtype", "") != self.dtype:
            raise ConfigError(
                f"generation.dtype={given['dtype']} applies to all calls of a translator; give it to the constructor"
            )
        cfg, notes = self._resolve(given, objects)
        note = note_on(self.dtype, self.device) if self.dtype else None
        return cfg, [*notes, *([note] if note else [])]

    def _over_given(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of the constructor, overridden by those of a call."""
        components = {**kept_components(self.given, settings), **settings.get("components", {})}
        return {**self.given, **settings, **({"components": components} if components else {})}

    def translate(
        self,
        texts: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        streamer: Streamer | None = None,
        return_attention: bool = False,
        return_scores: bool = False,
        return_hidden: bool = False,
        **settings: Any,
    ) -> list[Translation]:
        """Decode texts.

        Args:
            texts: one line each; the output of an empty line is empty.
            prefixes: the forced beginning of each output.
            streamer: receives tokens or words as they are generated; ``beam`` is then 1.
            return_attention: whether hypotheses have attention and alignment.
            return_scores: whether they have the score of all models together, and of each model for every token.
            return_hidden: whether they have the last hidden features of the decoders.
            settings: keys of ``GenerationConfig``, and with their prefixes the keys of components and of
                ``DebugConfig`` (``**{"search.groups": 3, "debug.use_cache": False}``). ``search``, ``combination``,
                ``processors``, ``stopping_rules``, ``observers``, ``mbr``, ``rerank`` and ``members`` (``MemberSpec``)
                may also be objects.

        Returns:
            One translation for each text, in order, with ``nbest`` hypotheses, best first.

        Raises:
            ConfigError: a key is unknown, a value has the wrong type or range, or settings exclude each other.
            DataError: the numbers of texts and prefixes differ.
        """
        _check_lists(texts, prefixes)
        details = Details(return_attention, return_scores, return_hidden)
        return list(self.prepare(details, streamer, **settings).translate(texts, prefixes))

    def stream(
        self, texts: Iterable[str], *, prefixes: Iterable[str] | None = None, **settings: Any
    ) -> Iterator[StreamedText]:
        """Decode texts in another thread, and yield words as they are generated.

        Args:
            texts: one line each.
            prefixes: the forced beginning of each output.
            settings: as for ``translate``; ``beam`` is 1.

        Returns:
            An iterator over the words of all texts; the words of one text come in order. Closing the iterator ends the
            decoding.

        Raises:
            ConfigError: a key is unknown, a value has the wrong type or range, or settings exclude each other.
        """
        _check_lists(texts, prefixes)
        streamer = IteratorStreamer()
        return _listen(streamer, self.prepare(Details(), streamer, **settings).translate(texts, prefixes))

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
        details = details or Details()
        objects, settings = self._with_constructor_objects(settings)
        settings, debug = separate_dotted_keys(settings)
        debug = {**self.debug, **debug}
        if streamer is not None:  # a larger beam that the user gives is refused below
            settings = {"beam": 1, **self._over_given(settings)}
        cfg, notes = self._settings(settings, objects)
        if streamer is not None:
            _check_streamable(cfg)
        self._check_shared_vocabulary(cfg)
        start_token = self.models[0].start_token(self.task.target_dictionary.eos())
        if language_note := chooses_itself(cfg, self.task, start_token):
            notes.append(language_note)
        need_attention = details.attention or bool(cfg.replace_unknown)
        draft = self._draft(cfg.draft) if cfg.draft else None
        ranks = {name: objects.pop(name, None) for name in ("utility", "reranker")}
        key = (need_attention, str(cfg), str(debug), *identities(objects))
        if key not in self._generators:
            self._objects_in_use = dict(objects)  # the key contains their ids, which must not be reused
            models = self._specified(objects.pop("members", None))
            objects["debug"] = from_dict(DebugConfig, debug, "debug")
            if draft is not None:
                objects["draft"] = draft.model
            forced = force_target_language(cfg, self.task)
            generator = self.task.build_generator(models, forced, need_attention=need_attention, **objects)
            self._generators = {key: generator}
        writable = self._generators[key].setup.limits.max_len
        notes += [
            f"generation.{name}={value} is more than the {writable} tokens that can be generated"
            for name, value in {**self.given, **settings}.items()
            if name in ("max_len", "max_len_b") and value > writable
        ]
        return TextDecoding(self.members, cfg, self._generators[key], details, streamer, notes, draft, **ranks)

    def _specified(self, specs: Sequence[MemberSpec | None] | None) -> list[Any]:
        """The models, each replaced by its ``MemberSpec`` if there is one.

        Raises:
            ConfigError: the spec at a position has another model, or the number of entries is not the number of models.
        """
        if specs is None:
            return list(self.models)
        if len(specs) != len(self.models):
            raise ConfigError(
                f"members has {len(specs)} entries for {len(self.models)} models; give one for each of them"
            )
        for number, (spec, model) in enumerate(zip(specs, self.models, strict=True), start=1):
            if spec is not None and (spec.model is not model or spec.companion):
                raise ConfigError(
                    f"entry {number} of members must be a source, or a MemberSpec of model {number}; companions are "
                    "not possible here"
                )
        return [spec or model for spec, model in zip(specs, self.models, strict=True)]

    def _check_shared_vocabulary(self, cfg: GenerationConfig) -> None:
        """Refuse keys that compare source ids with target ids if the two vocabularies differ."""
        if self.task.source_dictionary == self.task.target_dictionary:
            return
        neutral = GenerationConfig()
        for key in ("prompt_lookup", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty"):
            if (value := getattr(cfg, key)) != getattr(neutral, key):
                raise ConfigError(
                    f"generation.{key}={value} compares target ids with source ids, and this model has two different "
                    "vocabularies; leave it out"
                )

    def _draft(self, path: str) -> TextModel:
        """Load the draft model, once for each path."""
        if path not in self._drafts:
            draft: TextModel = load_model(path, self.device, torch.float32)
            self._check_vocabulary(draft, f"generation.draft={path}", "a draft needs a model")
            self._in_dtype(draft.model)
            self._drafts[path] = draft
        return self._drafts[path]

    def _check_vocabulary(self, member: TextModel, which: str, need: str) -> None:
        """Refuse a model whose target vocabulary differs from that of the first."""
        own, other = self.task.target_dictionary, member.task.target_dictionary
        if own != other:
            raise CheckpointError(
                f"{which} has another target vocabulary ({len(other)} tokens) than model 1 ({len(own)} tokens); "
                f"{need} trained with the same one"
            )

    def score(self, sources: Sequence[str], references: Sequence[str], **settings: Any) -> Iterator[Hypothesis]:
        """Compute the log-probabilities of known targets.

        Args:
            sources: the source lines.
            references: the target of each.
            settings: ``unnormalized``, ``ensemble_average``, ``ensemble_weights``, ``batch_size``, ``source_lang`` and
                ``target_lang`` of ``GenerationConfig``.

        Yields:
            The target of each line with its scores, in order. An empty line is scored like any other.

        Raises:
            ConfigError: another setting is given, or a language does not exist.
            DataError: the numbers of lines differ, or a line is longer than a model can process.
        """
        if isinstance(sources, str) or isinstance(references, str):
            raise DataError("sources and references are lists of texts, not one text; write [text]")
        if len(sources) != len(references):
            raise DataError(f"{len(sources)} sources cannot have {len(references)} references; give one for each")
        cfg, scorer = self._scorer(settings)
        read = sources_from_config(cfg, Resources(self.task.target_dictionary)) or [INPUT] * len(self.members)
        reader = LanguageReader(self.members, cfg)
        for start in range(0, len(sources), cfg.batch_size):
            rows = range(start, min(start + cfg.batch_size, len(sources)))
            texts, languages = zip(*(reader.read(i, sources[i]) for i in rows), strict=True)
            targets = [encode_target(self.task, references[i], own) for i, own in zip(rows, languages, strict=True)]
            encoded_sources = []
            for member, source in zip(self.members, read, strict=True):
                encoded_sources.append(
                    [
                        encode_source(member.task, source_text(source, text, i), own)
                        for i, text, own in zip(rows, texts, languages, strict=True)
                    ]
                )
                _check_lengths(rows, encoded_sources[-1], targets, member.model)
            batch = self._collate([list(map(Example, rows, encoded, targets)) for encoded in encoded_sources])
            batch = replace(batch, start_tokens=reader.start_tokens(languages))
            yield from (hypotheses[0] for hypotheses in scorer.generate(batch))

    def score_text(
        self, lines: Sequence[str], *, tokens_per_sample: int = 0, context_window: int = 0, **settings: Any
    ) -> Iterator[Hypothesis]:
        """Find the log-probabilities that language models give to text; see ``docs/language-models.md``.

        Args:
            lines: the text.
            tokens_per_sample: 0 scores each line alone. Otherwise the lines are one text, which is scored in blocks of
                so many tokens, context included.
            context_window: the tokens of each block that are context: the model sees them, and they are scored in the
                block before.
            settings: ``unnormalized``, ``ensemble_average``, ``ensemble_weights`` and ``batch_size`` of
                ``GenerationConfig``.

        Yields:
            For each line, in order, its tokens with scores. An empty line has one token, end-of-sentence.

        Raises:
            ConfigError: a model is not a language model, there is another setting, or the blocks are longer than a
                model can read.
            DataError: a line is longer than a model can read.
        """
        _check_blocks(self.models, tokens_per_sample, context_window)
        if not tokens_per_sample:
            yield from self.score([""] * len(lines), lines, **settings)
            return
        cfg, scorer = self._scorer(settings)
        LanguageReader(self.members, cfg)  # refuses languages
        encoded = [self.task.encode_target(line) for line in lines]
        cut = blocks(sum(map(len, encoded)), tokens_per_sample, context_window)
        rows = max(1, min(cfg.batch_size, _SCORED_TOKENS // tokens_per_sample))

        def score(examples: list[Example]) -> Iterator[Tensor]:
            lengths = [len(example.target) for example in examples if example.target is not None]
            scored = scorer.score(self._collate([examples] * len(self.members)), lengths)
            return (one.hypothesis.positional_scores for one in scored)

        first = int(self.task.encode_source("")[-1])
        for tokens, scores in zip(encoded, score_running_text(encoded, first, cut, rows, score), strict=True):
            yield line_hypothesis(tokens, scores, not cfg.unnormalized)

    def _scorer(self, settings: Mapping[str, Any]) -> tuple[GenerationConfig, SequenceScorer]:
        """The settings of scoring, and the scorer."""
        if unused := sorted(set(settings) - set(OF_SCORING)):
            raise ConfigError(
                f"{', '.join(unused)} has no effect on the scores of known targets; use only: {', '.join(OF_SCORING)}"
            )
        cfg, objects = self.settings(**settings), self._with_constructor_objects(settings)[0]
        target = self.task.target_dictionary
        combination = objects.get("combination") or combination_from_config(cfg, Resources(target))
        members = members_from_config(self._specified(objects.get("members")), cfg)
        return cfg, SequenceScorer(members, target.pad(), target.eos(), not cfg.unnormalized, combination)

    def _collate(self, examples: Sequence[Sequence[Example]]) -> Batch:
        """A batch of examples, which are given as each member reads them."""
        batches = [member.task.collate(own, member.model) for member, own in zip(self.members, examples, strict=True)]
        sources = [other.source for other in batches] if len(batches) > 1 else None
        return replace(batches[0], member_sources=sources).to(self.device)


def _check_lists(texts: Iterable[str], prefixes: Iterable[str] | None) -> None:
    if isinstance(texts, str) or isinstance(prefixes, str):
        raise DataError("texts and prefixes are lists of texts, not one text; write [text]")


def _listen(streamer: IteratorStreamer, translations: Iterator[Translation]) -> Iterator[StreamedText]:
    """Decode in another thread, and yield the words that it generates."""

    def work() -> None:
        with suppress(BaseException):  # the streamer raises it in the thread that iterates
            for _ in translations:
                pass

    thread = threading.Thread(target=work, name="seqgen-stream", daemon=True)
    thread.start()
    try:
        yield from streamer
    finally:
        streamer.cancel()
        thread.join()


def _check_streamable(cfg: GenerationConfig) -> None:
    """Refuse settings under which generated tokens may still change."""
    if cfg.beam > 1:
        raise ConfigError(
            f"generation.beam={cfg.beam} cannot be streamed, because the best beam may still change; leave the key "
            "out, or do not stream"
        )
    if cfg.replace_unknown:
        raise ConfigError(
            f"generation.replace_unknown={cfg.replace_unknown} cannot be streamed, because unknown words are "
            "replaced when the output is complete; leave the key out, or do not stream"
        )


def _check_blocks(models: Sequence[EncoderDecoderModel], tokens_per_sample: int, context_window: int) -> None:
    """Refuse to score running text by a model that needs a source, or in blocks that it cannot read."""
    if not all(isinstance(model, LanguageModel) for model in models):
        raise ConfigError("text without sources is scored by language models only; give the sources too")
    longest = min(model.max_positions()[1] for model in models)
    if tokens_per_sample > longest:
        raise ConfigError(f"tokens_per_sample={tokens_per_sample} is more than the {longest} positions of the model")
    if context_window and not tokens_per_sample:
        raise ConfigError(f"context_window={context_window} needs tokens_per_sample: each line is scored alone")
    if not 0 <= context_window <= max(0, tokens_per_sample - 1):
        raise ConfigError(
            f"context_window={context_window} leaves no token to score in blocks of tokens_per_sample="
            f"{tokens_per_sample}; lower it"
        )


def _check_lengths(
    rows: Sequence[int], sources: Sequence[Tensor], targets: Sequence[Tensor], model: EncoderDecoderModel
) -> None:
    longest = model.max_positions()
    rooms = model.max_target_lengths(torch.tensor([len(source) for source in sources]))
    for index, (row, source, target) in enumerate(zip(rows, sources, targets, strict=True)):
        room = longest[1] if rooms is None else int(rooms[index])
        for side, tokens, limit in (("source", source, longest[0]), ("reference", target, room)):
            if len(tokens) > limit:
                raise DataError(
                    f"{side}, line {row + 1}: {len(tokens)} tokens are more than the {limit} that the model can "
                    "process; shorten the line"
                )
