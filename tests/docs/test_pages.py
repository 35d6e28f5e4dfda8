"""Runs every command in the documentation, on a small corpus and with few updates."""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from tests import joeynmt_models
from tests.commands import SMALL_FCONV, command, corpus, training_arguments
from tests.fairseq_checkpoints import FCONV, in_args, options_of, random_model, write
from tests.hub_server import serve
from tests.huggingface_t5 import tiny_folder
from tests.pretrained_folders import write_model
from tests.toolkit_models import write_models

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted({page.relative_to(ROOT).as_posix() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]})
COMMANDS = ("seqgen-", "python examples/", "torchrun --standalone", "printf ", "paste ", "sed ", "cut ", "cp ", "{ ")
QUICK = [
    "optimization.max_update=3",
    "checkpoint.save_interval_updates=1",
    "checkpoint.keep_interval_updates=3",
    "common.threads=1",
]
"""Appended to each training command of a page."""


def shell_lines(page: str) -> list[str]:
    """The lines of a page's shell blocks and its indented commands, with continued lines joined and loops unrolled."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(
        r"^```bash\n(.*?)^```|^    ((?:seqgen-|printf |unzip )[^\n]*\n)", text, flags=re.MULTILINE | re.DOTALL
    )
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
    """The commands of a page that can be run without a network."""
    return [line for line in shell_lines(page) if line.startswith(COMMANDS)]


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
        translates = {"task=translation", "task=multilingual_translation"} & {*arguments}
        arguments += [*QUICK, "task.vocab_size=44" if translates else "task.workers=1"]
        if not any(argument.startswith(("task=", "config=", "checkpoint.", "--")) for argument in arguments):
            arguments.append("task.train_size=200")
    outcome = command(name, *arguments, stdin=stdin)
    allowed = (0, 1) if name == "diff" else (0,)  # 1 if it finds a difference
    assert outcome.code in allowed, f"{line}\n{outcome.err}"


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
    table = "".join(f"{line}\t{answer}\n" for line, answer in zip(lines, answers, strict=True))
    (folder / "articles.tsv").write_text(table, encoding="utf-8")
    (yaml,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/training.md").read_text(), re.MULTILINE | re.DOTALL)
    (folder / "mixture.yaml").write_text(yaml)
    for name in ("a", "b"):
        arguments = training_arguments(folder / "DATA", folder / "runs" / name)
        shown = [argument for argument in arguments if not argument.startswith("task.test=")]  # as in the README
        outcome = command("train", *shown, *SMALL_FCONV, *QUICK)
        assert outcome.code == 0, outcome.err
    write_model(folder / "nllb", "NllbTokenizer")
    write_model(folder / "flan-t5", "PegasusTokenizer")
    write_models(folder, [*lines, *answers])
    joeynmt_models.write(folder / "joeynmt-en-de")
    for name in ("model.pt", "other.pt"):
        write(folder, random_model(FCONV), in_args(options_of(FCONV)), name=name)
    return folder


OUTPUTS = re.compile(
    r"run_dir|output|json|page|record|trace|picture|file|heads|datastore|job\.folder|search\.latency|observer.*\.file"
)
"""Keys whose value is a file or folder that the command writes."""

MODELS = re.compile(
    r"path|other|.*\.(finetune_from|datastore|draft|reference|teachers|channel|lm)|task\.(train|valid|test|pretrained_tokenizer)"
)
"""Keys whose value is always a file or folder that the command reads; other values are recognized by their form."""

FILE = re.compile(r"(?!hf:|https:).*\.(en|de|tsv|jsonl|json|yaml|txt|hyp|mbr|npz|pt|gz|gbnf|safetensors|model|onnx)")

OWN = {
    "docs/ensembles.md": {"opus-en-de", "fairseq/model.pt", "bart-en-de"},
    "docs/extending.md": {"joeynmt-en-de"},
    "docs/from-fairseq.md": {"model.pt", "other.pt"},
    "docs/training.md": {"NEWS/train", "NEWS/val", "articles.tsv"},
}
"""Files that a page names and a reader brings."""

SHARED = "docs/README.md"
"""The page that says where files of all pages come from: the first section of the tutorial, the README, and itself."""


def files_of(line: str, known: Iterable[str]) -> tuple[set[str], set[str]]:
    """The files and folders that a command writes, and those that it reads."""
    command_, *words = shlex.split(line, comments=True)
    written, read = set[str](), set[str]()
    if command_ == "gunzip":
        return {name.removesuffix(".gz") for name in fnmatch.filter(known, words[-1])}, set()
    if command_ in ("cp", "unzip"):
        return {words[-1]}, {words[0]} if command_ == "cp" else set()
    for before, word in zip(["", *words], words, strict=False):
        key, equals, value = word.partition("=")
        parts = [part for part in re.split(r"[\[\],]", value) if part] if equals else [word]
        if before == ">" or (equals and OUTPUTS.fullmatch(key)):
            written.add(value if equals else word)
        elif MODELS.fullmatch(key) if equals else command_ == "seqgen-show":
            read |= {part for name in parts for part in (name.split(":") if ".pt:" in name else [name])} - {"-"}
        elif not re.search(r"\s", word):
            read |= {part for part in parts if FILE.fullmatch(part)}
    return written, {name for name in read if not name.startswith(("hf:", "~")) and not (ROOT / name).exists()}


def is_made(name: str, made: Iterable[str]) -> bool:
    """True if a file, or a folder that it is in, or a file that its wildcard or prefix selects, was written."""
    return any(
        fnmatch.fnmatch(file, name) or name.startswith(f"{file}/") or file.startswith((f"{name}.", f"{name}/"))
        for file in made
    )


def test_each_file_of_the_commands_is_made_by_one_command() -> None:
    """A run, a job or an output has one name in all pages; what a command reads is made before, or the reader's own."""
    writers: dict[str, set[str]] = {}
    shared = set[str]()
    missing = []
    for page in ["docs/tutorial.md", "README.md", SHARED, *PAGES]:
        text, made = (ROOT / page).read_text(encoding="utf-8"), {*shared, *OWN.get(page, ())}
        made |= set(re.findall(r"^```yaml\n# (\S+)$", text, flags=re.MULTILINE))
        lines = shell_lines(page)
        for line in lines:
            written, read = files_of(line, made)
            missing += [f"{page}: {name} of {line}" for name in read if not is_made(name, made)]
            made |= written
            for name in written - {"-"}:
                writers.setdefault(name, set()).add(" ".join(line.split()))
            if page in ("README.md", SHARED) or line.startswith(("curl", "gunzip", "cp DATA/test")):
                shared |= written
        assert all(f"`{name.removesuffix('/val')}" in text for name in OWN.get(page, ())), page
    assert missing == []
    assert {name: lines for name, lines in writers.items() if len(lines) > 1} == {}


