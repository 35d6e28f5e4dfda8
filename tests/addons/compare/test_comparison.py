"""Comparisons of systems: numbers equal those of sacreBLEU."""

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from seqgen.addons.compare import significance
from seqgen.addons.compare.comparison import Options, compare, text_report
from seqgen.addons.compare.significance import System
from seqgen.cli.score import system_names
from seqgen.metrics import CORPUS_METRICS, Texts, TextScore, register_metric
from tests.commands import done, sentences

COUNT = 40


def write(folder: Path) -> dict[str, list[str]]:
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
    return texts


def files(folder: Path) -> list[str]:
    systems = ",".join(f"{folder}/{name}.hyp" for name in "abc")
    return [f"hypothesis=[{systems}]", f"reference=[{folder}/one.de,{folder}/two.de]"]


def of_sacrebleu(texts: dict[str, list[str]], seed: int, test: str) -> list[list[Any]]:
    """For each metric, sacreBLEU's result of each system."""
    references = [texts["one.de"], texts["two.de"]]
    metrics: Any = {metric.__name__: metric(references=references) for metric in (BLEU, CHRF, TER)}
    systems = [(name, texts[f"{name}.hyp"]) for name in "abc"]
    with mock.patch.dict(os.environ, SACREBLEU_SEED=str(seed)):
        _, found = PairedTest(systems, metrics, None, test)()
    return [*found.values()][1:]  # the first ones are the names


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 12345])
def test_the_numbers_are_those_of_sacrebleu(tmp_path: Path, seed: int) -> None:
    texts = write(tmp_path)
    outcome = done("score", *files(tmp_path), "json=-", f"compare.seed={seed}")
    found = json.loads(outcome.out)
    assert (found["systems"], found["seed"]) == (["a", "b", "c"], seed)
    bootstrap, trials = (of_sacrebleu(texts, seed, test) for test in ("bs", "ar"))
    for metric, of_bootstrap, of_trials in zip(("bleu", "chrf", "ter"), bootstrap, trials, strict=True):
        systems = found["metrics"][metric]["systems"]
        for own, one, other in zip(systems, of_bootstrap, of_trials, strict=True):
            assert [own["score"], own["mean"], own["interval"]] == pytest.approx([one.score, one.mean, one.ci])
            assert (own["p_bootstrap"], own["p_randomization"]) == (one.p_value, other.p_value)


def test_the_table_and_the_json(tmp_path: Path) -> None:
    texts = write(tmp_path)
    outcome = done(
        "score", *files(tmp_path), f"source={tmp_path}/source.en", f"json={tmp_path}/c.json",
        "compare.tests=bootstrap", "metrics=[chrf,exact_match]", "compare.examples=2",
    )  # fmt: skip
    table = outcome.out.partition("chrf: nrefs:2|")[0]
    assert max(map(len, table.splitlines())) <= 80
    found = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    for metric in ("chrf", "exact_match"):
        for own in found["metrics"][metric]["systems"]:
            assert f"{own['score']:.2f}" in table
    exact = sum(a in pair for a, *pair in zip(*(texts[x] for x in ("c.hyp", "one.de", "two.de")), strict=True))
    assert found["metrics"]["exact_match"]["systems"][2]["score"] == pytest.approx(100 * exact / COUNT)
    assert [(item["system"], len(item["sentences"])) for item in found["changed"]] == [("b", 2), ("c", 2)]
    assert outcome.out.count("source     ") == outcome.out.count("\nline ") == 4


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_equal_scores_are_not_significant(same: bool, bootstrap: bool) -> None:
    """sacreBLEU's bootstrap gives them p = 0.001."""
    first = ["Das ist ein Haus", "x"]
    systems = [System("a", first), System("b", first if same else ["das ist ein haus", "y"])]
    texts = Texts([], ["das ist ein Haus", "z"], lowercase=True)
    found = compare(systems, texts, Options(["bleu", "chrf", "exact_match"], bootstrap=bootstrap))
    assert [found.verdict(name, 1) for name in found.results] == ["same", "same", "same"]
    assert [found.verdict(name, 0) for name in found.results] == ["", "", ""]
    assert {(own[1].p_bootstrap, own[1].p_randomization) for own in found.results.values()} == {(None, None)}
    assert ("b has the same outputs as a" in text_report(found)) == same
    assert ("= equal sentence scores" in text_report(found)) == bootstrap


def test_verdicts_know_error_rates(tmp_path: Path) -> None:
    texts = write(tmp_path)
    systems = [System(name, texts[f"{name}.hyp"]) for name in "ac"]
    for order, verdict, sign in ((systems, "better", "▲"), (systems[::-1], "worse", "▼")):
        found = compare(order, Texts([], texts["one.de"]), Options(["ter", "chrf"], randomization=False))
        assert (found.verdict("ter", 1), found.verdict("chrf", 1)) == (verdict, verdict)
        assert sign in text_report(found)
        first, second = (own.score for own in found.results["ter"])
        assert (second < first) == (verdict == "better")


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


def test_systems_have_the_shortest_different_names() -> None:
    assert system_names(["x/a.hyp", "y/b.hyp"]) == ["a", "b"]
    assert system_names(["a.one", "x/a.two"]) == ["a.one", "a.two"]
    assert system_names(["x/a", "y/a"]) == ["x/a", "y/a"]
    assert system_names(["x/a", "y/a"], ["one", "two"]) == ["one", "two"]


def test_a_metric_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqgen.metrics.CORPUS_METRICS", dict(CORPUS_METRICS))

    @register_metric("longest", "length of the longest output", lower_is_better=True)
    def longest(texts: Texts) -> TextScore:
        return TextScore(float(max(map(len, texts.hypotheses))))

    found = compare([System("a", ["ab"]), System("b", ["abc"])], Texts([], ["ab"]), Options(["longest", "chrf"]))
    assert [own.score for own in found.results["longest"]] == [2.0, 3.0]
    assert found.verdict("longest", 1) == "", "it is not tested"
    assert found.measures["longest"].lower_is_better


def test_the_seed_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(significance.SEED, raising=False)
    assert significance.seed_of(0) == 12345
    monkeypatch.setenv(significance.SEED, "9")
    assert (significance.seed_of(0), significance.seed_of(3)) == (9, 3)
    compare([System("a", ["x y"]), System("b", ["x"])], Texts([], ["x y"]), Options(["chrf"], seed=5))
    assert os.environ[significance.SEED] == "9"
