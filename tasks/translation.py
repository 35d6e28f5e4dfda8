"""Translation: training on parallel text files and on tables of pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np

from seqgen.config import option
from seqgen.core.errors import ConfigError
from seqgen.data.pair_dataset import Dataset, PairDataset, Side
from seqgen.data.records import Table, find_table, is_table
from seqgen.data.text import ParallelFiles, find_column, find_parallel
from seqgen.data.token_store import TokenEncoder, build_store
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.data.tokenizers.languages import AddedTokens
from seqgen.data.tokenizers.setup import prepare_tokenizers
from seqgen.registry import register_task
from seqgen.tasks.raw_text import TextConfig, TextTask, split_value


@dataclass
class ParallelTextConfig(TextConfig):
    """The keys that all tasks over parallel text have."""

    max_source_positions: int = option(1024, "maximum source length in tokens, end-of-sentence included", minimum=2)
    max_target_positions: int = option(1024, "maximum target length in tokens, end-of-sentence included", minimum=2)
    on_overlong: str = option("drop", "what to do with longer pairs", choices=("drop", "truncate", "error"))


@dataclass
class TranslationConfig(ParallelTextConfig):
    """The languages and files."""

    source_lang: str = option("", "source language: file name ending of the source files, such as en")
    target_lang: str = option("", "target language: file name ending of the target files, such as de")
    train: str = option(
        "",
        "training text: path without .SRC and .TGT, or .tsv, .jsonl, .parquet or .tmx (may be .gz); may be a wildcard",
        role="input_path",
        other_names=("trainpref",),
    )
    valid: str = option("", "validation text, in the same form", role="input_path", other_names=("validpref",))
    test: str = option("", "test text, in the same form", role="input_path", other_names=("testpref",))
    source_column: str = option("", "source column of tables: name, or number in TSV; if empty, source_lang or 1")
    target_column: str = option("", "target column, in the same form; if empty, target_lang or 2")
    columns: dict[str, Any] = option(
        {}, "further columns: {topic:text,image:[512]}; a kind is text, id, ids, number, or the shape of an array"
    )


def check_languages(cfg: Any) -> None:
    """Check that ``source_lang`` and ``target_lang`` differ.

    Raises:
        ConfigError: they are the same.
    """
    if cfg.source_lang == cfg.target_lang:
        raise ConfigError(f"task.source_lang and task.target_lang are both {cfg.source_lang!r}; they must differ")


class ParallelTextTask(TextTask):
    """A task over lines of text and their translations; a subclass implements ``find_files``.

    Args:
        cfg: the task's configuration.
        source_tokenizer: the tokenizer of the source.
        target_tokenizer: the tokenizer of the target.
        folder: the run folder.
    """

    translates = True

    @classmethod
    def find_files(cls, cfg: Any, folder: Path, split: str) -> ParallelFiles:
        """Find the files of a split.

        Args:
            cfg: the task's configuration.
            folder: the run folder.
            split: ``train``, ``valid`` or ``test``.

        Returns:
            The files.

        Raises:
            UserError: the split has no files.
        """
        raise NotImplementedError

    @classmethod
    def setup_task(cls, cfg: Any, folder: Path) -> Self:
        """Make the task; see ``Task.setup_task``."""

        def lines(sides: Sequence[int | str]) -> Iterator[str]:
            files = cls.find_files(cfg, folder, "train")
            files.check()  # check line numbers before a vocabulary is trained on the files
            return chain.from_iterable(map(files.lines, sides))

        return cls(cfg, *prepare_tokenizers(cfg, folder, lines), folder)

    def files(self, split: str) -> ParallelFiles:
        """The files of a split; see ``find_files``."""
        return self.find_files(self.cfg, self.folder, split)

    @classmethod
    def data_files(cls, cfg: Any, folder: Path, split: str) -> list[Path]:
        """The source files and the target files; see ``Task.data_files``."""
        return cls.find_files(cfg, folder, split).all()

    def source_lines(self, split: str) -> Iterator[str]:
        """The raw source text of a split, line by line; with columns as JSON, see ``split_columns``."""
        return self._with_columns(self.files(split))

    def read_input(self, file: str) -> Iterator[str]:
        """The lines of a file; columns are in files beside it, as in training, or in lines of JSON."""
        prefix = str(Path(file.removesuffix(".gz")).with_suffix(""))
        names = {} if is_table(file) else self.columns
        columns = {name: [*found.values()] for name in names if (found := find_column(prefix, name))}
        return self._with_columns(ParallelFiles([Path(file)], None, columns)) if columns else super().read_input(file)

    def _with_columns(self, files: ParallelFiles) -> Iterator[str]:
        if not files.columns:
            return files.lines(0)
        return (json.dumps(row, default=np.ndarray.tolist) for row in self._rows(files))

    def _rows(self, files: ParallelFiles) -> Iterator[dict[str, Any]]:
        """The source of each line and its columns."""
        files.check(allow_empty=True)
        rows = zip(files.lines(0), *map(files.lines, files.columns), strict=True)
        return (dict(zip([self.text_field, *files.columns], row, strict=True)) for row in rows)

    def references(self, split: str) -> Iterator[str] | None:
        """The raw target text of a split, line by line; ``None`` if there is none."""
        files = self.files(split)
        if files.target is None:
            return None
        files.check(allow_empty=True)  # a missing line would compare all later outputs with the wrong reference
        return files.lines(1)

    def load_dataset(self, split: str) -> Dataset:
        """Load a split and encode it; see ``Task.load_dataset``."""
        added = self.source_tokenizer.source_tokens(), self.target_tokenizer.target_tokens()
        return self.encode(split, self.files(split), added)

    def encode(
        self,
        split: str,
        files: ParallelFiles,
        added: tuple[AddedTokens, AddedTokens],
        sides: tuple[str, str] = ("source", "target"),
        name: str = "",
    ) -> PairDataset:
        """Encode parallel text.

        Args:
            split: the split.
            files: its files.
            added: the tokens that are added to each source, and to each target.
            sides: the names of source and target in those of the encoded files.
            name: name of the dataset, for messages; empty for the split.
        """
        source = self._side(f"{split}.{sides[0]}", files, 0, self.source_tokenizer, added[0])
        target = None
        if files.target is not None:
            target = self._side(f"{split}.{sides[1]}", files, 1, self.target_tokenizer, added[1])
            counts = [[lines for _, lines in side.store.meta.files] for side in (source, target)]
            files.compare(counts[0], counts[1])
        dataset = PairDataset(
            source,
            target,
            name=name or split,
            max_source_positions=self.cfg.max_source_positions,
            max_target_positions=self.cfg.max_target_positions,
            on_overlong=self.cfg.on_overlong,
        )
        if self.columns:
            rows = enumerate(self._rows(files), 1)
            dataset.columns = [self.read_columns(row, f"{split}, row {number}") for number, row in rows].__getitem__
        return dataset

    def _side(self, label: str, files: ParallelFiles, side: int, tokenizer: Tokenizer, added: AddedTokens) -> Side:
        if isinstance(files, Table):
            return Side(files.sides[side].store(self.cache, label, tokenizer, self.cfg.workers), added)
        store = build_store(self.cache, label, files.of(side), TokenEncoder(tokenizer), workers=self.cfg.workers)
        return Side(store, added)


@register_task("translation", config=TranslationConfig)
class TranslationTask(ParallelTextTask):
    """Translation from one language to another, trained on files of parallel text."""

    @property
    def translates(self) -> bool:  # type: ignore[override]
        """True if the file name endings are codes of languages, such as ``en``, and not ``article`` and ``summary``."""
        return bool(self.language_pair)

    @classmethod
    def find_files(cls, cfg: TranslationConfig, folder: Path, split: str) -> ParallelFiles:
        """Find the files of a split; the target files may be missing only for ``test``.

        Args:
            cfg: the task's configuration.
            folder: the run folder.
            split: ``train``, ``valid`` or ``test``.

        Raises:
            ConfigError: the split is unknown, its key is not set, a language is missing, or both are the same.
            DataError: the files do not exist.
        """
        for key, example in (("source_lang", "en"), ("target_lang", "de")):
            if not getattr(cfg, key):
                raise ConfigError(
                    f"task.{key} is missing; set it to the file name ending, such as task.{key}={example}"
                )
        check_languages(cfg)
        languages = cfg.source_lang, cfg.target_lang
        files = f"PREFIX.{cfg.source_lang} and PREFIX.{cfg.target_lang} (each plain or .gz), or a table"
        prefix = split_value(cfg, split, f"PREFIX of the files {files}")
        if is_table(prefix):
            return find_table(prefix, (cfg.source_column, cfg.target_column), languages, f"task.{split}", cfg.columns)
        return find_parallel(prefix, *languages, key=f"task.{split}", optional=split == "test", names=cfg.columns)
