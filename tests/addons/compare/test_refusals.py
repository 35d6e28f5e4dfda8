"""What a user is told of comparisons of systems and of runs that cannot be made."""

from pathlib import Path

import pytest

from seqgen.addons.compare import significance
from seqgen.addons.compare.comparison import Options, compare
from seqgen.addons.compare.significance import System
from seqgen.cli.score import system_names
from seqgen.metrics import Texts
from tests.addons.compare.test_comparison import write
from tests.addons.compare.test_runs import make_run
from tests.refusals import refusals


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write(folder)
    (folder / "short.hyp").write_text("a\n")
    (folder / "empty").write_text("")
    return folder


@pytest.fixture
def two(texts: Path) -> str:
    """The keys of two systems."""
    return f"hypothesis=[{texts}/a.hyp,{texts}/b.hyp] reference={texts}/one.de"


def compare_lines(lines: int) -> None:
    systems = [System(name, ["x"] * lines) for name in "ab"]
    compare(systems, Texts([], ["x"] * lines), Options(["chrf"], seed=0))


def compare_with_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(significance.SEED, "none")
    compare_lines(1)


test_systems = refusals(
    ("score hypothesis=[{texts}/a.hyp,{texts}/a.hyp] reference={texts}/one.de", "twice"),
    ("score hypothesis=[{texts}/a.hyp,{texts}/short.hyp] reference={texts}/one.de", "has 40 lines but"),
    ("score hypothesis={texts}/empty reference={texts}/empty json={texts}/e.json", "have no lines"),
    ("score {two} compare.examples=0 source=x", "source has no effect"),
    ("score {two} compare.tests=none compare.seed=3", "compare.seed has no effect with compare.tests=none"),
    ("score {two} json={texts}/no/c.json", "does not exist"),
    ("score {two} json={texts}/b.hyp", "would overwrite"),
    ("score path=x reference=[{texts}/one.de,{texts}/two.de]", "one text of references"),
    (lambda: system_names(["a", "b"], ["one", "one"]), "must be 2 different names, one for each system"),
    (compare_with_seed, "SACREBLEU_SEED is 'none'"),
    (lambda: compare_lines(significance.MAX_SENTENCES + 1), "at most 10000 lines", "set compare.tests=none"),
)


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with a run, in the current folder."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs/x")
    return "runs"


test_runs = refusals(
    ("show", "nothing to show"),
    ("show no", "there is no such folder"),
    ("show {shown} json", "json: there is no such folder"),
    ("show {shown} page=-", "page=- is not possible", "set page=FILE"),
    ("show {shown} page=x json=x", "page=x would overwrite the output x"),
    ("show {shown} sort=blue", "no run has such a score, column or key", "did you mean 'bleu'"),
    ("show {shown} languages=true sort=loss", "sort=loss has no effect on languages"),
    ("generate path={runs}/fconv input=- record=-", "record=- is not possible"),
    ("generate path={runs}/fconv input=- output={texts}/out record={texts}/out", "would overwrite"),
    ("generate path={runs}/fconv input=- record={texts}/no/r.json", "does not exist"),
)
