"""Comparisons of systems: numbers equal those of sacreBLEU's command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from seqgen.addons.compare import significance
from seqgen.addons.compare.comparison import Options, compare, text_report
from seqgen.addons.compare.significance import System
from seqgen.cli.score import system_names
from seqgen.core.errors import ConfigError
from seqgen.metrics import CORPUS_METRICS, Texts, TextScore, register_metric
from tests.commands import command, sentences

COUNT = 40


def write(folder: Path) -> dict[str, Path]:
    """Three systems with 1 in 2, 4 and 7 sentences cut short, and two references; one of them has other articles."""
    pairs = sentences(0, COUNT)
    texts = {"source.en": [pair[0] for pair in pairs], "one.de": [pair[1] for pair in pairs]}
    texts["two.de"] = [line.replace("einen", "den") for line in texts["one.de"]]
    for name, every in (("a.hyp", 2), ("b.hyp", 4), ("c.hyp", 7)):
        texts[name] = [
            line.rsplit(" ", 2)[0] + " <b>&" if number % every == 0 else line.replace("hat", "hatte")
            for number, line in enumerate(texts["one.de"])
        ]
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {name: folder / name for name in texts}


def files(
    paths: dict[str, Path], references: str = "[one.de,two.de]", systems: str = "[a.hyp,b.hyp,c.hyp]"
) -> list[str]:
    replaced = [re.sub(r"[\w]+\.\w+", lambda name: str(paths[name[0]]), text) for text in (systems, references)]
    return [f"hypothesis={replaced[0]}", f"reference={replaced[1]}"]


def lines(paths: dict[str, Path], name: str) -> list[str]:
    return paths[name].read_text(encoding="utf-8").splitlines()


def sacrebleu_cli(paths: dict[str, Path], seed: int, *arguments: str) -> dict[str, list[list[float]]]:
    """The numbers of each cell of the table that sacreBLEU's command prints, by the name of the system."""
    outcome = subprocess.run(
        [sys.executable, "-m", "sacrebleu", paths["one.de"], paths["two.de"], "-i", paths["a.hyp"], paths["b.hyp"],
         paths["c.hyp"], "-m", "bleu", "chrf", "ter", "-w", "4", "-f", "latex", "-q", *arguments],
        check=True, capture_output=True, text=True, env={**os.environ, "SACREBLEU_SEED": str(seed)},
    )  # fmt: skip
    found: dict[str, list[list[float]]] = {}
    name = ""
    for line in outcome.stdout.splitlines():
        cells = [cell.strip() for cell in line.rstrip(" \\").split("&")]
        if len(cells) == 4 and (cells[0] or name):
            numbers = [[float(x) for x in re.findall(r"\d+\.\d{4}", cell)] for cell in cells[1:]]
            if not any(numbers):
                continue
            name = re.sub(r".*/|\W+hyp.*", "", cells[0]) or name
            known = found.setdefault(name, [[], [], []])
            for old, new in zip(known, numbers, strict=True):
                old += new
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 12345])
def test_the_numbers_are_those_of_sacrebleus_command(tmp_path: Path, seed: int) -> None:
    paths = write(tmp_path)
    outcome = command("score", *files(paths), "json=-", f"compare.seed={seed}")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    bootstrap, trials = (sacrebleu_cli(paths, seed, f"--paired-{test}") for test in ("bs", "ar"))
    assert found["systems"] == list(bootstrap) == list(trials) == ["a", "b", "c"]
    assert found["seed"] == seed
    for column, metric in enumerate(("bleu", "chrf", "ter")):
        for name, own in zip(found["systems"], found["metrics"][metric]["systems"], strict=True):
            numbers = [own["score"], own["mean"], own["interval"], own["p_bootstrap"]]
            assert bootstrap[name][column] == [pytest.approx(x, abs=6e-5) for x in numbers if x is not None]
            numbers = [own["score"], own["p_randomization"]]
            assert trials[name][column] == [pytest.approx(x, abs=6e-5) for x in numbers if x is not None]


