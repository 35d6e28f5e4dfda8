"""Imports point one way: cli to tasks and models to the engine, and inside the engine from the top to the bottom."""

import ast
import functools
import graphlib
import importlib
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

import seqgen.extend
from seqgen.config.generation import OPTIONS, SWITCHES
from seqgen.registry import import_declared

ROOT = Path(__file__).parent.parent.parent

LAYERS = [set(layer.split()) for layer in (
    "core", "system metrics", "registry config", "data", "modules", "decoding", "task", "checkpoints",
    "text", "training", "models tasks", "cli", "extend __main__", "addons",
)]  # fmt: skip
"""The parts of seqgen; each imports only from its own set and from those before it."""

DECLARATIONS = {module.removeprefix("seqgen."): "config" for module, _ in (*OPTIONS, *SWITCHES)}
"""Modules that declare keys stand in the folders of their features, but belong to ``config``."""

RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}


@functools.cache
def modules() -> list[tuple[str, Path]]:
    """The name of each module without ``seqgen.``, and its file."""
    found = []
    for folder in ("seqgen", "models", "tasks", "cli", "addons"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append((".".join(parts).removeprefix("seqgen."), path))
    return [(name, path) for name, path in found if name != "__init__"]


@functools.cache
def names() -> frozenset[str]:
    """The names of all modules and packages."""
    return frozenset(name.removesuffix(".__init__") for name, _ in modules())


@functools.cache
def homes() -> dict[str, str]:
    """The names that ``seqgen.config`` loads when they are used, each in the module that defines it."""
    tree = ast.parse((ROOT / "seqgen" / "config" / "__init__.py").read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {f"seqgen.config.{alias.name}": f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """The seqgen modules that a file imports, also inside functions, for type checkers only, and by ``import_module``.

    The names of modules in a registry's table are data, which a user's file can add to; they do not count.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = imported_by_name(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} has a relative import"
            full = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(homes().get(name, name) for name in full)
    files = names()
    inside = (name.removeprefix("seqgen.") for name in found if name.startswith("seqgen."))
    return frozenset(name if name in files else name.rpartition(".")[0] for name in inside) - {""}


def imported_by_name(tree: ast.Module) -> set[str]:
    """The modules that a file which calls ``import_module`` names: whole, as ``MODULE:CLASS``, or in two parts.

    In two parts is the f-string ``{PACKAGE}.{TABLE[name]}``. The name of a package alone does not count.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if not any(ast.unparse(call.func).endswith("import_module") for call in calls):
        return set()
    registries = [call for call in calls if ast.unparse(call.func).endswith(("declare", "Registry"))]
    declared = {node for call in registries for node in ast.walk(call)}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in declared]
    texts = {str(node.value).partition(":")[0] for node in nodes}
    found = set()
    for name in (f"seqgen.{name}" for name, _ in modules()):
        parts = name.split(".")
        halves = ((".".join(parts[:at]), ".".join(parts[at:])) for at in range(1, len(parts)))
        cuts = (cut for a, b in halves for cut in ({a, ".", b}, {f"{a}.", b}, {a, f".{b}"}))
        if name in texts or any(map(texts.issuperset, cuts)):
            found.add(name)
    return found


def test_no_modules_import_each_other() -> None:
    files = {name.removesuffix(".__init__"): path for name, path in modules()}
    graphlib.TopologicalSorter({name: imports(path) - {name} for name, path in files.items()}).prepare()


def part_of(name: str) -> str:
    """The part of seqgen that a module belongs to, as the layers know it."""
    return DECLARATIONS.get(name, name.split(".")[0])


def test_declarations_of_keys_import_nothing_else() -> None:
    files = dict(modules())
    for name in DECLARATIONS.keys() & files.keys():  # without those of add-ons that are not installed
        assert imports(files[name]) == {"config.options"}, name


def test_imports_point_one_way() -> None:
    for name, path in modules():
        part = part_of(name)
        for imported in imports(path):
            other = part_of(imported)
            assert RANK[other] <= RANK[part], f"{name} imports {imported}"
            assert {part, other} != {"models", "tasks"}, f"{name} imports {imported}"
            same = name.split(".")[:2] == imported.split(".")[:2]
            assert other != "addons" or same or imported == "addons", f"{name} imports {imported}"


def test_the_check_can_fail(tmp_path: Path) -> None:
    hidden = [
        "def f():\n    return importlib.import_module('seqgen.data.text')\n",
        "TABLE = {'a': 'seqgen.data.text'}\ndef f(name):\n    return import_module(TABLE[name])\n",
        "TABLE = {'a': 'text:Class'}\nPACKAGE = 'seqgen.data'\n"
        "def f(name):\n    return import_module(f'{PACKAGE}.{TABLE[name][:4]}')\n",
        "PACKAGE = 'seqgen.data'\ndef f():\n    return import_module(f'{PACKAGE}.text')\n",
    ]
    for number, code in enumerate(hidden):
        (tmp_path / f"hidden{number}.py").write_text(code)
        assert imports(tmp_path / f"hidden{number}.py") == {"data.text"}, code
    assert "modules.attention" in imports(ROOT / "models" / "fconv.py")
    assert RANK["models"] > RANK["decoding"] > RANK["core"]


PUBLIC = {"seqgen", "seqgen.extend", "seqgen.config"}
"""What an add-on imports, besides its own modules."""


PRIVATE = {
    ("bit_exact/decoding.py", "seqgen.system.switches"): "numbers must not depend on the choice of kernels",
    ("checks/checking.py", "seqgen.system.error_messages"): "names the hook that a component lacks, as commands do",
    ("checks/command.py", "seqgen.cli.command"): "KIND=NAME comes first, except with an option such as --help",
    ("compare/command.py", "seqgen.registry"): "shows a trace with another add-on, if it is installed",
    ("compare/runs.py", "seqgen.cli.provenance"): "reads the versions and data of a run, as training recorded them",
    ("compare/runs.py", "seqgen.training.run_log"): "reads the log and the scores of a run",
    ("cross_vocabulary/ensemble.py", "seqgen.decoding.resolution"): "resolves settings as with one vocabulary",
    ("cross_vocabulary/ensemble.py", "seqgen.text.members"): "says of each model that its language is not set",
    ("cuda_graphs/captured.py", "seqgen.core.incremental_state"): "compares the tensors of two states",
    ("cuda_graphs/captured.py", "seqgen.core.member"): "records what a member does in a step",
    ("cuda_graphs/captured.py", "seqgen.modules.step_plan"): "a recorded step has a plan of its own",
    ("export/graphs.py", "seqgen.system.switches"): "a graph must not depend on the example with which it is traced",
    ("huggingface/generation.py", "seqgen.decoding.resolution"): "settings of a folder that sets no limit",
    ("huggingface/hub.py", "seqgen.data.tokenizers.files"): "downloads the files that a tokenizer is made of",
    ("huggingface/llama.py", "seqgen.models.llama"): "the kinds of its layers",
    ("huggingface/t5gemma_model.py", "seqgen.models.llama"): "its layers are those of Gemma 2",
    ("jobs/command.py", "seqgen.cli.line_decoding"): "a worker decodes and writes lines as seqgen-generate does",
    ("jobs/command.py", "seqgen.cli.provenance"): "the manifest has the versions that training records",
    ("jobs/command.py", "seqgen.cli.record"): "a job is continued with the same files, which a record hashes too",
    ("jobs/command.py", "seqgen.modules.kernel_choice"): "all workers choose the kernels that one process measured",
    ("jobs/command.py", "seqgen.text.line_stages"): "summaries of line stages, in a process that builds none",
    ("jobs/workers.py", "seqgen.config.user_files"): "a worker imports the user's files",
    ("marian/loader.py", "seqgen.data.tokenizers.files"): "two SentencePiece files make one tokenizer",
    ("marian/loader.py", "seqgen.data.tokenizers.pretrained"): "the same",
    ("mixtures/text_to_text.py", "seqgen.system.files"): "a frozen run folder has begun, although it has no checkpoint",
    ("sweeps/sweep.py", "seqgen.cli.train"): "each run is one of seqgen-train",
    ("sweeps/sweep.py", "seqgen.training.run_log"): "reads the best score of a run",
}
"""By file and module the reason why an add-on imports a module that may move; at most 30 in all."""


def test_addons_import_what_is_public_with_few_exceptions() -> None:
    found = []
    public = {surface: {"__version__", *importlib.import_module(surface).__all__} for surface in PUBLIC}
    for path in (ROOT / "addons").glob("*/**/*.py"):
        name = str(path.relative_to(ROOT / "addons"))
        own = f"seqgen.addons.{name.partition('/')[0]}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                imported.append(str(node.module))
                assert {alias.name for alias in node.names} <= public.get(
                    imported[-1], {alias.name for alias in node.names}
                )
            found += [
                (name, module)
                for module in imported
                if module.split(".")[0] == "seqgen" and module not in PUBLIC and not f"{module}.".startswith(f"{own}.")
            ]
    assert sorted(found) == sorted(pair for pair in PRIVATE if (ROOT / "addons" / pair[0]).exists())
    assert len(found) <= 30
    assert not any(module.startswith("seqgen.addons") for _, module in found)


DOORS = ["confidence", "cross_vocabulary", "fairseq", "huggingface", "inspection", "mixtures", "partial_texts"]
DOORS += ["programs", "rewriting", "speculative", "traces"]
SURFACES = PUBLIC | {f"seqgen.addons.{name}" for name in DOORS}
"""The modules that users import from; every other module may move."""


def shown_code() -> list[tuple[str, str]]:
    """The Python code of the examples and of the documentation, with the file's name."""
    examples = [(str(path), path.read_text(encoding="utf-8")) for path in (ROOT / "examples").rglob("*.py")]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = [(str(page), page.read_text(encoding="utf-8")) for page in pages]
    blocks = [(page, block) for page, text in texts for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    return [*examples, *blocks]


def test_examples_and_pages_import_the_documented_modules_only() -> None:
    for file, code in shown_code():
        found = re.findall(r"^\s*(?:from|import) (seqgen(?:\.\w+)*)", code, re.MULTILINE)
        if file.endswith("onnx_greedy.py"):
            found.remove("seqgen.data.tokenizers.base")  # seqgen.extend would import PyTorch
        assert set(found) <= SURFACES, f"{file} imports {set(found) - SURFACES}"


def test_names_that_pages_mention_can_be_imported() -> None:
    """Names of seqgen in the text of the pages for authors of components, which do not import them from a module."""
    addons = [import_declared(name, name) for name in SURFACES if name.startswith("seqgen.addons.")]
    files = [path.read_text(encoding="utf-8") for _, path in modules()]
    defined = {name for text in files for name in re.findall(r"^(?:class )?([A-Z]\w+)(?=[ (:])", text, re.MULTILINE)}
    for page in ("extending", "papers", "objectives", "decoding"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        named = {*re.findall(r"`([A-Z]\w+)(?=[`(.])", re.sub(r"```.*?```", "", text, flags=re.DOTALL))}
        public = {*dir(seqgen.extend), *seqgen.__all__, *chain.from_iterable(map(dir, addons))}
        assert named & defined - public == set(), page
        dotted = re.findall(r"`(seqgen\.\w+\.\w[\w.]*)", text)
        beginnings = tuple(f"{surface}." for surface in SURFACES - {"seqgen"})
        assert [name for name in dotted if not f"{name}.".startswith(beginnings)] == [], page


CODE = """
import sys, seqgen
from importlib import import_module

print("torch" in sys.modules, seqgen.Translator.__name__, "seqgen.models" in sys.modules)
import seqgen.cli.generate
from seqgen.registry import GROUPS
GROUPS["model"].entry("fconv_tiny")
print("seqgen.models.fconv" in sys.modules, "seqgen.models.transformer" in sys.modules)
for group in GROUPS.values():
    for name in group.names():
        group.entry(name)
print([name for name in ("torch.distributed.tensor", "sympy") if name in sys.modules])
for name in ("models.fconv", "seqgen.seqgen", "tasks", "cli.train"):
    try:
        import_module(name)
    except ImportError as error:
        print("register twice" in str(error))
"""


@pytest.mark.slow
def test_only_what_is_needed_is_imported_and_under_one_name() -> None:
    """A command that decodes imports every component that the run's configuration names, also those of training."""
    result = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["False Translator True", "True False", "[]", *["True"] * 4]
    assert not hasattr(seqgen, "nothing")
    assert all(hasattr(seqgen, name) for name in seqgen.__all__)
