"""docs/extending-reference.md: the base classes and the values that components receive, read from their source.

``python -m tests.hooks`` writes the page.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "extending-reference.md"

CLASSES = {
    "Decoding components": (
        "seqgen.generation.component:Component",
        "seqgen.generation.search.base:Search",
        "seqgen.generation.processors.base:LogitsProcessor",
        "seqgen.generation.processors.automaton:Automaton",
        "seqgen.generation.ensemble.combinations:Combination",
        "seqgen.generation.ensemble.member:MemberSpec",
        "seqgen.text.sources:MemberSource",
        "seqgen.generation.stopping:StoppingRule",
        "seqgen.generation.observers:Observer",
        "seqgen.generation.setup:Streamer",
        "seqgen.text.reranking:Utility",
        "seqgen.text.reranking:NgramUtility",
        "seqgen.text.reranking:Reranker",
    ),
    "What decoding components receive and return": (
        "seqgen.generation.component:Resources",
        "seqgen.generation.component:BatchInfo",
        "seqgen.generation.context:StepContext",
        "seqgen.generation.context:Sentences",
        "seqgen.generation.context:StepOutputs",
        "seqgen.generation.context:LayerLogits",
        "seqgen.generation.candidates:Candidates",
        "seqgen.generation.observers:StepRecord",
        "seqgen.generation.observers:Outcome",
        "seqgen.generation.observers:Places",
        "seqgen.generation.observers:Forbidden",
        "seqgen.structures:Hypothesis",
        "seqgen.text.results:Translation",
        "seqgen.text.results:TextHypothesis",
    ),
    "The decoding loop": (
        "seqgen.generation.session:Session",
        "seqgen.generation.session:StepScores",
        "seqgen.generation.setup:DecodingSetup",
        "seqgen.generation.setup:DecodingRequest",
        "seqgen.generation.ensemble.member:Member",
        "seqgen.generation.ensemble.member:MemberOutput",
    ),
    "Models": (
        "seqgen.encoder:Encoder",
        "seqgen.decoder:Decoder",
        "seqgen.decoder:IncrementalDecoder",
        "seqgen.model:EncoderDecoderModel",
        "seqgen.incremental_state:StatefulModule",
        "seqgen.models.transformer:TransformerEncoder",
        "seqgen.models.transformer:TransformerDecoder",
        "seqgen.modules.kv_cache.protocol:KeyValueCache",
    ),
    "What models receive and return": (
        "seqgen.structures:EncoderOut",
        "seqgen.structures:DecoderOut",
        "seqgen.structures:Source",
        "seqgen.modules.masks:QueryPositions",
        "seqgen.modules.kv_cache.protocol:KeysAndValues",
        "seqgen.modules.kv_cache.protocol:Attended",
    ),
    "Data and training": (
        "seqgen.data.tokenizers.base:Tokenizer",
        "seqgen.task:Task",
        "seqgen.structures:Batch",
        "seqgen.training.criteria:Criterion",
        "seqgen.training.criteria:CriterionOut",
        "seqgen.training.lr_schedulers:LRScheduler",
    ),
}
"""The classes under each heading of the page."""

INTRODUCTION = """# Reference of base classes and values

The classes that [extending.md](extending.md) mentions: each with its description, its attributes, and its methods with
the first line of their descriptions; the source has the arguments of each method. `python -m tests.hooks` writes this
page.
"""


def base_class(name: str) -> type:
    """The class that ``module:Class`` names."""
    module, _, attribute = name.partition(":")
    found: type = getattr(importlib.import_module(module), attribute)
    return found


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
            cls = base_class(name)
            file = Path(inspect.getfile(cls)).relative_to(PAGE.parent.parent)
            parts.append(f"### {cls.__name__}\n\n[{file}](../{file})\n\n```python\n{stub(cls)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
