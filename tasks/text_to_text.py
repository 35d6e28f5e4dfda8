"""Text to text: a mixture of tasks whose inputs and targets are text (Raffel et al. 2020, section 2.4)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

from seqgen.config import option
from seqgen.data.combined_datasets import MIXINGS, JoinedDataset, MixtureDataset, mixing_rates
from seqgen.data.pair_dataset import PairDataset, Side
from seqgen.data.record_lines import RecordEncoder, read_rendered
from seqgen.data.store_builder import build_store
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.errors import ConfigError, nearest
from seqgen.registry import register_task
from seqgen.system.files import is_frozen, write_atomically
from seqgen.system.reading import read_bytes
from seqgen.tasks.mixture_file import MixtureSource, Records, differences, read_mixture
from seqgen.tasks.raw_text import SPLITS, RawTextConfig, RawTextTask, check_split, missing_split

MIXTURE_FILE, CHECKPOINTS = "mixture.yaml", "checkpoints"


@dataclass
class TextToTextConfig(RawTextConfig):
    """The mixture, and the computation of its sampling rates."""

    mixture: str = option(
        "",
        "YAML file that lists the sources of the mixture; see docs/training.md",
        role="input_path",
        other_names=("train", "valid", "test"),
    )
    mixing: str = option("proportional", "how sampling rates of the sources are computed", choices=MIXINGS)
    size_limit: int = option(
        0, "limit on a source's number of examples when rates are computed; 0 for no limit", minimum=0
    )
    temperature: float = option(
        2.0, "with mixing=temperature: 1 for proportional rates; higher values make rates more equal", minimum=0.01
    )
    epoch_size: int = option(0, "examples per epoch; 0 for the number of examples of all sources", minimum=0)
    max_source_positions: int = option(512, "maximum source length in tokens, end-of-sentence included", minimum=2)
    max_target_positions: int = option(512, "maximum target length in tokens, end-of-sentence included", minimum=2)
    on_overlong: str = option("drop", "what to do with longer examples", choices=("drop", "truncate", "error"))


@register_task("text_to_text", config=TextToTextConfig)
class TextToTextTask(RawTextTask):
    """Multi-task training on any number of text-to-text tasks, the sources of a mixture.

    The file of the mixture is copied into the run folder, so that a run can be moved and still decode.

    Args:
        cfg: the task's configuration.
        tokenizer: the tokenizer of source and target.
        folder: the run folder.

    Attributes:
        sources: the sources of the mixture.
    """

    cfg: TextToTextConfig

    def __init__(self, cfg: TextToTextConfig, tokenizer: Tokenizer, folder: Path):
        super().__init__(cfg, tokenizer, folder)
        self.sources = _read(folder / MIXTURE_FILE)

    @classmethod
    def setup_task(cls, cfg: TextToTextConfig, folder: Path) -> Self:
        """Make the task; see ``Task.setup_task``.

        Raises:
            ConfigError: the file of the mixture is missing or not valid.
        """
        copy, current = folder / MIXTURE_FILE, _current(cfg, folder)
        if current != copy:
            _check_rates(cfg, _read(current))
            write_atomically(copy, _content(current))
        return super().setup_task(cfg, folder)

    @classmethod
    def training_text(cls, cfg: TextToTextConfig, folder: Path) -> Iterable[str]:
        """The inputs and targets of all sources; see ``RawTextTask``."""
        return chain.from_iterable(
            _read_side(side)
            for source in _with(_read(folder / MIXTURE_FILE, cfg.mixture), "train")
            for side in source.records("train")
        )

    def splits(self) -> list[str]:
        """The splits that at least one source has."""
        return [split for split in SPLITS if any(source.has(split) for source in self.sources)]

    @classmethod
    def data_files(cls, cfg: TextToTextConfig, folder: Path, split: str) -> list[Path]:
        """The files of all sources, each once; see ``Task.data_files``."""
        records = chain.from_iterable(source.records(split) for source in _with(_read(_current(cfg, folder)), split))
        return list(dict.fromkeys(path for part in records for path in part.files))

    def part(self, name: str) -> Self:
        """The task restricted to one source; see ``Task.part``."""
        names = [source.name for source in self.sources]
        if name not in names:
            raise ConfigError(f"there is no source {name!r}{nearest(name, names)}; choose one of: {', '.join(names)}")
        part = copy.copy(self)
        part.sources, part.datasets = [self.sources[names.index(name)]], {}
        return part

    def input_of(self, text: str) -> str:
        """Insert a line into the template of the only source; unchanged if there are several or the line is blank."""
        return self.sources[0].render(text) if len(self.sources) == 1 and text.strip() else text

    def fixed_values(self) -> dict[str, str]:
        """The templates of all sources (their files may change); see ``Task.fixed_values``."""
        sides = [(f"{MIXTURE_FILE}: sources.{source.name}", source.cfg) for source in self.sources]
        return {f"{name}.{side}": getattr(cfg, side) for name, cfg in sides for side in ("input", "target")}

    def load_dataset(self, split: str) -> JoinedDataset:
        """Load a split of all sources that have it, and encode it; see ``Task.load_dataset``.

        Raises:
            ConfigError: the file of the mixture has changed since the run was started.
        """
        self._check_unchanged()
        sources = _with(self.sources, split)
        parts = {source.name: self._pairs(source, split) for source in sources}
        if split != "train":
            joined = self.datasets[split] = JoinedDataset(parts)
            return joined
        cfg = self.cfg
        rates = mixing_rates(
            [len(part) for part in parts.values()],
            cfg.mixing,
            size_limit=cfg.size_limit,
            temperature=cfg.temperature,
            rates=[source.cfg.rate or 0.0 for source in sources],
        )
        mixture = self.datasets[split] = MixtureDataset(parts, rates, cfg.epoch_size)
        return mixture

    def _pairs(self, source: MixtureSource, split: str) -> PairDataset:
        inputs, targets = source.records(split)
        tokenizer = self.source_tokenizer
        return PairDataset(
            self._side(f"{split}.{source.name}.input", inputs, tokenizer.source_beginning, ends=tokenizer.tail > 0),
            self._side(f"{split}.{source.name}.target", targets, self.target_tokenizer.beginning()),
            name=f"{split}.{source.name}",
            max_source_positions=self.cfg.max_source_positions,
            max_target_positions=self.cfg.max_target_positions,
            on_overlong=self.cfg.on_overlong,
        )

    def _side(self, label: str, records: Records, before: Sequence[int], ends: bool = True) -> Side:
        encoder = RecordEncoder(self.source_tokenizer, records.record_format, records.template)
        store = build_store(
            self.cache, label, records.files, encoder, workers=self.cfg.workers, skip_lines=records.skip_lines
        )
        return Side(store, self.source_dictionary.eos() if ends else None, before=tuple(before))

    def _check_unchanged(self) -> None:
        given = Path(self.cfg.mixture)
        if self.cfg.mixture and given.exists() and (lines := list(differences(self.sources, _read(given)))):
            raise ConfigError(
                f"this run was started with another version of {given.name}; restore that version, choose another "
                f"run_dir, or, if files were only moved, correct {self.folder / MIXTURE_FILE}:\n" + "\n".join(lines)
            )

    def source_lines(self, split: str) -> Iterator[str]:
        """The inputs of a split, source after source; see ``Task.source_lines``."""
        return chain.from_iterable(_read_side(source.records(split)[0]) for source in _with(self.sources, split))

    def references(self, split: str) -> Iterator[str]:
        """The targets of a split, source after source; see ``Task.references``."""
        return chain.from_iterable(_read_side(source.records(split)[1]) for source in _with(self.sources, split))


def _current(cfg: TextToTextConfig, folder: Path) -> Path:
    """The file of the mixture: the user's, or the run's copy after training has begun or where the user's is missing.

    Raises:
        ConfigError: there is neither.
    """
    copy, given = folder / MIXTURE_FILE, Path(cfg.mixture)
    started = copy.exists() and (is_frozen(copy) or any((folder / CHECKPOINTS).glob("*/")))
    if started or (copy.exists() and not given.is_file()):
        return copy
    if not cfg.mixture:
        raise ConfigError("task.mixture is missing; give the YAML file that describes the sources")
    return given


def _read(path: Path, name: str = "") -> list[MixtureSource]:
    """Read the file of a mixture; messages use ``name``, such as that of the original of a copy."""
    return read_mixture(_content(path), name or str(path))


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise ConfigError(f"task.mixture={path} cannot be read: {error.strerror or error}") from None


def _read_side(side: Records) -> Iterator[str]:
    return read_rendered(side.files, side.record_format, side.template, side.skip_lines)


def _with(sources: list[MixtureSource], split: str) -> list[MixtureSource]:
    """The sources that have a split.

    Raises:
        ConfigError: the split is unknown, or no source has it.
    """
    check_split(split)
    found = [source for source in sources if source.has(split)]
    if not found:
        names = ", ".join(source.name for source in sources)
        raise missing_split(
            split, f"no source has the split {split!r}; give its files under {split} in one of: {names}"
        )
    return found


def _check_rates(cfg: TextToTextConfig, sources: list[MixtureSource]) -> None:
    """Check that each source has a rate with ``mixing=rates`` and none otherwise, and that rates are positive.

    Raises:
        ConfigError: a rate is missing, not positive, or not used.
    """
    for source in _with(sources, "train"):
        rate = source.cfg.rate
        if rate is None:
            if cfg.mixing == "rates":
                raise ConfigError(f"{source.where} has no rate; with task.mixing=rates every source needs one")
            continue
        if rate <= 0:
            raise ConfigError(f"{source.where}.rate is {rate}; every rate must be above zero")
        if cfg.mixing != "rates":
            raise ConfigError(f"{source.where}.rate={rate} is for task.mixing=rates, but task.mixing={cfg.mixing}")