def test_the_table_and_the_json(tmp_path: Path) -> None:
    paths = write(tmp_path)
    json_file = tmp_path / "c.json"
    outcome = command(
        "score", *files(paths), f"source={paths['source.en']}", f"json={json_file}",
        "compare.tests=bootstrap", "metrics=[chrf,exact_match]", "compare.examples=2",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    table = outcome.out.partition("chrf: nrefs:2|")[0]
    assert max(map(len, table.splitlines())) <= 80
    found = json.loads(json_file.read_text(encoding="utf-8"))
    for metric in ("chrf", "exact_match"):
        for own in found["metrics"][metric]["systems"]:
            assert f"{own['score']:.2f}" in table
    assert found["metrics"]["exact_match"]["systems"][2]["score"] == pytest.approx(
        100 * sum(a in pair for a, *pair in zip(*(lines(paths, x) for x in ("c.hyp", "one.de", "two.de")), strict=True))
        / COUNT
    )  # fmt: skip
    assert [item["system"] for item in found["changed"]] == ["b", "c"]
    assert len(found["changed"][0]["sentences"]) == 2
    tested = found["metrics"]["chrf"]["systems"][1]
    assert (tested["p_bootstrap"] is None, tested["p_randomization"]) == (False, None)
    assert outcome.out.count("source     ") == outcome.out.count("\nline ") == 4


def test_equal_outputs_are_not_significant(tmp_path: Path) -> None:
    """sacreBLEU's bootstrap gives them p = 0.001."""
    paths = write(tmp_path)
    (tmp_path / "same.hyp").write_bytes(paths["a.hyp"].read_bytes())
    paths["same.hyp"] = tmp_path / "same.hyp"
    keys = (f"json={tmp_path}/c.json", "metrics=[bleu,exact_match]", "compare.tests=bootstrap")
    outcome = command("score", *files(paths, "one.de", "[a.hyp,same.hyp]"), *keys)
    first, same = json.loads((tmp_path / "c.json").read_text())["metrics"]["bleu"]["systems"]
    assert (same["p_bootstrap"], same["verdict"]) == (None, "same")
    assert same["score"] == first["score"]
    assert "has the same outputs as a" in outcome.out
    assert "= equal sentence scores" in outcome.out


@pytest.mark.parametrize("bootstrap", [True, False])
def test_equal_scores_of_different_outputs_are_not_significant(bootstrap: bool) -> None:
    systems = [System("a", ["Das ist ein Haus", "x"]), System("b", ["das ist ein haus", "y"])]
    texts = Texts([], ["das ist ein Haus", "z"], lowercase=True)
    found = compare(systems, texts, Options(["bleu", "chrf", "exact_match"], bootstrap=bootstrap))
    assert [found.verdict(name, 1) for name in found.results] == ["same", "same", "same"]
    assert [found.verdict(name, 0) for name in found.results] == ["", "", ""]
    assert {(own[1].p_bootstrap, own[1].p_randomization) for own in found.results.values()} == {(None, None)}


def test_verdicts_know_error_rates(tmp_path: Path) -> None:
    paths = write(tmp_path)
    systems = [System(name, lines(paths, f"{name}.hyp")) for name in "ac"]
    texts = Texts([], lines(paths, "one.de"))
    found = compare(systems, texts, Options(["ter", "chrf"], randomization=False))
    assert found.results["ter"][1].score < found.results["ter"][0].score
    assert (found.verdict("ter", 1), found.verdict("chrf", 1)) == ("better", "better")
    assert "▲" in text_report(found)
    reverse = compare(systems[::-1], texts, Options(["ter", "chrf"], randomization=False))
    assert (reverse.verdict("ter", 1), reverse.verdict("chrf", 1)) == ("worse", "worse")


def test_changes_for_the_worse_are_shown_too() -> None:
    """By how much a sentence changed, in either direction."""
    references = ["ein Hund sieht einen Mann", "ein Baum hat einen Ball", "ein Mann hat einen Hund", "x"]
    first = System("a", [references[0], "ein Baum hat einen Bal", "ein Mann", "x"])
    other = System("b", ["kein", references[1], references[2], "x"])
    found = compare([first, other], Texts([], references), Options(["chrf"], bootstrap=False))
    ((worst, *rest),) = found.changed
    assert (worst["line"], worst["chrf"][0]) == (1, 100)
    assert worst["chrf"][1] < 100
    assert [change["line"] for change in rest] == [3, 2]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["x/a.hyp", "y/b.hyp"], ["a", "b"]),
        (["a.one", "x/a.two"], ["a.one", "a.two"]),
        (["x/a", "y/a"], ["x/a", "y/a"]),
    ],
)
def test_systems_have_the_shortest_different_names(files: list[str], names: list[str]) -> None:
    assert system_names(files) == names
    assert system_names(files, ["one", "two"]) == ["one", "two"]
    for wrong in (["one"], ["one", "one"]):
        with pytest.raises(ConfigError, match="must be 2 different names, one for each system"):
            system_names(files, wrong)


