"""The subjects of checks: a model or a decoding component with random inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from seqgen.addons.checks.checking import ADVICE, Compared, NotApplicableError, needs
from seqgen.config import FastConfig, GenerationConfig
from seqgen.extend import (
    DECODING_COMPONENTS,
    Batch,
    Component,
    ConfigError,
    DecodingRequest,
    DecodingSetup,
    Dictionary,
    EncoderDecoderModel,
    EncoderOut,
    Hypothesis,
    IncrementalDecoder,
    LanguageModel,
    Phrases,
    SequenceGenerator,
    Session,
    Task,
    WhitespaceTokenizer,
    build_setup,
    collate,
    flattened,
)

LENGTHS = [5, 3, 8, 1]
"""The length of each source, end-of-sentence included."""

SOURCES = [5, 2, 8, 1, 4]
"""The same for decodes."""

BEAM = 3
"""Target rows of each sentence."""


@dataclass
class Inputs:
    """Sources of unequal length, and a target prefix for each."""

    src_tokens: Tensor
    src_lengths: Tensor
    prev_output_tokens: Tensor
    padded_left: bool = False

    def alone(self, row: int) -> Inputs:
        """One row, without padding."""
        length = int(self.src_lengths[row])
        tokens = self.src_tokens[row : row + 1]
        tokens = tokens[:, tokens.size(1) - length :] if self.padded_left else tokens[:, :length]
        return Inputs(tokens, self.src_lengths[row : row + 1], self.prev_output_tokens[row : row + 1])

    def inputs_with_source(self, row: int, column: int, words: tuple[int, int]) -> Inputs:
        """The same inputs with another word, the next one of ``Ids.words``, in one place of the source."""
        first, end = words
        changed = self.src_tokens.clone()
        changed[row, column] = first + (changed[row, column] - first + 1) % (end - first)
        return replace(self, src_tokens=changed)


@dataclass(frozen=True)
class Ids:
    """The ids of a model's inputs.

    Attributes:
        pad: id of padding.
        eos: id of end-of-sentence.
        start: the first id of a target prefix.
        words: the smallest id of a range without special tokens, and the first id after that range.
        vocab: size of the target vocabulary.
        left: whether sources are padded on the left.
        lines: see ``Compared``.
    """

    pad: int
    eos: int
    start: int
    words: tuple[int, int]
    vocab: int
    left: bool = False
    lines: Sequence[tuple[str, Sequence[int]]] = ()

    @classmethod
    def of(cls, model: EncoderDecoderModel, dictionary: Dictionary, source_size: int) -> Ids:
        """The ids of a model's inputs; words come from the longest range without special tokens.

        Of 23 ids and the special ones 0 to 3, this range is ``(4, 23)``.

        Args:
            model: the model.
            dictionary: its target vocabulary.
            source_size: size of its source vocabulary.

        Raises:
            ConfigError: the encoder reads columns.
        """
        if getattr(model.encoder, "inputs", ()):
            raise ConfigError(
                f"{type(model.encoder).__name__} reads columns, for which the checks have no random values"
            )
        eos, size = dictionary.eos(), min(len(dictionary), source_size)
        start = model.start_token(eos)
        special = {token for token in (*dictionary.special_ids.values(), start) if token is not None and token < size}
        pairs = itertools.pairwise([-1, *sorted(special), size])
        begin, end = max(pairs, key=lambda pair: pair[1] - pair[0])
        return cls(dictionary.pad(), eos, start, (begin + 1, end), len(dictionary), model.left_pad_source)

    def word(self, number: int) -> int:
        """The id of a word, counted from 0; of the last one if there are fewer."""
        begin, end = self.words
        return min(begin + number, end - 1)

    def line(self, row: int, seed: int) -> int:
        """The number of the given line that is the source of a row."""
        return (row + seed - 1) % len(self.lines)

    def inputs(self, lengths: Sequence[int], target_length: int, rows_per_sentence: int = 1, seed: int = 1) -> Inputs:
        """Random targets, and random sources unless lines are given.

        Args:
            lengths: length of each random source, end-of-sentence included.
            target_length: columns of the target prefix.
            rows_per_sentence: target rows for each source.
            seed: seed of the tokens.
        """
        generator = torch.Generator().manual_seed(seed)
        sources = [
            self.lines[self.line(row, seed)][1]
            if self.lines
            else [*torch.randint(*self.words, (length - 1,), generator=generator).tolist(), self.eos]
            for row, length in enumerate(lengths)
        ]
        lengths = [len(source) for source in sources]
        src_tokens = torch.full((len(lengths), max(lengths)), self.pad)
        for row, source in enumerate(sources):
            begin = max(lengths) - len(source) if self.left else 0
            src_tokens[row, begin : begin + len(source)] = torch.tensor(source)
        rows = len(lengths) * rows_per_sentence
        targets = torch.randint(*self.words, (rows, target_length), generator=generator)
        targets[:, 0] = self.start
        return Inputs(src_tokens, torch.tensor(lengths), targets, self.left)

    def batch(
        self,
        lengths: Sequence[int],
        rows: Sequence[int] | None = None,
        targets: Sequence[int] | None = None,
        seed: int = 1,
    ) -> Batch:
        """Random sources or pairs; the line number of a sentence is its row.

        Args:
            lengths: length of each source, end-of-sentence included.
            rows: the sentences; one may occur several times. All if not given; padding that only others need is left
                out.
            targets: length of each target; none if not given.
            seed: seed of the tokens.
        """
        inputs, eos = self.inputs(lengths, max(targets or [1]), seed=seed), torch.tensor([self.eos])
        examples: list[tuple[int, Tensor, Tensor | None]] = []
        for row in range(len(lengths)) if rows is None else rows:
            words = inputs.prev_output_tokens[row, 1 : targets[row]] if targets else None
            examples.append((row, inputs.alone(row).src_tokens[0], None if words is None else torch.cat([words, eos])))
        return collate(
            examples, source_pad=self.pad, target_pad=self.pad, start_token=self.start, left_pad_source=self.left
        )


Results = Sequence[Sequence[Hypothesis]]
"""The n-best list of each sentence."""


@dataclass
class Subject(Compared):
    """A model whose invariants are checked.

    Attributes:
        model: the model, in evaluation mode.
        dictionary: the target vocabulary.
        source_size: size of the source vocabulary.
        build: builds a model with the same configuration and other random weights; ``None`` for a trained model.
    """

    model: EncoderDecoderModel
    dictionary: Dictionary
    source_size: int
    build: Callable[[], EncoderDecoderModel] | None = None

    @cached_property
    def ids(self) -> Ids:
        """The ids of the inputs."""
        return replace(Ids.of(self.model, self.dictionary, self.source_size), lines=self.lines)

    @property
    def decoder(self) -> IncrementalDecoder:
        """The decoder.

        Raises:
            NotApplicableError: it cannot continue from a state.
            ConfigError: the model says that it has no left-to-right pass.
        """
        if not isinstance(self.model.decoder, IncrementalDecoder):
            raise NotApplicableError("the decoder is not an IncrementalDecoder: it has no decoding state")
        batch = self.inputs([2], 1)
        self.model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens)
        return self.model.decoder

    @property
    def cache(self) -> Any:
        """The class of the user's key/value cache; ``None`` if there is none."""
        return next(filter(None, (getattr(layer, "cache", None) for layer in self.model.decoder.modules())), None)

    @property
    def is_language_model(self) -> bool:
        """True if the model is decoder-only: it does not read the start token, and has no attention to a source."""
        return isinstance(self.model, LanguageModel)

    def inputs(self, lengths: Sequence[int] = LENGTHS, target_length: int = 6, **options: int) -> Inputs:
        """Random inputs; see ``Ids.inputs``."""
        return self.ids.inputs(lengths, target_length, **options)

    def logits(self, batch: Inputs) -> Tensor:
        """Logits ``(N, T, V)`` of the parallel pass; of the decoder if the model refuses a left-to-right pass."""
        try:
            out = self.model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens)
        except ConfigError:
            out = self.model.decoder(batch.prev_output_tokens, self.encode(batch))
        return out.logits  # type: ignore[no-any-return]

    def encode(self, batch: Inputs) -> EncoderOut:
        """The encoder's output, one row for each sentence."""
        out: EncoderOut = self.model.encoder(batch.src_tokens, batch.src_lengths)
        return out

    def batch(self, rows: Sequence[int] | None = None, lengths: Sequence[int] = SOURCES) -> Batch:
        """Random sources for decodes; see ``Ids.batch``."""
        return self.ids.batch(lengths, rows)

    def generator(self, members: int = 1, fast: FastConfig | None = None, **options: Any) -> SequenceGenerator:
        """Beam search with the model.

        Args:
            members: number of members, all with this model.
            fast: switches of optimizations.
            options: fields of ``GenerationConfig``.
        """
        cfg = GenerationConfig(**{"beam": 4, "max_len_b": 12, **options})
        return SequenceGenerator(build_setup([self.model] * members, self.dictionary, cfg, fast=fast))

    def decode(self, batch: Batch, **options: Any) -> Results:
        """Decode a batch; the options are those of ``generator``."""
        return self.generator(**options).generate(batch)

    def restore(self) -> None:
        """Put the model into evaluation mode."""
        self.model.eval()


