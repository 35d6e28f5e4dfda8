"""The base class of tasks, which find the data and convert between text and token ids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.core.component import Phrases
from seqgen.core.contract import Flagged, Flags, check_returned
from seqgen.core.errors import ConfigError, listing
from seqgen.core.member import MemberSpec
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import Batch, Hypothesis
from seqgen.data.columns import Column
from seqgen.data.dictionary import Dictionary
from seqgen.data.pair_dataset import Dataset, collate
from seqgen.data.records import JsonFormat
from seqgen.data.text import read_lines
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.decoding.observers import Streamer, Streaming
from seqgen.decoding.options import build_setup
from seqgen.metrics import text_scores
from seqgen.registry import MODELS
from seqgen.system.error_messages import library_errors


def other_languages(one: Sequence[str], other: Sequence[str]) -> bool:
    """True if two pairs of languages differ; regions and scripts are ignored, as in ``pt`` and ``pt_BR``.

    Args:
        one: the codes of source and target; empty if they are not known.
        other: likewise. Codes of different lengths, such as ``de`` and ``deu``, are not compared.
    """
    codes = [[re.split("[-_]", code)[0] for code in pair] for pair in zip(one, other, strict=False)]
    return any(first != second and len(first) == len(second) for first, second in codes)


class Task(Flagged):
    """The data, tokenizers, batches and evaluation of a task.

    A subclass implements ``setup_task`` and ``load_dataset``; the other methods have defaults for parallel text.

    Args:
        cfg: an instance of the configuration class that the task is registered with.
        source_tokenizer: converts between source text and ids.
        target_tokenizer: the same for the target; may be the same object.

    Attributes:
        datasets: the loaded datasets by split.
        text_field: the name of the source in a line with columns, which is that of the column in a table.
    """

    flags: ClassVar[Flags] = {
        "joins_batches": ("inference_step",),
        "reads_plain_lines": ("input_of",),
        "encodes_by_tokenizer": ("encode_source", "encode_target"),
        "metric_signatures": ("metrics",),
    }
    safe_values: ClassVar[Mapping[str, Any]] = {**dict.fromkeys(flags, False), "metric_signatures": lambda self: {}}

    joins_batches: bool = True
    """True if waiting sentences may join a running batch, without a call of ``inference_step`` for each batch."""

    reads_plain_lines: bool = True
    """True if a line is the input of the model, so that its sentences can be decoded in its place."""

    encodes_by_tokenizer: bool = True
    """True if sources and targets are encoded by the tokenizers alone, to which languages can be given."""

    reads_empty_lines: bool = False
    """True if an empty line is decoded, as the empty prompt of a language model is; if not, its output is empty."""

    translates: bool = False
    """True if outputs are about as long as their sources, as translations are; a much shorter one is then noted."""

    columns: Mapping[str, Column] = MappingProxyType({})
    """The columns of examples, by name."""

    def __init__(self, cfg: Any, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer):
        self.cfg = cfg
        self.text_field = str(getattr(cfg, "source_column", "") or getattr(cfg, "source_lang", "") or "source")
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.datasets: dict[str, Dataset] = {}

    @property
    def language_pair(self) -> tuple[str, ...]:
        """The codes of the source and target language; empty if they are not known, or there are several pairs."""
        sides = tuple(str(getattr(self.cfg, f"{side}_lang", "")) for side in ("source", "target"))
        # the endings of files are codes such as ``en``, or words such as ``article``
        return sides if all(re.fullmatch("[a-z]{2,3}([-_].*)?", side) for side in sides) else ()

    @classmethod
    def setup_task(cls, cfg: Any, folder: Path) -> Self:
        """Make the task, with its tokenizers.

        Args:
            cfg: the task's configuration.
            folder: the run folder. If it contains tokenizers, they are loaded, and the training data are not read.
                Otherwise they are made from the training data and written there.

        Returns:
            The task.
        """
        raise NotImplementedError

    def load_dataset(self, split: str) -> Dataset:
        """Load a split and encode it; ``dataset`` calls this once for each split and stores what it returns.

        Args:
            split: ``train``, ``valid`` or ``test``.

        Returns:
            The dataset.
        """
        raise NotImplementedError

    def dataset(self, split: str) -> Dataset:
        """The dataset of a split, which is loaded when it is first needed.

        Args:
            split: ``train``, ``valid`` or ``test``.

        Raises:
            ContractError: ``load_dataset`` returned something else.
        """
        if split not in self.datasets:
            self.datasets[split] = check_returned(self, "load_dataset", self.load_dataset(split), Dataset)
        return self.datasets[split]

    def splits(self) -> list[str]:
        """The splits for which there are data."""
        return ["train", "valid", "test"]

    @classmethod
    def data_files(cls, cfg: Any, folder: Path, split: str) -> list[Path]:
        """The files of a split, which are found and hashed before the task is set up; empty if it reads no files.

        Args:
            cfg: the task's configuration.
            folder: the run folder.
            split: ``train``, ``valid`` or ``test``.

        Raises:
            UserError: the split has no files, or a file does not exist.
        """
        return []

    def source_lines(self, split: str) -> Iterator[str]:
        """The raw source text of a split, line by line.

        Args:
            split: ``train``, ``valid`` or ``test``.
        """
        raise NotImplementedError

    def references(self, split: str) -> Iterator[str] | None:
        """The raw target text of a split, line by line; ``None`` if there is none.

        Args:
            split: ``train``, ``valid`` or ``test``.
        """
        return None

    def part(self, name: str) -> Task:
        """The task restricted to one of its sources, if it has several, such as those of a mixture.

        Args:
            name: the source's name, which is also the prefix of its scores.

        Raises:
            ConfigError: there is no such source.
        """
        raise ConfigError(f"this task has no sources, so there is no source {name!r}")

    def input_of(self, text: str) -> str:
        """Turn a line of text into an input of the model; by default the line itself.

        Args:
            text: one line.
        """
        return text

    def decoding_settings(self) -> dict[str, str]:
        """Settings that decode the task's splits as in training, such as the languages of a pair; by default none.

        Returns:
            Values by the names of ``GenerationConfig``'s fields; the user's values take precedence.
        """
        return {}

    def fixed_values(self) -> dict[str, str]:
        """Further values that must not change after training; configuration and tokenizers are checked anyway.

        Returns:
            Values by name, from files of the run folder that a user may edit; by default none.
        """
        return {}

    @property
    def source_dictionary(self) -> Dictionary:
        """The source vocabulary."""
        return self.source_tokenizer.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        """The target vocabulary."""
        return self.target_tokenizer.dictionary

    def encode_source(self, text: str) -> Tensor:
        """Turn a source line into ids.

        Args:
            text: one line.

        Returns:
            ``(S,)`` int64, end-of-sentence included.
        """
        return torch.tensor(self.source_tokenizer.encode_source(text))

    def split_columns(self, line: str, number: int) -> tuple[str, Mapping[str, Any]]:
        """Separate the text of a line that is decoded or scored from its columns.

        Args:
            line: the line, which is not empty. If the task has columns and it begins with a brace, it is a JSON object
                with the text as ``text_field``, and all columns.
            number: its number, from 0.

        Returns:
            The text, which is the source; and the columns, see ``Example.columns``.

        Raises:
            DataError: the line is not such an object.
        """
        if not self.columns or not line.startswith("{"):
            return line, {}
        with library_errors(f"line {number + 1}"):
            lists = tuple(name for name, one in self.columns.items() if one.kind != "text")
            record = JsonFormat((self.text_field, *self.columns), lists).read(line)
        return record[self.text_field], self.read_columns(record, f"line {number + 1}")

    def read_columns(self, record: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Convert the columns of a record; see ``Column.read``."""
        return {name: column.read(record.get(name), where) for name, column in self.columns.items()}

    def read_input(self, file: str) -> Iterator[str]:
        """The lines of a file that is decoded or scored, with columns as ``split_columns`` reads them.

        Args:
            file: the name of the file, which may be a pipe.
        """
        return read_lines(Path(file), pipes=True)

    def encode_source_in(self, text: str, source_lang: str, target_lang: str) -> Tensor:
        """Turn a source line of a multilingual model into ids; only for tasks that do not override ``encode_source``.

        Args:
            text: one line.
            source_lang: code of its language; empty for the tokenizer's default.
            target_lang: code of the language of the output; empty for none.

        Returns:
            ``(S,)`` int64, end-of-sentence included.
        """
        return torch.tensor(self.source_tokenizer.encode_source(text, source_lang, target_lang))

    def prompt(self, src_tokens: Tensor) -> Tensor:
        """The tokens that the output of a source continues: those of a prompt; by default none.

        Args:
            src_tokens: ``(S,)`` int64, what ``encode_source`` returned.

        Returns:
            ``(P,)`` int64 target tokens.
        """
        return src_tokens[:0]

    def encode_target(self, text: str) -> Tensor:
        """Turn a target line into ids.

        Args:
            text: one line.

        Returns:
            ``(T,)`` int64, end-of-sentence included.
        """
        return torch.tensor(self.target_tokenizer.encode_target(text))

    def decode(self, tokens: Tensor) -> str:
        """Turn target ids into text.

        Args:
            tokens: ``(T,)`` int64; end-of-sentence, padding and begin-of-sentence are skipped.

        Returns:
            The detokenized text.
        """
        specials = {self.target_dictionary.eos(), self.target_dictionary.pad(), self.target_dictionary.bos()}
        return self.target_tokenizer.decode([token for token in tokens.tolist() if token not in specials])

    def build_model(self, cfg: Any) -> EncoderDecoderModel:
        """Build a model from its configuration.

        Args:
            cfg: an instance of the configuration class of a registered model.

        Returns:
            The model, with newly initialized weights.
        """
        model: EncoderDecoderModel = MODELS.of(cfg).component.build_model(cfg, self)  # type: ignore[attr-defined]
        return model

    def build_generator(
        self, models: Sequence[EncoderDecoderModel | MemberSpec], cfg: GenerationConfig, **further: Any
    ) -> SequenceGenerator:
        """Make the generator for one model or an ensemble.

        Args:
            models: one or more models over the target vocabulary; ``MemberSpec`` gives a model a role.
            cfg: the configuration of decoding.
            further: arguments of ``build_setup`` that are not in the configuration.

        Returns:
            The generator.

        Raises:
            ConfigError: keys contradict each other, or need something that the task does not have.
        """
        comparing = ("prompt_lookup", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty")
        for key in () if self.source_dictionary == self.target_dictionary else comparing:
            if (value := getattr(cfg, key, None)) != getattr(GenerationConfig, key, None):
                raise ConfigError(
                    f"generation.{key}={value} compares target ids with source ids, and this model has two different "
                    "vocabularies; remove it, or train with a joint vocabulary"
                )
        of_task: dict[str, Any] = {"tokenizer": self.target_tokenizer, "source_dictionary": self.source_dictionary}
        known = [ModelInMemory(self, one.model if isinstance(one, MemberSpec) else one) for one in models]
        further = {"resources": {"models": known}, **of_task, **further}
        return SequenceGenerator(build_setup(models, self.target_dictionary, cfg, **further))

    def collate(self, examples: Sequence[tuple[Any, ...]], model: EncoderDecoderModel) -> Batch:
        """Collate examples into a batch for a model.

        Args:
            examples: an ``Example`` for each sentence, or its first fields; either all have a target or none has.
            model: defines the padding side of sources and the start token.

        Returns:
            The batch; see ``seqgen.data.pair_dataset.collate``.
        """
        words = self.target_dictionary
        batch = collate(
            examples,
            source_pad=self.source_dictionary.pad(),
            target_pad=words.pad(),
            start_token=model.start_token(words.eos()),
            left_pad_source=model.left_pad_source,
            column_pads={name: one.pad for name, one in self.columns.items() if one.pad is not None},
        )
        if words.pad() != words.eos() or batch.target is None:
            return batch
        return replace(batch, target_lengths=torch.tensor([0 if one[2] is None else len(one[2]) for one in examples]))

    def train_step(self, batch: Batch, model: EncoderDecoderModel, criterion: Any) -> Any:
        """Compute the loss of a training batch; the trainer calls ``backward``.

        Args:
            batch: the batch.
            model: the model, in training mode.
            criterion: called as ``criterion(model, batch)``.

        Returns:
            What the criterion returns: the loss summed over ``sample_size`` units, and values to log.

        Raises:
            ConfigError: the batch has columns that neither the encoder nor the criterion reads.
        """
        parts = model.encoder, criterion
        read = {name.removesuffix("_lengths") for part in parts for name in getattr(part, "inputs", ())}
        if unread := sorted({name.removesuffix("_lengths") for name in batch.source.inputs} - read):
            names = " and ".join(type(part).__name__ for part in parts)
            raise ConfigError(f"the inputs of {names} do not name the columns {listing(unread)}; remove them")
        return criterion(model, batch)

    @torch.no_grad()
    def valid_step(self, batch: Batch, model: EncoderDecoderModel, criterion: Any) -> Any:
        """Compute the loss of a validation batch; see ``train_step``."""
        return criterion(model, batch)

    @torch.no_grad()
    def inference_step(
        self,
        generator: SequenceGenerator,
        models: Sequence[EncoderDecoderModel],
        sample: Batch,
        prefix_tokens: Tensor | None = None,
        constraints: Sequence[Phrases] | None = None,
        streamer: Streamer | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            generator: what ``build_generator`` returned.
            models: the models that it was built with.
            sample: the batch; only its source is read.
            prefix_tokens: ``(sentences, P)`` int64 target tokens that each output begins with, padded on the right.
            constraints: for each sentence the phrases (target token ids) that its outputs must contain.
            streamer: receives tokens as they are generated.

        Returns:
            The hypotheses of each sentence, best first.
        """
        observers = [] if streamer is None else [Streaming(streamer, generator.setup)]
        return generator.generate(sample, prefix_tokens, constraints, observers)

    def metrics(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Score decoded text.

        Args:
            hypotheses: the best output of each sentence.
            references: the reference outputs.

        Returns:
            Scores by name; larger is better. By default sacreBLEU's BLEU and chrF, and exact match in percent.
        """
        return {name: score.value for name, score in text_scores(hypotheses, references).items()}

    def metric_signatures(self) -> dict[str, str]:
        """The signatures of sacreBLEU, by name; a subclass with other ``metrics`` has none unless it defines some."""
        return {name: score.signature for name, score in text_scores(["a"], ["a"]).items() if score.signature}


class PromptTask(Task):
    """The base class of tasks of language models: a source is a prompt, which the output continues."""

    reads_empty_lines = True

    @property
    def begin(self) -> list[int]:
        """What precedes every line in training: what the tokenizer adds before a prompt, or else end-of-sentence."""
        before, after = self.source_tokenizer.source_tokens()
        return [*before] if before and not after else [self.source_dictionary.eos()]

    def encode_source(self, text: str) -> Tensor:
        """Turn a prompt into ids.

        Args:
            text: one line, which may be empty.

        Returns:
            ``(P,)`` int64: ``begin`` and the tokens of the prompt.
        """
        return torch.tensor([*self.begin, *self.source_tokenizer.encode(text)])

    def encode_target(self, text: str) -> Tensor:
        """Turn a line into ids, as in training."""
        return torch.tensor([*self.target_tokenizer.encode(text), self.target_dictionary.eos()])

    def prompt(self, src_tokens: Tensor) -> Tensor:
        """The prompt's tokens, without ``begin``."""
        return src_tokens[len(self.begin) :]


@dataclass(frozen=True)
class ModelInMemory:
    """A model that was not loaded from a file, such as one that is being trained.

    Attributes:
        task: encodes and decodes text.
        model: the model.
        generation: the model's decoding settings, by the names of ``GenerationConfig``'s fields.
    """

    task: Task
    model: EncoderDecoderModel
    generation: Mapping[str, Any] = field(default_factory=dict)
