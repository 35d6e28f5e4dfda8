"""``docs/reference.md``: each name of ``seqgen.extend`` and ``seqgen.config`` with its arguments, made from the source.

``python -m tests.reference > docs/reference.md`` writes the page.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import seqgen.config
import seqgen.extend

ROOT = Path(__file__).parent.parent

INTRODUCTION = """# The names of `seqgen.extend` and `seqgen.config`

Each name with its arguments, what it is, and in square brackets the methods that a class adds to those of its base
class. `(…)` stands for arguments that do not fit, `...` for methods. `python -m pydoc seqgen.extend.NAME` prints
everything about one name. [extending.md](extending.md) says which classes to subclass. The names of `seqgen.config`
are in [the last sections](#seqgenconfig-groups-of-keys).
"""

REGISTER = "Register the decorated class."
"""What the decorators say that the page lists together."""


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
    """The entry of a name of a module: one line if that suffices without arguments and methods.

    The methods of a class to subclass are shown in any case.
    """
    value, text = getattr(module, name), explained(module, name)
    is_class, is_function = inspect.isclass(value), inspect.isroutine(value)
    call, added = arguments(value) if is_function else "", ""
    if is_class:
        if not name.endswith("Config") and inspect.isfunction(value.__init__):  # a configuration is made from keys
            call = re.sub(r"^\(\*args.*", "", arguments(value.__init__, 1))
        own = [each for each in methods(value) if not any(hasattr(base, each) for base in value.__bases__)]
        added = f" [{', '.join(f'`{each}`' for each in own)}]" if own else ""
    brief, some = call and "(…)", added and " [...]"
    if "subclass" in text.lower() or "base class" in text.lower():
        some = added
    short = re.sub(r" \([^()]*\d{4}[^()]*\)", "", text)  # without papers
    first = re.split(r"(?:\.|;)(?= )", short)[0].rstrip(".") + "."
    if is_function:
        call = call if len(call) < 60 else brief
        shown = [(call, text, ""), (call, first, ""), (brief, first, "")]
    else:
        shown = [(call, text, added), (brief, text, added), (call, text, some), (brief, text, some)]
        shown += [(brief, short, some), (brief, first, some)]
    lines = [filled(f"- `{name}{one}`: {said}{other}") for one, said, other in shown]
    shortened = textwrap.shorten(f"- `{name}{brief}`: {first}", 120 - len(some), placeholder=" …") + some
    return next((line for line in lines if "\n" not in line), lines[-1] if some == added else shortened)


def filled(text: str) -> str:
    """A paragraph in lines of the page's width."""
    return textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False)


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


def explained(module: ModuleType, name: str) -> str:
    """The first paragraph of what a name's docstring says."""
    value = getattr(module, name)
    is_documented = inspect.isclass(value) or inspect.isroutine(value)
    return summary(inspect.getdoc(value) if is_documented else description(module, name))


def summary(docstring: str | None) -> str:
    """The first paragraph of a docstring.

    Raises:
        ValueError: there is none.
    """
    if not docstring:
        raise ValueError("a public name has no docstring")
    return " ".join(docstring.partition("\n\n")[0].split()).replace("``", "`").replace("::", ".")


def page() -> str:
    """The text of the page; a name of both modules is listed once."""
    parts = [INTRODUCTION]
    listed: set[str] = set()
    for module, prefix in ((seqgen.extend, ""), (seqgen.config, "`seqgen.config`: ")):
        for heading, names in groups(module).items():
            parts.append(f"## {prefix}{heading[0].lower() + heading[1:] if prefix else heading}\n")
            new = [name for name in names if name not in listed]
            alike = {
                "Decorators that register a class": [each for each in new if explained(module, each) == REGISTER],
                "Configurations, whose fields are keys": [each for each in new if each.endswith("Config")],
                "Also": sorted(listed & {*names}),
            }
            parts += [entry(module, each) for each in new if each not in chain.from_iterable(alike.values())]
            for title, group in alike.items():
                if group:
                    parts.append(filled(f"- {title}: {', '.join(f'`{each}`' for each in group)}."))
            listed |= {*names}
            parts.append("")
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
