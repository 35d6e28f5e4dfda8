"""Runs every command in the documentation, on a small corpus and with few updates."""

import ast
import hashlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import joeynmt_models
from tests.commands import SMALL_FCONV, command, corpus, done, training_arguments
from tests.fairseq_checkpoints import FCONV, in_args, options_of, random_model, write
from tests.hub_server import serve
from tests.huggingface_t5 import tiny_folder
from tests.marian_binary import model_files
from tests.pretrained_folders import write_model
from tests.toolkit_models import write_models

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted({page.relative_to(ROOT).as_posix() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]})
COMMANDS = ("seqgen-", "python examples/", "torchrun --standalone")
COMMANDS += ("printf ", "echo ", "paste ", "sed ", "cut ", "cp ", "{ ")  # by the shell
COMMAND_OF_EXAMPLE = r"``((?:seqgen-\w+ |python examples/)[^`]*)``|^    (seqgen-\w+ .*(?:\n        .*)*)"
ELSEWHERE = ("NEW/train", "output=FOLDER", "models/labse", "<2en>", "exp/run")
"""What the commands of examples name and the workplace does not have."""
QUICK = ["optimization.max_update=3", "checkpoint.save_interval_updates=1", "checkpoint.keep_interval_updates=3"]
QUICK.append("common.threads=1")
"""Appended to each training command of a page."""