def test_each_run_has_one_name_in_all_pages_and_their_tables() -> None:
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    made = [(name, page) for page, text in texts.items() for name in re.findall(r"run_dir=(runs/[\w.-]+)", text)]
    assert [one for one in made if [name for name, _ in made].count(one[0]) > 1] == []


def test_pages_link_to_where_their_files_come_from() -> None:
    using = [
        page for page in PAGES if page.startswith("docs/") and any("test.en" in line for line in shell_lines(page))
    ]
    pages = [page for page in using if page not in (SHARED, "docs/tutorial.md")]
    link = "README.md#the-files-of-the-commands"
    assert [page for page in pages if link not in (ROOT / page).read_text(encoding="utf-8")] == []


COMPONENT = re.compile(r"^seqgen-check .*\b(search|processor|combination|stopping|observer|task|criterion)=")
"""The check of a component, which takes some seconds; a test of its own runs these commands."""

FIRST = ["README.md"]
"""The page that a new user reads first; the others are run by the slow tests."""

LONG = ["docs/papers.md"]
"""Pages whose commands take minutes; the nightly tests run them."""

SHOWN = [
    page if page in FIRST else pytest.param(page, marks=pytest.mark.nightly if page in LONG else pytest.mark.slow)
    for page in PAGES
    if shown_commands(page)
]


