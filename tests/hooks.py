"""The list of hooks in docs/extending.md: public methods and flags of the base classes, read from their source.

``python -m tests.hooks`` updates the page.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
BEGIN, END = "<!-- hooks: written by `python -m tests.hooks` -->\n", "<!-- end of hooks -->\n"

CLASSES = {
    "Decoding": (
        "seqgen.generation.component:Component",
        "seqgen.generation.search.base:Search",
        "seqgen.generation.processors.base:LogitsProcessor",
        "seqgen.generation.processors.automaton:Automaton",
        "seqgen.generation.ensemble.combinations:Combination",
        "seqgen.generation.ensemble.member:MemberSpec",
        "seqgen.text.member_sources:MemberSource",
        "seqgen.generation.stopping:StoppingRule",
        "seqgen.generation.observers:Observer",
        "seqgen.generation.setup:Streamer",
        "seqgen.text.mbr:Utility",
        "seqgen.text.mbr:NgramUtility",
        "seqgen.text.rerank:Reranker",
    ),
    "Models": (
        "seqgen.encoder:Encoder",
        "seqgen.decoder:Decoder",
        "seqgen.decoder:IncrementalDecoder",
        "seqgen.model:EncoderDecoderModel",
        "seqgen.incremental_state:StatefulModule",
        "seqgen.modules.kv_cache.protocol:KeyValueCache",
    ),
    "Data and training": (
        "seqgen.data.tokenizers.base:Tokenizer",
        "seqgen.task:Task",
        "seqgen.training.criteria:Criterion",
        "seqgen.training.lr_schedulers:LRScheduler",
    ),
}
"""The base classes under each heading of the page."""


def base_class(name: str) -> type:
    """The class that ``module:Class`` names."""
    module, _, attribute = name.partition(":")
    found: type = getattr(importlib.import_module(module), attribute)
    return found


def methods(cls: type) -> dict[str, ast.FunctionDef]:
    """The public methods that a class defines itself, and ``__call__``."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    functions = [node for node in body.body if isinstance(node, ast.FunctionDef)]
    return {node.name: node for node in functions if node.name == "__call__" or not node.name.startswith("_")}


def flags(cls: type) -> list[str]:
    """The annotated attributes with a default that a class defines itself, such as ``additive: bool = False``."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    declared = [node for node in body.body if isinstance(node, ast.AnnAssign) and node.value is not None]
    return [ast.unparse(node) for node in declared if ast.unparse(node.target) != "flags"]


def stub(name: str) -> str:
    """The class with its flags, and each method with its signature and the first line of its docstring."""
    cls = base_class(name)
    file = Path(inspect.getfile(cls)).relative_to(PAGE.parent.parent)
    bases = [base.__name__ for base in cls.__bases__ if base is not object and base.__name__ != "Protocol"]
    lines = [f"class {cls.__name__}{'(' + ', '.join(bases) + ')' if bases else ''}:  # {file}"]
    lines += [f"    {flag}" for flag in flags(cls)]
    for function in methods(cls).values():
        lines += [""] if len(lines) > 1 else []
        lines += [
            f"    @{ast.unparse(item)}" for item in function.decorator_list if ast.unparse(item) != "torch.no_grad()"
        ]
        returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
        lines.append(f"    def {function.name}({ast.unparse(function.args)}){returns}:")
        lines.append(f'        """{(ast.get_docstring(function) or "").splitlines()[0]}"""')
    return _formatted("\n".join(lines) + "\n")


def _formatted(code: str) -> str:
    """Code in the layout that ``ruff format`` gives the page."""
    command = [sys.executable, "-m", "ruff", "format", f"--stdin-filename={PAGE.with_suffix('.py')}", "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout


def listing() -> str:
    """The text of the list."""
    parts = []
    for heading, names in CLASSES.items():
        parts.append(f"### {heading}\n")
        parts += [f"```python\n{stub(name)}```\n" for name in names]
    return "\n".join(parts)


def of_page() -> dict[str, ast.ClassDef]:
    """The classes in the list of the page, by name."""
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    classes = [node for block in blocks for node in ast.parse(block).body if isinstance(node, ast.ClassDef)]
    return {node.name: node for node in classes}


def write() -> None:
    """Replace the list in the page."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, re.DOTALL)
    assert found is not None
    PAGE.write_text(text.replace(found[0], f"{BEGIN}\n{listing()}\n{END}"), encoding="utf-8")


if __name__ == "__main__":
    write()