def shell_lines(page: str) -> list[str]:
    """The lines of a page's shell blocks and its indented commands, with continued lines joined and loops unrolled."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```bash\n(.*?)^```|^    ((?:seqgen-|printf |unzip |echo )[^\n]*\n)", text, re.M | re.S)
    lines = []
    for block in map("".join, blocks):
        loops = re.findall(r"for (\w+) in (.*); do", block)
        for line in block.splitlines():
            unrolled = [re.sub(r"(^|\s+)#\s.*", "", line).strip()]
            for name, values in loops:
                unrolled = [one.replace(f"${name}", value) for one in unrolled for value in values.split()]
            lines += [one for one in dict.fromkeys(unrolled) if one]
    return lines


def shown_commands(page: str) -> list[str]:
    """The commands of a page, and of the examples that a gallery links, that can be run without a network."""
    lines = [line for line in shell_lines(page) if line.startswith(COMMANDS)]
    return lines + (commands_of_examples(page) if page in MARKS else [])


def commands_of_examples(page: str) -> list[str]:
    """The commands at the beginning of the examples that a page links, in their order, without those of other files."""
    linked = re.findall(r"\]\(\.\./(examples/papers/[\w/]+)", (ROOT / page).read_text(encoding="utf-8"))
    lines = []
    for name in dict.fromkeys(linked):
        files = [ROOT / f"{name}.py"] if (ROOT / f"{name}.py").exists() else sorted((ROOT / name).glob("*.py"))
        for text in (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "" for file in files):
            found = re.findall(COMMAND_OF_EXAMPLE, text, re.MULTILINE)
            lines += [" ".join((inline or block).split()) for inline, block in found]
    return [line for line in lines if not any(name in line for name in ELSEWHERE)]


def run(line: str) -> None:
    """Run one shell line of a page, and check its exit code."""
    if not line.startswith(COMMANDS[:3]):
        subprocess.run(line, check=True, shell=True, executable="/bin/bash")
        return
    words = shlex.split(line.replace("examples/", f"{ROOT}/examples/"), comments=True)
    stdin = b"the dog sees a man\n"
    if "<" in words:
        stdin = Path(words[words.index("<") + 1]).read_bytes()
        words = words[: words.index("<")]
    if ">" in words:  # the commands of a test write to standard output
        words = words[: words.index(">")]
    if words[0] in ("python", "torchrun"):
        python = [sys.executable, *(["-m", "torch.distributed.run"] if words[0] == "torchrun" else []), *words[1:]]
        if "seqgen.cli.train" in words:
            python += [*QUICK, "task.train_size=200"]
        shown = subprocess.run(python, check=False, capture_output=True, input=stdin)
        assert shown.returncode == 0, f"{line}\n{shown.stderr.decode()}"
        return
    name, arguments = words[0].removeprefix("seqgen-"), words[1:]
    if name == "train":
        tasks = ("translation", "multilingual_translation", "subword_regularization", "temperature_epochs")
        translates = {f"task={task}" for task in tasks}
        arguments += [*QUICK, "task.vocab_size=44" if translates & {*arguments} else "task.workers=1"]
        if not any(argument.startswith(("task=", "config=", "checkpoint.", "--")) for argument in arguments):
            arguments.append("task.train_size=200")
    outcome = command(name, *arguments, stdin=stdin)
    allowed = (0, 1) if name == "diff" else (0,)  # 1 if it finds a difference
    assert outcome.code in allowed, f"{line}\n{outcome.out}{outcome.err}"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages name: ``DATA``, ``test.en``, two runs, two checkpoints of fairseq, ..."""
    folder = tmp_path_factory.mktemp("docs")
    corpus(folder / "DATA")
    corpus(folder / "NEWS")
    for language in ("en", "de"):
        text = (folder / "DATA" / f"test.{language}").read_bytes()
        for name in ("test", "DATA/val", "DATA/test_2016_flickr"):
            (folder / f"{name}.{language}").write_bytes(text)
    lines = (folder / "test.en").read_text(encoding="utf-8").splitlines()
    answers = (folder / "test.de").read_text(encoding="utf-8").splitlines()
    table = (f"{line}\t{answer}\n" for line, answer in zip(lines, answers, strict=True))
    (folder / "rewards").write_text("0.5\n" * len(lines))
    (folder / "articles.tsv").write_text("".join(table), encoding="utf-8")
    (yaml,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/training.md").read_text(), re.MULTILINE | re.DOTALL)
    (folder / "mixture.yaml").write_text(yaml)
    for name in ("a", "b"):
        arguments = training_arguments(folder / "DATA", folder / "runs" / name)
        shown = [argument for argument in arguments if not argument.startswith("task.test=")]  # as in the README
        done("train", *shown, *SMALL_FCONV, *QUICK)
    for block in re.findall(r"^```python\n(# \w+\.py\n.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S):
        (folder / block.split()[1]).write_text(block)
    write_model(folder / "nllb", "NllbTokenizer")
    write_model(folder / "flan-t5", "PegasusTokenizer")
    write_model(folder / "SmolLM2", "ByT5Tokenizer", decoder_only=True)
    write_models(folder, [*lines, *answers])
    joeynmt_models.write(folder / "joeynmt-en-de")
    cached = folder / "xdg" / "seqgen" / "firefox" / "en-pt"
    cached.mkdir(parents=True)
    for name, content in model_files(folder).items():
        (cached / name).write_bytes(content)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in cached.iterdir()]
    (cached / "SHA256SUMS").write_text("".join(sums))
    for name in ("train", "val"):
        for language, text in (("en", lines), ("pt", answers)):
            (folder / "MESSAGES").mkdir(exist_ok=True)
            (folder / "MESSAGES" / f"{name}.{language}").write_text("\n".join(text) + "\n", encoding="utf-8")
    for name in ("model.pt", "other.pt"):
        write(folder, random_model(FCONV), in_args(options_of(FCONV)), name=name)
    return folder


SHARED = "docs/README.md"
"""The page that says where files of all pages come from: the first section of the tutorial, the README, and itself."""


def test_pages_link_to_where_their_files_come_from() -> None:
    pages = [page for page in PAGES if page not in ("README.md", SHARED, "docs/tutorial.md")]
    using = [page for page in pages if any("test.en" in line for line in shell_lines(page))]
    link = "README.md#the-files-of-the-commands"
    assert [page for page in using if link not in (ROOT / page).read_text(encoding="utf-8")] == []


MARKS = {"docs/papers.md": pytest.mark.nightly}
"""The commands of papers take minutes; the slow tests run the other pages."""

SHOWN = [pytest.param(page, marks=MARKS.get(page, pytest.mark.slow)) for page in PAGES if shown_commands(page)]


@pytest.fixture
def place(workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with links to what the workplace has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(workplace / "xdg"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for path in workplace.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.mark.parametrize("page", SHOWN)
def test_shown_commands_run(page: str, workplace: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = shown_commands(page)
    for package, key in (
        ("ray", "engine=ray"),
        ("ctranslate2", "format=ctranslate2"),
        ("optuna", "optuna"),
        ("translate", "app.po"),
    ):
        if importlib.util.find_spec(package) is None:
            commands = [line for line in commands if key not in line]
    if any(line.startswith("seqgen-convert format=export") for line in commands):
        pytest.importorskip("onnxruntime", reason="ONNX is not installed")
    trained = {match for line in commands for match in re.findall(r"run_dir=(\S+)", line)}
    if trained:  # the page trains these runs itself
        (place / "runs").unlink()
        (place / "runs").mkdir()
        for run_ in (workplace / "runs").iterdir():
            if f"runs/{run_.name}" not in trained:
                (place / "runs" / run_.name).symlink_to(run_)
    named = {name for line in commands for name in re.findall(r"hf:([^@\s,\]]+)", line)}
    hub = serve(place / "hub", monkeypatch) if named else None
    for name in named:
        for revision in ("main", "v1.0"):
            folder = next((one for one in ("flan-t5", "SmolLM2") if one in name), "nllb")
            hub.add(name, workplace / folder, revision)
    for line in commands:
        run(line)
    if hub is not None:
        hub.stop()


PYTHON = [
    ("../README.md", "from seqgen import Tr", 1),
    ("models.md", ".*(target_lang|save_pretrained)", 0),
    ("inspection.md", "(?!.*import Trace\n)", 9),
    pytest.param("inspection.md", ".*import Trace\n", 1, marks=pytest.mark.slow),
]
"""Pages with blocks of Python, how a block that runs begins, and how many lines the blocks of a page print."""


@pytest.mark.parametrize(("page", "beginning", "lines"), PYTHON)
def test_shown_python_runs(page: str, beginning: str, lines: int, place: Path, capsys: Any) -> None:
    if "import Trace" in beginning and lines == 1:
        assert command("generate", "path=runs/a", "input=test.en", "trace=trace.jsonl.gz", "output=o.txt").code == 0
    else:
        tiny_folder(place / "T5", "t5_v1_1")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").replace("runs/nllb", "nllb")
    torch.manual_seed(0)
    chosen = [
        block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if re.match(beginning, block, re.S)
    ]
    assert chosen
    exec(compile("".join(chosen), page, "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_links_lead_somewhere() -> None:
    broken = []
    for page in (*PAGES, "CHANGELOG.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^):]+)\)", (ROOT / page).read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            linked = (ROOT / page).parent / name if name else ROOT / page
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                broken.append(f"{page} links to {target}")
    assert broken == []


def anchors(page: Path) -> list[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.M)]


FOLDERS = ("addons", "benchmarks", "cli", "docs", "examples", "models", "seqgen", "tasks", "tests")
NAMED = re.compile(rf"\b(?:{'|'.join(FOLDERS)})/[a-z0-9_/.-]+\.(?:py|md|yaml|js|svg)\b")
"""A file of the repository that a text names."""


OTHER_PROJECT = re.compile(r"pip install[^\n]*\bseqgen|\bseqgen\[")
"""What installs the package index's ``seqgen``, which is another project."""


def test_named_files_exist_and_no_package_of_another_project_is_named() -> None:
    files = [ROOT / "README.md", *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.*"))]
    texts = {file: file.read_text(encoding="utf-8") for file in files if file.suffix in (".md", ".py", ".yaml", ".js")}
    named = [(file, name) for file, text in texts.items() for name in NAMED.findall(text)]
    assert [(str(file), name) for file, name in named if not (ROOT / name).exists()] == []
    code = {file: text for file, text in texts.items() if file.suffix == ".py" and ROOT / "tests" not in file.parents}
    named = [(file, name) for file, text in code.items() for name in re.findall(r"``([\w/]+/\w+\.py)``", text)]
    bases = (ROOT, ROOT / "seqgen")
    assert [(str(f), name) for f, name in named if not any((base / name).exists() for base in (*bases, f.parent))] == []
    assert [(str(file), found[0]) for file, text in texts.items() if (found := OTHER_PROJECT.search(text))] == []


IN_CHECKOUT = re.compile(r"(?:user_dir=|python )\[?examples/|-m benchmarks")
"""A command that needs a file that is not installed."""


def test_pages_say_which_commands_need_a_checkout() -> None:
    pages = {page: " ".join((ROOT / page).read_text(encoding="utf-8").split()) for page in PAGES}
    assert [page for page, text in pages.items() if IN_CHECKOUT.search(text) and " checkout of " not in text] == []
    modules = "".join(pages.values()) + "".join(file.read_text() for file in (ROOT / "examples").rglob("*.py"))
    assert "python -m examples" not in modules, "a file also runs where the repository is not on Python's path"


def test_the_targets_of_make_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"^ *make ([\w-]+)", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(named) <= targets, page