def expand(encoder_out: EncoderOut, rows_per_sentence: int) -> EncoderOut:
    """Repeat the row of each sentence for each of its beams."""
    return encoder_out.map(lambda tensor: tensor.repeat_interleave(rows_per_sentence, dim=0))


def tiny_dictionary(words: int = 19, texts: Sequence[str] = ()) -> Dictionary:
    """``<s> <pad> </s> <unk>``, the words of texts, and ``w0``, ``w1``, ..., with ids from 4."""
    result = Dictionary()
    for word in (*" ".join(texts).split(), *(f"w{number}" for number in range(words))):
        result.add_symbol(word)
    return result


def randomize_(model: EncoderDecoderModel, seed: int = 0, factor: float = 1.0) -> EncoderDecoderModel:
    """Make biases and zero matrices random too, since an error could be invisible where parameters are zero.

    Args:
        model: the model, changed in place and put into evaluation mode.
        seed: seed of the changes.
        factor: multiplies all parameters; above 1 the distributions have clear peaks, so that hypotheses differ and end
            at different steps.

    Returns:
        The model.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or not parameter.any():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(noise.to(parameter) * 0.1)
            parameter.mul_(factor)
    return model.eval()


def task_of(words: Dictionary) -> Task:
    """A task whose tokens are the words of a text, for random models."""
    return Task(None, WhitespaceTokenizer(words), WhitespaceTokenizer(words))


LONGEST = 6
"""The maximum length of an output, end-of-sentence included."""


@dataclass
class Decoding(Compared):
    """A decoding component, and small models to decode with.

    Attributes:
        generation: names the component, last of its kind, and has its keys and those of the components that it is
            checked with; its ``beam`` is the beam size of the checks.
        group: the kind of component, the prefix of its keys.
        build: builds a random model for a vocabulary, given a seed; ``None`` for trained models.
        task: has the vocabularies and tokenizers.
        kind: the class of the component; of a search strategy or combination the base class, since rules have variants.
        models: the members.

    The rules (``semantics``) that it is checked under are the variants.
    """

    advice = ADVICE["component"]
    varied = "semantics"
    generation: GenerationConfig
    group: str
    build: Callable[[Dictionary, int], EncoderDecoderModel] | None
    task: Task
    kind: type[Component]
    models: list[EncoderDecoderModel]

    @property
    def dictionary(self) -> Dictionary:
        """The target vocabulary."""
        return self.task.target_dictionary

    @property
    def without(self) -> dict[str, Any]:
        """The options of a decode without the component, but with the components that it is checked with."""
        _, chooser = DECODING_COMPONENTS[self.group]
        chosen = getattr(self.generation, chooser)
        single = isinstance(chosen, str)
        prefix = f"{self.group}." if single else f"{self.group}.{chosen[-1]}."
        return {chooser: "" if single else chosen[:-1], "components": self.keys_without(prefix)}

    def keys_without(self, *prefixes: str) -> dict[str, Any]:
        """The components' keys, without those that begin with one of some prefixes."""
        return {key: value for key, value in self.generation.components.items() if not key.startswith(prefixes)}

    @cached_property
    def ids(self) -> Ids:
        """The ids of the inputs."""
        return replace(Ids.of(self.models[0], self.dictionary, len(self.task.source_dictionary)), lines=self.lines)

    def batch(self, rows: Sequence[int] | None = None, lengths: Sequence[int] = SOURCES, seed: int = 1) -> Batch:
        """Random sources with their texts and line numbers; see ``Ids.batch``."""
        batch, special = self.ids.batch(lengths, rows, seed=seed), (self.ids.pad, self.ids.eos)
        if self.lines:
            return replace(batch, texts=[self.lines[self.ids.line(row, seed)][0] for row in batch.ids.tolist()])
        symbol, rows_of_ids = self.task.source_dictionary.symbol, batch.source.src_tokens.tolist()
        texts = [" ".join(symbol(id) for id in row if id not in special) for row in rows_of_ids]
        return replace(batch, texts=texts)

    def generator(
        self, members: int = 1, fast: FastConfig | None = None, objects: Mapping[str, Any] | None = None, **options: Any
    ) -> SequenceGenerator:
        """A generator with the component.

        Args:
            members: number of members, all with the same model.
            fast: switches of optimizations.
            objects: further components; see ``build_setup``.
            options: fields of ``GenerationConfig``.
        """
        begin, end = self.ids.words
        few = range(begin, end, 3)[: min(3, (end - begin) // 3)]
        ends = [self.dictionary.symbol(token) for token in few]  # outputs have unequal lengths
        values = {"min_len": 0, "max_len": LONGEST, "end_symbols": ends, "semantics": self.variant, **options}
        models = self.models * members if len(self.models) == 1 else self.models
        return self.task.build_generator(models, replace(self.generation, **values), fast=fast, **(objects or {}))

    def phrases(self, setup: DecodingSetup, batch: Batch) -> list[Phrases] | None:
        """Phrases for a strategy that supports constraints: none, one or two for each sentence."""
        if not setup.search.enforces_constraints:
            return None
        one, two, four, seven = map(self.ids.word, (1, 2, 4, 7))
        every: list[Phrases] = [[[one, two]], [], [[four]], [[one], [seven]], []]
        return [every[row % len(every)] for row in batch.ids.tolist()]

    def decode(self, batch: Batch, prefix: bool = False, **options: Any) -> Results:
        """Decode a batch.

        Args:
            batch: the batch.
            prefix: whether each output has to begin with a token that depends on the line number.
            options: see ``generator``.
        """
        generator = self.generator(**options)
        tokens = (self.ids.word(1) + batch.ids % 2).unsqueeze(1) if prefix else None
        return generator.generate(batch, tokens, self.phrases(generator.setup, batch))

    def session(
        self, batch: Batch, setup: DecodingSetup | None = None, kind: type[Session] = Session, **options: Any
    ) -> Session:
        """A session that has not decoded a step.

        Args:
            batch: the batch.
            setup: how to decode; by default that of a new generator.
            kind: the class of the session.
            options: see ``generator``.

        Raises:
            NotApplicableError: the search strategy has a decoding loop of its own.
        """
        setup = setup or self.generator(**options).setup
        needs(setup.search.session_class is None, "the search strategy has a decoding loop of its own")
        return kind(setup, DecodingRequest(batch, None, self.phrases(setup, batch)))

    def parts(self, owner: Session | DecodingSetup) -> list[Component]:
        """The component in a session or setup, also within others."""
        return [part for part in flattened(owner.components) if isinstance(part, self.kind)]

    @property
    def wide(self) -> Decoding:
        """The same component with a vocabulary of 643 tokens, which is searched in blocks.

        Raises:
            NotApplicableError: the models are trained.
        """
        if self.build is None:
            raise NotApplicableError("a trained model has one vocabulary")
        words = tiny_dictionary(639, [text for text, _ in self.lines])
        models = [self.build(words, 0) for _ in self.models]
        return replace(self, task=task_of(words), models=models)
