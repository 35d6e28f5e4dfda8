"""``--help``: one screen on a command; ``--help all``; the help of one group, component or key (``--help TOPIC``).

Also the message about options of other toolkits, such as ``--beam 4``, which seqgen writes as ``generation.beam=4``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from importlib import resources

from seqgen.cli.commands import commands
from seqgen.cli.keys import Chooser, Key, choosers, decoding_choosers, every_key, is_switch, keys_of
from seqgen.config import TrainConfig
from seqgen.config.keys import did_you_mean, similar_keys
from seqgen.config.values import describe, value_text
from seqgen.core.errors import ConfigError, nearest
from seqgen.system.reading import parse_yaml

WIDTH = 80
COLUMN = 36
"""Column in which the help of a key begins; it begins below a longer key."""

WORDS = "docs/words.md of the repository explains words such as beam and BLEU."

_TEXTS = parse_yaml((resources.files(__package__) / "help.yaml").read_bytes())
EXAMPLES = {program: [(one["what"], one["command"]) for one in texts["examples"]] for program, texts in _TEXTS.items()}
"""By the name of the program: what a command line does, and the command line. ``--help`` shows the first."""
COMMON_KEYS: dict[str, list[str]] = {name: texts["keys"] for name, texts in _TEXTS.items() if "keys" in texts}
"""By the name of the program, the keys that ``--help`` lists if there are many; otherwise those without group."""


def help_text(schema: type, program: str, description: str) -> str:
    """One screen on a command: what it does, the keys that most people use, an example, and how to see the rest.

    Args:
        schema: the root dataclass of its configuration.
        program: the command's name.
        description: what it does.

    Returns:
        The text, at most ``WIDTH`` columns wide.
    """
    every, keys = {one.name: one for one in choosers(schema)}, {key.name: key for key in every_key(schema)}
    names = COMMON_KEYS.get(program) or [name for name in [*every, *keys] if "." not in name]
    lines = [_chosen(every[name]) if name in every else _line(keys[name]) for name in names]
    groups = dict.fromkeys(name.partition(".")[0] for name in [*every, *keys] if "." in name or name in every)
    rest = f"{program} --help all lists all {len({*every, *keys})} keys; --help KEY explains one key"
    rest += f", --help GROUP a group: {', '.join(sorted(groups))}." if groups else "."
    parts = [_filled(f"{program}: {description}"), _usage(program), _section("Keys", lines)]
    others = _section("Commands", [commands()]) if schema is TrainConfig else ""
    parts += [_examples(program, 1), others, f"{_filled(rest)}\n{WORDS}"]
    return "\n\n".join(part for part in parts if part)


def whole_help(schema: type, program: str, description: str) -> str:
    """The help with all examples, components and keys.

    Args:
        schema: the root dataclass of the command's configuration.
        program: its name.
        description: what it does.
    """
    every, keys = choosers(schema), keys_of(schema)
    topics = [*sorted({key.name.partition(".")[0] for key in keys if "." in key.name}), *(one.group for one in every)]
    if schema is TrainConfig:  # decoding matters less to it
        every = [one for one in every if one not in decoding_choosers(schema)]
        keys = [key for key in keys if not key.name.startswith("generation.")]
    parts = [_filled(f"{program}: {description}"), _usage(program), _examples(program)]
    parts.append(_section("Components", [_choices(one) for one in every]))
    parts.append(_section("Keys", [_line(key) for key in keys]))
    parts += [_component_sections(one) for one in every]
    if schema is TrainConfig:
        parts.append(_filled(f"{program} --help generation lists the keys for decoding the validation split."))
    groups = f" {program} --help GROUP lists one group of keys. The groups: {', '.join(topics)}" if topics else ""
    parts.append(_filled(f"{program} --help KEY explains one key.{groups}"))
    return "\n\n".join(part for part in parts if part)


def help_on(schema: type, program: str, topic: str) -> str:
    """The help on one topic.

    Args:
        schema: the root dataclass of the command's configuration.
        program: the command's name.
        topic: a group (``dataset``, ``model``, ``search``), a component or preset (``transformer_tiny``), or a key or
            its last part (``optimization.lr``, ``lr``).

    Returns:
        The text.

    Raises:
        ConfigError: there is no such topic.
    """
    every, topic = choosers(schema), topic.rstrip(".=")
    keys = keys_of(schema)
    found = [one for one in every if topic in (one.name, one.group)]
    in_group = [key for key in keys if key.name.startswith(f"{topic}.")]
    if found or in_group:
        parts = [_section(f"{one.name}=NAME", [_choices(one)]) for one in found]
        parts.append(_section(f"Keys of {topic}", [_line(key) for key in in_group]))
        return "\n\n".join(part for part in [*parts, *(_component_sections(one) for one in found)] if part)
    named = topic.rpartition("=")[2]
    owners = [one for one in every if named in one.names() and topic in (named, f"{one.name}={named}")]
    sections = [
        _section(f"Keys with {one.name}={named}", map(_line, one.keys_of(named))) or f"{one.name}={named} has no keys"
        for one in owners
    ]
    keys += [key for one in every for key in one.component_keys()]
    exact = [
        key for key in keys if topic == key.name or (topic == key.name.rpartition(".")[2] and key.owners != (topic,))
    ]
    if sections or exact:
        return "\n\n".join([*sections, *map(_details, exact)])
    names = [key.name for key in keys] + [name for one in every for name in one.names()]
    wanted = did_you_mean(topic, {key.name: key.other_names for key in keys}) or nearest(topic, names)
    raise ConfigError(
        f"--help {topic}: there is no such group, component or key{wanted}; {program} --help all lists all"
    )


def _usage(program: str) -> str:
    words = {"seqgen-generate": " [LINE ...]", "seqgen-show": " [PATH ...]"}.get(program, "")
    uses = (f"[config=FILE.yaml] [key=value ...]{words}", "--help [all | GROUP | COMPONENT | KEY]",
            "--completion bash | --version")  # fmt: skip
    return "\n".join(f"{'Usage: ' if use == uses[0] else '       '}{program} {use}" for use in uses)


def _examples(program: str, most: int | None = None) -> str:
    """The first examples, ``most`` of them or all."""
    examples = [f"  # {what}\n  {command}" for what, command in EXAMPLES.get(program, ())[:most]]
    return _section("Example" if most == 1 else "Examples", examples)


def _section(title: str, lines: Iterable[str]) -> str:
    body = "\n".join(line for line in lines if line)
    return f"{title}\n{body}" if body else ""


def _choices(chooser: Chooser) -> str:
    lines = []
    for entry in chooser.entries():
        notes = [f"presets: {', '.join(sorted(entry.presets))}"] if entry.presets else []
        if chooser.default in entry.presets:
            notes.append(f"default: {chooser.default}")
        notes += ["default"] if chooser.default == entry.name else []
        text = f"  {chooser.name}={entry.name}" + (f" ({'; '.join(notes)})" if notes else "")
        lines.append(_filled(text, indent=6))
    return "\n".join(lines)


def _component_sections(chooser: Chooser) -> str:
    """The keys of a chooser's components, each once, under the names of the components that have them."""
    sections: dict[tuple[str, ...], list[Key]] = {}
    for key in chooser.component_keys():
        sections.setdefault(key.owners, []).append(key)
    parts, every = [], len(chooser.entries())
    for owners, keys in sections.items():
        names = "NAME, for every name" if len(owners) == every > 1 else ", ".join(owners)
        parts.append(_section(_filled(f"Keys with {chooser.name}={names}"), map(_line, keys)))
    return "\n\n".join(parts)