@pytest.mark.parametrize("page", SHOWN)
def test_shown_commands_run(page: str, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in workplace.iterdir():
        (tmp_path / path.name).symlink_to(path)
    commands = [line for line in shown_commands(page) if not COMPONENT.match(line)]
    if importlib.util.find_spec("ray") is None:
        commands = [line for line in commands if "engine=ray" not in line]
    if importlib.util.find_spec("ctranslate2") is None:
        commands = [line for line in commands if "format=ctranslate2" not in line]
    if any(line.startswith("seqgen-convert format=export") for line in commands):
        pytest.importorskip("onnxruntime", reason="ONNX is not installed")
    trained = {match for line in commands for match in re.findall(r"run_dir=(\S+)", line)}
    if trained:  # the page trains these runs itself
        (tmp_path / "runs").unlink()
        (tmp_path / "runs").mkdir()
        for run_ in (workplace / "runs").iterdir():
            if f"runs/{run_.name}" not in trained:
                (tmp_path / "runs" / run_.name).symlink_to(run_)
    named = {name for line in commands for name in re.findall(r"hf:([^@\s]+)", line)}
    hub = serve(tmp_path / "cache", monkeypatch) if named else None
    for name in named:
        for revision in ("main", "v1.0"):
            hub.add(name, workplace / ("flan-t5" if "flan-t5" in name else "nllb"), revision)
    for line in commands:
        run(line)
    if hub is not None:
        hub.stop()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_shown_checks_of_components_pass(
    page: str, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DATA", "runs"):
        (tmp_path / name).symlink_to(workplace / name)
    for line in filter(COMPONENT.match, shown_commands(page)):
        words = shlex.split(line.replace("examples/", f"{ROOT}/examples/"))
        outcome = command("check", *words[1:], "common.threads=1")
        assert outcome.code == 0, f"{line}\n{outcome.out}{outcome.err}"


def shown_python(page: str) -> list[str]:
    """The blocks of Python of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_shown_python_runs(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (code,) = shown_python("decoding.md")
    exec(compile(code, "docs/decoding.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_shown_python_of_languages_runs(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    (code,) = [block for block in shown_python("models.md") if "target_lang" in block]
    exec(compile(code.replace("runs/nllb", "nllb"), "docs/models.md", "exec"), {})


def test_shown_python_of_inspection_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_folder(tmp_path / "T5", "t5_v1_1")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = [block for block in shown_python("inspection.md") if "import Trace" not in block]
    assert len(blocks) == 6
    exec(compile("".join(blocks), "docs/inspection.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 9


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


NAMED = re.compile(
    r"\b(?:addons|benchmarks|cli|docs|examples|models|seqgen|tasks|tests)/[a-z0-9_/.-]+\.(?:py|md|yaml|js|svg)\b"
)
"""A file of the repository that a text names."""


OTHER_PROJECT = re.compile(r"pip install[^\n]*\bseqgen|\bseqgen\[")
"""What installs the package index's ``seqgen``, which is another project."""


def test_named_files_exist_and_no_package_of_another_project_is_named() -> None:
    folders = ("addons", "benchmarks", "cli", "docs", "examples", "models", "seqgen", "tasks", "tests")
    files = [ROOT / "README.md", *(file for folder in folders for file in (ROOT / folder).rglob("*.*"))]
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


def test_every_picture_is_shown_or_linked() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    pictures = [path.name for pattern in ("*.svg", "*.png") for path in (ROOT / "docs").glob(pattern)]
    assert [name for name in pictures if name not in text] == []


def test_the_targets_of_make_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"^ *make ([\w-]+)", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(named) <= targets, page


@pytest.mark.slow
def test_shown_python_of_traces_runs(workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    of_files = (f"path={workplace}/runs/a", f"input={workplace}/test.en")
    assert command("generate", *of_files, "trace=trace.jsonl.gz", "output=o.txt").code == 0
    (code,) = [block for block in shown_python("inspection.md") if "import Trace" in block]
    exec(compile(code, "docs/inspection.md", "exec"), {})


def test_lines_of_text_have_at_most_120_characters() -> None:
    """Tables, code and headings may be wider."""
    for page in PAGES:
        text = re.sub(r"^ *```.*?^ *```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        wide = [line for line in text.splitlines() if len(line) > 120 and not re.match(r"\||#|    |.*`[^`]{60}", line)]
        assert wide == [], page
