"""``config=FILE.yaml``: keys from a YAML file, such as a run's ``config.yaml``, beside those of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqgen.config import GenerateConfig, TrainConfig
from seqgen.config.keys import is_group
from seqgen.config.values import split_argument, text_values, value_text
from seqgen.errors import ConfigError
from seqgen.registry import GROUPS
from seqgen.system.reading import parse_yaml, read_bytes

KEY = "config"
_NAME = "_name"  # a component's name among its values, see ``seqgen.config.values.to_dict``
_RECORDED = ("user_files",)  # what training records, which no user sets


@dataclass(frozen=True)
class Arguments:
    """The arguments of a command, with those that come from files.

    Attributes:
        overrides: ``key=value`` arguments without ``config``; the command line's come last.
        messages: what the user should know about keys of a file that are not used.
        files: by each key that comes from a file, the file.
        typed: the program and its arguments, as typed; empty if only keys were given.
    """

    overrides: list[str]
    messages: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    typed: list[str] = field(default_factory=list)

    def origins(self) -> dict[str, str]:
        """Where each key comes from: the command line, a file, or, for all others, the checkpoint to fine-tune."""
        own = {text.partition("=")[0] for text in self.typed[1:]}
        checkpoint = next(iter(text_values(self.overrides, "checkpoint.finetune_from", str)), "")
        found = {}
        for key in (split_argument(override)[0] for override in self.overrides):
            file = f"{KEY}={self.files[key]}" if key in self.files else f"checkpoint {checkpoint}"
            found[key] = "command line" if key in own else file
        return found

    def origin(self, message: str) -> str:
        """The file that has the key of an error message, as the end of the message; empty if no file has it."""
        found = [file for key, file in self.files.items() if repr(key) in message or f"{key}=" in message]
        return f"; the key is in {KEY}={found[0]}" if found else ""

    def check_trusted(self, schema: type) -> None:
        """Check that no file names what is written or what can run code. The user's components are imported already.

        Args:
            schema: the root dataclass of the command's configuration.

        Raises:
            ConfigError: a file does, and the user has not typed the key.
        """
        if not self.files:
            return
        from seqgen.cli.keys import every_key  # not for every start of a command

        values = dict(map(split_argument, self.overrides))
        for key in every_key(schema):
            names, value = key.field.metadata.get("names"), values.get(key.name)
            if names and key.name in self.files and value != value_text(key.default):
                what = "is written" if names == "output" else "can run code"
                raise ConfigError(
                    f"{KEY}={self.files[key.name]} sets {key.name}={value}, which names what {what}; no file may do "
                    f"that: type {key.name}={value} as well if you trust it, or another value"
                )


def with_config_files(schema: type, overrides: Sequence[str]) -> Arguments:
    """Replace ``config=FILE`` by the keys in the file.

    The command line overrides the file. A ``model=NAME`` on the command line also removes the file's ``model.KEY``,
    which are another model's. The file can be written by hand (``generation: {beam: 4}`` or ``generation.beam: 4``),
    or, for training, be the ``config.yaml`` of a run.

    Args:
        schema: the root dataclass of the command's configuration.
        overrides: ``key=value`` arguments.

    Returns:
        All arguments.

    Raises:
        ConfigError: a file cannot be read, or its content is not keys and values.
    """
    files = text_values(overrides, KEY)
    rest = [override for override in overrides if override.partition("=")[0] != KEY]
    if not files:
        return Arguments(rest)
    given = dict(split_argument(override) for override in rest)
    found: dict[str, str] = {}
    origins: dict[str, str] = {}
    messages = []
    for file in files:
        content = _read(Path(file))
        if str(content.get("format")).startswith("seqgen-"):  # otherwise it is the key of the output format
            from seqgen.cli.record import changes, recorded_keys  # not for every start of a command

            try:
                keys = recorded_keys(content)
            except ConfigError as error:
                raise ConfigError(f"{KEY}={file}: {error}") from None
            if schema is not GenerateConfig:
                raise ConfigError(f"{KEY}={file}: this is a record of a decode, which is for seqgen-generate")
            messages += [f"{KEY}={file}: {change}" for change in changes(content)]
            content = keys
        if _is_run(content) and schema is not TrainConfig:
            raise ConfigError(
                f"{KEY}={file}: this is the configuration of a training run, which is for seqgen-train; path=RUN uses "
                "a run with its own settings, and keys of this command are given in a file of their own"
            )
        pairs = dict(_pairs(schema, content))
        replaced = [group for group in GROUPS if group in given and is_group(schema, group)]
        for group in replaced:
            dropped = [key for key in pairs if key.partition(".")[0] == group]
            pairs = {key: value for key, value in pairs.items() if key not in dropped}
            if any("." in key for key in dropped):
                messages.append(f"{KEY}={file}: {group}.* is not used, because {group}={given[group]} is given")
        if wrong := next((key for key in pairs if "=" in key), ""):
            raise ConfigError(f"{KEY}={file}: {wrong!r} is not a key")
        used = {key: value for key, value in pairs.items() if key not in given}
        found |= used
        origins |= dict.fromkeys(used, file)
    return Arguments([*(f"{key}={value}" for key, value in found.items()), *rest], messages, origins)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = parse_yaml(read_bytes(path))
    except FileNotFoundError:
        raise ConfigError(f"{KEY}={path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{KEY}={path}: cannot read it: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{KEY}={path}: not a YAML file: {error}") from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{KEY}={path}: the file must contain keys and values, such as generation.beam: 4")
    return content


def _is_run(content: Mapping[str, Any]) -> bool:
    return all(isinstance(content.get(group), Mapping) and _NAME in content[group] for group in ("task", "model"))


def _pairs(schema: type, content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Keys and values as a user would type them."""
    for name, value in content.items():
        key = f"{prefix}{name}"
        if name in _RECORDED or (value is None and is_group(schema, key)):
            continue
        if key == "generation.components" and isinstance(value, Mapping):
            yield from ((own, value_text(item)) for own, item in value.items())
        elif isinstance(value, Mapping):
            if is_group(schema, key) and _NAME in value:
                yield key, str(value[_NAME])
            yield from _pairs(schema, {own: item for own, item in value.items() if own != _NAME}, f"{key}.")
        else:
            yield key, value_text(value)
