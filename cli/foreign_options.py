"""The message about options of other toolkits, such as ``--beam 4``, which seqgen writes as ``generation.beam=4``."""

from __future__ import annotations

from collections.abc import Sequence

from seqgen.cli.keys import choosers, every_key, is_switch
from seqgen.config.keys import similar_keys


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
    for found in similar_keys(name, [*(one.name for one in every), *keys]):
        key = keys.get(found)
        default = "true" if key is not None and is_switch(key.annotation) else "VALUE"
        written.append(found if "=" in found else f"{found}={value or default}")
    how = f" instead: {' or '.join(written)}" if written else "; --help lists the keys"
    return f"unknown option {name!r}; write key=value{how}"
