"""Checkpoint loaders: functions that read the checkpoints of other toolkits, and the parts that they have in common.

A loader is declared with a function that tells whether it can load a path; its module is imported only for such a
path::

    declare_checkpoint_loader("fairseq checkpoint", lambda path: path.suffix == ".pt", "my_package.fairseq")

    @register_checkpoint_loader("fairseq checkpoint")  # in that module
    def read(path: Path, reading: ReadingConfig, placement: Placement) -> LoadedModel: ...

A model of another toolkit has no data: its task only encodes and decodes text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import torch
from torch import Tensor

from seqgen.config import ReadingConfig, TrainConfig, option
from seqgen.config.values import from_dict, to_dict
from seqgen.core.errors import CheckpointError, ConfigError, DataError, shown
from seqgen.core.model import EncoderDecoderModel
from seqgen.data.pair_dataset import PairDataset
from seqgen.data.tokenizers.base import Tokenizer, load_tokenizer, save_tokenizer
from seqgen.registry import TASKS, import_declared, register_task
from seqgen.task import Task


@dataclass(frozen=True)
class LoadedModel:
    """A trained model and what it needs to read and write text.

    Attributes:
        model: the model, in evaluation mode.
        task: encodes and decodes text.
        config: the configuration that it was trained with; of a checkpoint of another toolkit only the model's.
        checkpoint: the checkpoint that the weights come from.
        task_values: for a checkpoint of another toolkit, the name (``_name``) and values of a task that such a model
            can be trained on, so that it can be made a run.
        notes: what the user should know about how it was read.
        generation: the model's decoding settings, by the names of ``GenerationConfig``'s fields; they apply to keys
            that the user does not set.
    """

    model: EncoderDecoderModel
    task: Task
    config: TrainConfig
    checkpoint: Path
    task_values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    generation: dict[str, Any] = field(default_factory=dict)

    def save_tokenizers(self, folder: Path) -> None:
        """Write the tokenizers into a folder, each into a folder: one for both sides, or one for each.

        Args:
            folder: such as a run folder.
        """
        source, target = self.task.source_tokenizer, self.task.target_tokenizer
        names = {"tokenizer": source} if source is target else {"source_tokenizer": source, "target_tokenizer": target}
        for name, tokenizer in names.items():
            save_tokenizer(tokenizer, folder / name)


@dataclass(frozen=True)
class Placement:
    """Device and dtype of the model. A loader may use them to avoid a second copy of the weights, or ignore them.

    Attributes:
        device: the device.
        dtype: dtype of the weights; ``None`` for the dtype in which they were saved.
    """

    device: torch.device
    dtype: torch.dtype | None = None


CheckpointLoader: TypeAlias = Callable[[Path, ReadingConfig, Placement], LoadedModel]

_DECLARED: dict[str, tuple[Callable[[Path], bool], str]] = {}

_LOADERS: dict[str, CheckpointLoader] = {}


def declare_checkpoint_loader(kind: str, recognizes: Callable[[Path], bool], module: str) -> None:
    """Declare which module loads one kind of checkpoint, so that it is imported only when needed.

    Args:
        kind: what it loads, in words, such as ``"fairseq checkpoint"``.
        recognizes: whether a path is of that kind; it should check names rather than contents, to be fast.
        module: dotted name of the module, which calls ``register_checkpoint_loader(kind)``.
    """
    _DECLARED[kind] = (recognizes, module)


def register_checkpoint_loader(
    kind: str, recognizes: Callable[[Path], bool] | None = None
) -> Callable[[CheckpointLoader], CheckpointLoader]:
    """Register the decorated function as the checkpoint loader for one kind of checkpoint.

    Args:
        kind: what it loads, in words.
        recognizes: whether a path is of that kind; required if the kind was not declared before.
    """

    def decorator(loader: CheckpointLoader) -> CheckpointLoader:
        if recognizes is not None:
            declare_checkpoint_loader(kind, recognizes, loader.__module__)
        _LOADERS[kind] = loader
        return loader

    return decorator


def checkpoint_loader_of(path: Path) -> CheckpointLoader | None:
    """The checkpoint loader that recognizes a path, its module imported; ``None`` if there is none, as for a run."""
    for kind, (recognizes, module) in _DECLARED.items():
        if recognizes(path):
            if kind not in _LOADERS:
                import_declared(module, f"{path}, a {kind},")
            return _LOADERS[kind]
    return None


V = TypeVar("V", bool, int, float, str)

_WANTED: dict[type, str] = {bool: "true or false", float: "a number", str: "a text"}


@dataclass(frozen=True)
class ForeignConfig:
    """The keys and values of a file; a value that is ``null`` counts as not given.

    Attributes:
        path: the file, for messages.
        values: its content.
        asked: the keys that were asked for.
    """

    path: Path
    values: Mapping[str, Any]
    asked: set[str] = field(default_factory=set)

    largest: ClassVar[int] = 2**31 - 1
    """The largest whole number that a file may have; no size or count of a model is larger."""

    def get(self, name: str, default: V, minimum: int = 0) -> V:
        """A value of the type of its default: true or false, a whole number, a number or a text.

        Args:
            name: the key.
            default: the value if the key is missing.
            minimum: the smallest whole number that is allowed.

        Raises:
            CheckpointError: it is of another type, too small or too large.
        """
        value: Any = self.value(name, default)
        kind: Any = type(default)
        if kind is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
            value = float(value)
        elif type(value) is not kind or kind is float:
            raise self.wrong(name, value, _WANTED.get(kind, f"a whole number of at least {minimum}"))
        elif kind is int and not minimum <= value <= self.largest:
            limit = f"least {minimum}" if value < minimum else f"most {self.largest}"
            raise self.wrong(name, value, f"a whole number of at {limit}")
        result: V = value
        return result

    def value(self, name: str, default: Any = None) -> Any:
        """A value of any type."""
        self.asked.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def one_of(self, name: str, supported: Sequence[V], default: V | None = None) -> V:
        """A value that must be one of those that are supported.

        Args:
            name: the key.
            supported: the values, all of one type.
            default: the value if the key is missing; if not given, the key is required.

        Raises:
            CheckpointError: it is another one.
        """
        value = self.get(name, type(supported[0])() if default is None else default)
        if value not in supported:
            wanted = " or ".join(map(str, supported))
            raise CheckpointError(f"{self.path}: {name}={shown(value)} is not supported, only {wanted}")
        return value

    def refuse(self, keys: Collection[str], what: str) -> None:
        """Refuse keys that change the computation and are not supported.

        Args:
            keys: the keys, which must be missing or off.
            what: the architecture, for the message.

        Raises:
            CheckpointError: a key is set.
        """
        for key in keys:
            if value := self.value(key):
                raise CheckpointError(f"{self.path}: {key}={shown(value)} is not supported for a {what}")

    def model(self, values: Mapping[str, Any]) -> Any:
        """The configuration of the model with some values, which are checked.

        Args:
            values: the values, and the name of the model as ``_name``.

        Raises:
            CheckpointError: a value is out of range.
        """
        try:
            cfg = from_dict(TrainConfig, {"model": dict(values)}, str(self.path)).model
            if hasattr(cfg, "check"):
                cfg.check()
        except ConfigError as error:
            message = str(error).removeprefix(f"{self.path}: ").replace("model.", "")
            raise CheckpointError(f"{self.path}: {message}") from None
        return cfg

    def wrong(self, name: str, value: Any, wanted: str) -> CheckpointError:
        """The error that a value is not of the wanted type."""
        return CheckpointError(f"{self.path}: {name} is {shown(value)}, not {wanted}")


@dataclass
class DecodingConfig:
    """The known properties of the text that a model was trained on."""

    source_lang: str = option("", "language of the source, such as en, by whose rules lines are split into sentences")
    target_lang: str = option("", "language of the target")
    translates: bool = option(
        False, "whether outputs are about as long as their sources; also if there are languages or two tokenizers"
    )


@register_task("decoding", config=DecodingConfig)
class DecodingTask(Task):
    """The task of a model without data: it can only encode and decode text.

    Args:
        cfg: what is known about the text.
        source_tokenizer: the tokenizer of the source.
        target_tokenizer: that of the target, or one with a ``target_side``.
    """

    can_be_chosen = False  # it has no data to train on, so help and completion leave it out

    def __init__(self, cfg: Any, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer):
        super().__init__(cfg, source_tokenizer, target_tokenizer.target_side)
        two_sides = source_tokenizer.languages is not None or self.target_tokenizer is not source_tokenizer
        self.translates = two_sides or bool(self.language_pair) or getattr(cfg, "translates", False)

    @classmethod
    def setup_task(cls, cfg: Any, folder: Path) -> Self:
        """Read the tokenizers of a run that was made from such a model.

        Args:
            cfg: what is known about the text.
            folder: the run folder.

        Raises:
            DataError: a tokenizer is missing or damaged.
        """
        if (folder / "source_tokenizer").is_dir():
            source, target = (load_tokenizer(folder / f"{side}_tokenizer") for side in ("source", "target"))
        else:
            source = target = load_tokenizer(folder / "tokenizer")
        return cls(cfg, source, target)

    def source_lines(self, split: str) -> Iterator[str]:
        """Refused: the task has no data.

        Raises:
            DataError: always.
        """
        raise DataError("this model has no data splits to decode; set input=FILE, or input=-, or add a line in quotes")

    def load_dataset(self, split: str) -> PairDataset:
        """Refused: the task has no data; see ``source_lines``."""
        raise DataError("task=decoding has no training data; choose another task, such as task=translation")

    def as_values(self) -> dict[str, Any]:
        """The task of a run that is made from the model: its name and values; see ``LoadedModel.task_values``."""
        values = {key: value for key, value in to_dict(self.cfg).items() if value}
        return {"_name": TASKS.of(self.cfg).name, **values}


@dataclass
class PromptDecodingConfig:
    """The encoding of prompts."""

    begin_with_eos: bool = option(
        False, "whether every prompt begins with end-of-sentence (fairseq); an empty prompt always does"
    )


@register_task("prompt_decoding", config=PromptDecodingConfig)
class PromptDecodingTask(DecodingTask):
    """The task of a decoder-only model without data: its source is a prompt."""

    cfg: PromptDecodingConfig

    @classmethod
    def of(cls, tokenizer: Tokenizer, begin_with_eos: bool) -> Self:
        """The task of a tokenizer; see ``PromptDecodingConfig``."""
        return cls(PromptDecodingConfig(begin_with_eos), tokenizer, tokenizer)

    def encode_source(self, text: str) -> Tensor:
        """Turn a prompt into ids.

        Args:
            text: one line, which may be empty.

        Returns:
            ``(P,)`` int64, with the tokens that the tokenizer adds before a text, without end-of-sentence at the end.
        """
        ids, eos = self.source_tokenizer.encode(text), self.source_dictionary.eos()
        ids = [*self.source_tokenizer.source_tokens().before, *ids]
        return torch.tensor([eos, *ids] if self.cfg.begin_with_eos or not ids else ids)
