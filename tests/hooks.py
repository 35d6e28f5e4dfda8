"""A reference of the base classes and of the values that components receive, made from their source.

``python -m tests.hooks > reference.md`` writes the page.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path

import seqgen.extend

ROOT = Path(__file__).parent.parent

CLASSES = {
    "Decoding components": (
        "Component",
        "Search",
        "LogitsProcessor",
        "Combination",
        "MemberSpec",
        "MemberSource",
        "StoppingRule",
        "Observer",
        "Streamer",
        "Utility",
        "NgramUtility",
        "Reranker",
    ),
    "What decoding components receive and return": (
        "Resources",
        "BatchInfo",
        "StepContext",
        "StepOutputs",
        "LayerLogits",
        "Candidates",
        "StepRecord",
        "Outcome",
        "Forbidden",
        "Hypothesis",
        "Translation",
        "TextHypothesis",
    ),
    "The decoding loop": (
        "Session",
        "StepScores",
        "DecodingSetup",
        "DecodingRequest",
        "Member",
        "MemberOutput",
    ),
    "Models": (
        "Encoder",
        "Decoder",
        "IncrementalDecoder",
        "EncoderDecoderModel",
        "StatefulModule",
        "TransformerEncoder",
        "TransformerDecoder",
        "KeyValueCache",
    ),
    "What models receive and return": (
        "EncoderOut",
        "DecoderOut",
        "Source",
        "QueryPositions",
        "KeysAndValues",
        "Attended",
    ),
    "Data and training": (
        "Tokenizer",
        "Task",
        "Batch",
        "Criterion",
        "CriterionOut",
        "SequenceConfig",
        "SequenceCriterion",
        "Rescored",
        "LRScheduler",
    ),
}
"""The classes under each heading of the page."""

INTRODUCTION = """# Reference of base classes and values

The classes that `docs/extending.md` mentions: each with its description, its attributes, and its methods with the first
line of their descriptions. `python -m pydoc seqgen.extend.NAME` prints one class with the arguments of its methods.
"""


def definition(cls: type) -> tuple[ast.ClassDef, list[str]]:
    """The syntax tree of a class, and the lines of its source."""
    source = textwrap.dedent(inspect.getsource(cls))
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    return node, source.splitlines()


def is_public(node: ast.stmt) -> bool:
    """Whether the definition of a method or attribute belongs on the page."""
    if isinstance(node, ast.FunctionDef):
        return not node.name.startswith("_") or node.name == "__call__"
    if isinstance(node, ast.Assign | ast.AnnAssign):
        name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        return not name.startswith("_") and name != "flags"
    return False


def stub(cls: type) -> str:
    """The class with its docstring and attributes, and its methods with the first line of their docstrings."""
    node, source = definition(cls)
    lines = source[node.lineno - 1 : node.body[0].lineno - 1]
    shown = True
    for child in node.body:
        # a docstring is shown with what it describes
        shown = (isinstance(child, ast.Expr) and shown) or is_public(child)
        if not shown:
            continue
        first, last = child.lineno, child.end_lineno
        if isinstance(child, ast.FunctionDef):
            first = min([first, *(decorator.lineno for decorator in child.decorator_list)])
            last = child.body[0].lineno - 1
        lines += [""] if not source[first - 2].strip() else []
        lines += source[first - 1 : last]
        if isinstance(child, ast.FunctionDef):
            lines.append(f'        """{(ast.get_docstring(child) or "").splitlines()[0]}"""')
    return "\n".join(lines)


def page() -> str:
    """The text of the page."""
    parts = [INTRODUCTION]
    for heading, names in CLASSES.items():
        parts.append(f"## {heading}\n")
        for name in names:
            cls = getattr(seqgen.extend, name)
            file = Path(inspect.getfile(cls)).relative_to(ROOT)
            parts.append(f"### {cls.__name__}\n\n`{file}`\n\n```python\n{stub(cls)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
