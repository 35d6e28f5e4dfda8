"""The translator: models by their paths, texts in, texts out.

Everything that decodes text goes through here: ``seqgen-generate``, the validation of ``seqgen-train``, and Python::

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
from seqgen.generation.ensemble.combinations import Combination
from seqgen.generation.ensemble.member import EMPTY, INPUT, MemberSpec, field_of, input_of
from seqgen.generation.model_settings import kept_components, resolve_settings
from seqgen.generation.observers import Observer
from seqgen.generation.options import SEARCH_KEYS, combination_from_config, members_from_config
from seqgen.generation.processors.base import LogitsProcessor
from seqgen.generation.scorer import SequenceScorer
from seqgen.generation.search.base import Search
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.generation.setup import Streamer
from seqgen.generation.stopping import StoppingRule
from seqgen.language_model import LanguageModel
from seqgen.model import EncoderDecoderModel
from seqgen.modules.dtypes import note_on, to_dtype
from seqgen.structures import Batch, Hypothesis
from seqgen.task import Task
from seqgen.text.mbr import Utility
from seqgen.text.results import Translation
from seqgen.text.running_text import blocks, line_hypothesis, score_running_text
from seqgen.text.text_decoding import Details, TextDecoding, TextModel, field_text
from seqgen.text.word_streaming import IteratorStreamer, StreamedText


@dataclass(frozen=True)
class ModelInMemory:
    """A model that was not loaded from anywhere, such as one that is being trained.

    Attributes:
        task: encodes and decodes text.
        model: the model.
        generation: how it wants to be decoded, by the names of ``GenerationConfig``'s fields.
    """

    task: Task
    model: EncoderDecoderModel
    generation: Mapping[str, Any] = field(default_factory=dict)


OF_SCORING = ("unnormalized", "ensemble_average", "ensemble_weights", "batch_size")
"""The settings of ``Translator.score``."""

_SCORED_TOKENS = 4096
"""Most tokens of running text that are scored at once; each needs one score for every token of the vocabulary."""

Model: TypeAlias = str | Path | TextModel
"""A path that ``load_model`` takes, or what it returned."""


class Translator:
    """Decodes text with one model or an ensemble.

    Args:
        models: a path or a loaded model; several are an ensemble. Each encodes the source in its own way.
        device: where to put models that are loaded here.
        settings: settings of all calls, which a call can override: the same as those of ``translate``. A setting that
            is not given is the first model's own, or else the default.

    Raises:
        CheckpointError: a model cannot be loaded, or the members' target vocabularies differ.
        ConfigError: a key is unknown, a value does not fit, settings exclude each other, or the device is not there.
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
        self._given_objects, settings = _objects(settings)
        settings, self.debug = _plain(settings)
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
        """All settings of a call.

        Args:
            settings: those of the call. They override those of the constructor, which override the first model's own,
                which override the defaults.

        Raises:
            ConfigError: a key is unknown, a value does not fit, or settings exclude each other.
        """
        objects, plain = self._with_constructor_objects(settings)
        return self._settings(_plain(plain)[0], objects)[0]

    def _with_constructor_objects(self, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Separate objects from other settings; the objects include those of the constructor that the call keeps."""
        objects, plain = _objects(settings)
        kept = {name: value for name, value in self._given_objects.items() if OBJECTS_BY_ARGUMENT[name] not in settings}
        return {**kept, **objects}, plain

    def _resolve(self, settings: Mapping[str, Any], objects: Mapping[str, Any]) -> tuple[GenerationConfig, list[str]]:
        """See ``resolve_settings``; a search object replaces all that the models' own settings say about the search."""
        replaced = {*SEARCH_KEYS, "sampling"} if "search_strategy" in objects else set()
        own = [
            {key: value for key, value in member.generation.items() if key not in replaced} for member in self.members
        ]
        return resolve_settings(own, settings)

    def _settings(self, settings: Mapping[str, Any], objects: Mapping[str, Any]) -> tuple[GenerationConfig, list[str]]:
        """All settings of a call, and notes about them."""
        given = self._over_given(settings)
        if given.get("dtype", "") != self.dtype:
            raise ConfigError(
                f"generation.dtype={given['dtype']} is for all that a translator does; give it to the constructor"
            )
        cfg, notes = self._resolve(given, objects)
        note = note_on(self.dtype, self.device) if self.dtype else None
        return cfg, [*notes, *([note] if note else [])]

    def _over_given(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a call over those of the constructor."""
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
            texts: one line each; an empty one has an empty answer.
            prefixes: what the output of each begins with.
            streamer: takes tokens or words as they are written; ``beam`` is then 1.
            return_attention: whether hypotheses carry attention and alignment.
            return_scores: whether they carry each model's own scores of their tokens.
            return_hidden: whether they carry the last hidden features of the decoders.
            settings: keys of ``GenerationConfig``, and by their whole names those of components and of ``DebugConfig``
                (``**{"search.groups": 3, "debug.use_cache": False}``). ``search``, ``combination``, ``processors``,
                ``stopping_rules``, ``observers``, ``mbr`` and ``members`` (``MemberSpec``) may also be objects.

        Returns:
            One translation for each text, in order, with ``nbest`` hypotheses, best first.

        Raises:
            ConfigError: a key is unknown, a value does not fit, or settings exclude each other.
            DataError: the numbers of texts and prefixes differ.
        """
        _check_lists(texts, prefixes)
        details = Details(return_attention, return_scores, return_hidden)
        return list(self.prepare(details, streamer, **settings).translate(texts, prefixes))

    def stream(
        self, texts: Iterable[str], *, prefixes: Iterable[str] | None = None, **settings: Any
    ) -> Iterator[StreamedText]:
        """Decode texts in a thread of their own, word by word.

        Args:
            texts: one line each.
            prefixes: what the output of each begins with.
            settings: keys of ``GenerationConfig``; ``beam`` is 1.

        Returns:
            The words of every text, those of one text in order. Whoever stops listening ends the decoding.

        Raises:
            ConfigError: a key is unknown, a value does not fit, or settings exclude each other.
        """
        _check_lists(texts, prefixes)
        streamer = IteratorStreamer()
        return _listen(streamer, self.prepare(Details(), streamer, **settings).translate(texts, prefixes))

    def prepare(
        self, details: Details | None = None, streamer: Streamer | None = None, **settings: Any
    ) -> TextDecoding:
        """Make ready to decode lines as they come; what ``translate`` and ``stream`` do for whole lists.

        Args:
            details: what hypotheses carry besides tokens and scores.
            streamer: takes tokens or words as they are written.
            settings: keys of ``GenerationConfig``.

        Raises:
            ConfigError: a key is unknown, a value does not fit, or settings exclude each other.
        """
        details = details or Details()
        objects, settings = self._with_constructor_objects(settings)
        settings, debug = _plain(settings)
        debug = {**self.debug, **debug}
        if streamer is not None:  # one output for each line, unless the user says otherwise, which is refused
            settings = {"beam": 1, **self._over_given(settings)}
        cfg, notes = self._settings(settings, objects)
        if streamer is not None:
            _check_streamable(cfg)
        self._check_shared_vocabulary(cfg)
        need_attention = details.attention or bool(cfg.replace_unknown)
        draft = self._draft(cfg.draft) if cfg.draft else None
        utility = objects.pop("utility", None)
        key = (need_attention, str(cfg), str(debug), *_identities(objects))
        if key not in self._generators:
            self._objects_in_use = dict(objects)  # kept alive, so that no other object gets the id of one of them
            models = self._specified(objects.pop("members", None))
            objects["debug"] = from_dict(DebugConfig, debug, "debug")
            if draft is not None:
                objects["draft"] = draft.model
            generator = self.task.build_generator(models, cfg, need_attention=need_attention, **objects)
            self._generators = {key: generator}
        writable = self._generators[key].setup.limits.max_len
        notes += [
            f"generation.{name}={value} is more than the {writable} tokens that can be written"
            for name, value in {**self.given, **settings}.items()
            if name in ("max_len", "max_len_b") and value > writable
        ]
        return TextDecoding(self.members, cfg, self._generators[key], details, streamer, notes, draft, utility)

    def _specified(self, specs: Sequence[MemberSpec | None] | None) -> list[Any]:
        """The models, those with a ``MemberSpec`` replaced by it.

        Raises:
            ConfigError: a spec is of another model, or there is not one entry for each model.
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
        """Refuse what looks for the source's words in the output where both have vocabularies of their own."""
        if self.task.source_dictionary == self.task.target_dictionary:
            return
        neutral = GenerationConfig()
        for key in ("prompt_lookup", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty"):
            if (value := getattr(cfg, key)) != getattr(neutral, key):
                raise ConfigError(
                    f"generation.{key}={value} compares the output with the source, and this model has a vocabulary "
                    "for each; leave it out"
                )

    def _draft(self, path: str) -> TextModel:
        """The model that drafts for the others, loaded once."""
        if path not in self._drafts:
            draft: TextModel = load_model(path, self.device, torch.float32)
            self._check_vocabulary(draft, f"generation.draft={path}", "a draft needs a model")
            self._in_dtype(draft.model)
            self._drafts[path] = draft
        return self._drafts[path]

    def _check_vocabulary(self, member: TextModel, which: str, need: str) -> None:
        """Refuse a model that writes another vocabulary than the first."""
        own, other = self.task.target_dictionary, member.task.target_dictionary
        if own != other:
            raise CheckpointError(
                f"{which} writes another target vocabulary ({len(other)} tokens) than model 1 ({len(own)} tokens); "
                f"{need} trained with the same one"
            )

    def score(self, sources: Sequence[str], references: Sequence[str], **settings: Any) -> Iterator[Hypothesis]:
        """Find the log-probabilities that the models give to known targets.

        Args:
            sources: the source lines.
            references: the target of each.
            settings: ``unnormalized``, ``ensemble_average``, ``ensemble_weights`` and ``batch_size`` of
                ``GenerationConfig``.

        Yields:
            For each line, in order, its target with scores. An empty line is scored like any other.

        Raises:
            ConfigError: there is another setting among them.
            DataError: the numbers of lines differ, or a line is longer than a model can read or write.
        """
        if isinstance(sources, str) or isinstance(references, str):
            raise DataError("sources and references are lists of texts, not one text; write [text]")
        if len(sources) != len(references):
            raise DataError(f"{len(sources)} sources cannot have {len(references)} references; give one for each")
        cfg, scorer = self._scorer(settings)
        for start in range(0, len(sources), cfg.batch_size):
            rows = range(start, min(start + cfg.batch_size, len(sources)))
            targets = [self.task.encode_target(references[i]) for i in rows]
            encoded_sources = []
            for member, source in zip(self.members, cfg.members or [INPUT] * len(self.members), strict=True):
                texts = ["" if source == EMPTY else field_text(sources[i], field_of(source), i) for i in rows]
                encoded_sources.append([member.task.encode_source(text) for text in texts])
                _check_lengths(rows, encoded_sources[-1], targets, member.model)
            batch = self._collate([list(map(Example, rows, encoded, targets)) for encoded in encoded_sources])
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
                f"{', '.join(unused)} has no effect on the scores of known targets; there are: {', '.join(OF_SCORING)}"
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


OBJECTS: dict[str, tuple[type, str]] = {
    "members": (MemberSpec, "members"),
    "mbr": (Utility, "utility"),
    "search": (Search, "search_strategy"),
    "combination": (Combination, "combination"),
    "processors": (LogitsProcessor, "processors"),
    "stopping_rules": (StoppingRule, "stopping"),
    "observers": (Observer, "observers"),
}
"""Settings whose values may be objects rather than names: their class, and the argument that gets the object."""

OBJECTS_BY_ARGUMENT = {argument: name for name, (_, argument) in OBJECTS.items()}
"""Names of settings by argument."""


def _objects(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate objects from settings."""
    objects: dict[str, Any] = {}
    plain = dict(settings)
    for name, (kind, argument) in OBJECTS.items():
        value: Any = plain.get(name)
        if isinstance(value, kind):
            objects[argument] = value
            plain[name] = ""  # in place of a name that the model or the constructor has
        elif not isinstance(value, list | tuple) or not any(isinstance(item, kind) for item in value):
            continue
        elif name == "members":  # by position, one entry for each model
            objects[argument] = [item if isinstance(item, MemberSpec) else None for item in value]
            plain[name] = [input_of(item) if isinstance(item, MemberSpec) else item for item in value]
        else:
            objects[argument] = [item for item in value if isinstance(item, kind)]
            plain[name] = [item for item in value if not isinstance(item, kind)]
    return objects, plain


def _identities(objects: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Which objects these are, of lists each item."""
    return [(name, tuple(map(id, value if isinstance(value, list) else [value]))) for name, value in objects.items()]


def _plain(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Put the components' own keys (``search.groups``) where they belong, and separate those of ``DebugConfig``."""
    plain = {key: value for key, value in settings.items() if "." not in key}
    debug = {key.removeprefix("debug."): value for key, value in settings.items() if key.startswith("debug.")}
    own = {key: value for key, value in settings.items() if "." in key and not key.startswith("debug.")}
    if own:
        plain["components"] = {**plain.get("components", {}), **own}
    return plain, debug


def _check_lists(texts: Iterable[str], prefixes: Iterable[str] | None) -> None:
    if isinstance(texts, str) or isinstance(prefixes, str):
        raise DataError("texts and prefixes are lists of texts, not one text; write [text]")


def _listen(streamer: IteratorStreamer, translations: Iterator[Translation]) -> Iterator[StreamedText]:
    """Let another thread decode, and hand on what it writes."""

    def work() -> None:
        with suppress(BaseException):  # the streamer hands it over
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
    """Refuse to stream what may yet change."""
    if cfg.beam > 1:
        raise ConfigError(
            f"generation.beam={cfg.beam} cannot be streamed, since a line has one output there and beams take back "
            "what they wrote; leave it out, or do without a stream"
        )
    if cfg.replace_unknown:
        raise ConfigError(
            f"generation.replace_unknown={cfg.replace_unknown} cannot be streamed, since unknown words are replaced "
            "when the output is complete; leave it out, or do without a stream"
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
                    f"{side}, line {row + 1}: {len(tokens)} tokens are more than the {limit} that the model can take; "
                    "shorten the line"
                )