def _line(key: Key) -> str:
    """A key with its default, and its help beside or below it."""
    return _entry(f"  {key.name}={value_text(key.default)}", key.help)


def _chosen(chooser: Chooser) -> str:
    """A key that chooses a component, with its default and the names."""
    names = ", ".join(entry.name for entry in chooser.entries())
    return _entry(f"  {chooser.name}={chooser.default}", f"{names}; --help {chooser.group} lists presets")


def _entry(start: str, help: str) -> str:
    texts = textwrap.wrap(help, WIDTH - COLUMN, break_on_hyphens=False)
    beside = len(start) < COLUMN and texts
    first = f"{start:<{COLUMN}}{texts.pop(0)}" if beside else start
    return "\n".join([first, *(" " * COLUMN + text for text in texts)])


def _details(key: Key) -> str:
    metadata = key.field.metadata
    limits = {"at least": metadata.get("minimum"), "at most": metadata.get("maximum")}
    takes = [describe(key.annotation), *(f"{words} {value}" for words, value in limits.items() if value is not None)]
    lines = [key.help, f"value: {', '.join(takes)}", f"default: {value_text(key.default) or 'empty'}"]
    lines += [f"of: {', '.join(key.owners)}"] if key.owners else []
    return "\n".join([key.name, *(_filled(f"  {line}", indent=4) for line in lines)])


def _filled(text: str, indent: int = 0) -> str:
    lead = text[: len(text) - len(text.lstrip())]
    return textwrap.fill(
        " ".join(text.split()), WIDTH, initial_indent=lead, subsequent_indent=" " * indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def unknown_option(schema: type, arguments: Sequence[str], option: str) -> str:
    """Say how an option of another toolkit is written.

    Args:
        schema: the root dataclass of the command's configuration.
        arguments: all arguments of the command.
        option: the option among them, such as ``--beam`` or ``--beam=4``.

    Returns:
        The message.
    """
    every = choosers(schema)
    keys = {key.name: key for key in every_key(schema)}
    name, equals, value = option.partition("=")
    following = arguments[arguments.index(option) + 1 :][:1]
    if not equals and following and not following[0].startswith("-") and "=" not in following[0]:
        value = following[0]
    written = []
    known = dict.fromkeys([one.name for one in every], ()) | {name: key.other_names for name, key in keys.items()}
    for found in similar_keys(name, known):
        key = keys.get(found)
        default = "true" if key is not None and is_switch(key.annotation) else "VALUE"
        written.append(found if "=" in found else f"{found}={value or default}")
    how = f" instead: {' or '.join(written)}" if written else "; --help lists the keys"
    return f"unknown option {name!r}; write key=value{how}"
