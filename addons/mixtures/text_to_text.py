"""Text to text: many tasks in one model, and the file of their mixture with its sources, templates and rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Self

from seqgen.config import from_dict, option
from seqgen.extend import (
    SPLITS,
    AddedTokens,
    ConfigError,
    JoinedDataset,
    JsonFormat,
    PairDataset,
    PlainFormat,
    RawTextConfig,
    RawTextTask,
    RecordFormat,
    Records,
    Side,
    Template,
    Tokenizer,
    TsvFormat,
    check_split,
    find_files,
    find_parallel,
    is_json,
    missing_split,
    mixing_rates,
    parse_yaml,
    read_bytes,
    read_fields,
    read_header,
    register_task,
    write_atomically,
)
from seqgen.system.files import is_frozen


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
    input: str = option("{source}", "template of the input")
    target: str = option("{target}", "template of the target")
    rate: float | None = option(
        None, "sampling rate relative to the other sources; all of them have one, or none", minimum=1e-9
    )


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
        if cfg.source_lang:  # parallel text rather than records
            self.input.check(["source"])
            self.target.check(["target"])

    def has(self, split: str) -> bool:
        """True if the file has a key for a split."""
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
                f"{self.where}.input: the template {self.input.text!r} has {len(fields)} fields, so one line "
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
        if self.cfg.source_lang:
            pairs = [find_parallel(p, self.cfg.source_lang, self.cfg.target_lang, key=key) for p in patterns]
            for pair in pairs:
                pair.check()
            sources = [path for pair in pairs for path in pair.source]
            targets = [path for pair in pairs for path in pair.target or []]
            inputs = Records(sources, PlainFormat("source"), self.input)
            return inputs, Records(targets, PlainFormat("target"), self.target)
        files = find_files(patterns, key)
        record_format, skip = self._record_format(files)
        return Records(files, record_format, self.input, skip), Records(files, record_format, self.target, skip)

    def _record_format(self, files: list[Path]) -> tuple[RecordFormat, int]:
        json_files = [path for path in files if is_json(path)]
        if 0 < len(json_files) < len(files):
            raise ConfigError(
                f"{self.where}: {json_files[0]} contains JSON lines, the other files columns; give files of one kind"
            )
        known = read_fields(files[0]) if json_files else read_header(files)
        for template in (self.input, self.target):
            template.check(known)
        if json_files:
            return JsonFormat(tuple(dict.fromkeys([*self.input.fields, *self.target.fields]))), 0
        return TsvFormat(tuple(known)), 1


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
    sources = []
    for name, values in plain["sources"].items():
        place = f"{where}: sources.{name}"
        if not name or "." in name:
            raise ConfigError(f"{place}: a source's name must be text without a dot")
        if not isinstance(values, dict):
            raise ConfigError(f"{place} must contain keys and values")
        sources.append(MixtureSource(name, from_dict(SourceConfig, values, place), place))
    return sources


MIXTURE_FILE, CHECKPOINTS = "mixture.yaml", "checkpoints"


@dataclass
class TextToTextConfig(RawTextConfig):
    """The mixture, and the computation of its sampling rates where its sources have none."""

    mixture: str = option(
        "",
        "YAML file that lists the sources of the mixture; see docs/training.md",
        role="input_path",
        other_names=("train", "valid", "test"),
    )
    size_limit: int = option(
        0, "limit on a source's number of examples when rates are computed; 0 for no limit", minimum=0
    )
    temperature: float = option(
        1.0, "a source is sampled in proportion to its size to the power of 1 / temperature", minimum=0.01
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
            _check_rates(_read(current))
            write_atomically(copy, _content(current))
        return super().setup_task(cfg, folder)

    @classmethod
    def training_text(cls, cfg: TextToTextConfig, folder: Path) -> Iterable[str]:
        """The inputs and targets of all sources; see ``RawTextTask``."""
        return chain.from_iterable(
            side.texts()
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
        return self.restricted("sources", name)

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

        def rates(sizes: list[int]) -> list[float]:
            computed = mixing_rates(sizes, self.cfg.temperature, self.cfg.size_limit)
            return [source.cfg.rate or rate for source, rate in zip(sources, computed, strict=True)]

        return self.combine(split, parts, rates)

    def _pairs(self, source: MixtureSource, split: str) -> PairDataset:
        inputs, targets = source.records(split)
        return PairDataset(
            self._side(f"{split}.{source.name}.input", inputs, self.source_tokenizer.source_tokens()),
            self._side(f"{split}.{source.name}.target", targets, self.target_tokenizer.target_tokens()),
            name=f"{split}.{source.name}",
            max_source_positions=self.cfg.max_source_positions,
            max_target_positions=self.cfg.max_target_positions,
            on_overlong=self.cfg.on_overlong,
        )

    def _side(self, label: str, records: Records, added: AddedTokens) -> Side:
        return Side(records.store(self.cache, label, self.source_tokenizer, self.cfg.workers), added)

    def _check_unchanged(self) -> None:
        given = Path(self.cfg.mixture)
        if not self.cfg.mixture or not given.exists():
            return
        before, now = ({source.name: source.cfg for source in sources} for sources in (self.sources, _read(given)))
        if differing := [name for name in {**before, **now} if before.get(name) != now.get(name)]:
            raise ConfigError(
                f"this run was started with another version of {given.name}, in which these sources differ: "
                f"{', '.join(differing)}; restore that version, choose another run_dir, or, if files were only moved, "
                f"correct {self.folder / MIXTURE_FILE}"
            )

    def source_lines(self, split: str) -> Iterator[str]:
        """The inputs of a split, source after source; see ``Task.source_lines``."""
        return chain.from_iterable(source.records(split)[0].texts() for source in _with(self.sources, split))

    def references(self, split: str) -> Iterator[str]:
        """The targets of a split, source after source; see ``Task.references``."""
        return chain.from_iterable(source.records(split)[1].texts() for source in _with(self.sources, split))


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
        raise ConfigError("task.mixture is missing; set it to the YAML file that describes the sources")
    return given


def _read(path: Path, name: str = "") -> list[MixtureSource]:
    """Read the file of a mixture; messages use ``name``, such as that of the original of a copy."""
    return read_mixture(_content(path), name or str(path))


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise ConfigError(f"task.mixture={path} cannot be read: {error.strerror or error}") from None


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


def _check_rates(sources: list[MixtureSource]) -> None:
    """Check that all sources of the training text have a rate, or none.

    Raises:
        ConfigError: only some of them have one.
    """
    trained = _with(sources, "train")
    without = [source for source in trained if source.cfg.rate is None]
    if 0 < len(without) < len(trained):
        raise ConfigError(
            f"{without[0].where} has no rate, but other sources have one; give each source a rate, or none"
        )
