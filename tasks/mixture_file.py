"""The file of a mixture: its sources, their templates and their rates."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqgen.config import option
from seqgen.config.values import from_dict
from seqgen.data.record_lines import (
    JsonFormat,
    PlainFormat,
    RecordFormat,
    Template,
    TsvFormat,
    first_line,
    is_json,
    read_object,
)
from seqgen.data.text import find_files, find_parallel
from seqgen.errors import ConfigError, DataError, nearest
from seqgen.system.reading import parse_yaml


@dataclass
class SourceConfig:
    """The keys of one source in the file."""

    train: str | list[str] = option(
        "", "training text: PREFIX of parallel text, or files or wildcards of TSV or JSON lines", role="input_path"
    )
    valid: str | list[str] = option("", "validation text, in the same form", role="input_path")
    test: str | list[str] = option("", "test text, in the same form", role="input_path")
    source_lang: str = option("", "file name ending of parallel source files; their text is the field {source}")
    target_lang: str = option("", "file name ending of parallel target files; their text is the field {target}")
    columns: list[str] = option([], "column names of TSV files; empty if the first line has them")
    input: str = option("{source}", "template of the input")
    target: str = option("{target}", "template of the target")
    rate: float | None = option(None, "sampling rate relative to the other sources (task.mixing=rates)")


@dataclass(frozen=True)
class Records:
    """The inputs or the targets of a source's split: files, and how their lines become text.

    Attributes:
        files: the files.
        record_format: the format of their lines.
        template: combines the fields of a line into a text.
        skip_lines: number of lines at the beginning of each file that are not records.
    """

    files: list[Path]
    record_format: RecordFormat
    template: Template
    skip_lines: int = 0


@dataclass
class MixtureSource:
    """A source of a mixture.

    Attributes:
        name: its name, which is also the prefix of its scores.
        cfg: its keys.
        where: the file and the name, for messages.
        input: the template of inputs.
        target: the template of targets.
    """

    name: str
    cfg: SourceConfig
    where: str
    input: Template = field(init=False)
    target: Template = field(init=False)

    def __post_init__(self) -> None:
        cfg = self.cfg
        self.input = Template(cfg.input, f"{self.where}.input")
        self.target = Template(cfg.target, f"{self.where}.target")
        if bool(cfg.source_lang) != bool(cfg.target_lang):
            raise ConfigError(f"{self.where}: parallel text needs both source_lang and target_lang")
        if self.is_parallel:
            if cfg.columns:
                raise ConfigError(f"{self.where}: columns are for TSV files, not for parallel text; remove them")
            self.input.check(["source"])
            self.target.check(["target"])
        elif cfg.columns:
            self._check_columns(cfg.columns, self.where)

    @property
    def is_parallel(self) -> bool:
        """Whether the source is parallel text rather than records."""
        return bool(self.cfg.source_lang)

    def has(self, split: str) -> bool:
        """Whether the file has a key for a split."""
        return bool(getattr(self.cfg, split))

    def render(self, line: str) -> str:
        """Insert a line of text into the template of inputs, which must have one field.

        Args:
            line: the line.

        Raises:
            ConfigError: the template has several fields, or none.
        """
        fields = self.input.fields
        if len(fields) != 1:
            raise ConfigError(
                f"{self.where}.input: the template {self.input.text!r} has {len(fields)} fields, so that one line "
                "of text cannot fill it; write complete inputs, and remove dataset.gen_source"
            )
        return self.input.render({fields[0]: line})

    def records(self, split: str) -> tuple[Records, Records]:
        """The records of a split.

        Args:
            split: ``train``, ``valid`` or ``test``.

        Returns:
            The records of the inputs and of the targets.

        Raises:
            ConfigError: a template names a field that the records do not have.
            DataError: a file is missing or empty.
        """
        given, key = getattr(self.cfg, split), f"{self.where}.{split}"
        patterns = [given] if isinstance(given, str) else given
        if self.is_parallel:
            pairs = [find_parallel(p, self.cfg.source_lang, self.cfg.target_lang, key=key) for p in patterns]
            for pair in pairs:
                pair.check()
            sources = [path for pair in pairs for path in pair.source]
            targets = [path for pair in pairs for path in pair.target or []]
            return (
                Records(sources, PlainFormat("source"), self.input),
                Records(targets, PlainFormat("target"), self.target),
            )
        files = find_files(patterns, key)
        record_format, skip = self._record_format(files)
        return Records(files, record_format, self.input, skip), Records(files, record_format, self.target, skip)

    def _record_format(self, files: list[Path]) -> tuple[RecordFormat, int]:
        json_files = [path for path in files if is_json(path)]
        if not json_files:
            return self._tsv_format(files)
        if len(json_files) < len(files) or self.cfg.columns:
            raise ConfigError(
                f"{self.where}: {json_files[0]} contains JSON lines, the other files columns; give files of one kind"
            )
        try:
            known = list(read_object(first_line(files[0])))
        except ValueError as error:
            raise DataError(f"{files[0]}, line 1: {error}") from None
        for template in (self.input, self.target):
            template.check(known)
        return JsonFormat(tuple(dict.fromkeys([*self.input.fields, *self.target.fields]))), 0

    def _tsv_format(self, files: list[Path]) -> tuple[RecordFormat, int]:
        if self.cfg.columns:
            return TsvFormat(tuple(self.cfg.columns)), 0
        columns = first_line(files[0]).removesuffix("\r").split("\t")
        for path in files[1:]:
            if first_line(path).removesuffix("\r").split("\t") != columns:
                raise DataError(f"{path} has other columns in its first line than {files[0]}; give files of one kind")
        self._check_columns(columns, str(files[0]))
        return TsvFormat(tuple(columns)), 1

    def _check_columns(self, columns: list[str], where: str) -> None:
        if len(set(columns)) < len(columns):
            raise ConfigError(f"{where}: two columns have the same name: {', '.join(columns)}")
        for template in (self.input, self.target):
            template.check(columns)


def read_mixture(content: bytes, where: str) -> list[MixtureSource]:
    """Parse the file of a mixture.

    Args:
        content: YAML with the key ``sources``, under which each source has its name and the keys of ``SourceConfig``.
        where: the file, for messages.

    Returns:
        The sources, in the order of the file.

    Raises:
        ConfigError: the content is not YAML, or a key or value is not valid.
    """
    try:
        plain = parse_yaml(content)
    except ValueError as error:
        raise ConfigError(
            f"{where} is not valid YAML: {error}; put a template that contains a colon in quotes"
        ) from None
    if not isinstance(plain, dict) or list(plain) != ["sources"] or not isinstance(plain["sources"], dict):
        raise ConfigError(
            f"{where} must have one key, sources, with a name for each source and that source's keys below it"
        )
    if not plain["sources"]:
        raise ConfigError(f"{where} has no source; give at least one")
    return [MixtureSource(*_read_source(name, values, where)) for name, values in plain["sources"].items()]


def _read_source(name: Any, values: Any, where: str) -> tuple[str, SourceConfig, str]:
    where = f"{where}: sources.{name}"
    if not isinstance(name, str) or not name or "." in name:
        raise ConfigError(f"{where}: a source's name must be text without a dot")
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must contain keys and values")
    fields = [f.name for f in dataclasses.fields(SourceConfig)]
    for key in values:
        if key not in fields:
            raise ConfigError(
                f"{where}: unknown key {key!r}{nearest(str(key), fields)}; the keys are: {', '.join(fields)}"
            )
    return name, from_dict(SourceConfig, values, where), where


def differences(before: list[MixtureSource], now: list[MixtureSource]) -> Iterator[str]:
    """The differences between two mixtures, for messages.

    Args:
        before: the sources of the first mixture.
        now: the sources of the second one.

    Yields:
        A line for each key that differs, with both values.
    """
    old, new = ({source.name: source.cfg for source in sources} for sources in (before, now))
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            yield f"  sources.{name}: {'added' if name in new else 'removed'}"
            continue
        for f in dataclasses.fields(SourceConfig):
            values = [getattr(cfgs[name], f.name) for cfgs in (old, new)]
            if values[0] != values[1]:
                yield f"  sources.{name}.{f.name}: {values[0]} -> {values[1]}"
