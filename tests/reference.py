"""``docs/reference.md``: each name of ``seqgen.extend`` and ``seqgen.config`` with its arguments, made from the source.

``python -m tests.reference > docs/reference.md`` writes the page.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import seqgen.config
import seqgen.extend

ROOT = Path(__file__).parent.parent

INTRODUCTION = """# The names of `seqgen.extend` and `seqgen.config`

Each name with its arguments, and the methods that a class defines. `python -m pydoc seqgen.extend.NAME` prints the
whole reference of one name. [extending.md](extending.md) says which classes to subclass. The names of `seqgen.config`
are in [the last sections](#seqgenconfig-groups-of-keys).
"""


def groups(module: ModuleType) -> dict[str, list[str]]:
    """The names of a module under each heading, as the comments of its file group them."""
    _, *parts = re.split(r"^# (.+)\n(?=__all__)", source(module), flags=re.M)
    return {heading: re.findall(r'"(\w+)"', names) for heading, names in zip(parts[::2], parts[1::2], strict=True)}


def source(module: ModuleType) -> str:
    """The text of a module."""
    return Path(str(module.__file__)).read_text(encoding="utf-8")


def arguments(fn: Callable[..., Any], skip: int = 0) -> str:
    """The names of the arguments of a function, in brackets, with short defaults."""
    shown = []
    for parameter in [*inspect.signature(fn).parameters.values()][skip:]:
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        shown.append(f"{stars}{parameter.name}{'=…' if len(default) > 20 or default.startswith('=<') else default}")
    return f"({', '.join(shown)})"


def methods(cls: type) -> dict[str, str]:
    """The arguments of the public methods that a class itself defines, with ``__call__``."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    defined = [child.name for child in node.body if isinstance(child, ast.FunctionDef)]
    found = {name: vars(cls)[name] for name in defined if not name.startswith("_") or name == "__call__"}
    shown = {}
    for name, value in found.items():
        if isinstance(value, staticmethod | classmethod) or inspect.isfunction(value):
            shown[name] = arguments(getattr(value, "__func__", value), 0 if isinstance(value, staticmethod) else 1)
    return shown


def entry(module: ModuleType, name: str) -> str:
    """The line of a name of a module."""
    value = getattr(module, name)
    if inspect.isroutine(value):
        return f"- `{name}{arguments(value)}`: {summary(inspect.getdoc(value))}"
    if not inspect.isclass(value):
        return f"- `{name}`: {summary(description(module, name))}"
    keys = name.endswith("Config") or not inspect.isfunction(value.__init__)  # a configuration is made from keys
    own = "" if keys else arguments(value.__init__, 1)
    calls = [f"`{each}{call}`" for each, call in methods(value).items()]
    return f"- `{name}{own}`: {summary(inspect.getdoc(value))}" + (f" Methods: {', '.join(calls)}." if calls else "")


def description(module: ModuleType, name: str) -> str | None:
    """The docstring of a constant or a type: the text that follows its assignment."""
    imports = ast.walk(ast.parse(source(module)))
    (home,) = [each for each in imports if isinstance(each, ast.ImportFrom) and name in [a.name for a in each.names]]
    body = ast.parse(source(importlib.import_module(str(home.module)))).body
    for assignment, text in pairwise(body):
        target = getattr(assignment, "target", None) or getattr(assignment, "targets", [None])[0]
        if isinstance(target, ast.Name) and target.id == name and isinstance(text, ast.Expr):
            return str(ast.literal_eval(text.value))
    return None


def summary(docstring: str | None) -> str:
    """The first paragraph of a docstring.

    Raises:
        ValueError: there is none.
    """
    if not docstring:
        raise ValueError("a public name has no docstring")
    return " ".join(docstring.partition("\n\n")[0].split()).replace("``", "`").replace("::", ".")


def page() -> str:
    """The text of the page."""
    parts = [INTRODUCTION]
    for module, prefix in ((seqgen.extend, ""), (seqgen.config, "`seqgen.config`: ")):
        for heading, names in groups(module).items():
            parts.append(f"## {prefix}{heading[0].lower() + heading[1:] if prefix else heading}\n")
            for name in names:
                parts.append(textwrap.fill(entry(module, name), 120, subsequent_indent="  ", break_on_hyphens=False))
            parts.append("")
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