def test_a_metric_of_the_user(tmp_path: Path) -> None:
    scored = []

    @register_metric("longest", "length of the longest output", lower_is_better=True)
    def longest(texts: Texts) -> TextScore:
        scored.append(texts.hypotheses)
        return TextScore(float(max(map(len, texts.hypotheses))))

    try:
        found = compare([System("a", ["ab"]), System("b", ["abc"])], Texts([], ["ab"]), Options(["longest", "chrf"]))
        assert [own.score for own in found.results["longest"]] == [2.0, 3.0]
        assert found.verdict("longest", 1) == ""
        assert [item.lower_is_better for item in found.measures.values()] == [True, False]
        assert list(found.results) == ["longest", "chrf"]
        assert scored == [["ab"], ["abc"]], "each text is scored once"
        assert found.results["chrf"][1].p_bootstrap is not None
    finally:
        del CORPUS_METRICS["longest"]


def test_several_references_of_one_system(tmp_path: Path) -> None:
    """Every output is one of its references."""
    paths = write(tmp_path)
    (tmp_path / "mixed.hyp").write_text("\n".join([*lines(paths, "one.de")[:20], *lines(paths, "two.de")[20:]]) + "\n")
    paths["mixed.hyp"] = tmp_path / "mixed.hyp"
    outcome = command("score", *files(paths, systems="mixed.hyp"), "metrics=[bleu,ter,exact_match,rouge1]")
    assert [line.split()[2] for line in outcome.out.splitlines()] == ["100.00", "0.00", "100.00", "100.00"]
    assert "nrefs:2" in outcome.out


def test_the_seed_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(significance.SEED, raising=False)
    assert significance.seed_of(0) == 12345
    monkeypatch.setenv(significance.SEED, "9")
    assert (significance.seed_of(0), significance.seed_of(3)) == (9, 3)
    compare([System("a", ["x y"]), System("b", ["x"])], Texts([], ["x y"]), Options(["chrf"], seed=5))
    assert os.environ[significance.SEED] == "9"


@pytest.mark.slow
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write(tmp_path)
    (tmp_path / "short.hyp").write_text("a\n")
    (tmp_path / "empty").write_text("")
    paths["short.hyp"] = tmp_path / "short.hyp"
    two = files(paths, "one.de", "[a.hyp,b.hyp]")
    cases: list[tuple[list[str], str]] = [
        (files(paths, "one.de", "[a.hyp,a.hyp]"), "twice"),
        (files(paths, "one.de", "[a.hyp,short.hyp]"), "has 40 lines but"),
        ([*two, "compare.examples=0", "source=x"], "source has no effect"),
        ([*two, "comet_model=x"], "comet_model has no effect on bleu, chrf, ter"),
        ([*two, "compare.tests=none", "compare.seed=3"], "compare.seed has no effect with compare.tests=none"),
        ([f"hypothesis={tmp_path}/empty", f"reference={tmp_path}/empty", f"json={tmp_path}/e.json"], "have no lines"),
        ([*two, f"json={tmp_path}/no/c.json"], "does not exist"),
        ([*two, f"json={paths['b.hyp']}"], "would overwrite"),
        ([*two, "metrics=comet"], "reads the sources"),
        (["path=x", *files(paths, systems="")[1:]], "one text of references"),
    ]
    for arguments, words in cases:
        outcome = command("score", *arguments)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
        assert words in outcome.err
    monkeypatch.setenv(significance.SEED, "none")
    assert "SACREBLEU_SEED is 'none'" in command("score", *two).err
    monkeypatch.delenv(significance.SEED)
    monkeypatch.setattr(significance, "MAX_SENTENCES", 39)
    assert "set compare.tests=none" in command("score", *two).err
    assert command("score", *two, "compare.tests=none", "metrics=chrf").code == 0
