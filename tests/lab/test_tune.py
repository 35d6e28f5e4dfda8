"""``seqgen-tune``: its best setting is that of exhaustive decoding; nothing is decoded twice."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from hypothesis import given, strategies as st

from seqgen.cli.tune import TuneConfig, _settings
from seqgen.config.compose import compose
from seqgen.errors import ConfigError
from seqgen.lab.tuning.search import Dimension, arguments, dimensions, grid, search_coordinates
from seqgen.metrics import score_with_interval, text_scores
from seqgen.system.files import run_lock
from seqgen.text.text_decoding import TextDecoding
from tests.commands import SMALL_FCONV, SMALL_TRANSFORMER, Outcome, command, corpus, sentences, training_arguments

RERANKER = Path(__file__).parent.parent.parent / "examples" / "extending" / "reranker.py"
PROCESSOR = RERANKER.with_name("logits_processor.py")
WORD_REWARD = "tune.processor.word_reward.reward=-9,9"
SHORT = ("generation.max_len_b=14", "generation.beam=3", "common.threads=1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with one vocabulary, ``a`` and ``b``, and a validation set."""
    folder = tmp_path_factory.mktemp("tune")
    data = corpus(folder / "data")
    for name, model in (("a", SMALL_FCONV), ("b", SMALL_TRANSFORMER)):
        further = ("optimization.lr=[2e-2]", "optimization.max_update=60", "dataset.validate_interval=0")
        outcome = command("train", *training_arguments(data, folder / name), *model, *further)
        assert outcome.code == 0, outcome.err
    pairs = sentences(500, 12)
    for side, language in enumerate(("en", "de")):
        (folder / f"val.{language}").write_text("".join(pair[side] + "\n" for pair in pairs))
    return folder


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a set of lines is decoded."""
    done: list[int] = []
    original = TextDecoding.translate

    def counted(self: TextDecoding, *args: Any, **kwargs: Any) -> Iterator[Any]:
        done.append(len(done))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(TextDecoding, "translate", counted)
    return done


def tune(place: Path, output: Path, *arguments: str, path: str = "a") -> Outcome:
    runs = ",".join(str(place / name) for name in path.split(","))
    texts = () if any(item.startswith("input=") for item in arguments) else (f"input={place}/val.en",)
    reference = () if any(item.startswith("reference=") for item in arguments) else (f"reference={place}/val.de",)
    outcome = command(
        "tune", f"path=[{runs}]", *texts, *reference, f"output={output}", "metric=chrf", *SHORT, *arguments
    )
    assert "Traceback" not in outcome.err, outcome.err
    return outcome


def result(outcome: Outcome, output: Path) -> dict[str, Any]:
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads((output / "best.json").read_text())
    return found


def exhaustive(place: Path, folder: Path, setting: list[str], *further: str, path: str = "a") -> float:
    """chrF of what seqgen-generate decodes, by sacreBLEU itself."""
    runs = ",".join(str(place / name) for name in path.split(","))
    hypotheses = folder / "hypotheses"
    outcome = command(
        "generate", f"path=[{runs}]", f"input={place}/val.en", f"output={hypotheses}", *SHORT, *further, *setting
    )
    assert outcome.code == 0, outcome.err
    references = (place / "val.de").read_text().splitlines()
    return float(sacrebleu.corpus_chrf(hypotheses.read_text().split("\n")[:-1], [references]).score)


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2, (outcome.code, outcome.err)
    for word in words:
        assert word in outcome.err.strip().splitlines()[-1], outcome.err


class TestTheBestSetting:
    def test_is_that_of_exhaustive_decoding(self, place: Path, tmp_path: Path, decodes: list[int]) -> None:
        keys = ("tune.generation.no_repeat_ngram_size=0:2:2", "tune.combination.weights=simplex:2")
        outcome = tune(place, tmp_path / "out", *keys, path="a,b")
        found = result(outcome, tmp_path / "out")
        assert len(decodes) == 7, "six settings, and the start, whose weights are [1,1]"
        trials = {tuple(trial["setting"]): trial["score"] for trial in found["trials"]}
        weights = ("[0,1]", "[0.5,0.5]", "[1,0]")
        settings = {(f"generation.no_repeat_ngram_size={p}", f"combination.weights={w}") for p in "02" for w in weights}
        assert settings < set(trials)
        expected = {s: exhaustive(place, tmp_path, list(s), path="a,b") for s in trials}
        assert trials == pytest.approx(expected)
        assert len(set(expected.values())) > 2, "otherwise the comparison shows nothing"
        assert found["score"] == max(expected.values())
        best = [f"{key}={value}" for key, value in found["setting"].items()]
        assert exhaustive(place, tmp_path, best, path="a,b") == found["score"]

    def test_is_printed_as_keys_of_seqgen_generate(self, place: Path, tmp_path: Path) -> None:
        outcome = tune(place, tmp_path / "out", "tune.generation.lenpen=0,2", "generation.min_len=2")
        found = result(outcome, tmp_path / "out")
        (line,) = re.findall(r"^decode: (.*)$", outcome.out, re.MULTILINE)
        name, *words = line.split()
        assert name == "seqgen-generate"
        assert "generation.min_len=2" in words
        written = [f"{key}={value}" for key, value in found["setting"].items()]
        assert words[-len(written) :] == written or not written
        words[words.index("input=FILE")] = f"input={place}/val.en"
        outcome = command("generate", *words)
        references = (place / "val.de").read_text().splitlines()
        score = sacrebleu.corpus_chrf(outcome.out.split("\n")[:-1], [references]).score
        assert score == pytest.approx(found["score"])

    def test_that_is_the_given_one_is_printed_too(self, place: Path, tmp_path: Path) -> None:
        outcome = tune(place, tmp_path / "out", "generation.max_len=9", "tune.generation.max_len=1,2")
        assert result(outcome, tmp_path / "out")["setting"] == {}
        assert "best:   (no tuned key)" in outcome.out
        (line,) = re.findall(r"^decode: (.*)$", outcome.out, re.MULTILINE)
        assert "generation.max_len=9" in line.split()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("path", "arguments"),
        [
            ("a,b", ("generation.combination=fusion", "tune.combination.weight=-0.5,2")),
            ("a,b", ("generation.combination=fusion", "combination.weights=[0.3]", "tune.combination.weights=-0.5,2")),
            ("a", (f"common.user_dir={PROCESSOR}", "generation.processors=[word_reward]", WORD_REWARD)),
        ],
    )
    def test_of_components(self, place: Path, tmp_path: Path, path: str, arguments: tuple[str, ...]) -> None:
        found = result(tune(place, tmp_path / "out", *arguments, path=path), tmp_path / "out")
        given_ = [item for item in arguments if not item.startswith("tune.")]
        for trial in found["trials"]:
            expected = exhaustive(place, tmp_path, trial["setting"], *given_, path=path)
            assert trial["score"] == pytest.approx(expected)
        assert len({trial["score"] for trial in found["trials"]}) > 1

    def test_of_a_split_of_the_task(self, place: Path, tmp_path: Path) -> None:
        outcome = command("tune", f"path={place}/a", f"output={tmp_path}/out", "tune.generation.beam=1,2", *SHORT)
        assert outcome.code == 0, outcome.err
        assert json.loads((tmp_path / "out" / "best.json").read_text())["metric"] == "bleu"
        split = "dataset.gen_subset=test"
        outcome = command("tune", f"path={place}/a", f"output={tmp_path}/o", "tune.generation.beam=1", *SHORT, split)
        assert "the split test is tuned on" in outcome.err


class TestNothingIsDecodedTwice:
    def test_equal_settings(self, place: Path, tmp_path: Path, decodes: list[int]) -> None:
        keys = ("tune.generation.lenpen=1,1.0,1e0,0.5", "tune.generation.unkpen=0,0.0")
        outcome = tune(place, tmp_path / "out", *keys, "method=coordinate")
        assert len(result(outcome, tmp_path / "out")["trials"]) == len(decodes) == 2

    def test_after_an_interruption(
        self, place: Path, tmp_path: Path, decodes: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted = TextDecoding.translate

        def interrupted(self: TextDecoding, *args: Any, **kwargs: Any) -> Iterator[Any]:
            if len(decodes) == 2:
                raise KeyboardInterrupt
            return counted(self, *args, **kwargs)

        keys, file = "tune.generation.lenpen=0,0.5,1,2", tmp_path / "out" / "outputs.jsonl"
        with monkeypatch.context() as patch:
            patch.setattr(TextDecoding, "translate", interrupted)
            outcome = tune(place, tmp_path / "out", keys)
        assert outcome.code == 130
        assert "2 settings are decoded and kept" in outcome.err
        assert len(file.read_text().splitlines()) == 2
        with open(file, "a") as out:
            out.write('{"key": "cut o')  # killed while writing
        moved = tmp_path / "moved"
        shutil.copytree(place / "a", moved / "a")
        shutil.copy(place / "val.en", moved)
        shutil.copy(place / "val.de", moved)
        continued = result(tune(moved, tmp_path / "out", keys), tmp_path / "out")
        assert len(decodes) == 4, "the same models at another place"
        assert result(tune(place, tmp_path / "fresh", keys), tmp_path / "fresh") == continued
        assert len(decodes) == 8
        tune(place, tmp_path / "out", keys, "metric=bleu")
        assert len(decodes) == 8, "another metric needs no decoding"

    @pytest.mark.slow
    def test_but_other_models_inputs_and_settings_are(self, place: Path, tmp_path: Path, decodes: list[int]) -> None:
        keys = "tune.generation.lenpen=1"
        tune(place, tmp_path / "out", keys)
        for number, changed in enumerate(
            [
                ({"path": "b"}, ()),
                ({}, (f"input={place}/val.de",)),
                ({}, ("generation.min_len=3",)),
                ({}, (f"prefix={place}/val.de",)),
                ({}, ("debug.use_cache=false",)),
            ],
            start=2,
        ):
            outcome = tune(place, tmp_path / "out", keys, *changed[1], **changed[0])
            assert outcome.code == 0, outcome.err
            assert len(decodes) == number

    def test_a_file_that_a_setting_names_counts(self, place: Path, tmp_path: Path, decodes: list[int]) -> None:
        for number, text in enumerate(["der Hund\n", "der Mann\n"], start=1):
            (tmp_path / "trie").write_text(text)
            tune(place, tmp_path / "out", "tune.generation.lenpen=1", f"generation.prefix_trie={tmp_path}/trie")
            assert len(decodes) == number

    def test_nbest_lists_of_sentences_are_not_ranked_again(self, place: Path, tmp_path: Path) -> None:
        pytest.importorskip("sentencex")
        keys = ("generation.mbr=chrf", "generation.input_split=sentences", "tune.utility.beta=0,1")
        refused(tune(place, tmp_path / "out", *keys), "keys that rank cannot be tuned")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("fixed", "tuned"),
        [
            (("generation.rerank=length_ratio",), "reranker.weight=0,0.5,3"),
            (("generation.mbr=chrf",), "utility.beta=0,1,5"),
        ],
    )
    def test_nbest_lists_are_ranked_again(
        self, place: Path, tmp_path: Path, decodes: list[int], fixed: tuple[str, ...], tuned: str
    ) -> None:
        further = (f"common.user_dir={RERANKER}", "generation.nbest=2", *fixed)
        keys = (f"tune.{tuned}", "tune.generation.unkpen=0,3")  # ranking keys change fastest, wherever they are
        found = result(tune(place, tmp_path / "out", *further, *keys), tmp_path / "out")
        assert len(decodes) == 2
        trials = {tuple(trial["setting"]): trial["score"] for trial in found["trials"]}
        assert len(trials) >= 6
        assert trials == pytest.approx({s: exhaustive(place, tmp_path, list(s), *further) for s in trials})
        assert len(set(trials.values())) > 1


class TestCoordinateSearch:
    @given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=5), min_size=1, max_size=4), st.data())
    def test_finds_the_optimum_of_a_separable_function(self, tables: list[list[int]], data: st.DataObject) -> None:
        space = [
            Dimension(f"k{i}", tuple(map(str, range(len(table)))), start=str(data.draw(st.integers(0, len(table) - 1))))
            for i, table in enumerate(tables)
        ]

        def score(point: Any) -> float:
            return sum(table[int(value)] for table, value in zip(tables, point, strict=True))

        assert score(search_coordinates(space, score)) == max(map(score, grid(space)))
        assert score(search_coordinates(space, score, rounds=1)) == max(map(score, grid(space)))

    def test_ends_where_no_single_change_improves(self) -> None:
        space = [Dimension("x", ("0", "1"), start="0"), Dimension("y", ("0", "1"), start="0")]
        ridge = {("0", "0"): 1.0, ("1", "1"): 2.0}
        assert search_coordinates(space, lambda point: ridge.get(point, 0.0)) == ("0", "0")

    def test_keeps_what_is_given_where_nothing_is_better(self) -> None:
        space = [Dimension(name, ("0", "1", "2"), start="1") for name in "xy"]
        assert search_coordinates(space, lambda point: 1.0) == ("1", "1")

    def test_needs_fewer_decodes_than_the_grid(self, place: Path, tmp_path: Path, decodes: list[int]) -> None:
        keys = ("tune.generation.lenpen=0,0.5,1,2", "tune.combination.weights=0.1:1:0.3", "method=coordinate")
        found = result(tune(place, tmp_path / "out", *keys, "rounds=1", path="a,b"), tmp_path / "out")
        assert len(decodes) == len(found["trials"]) <= 1 + 4 + 4 + 4 < 4 * 4 * 4
        assert all(len(trial["setting"]) >= 1 for trial in found["trials"])
        best = exhaustive(place, tmp_path, [f"{k}={v}" for k, v in found["setting"].items()], path="a,b")
        assert best == found["score"]


class TestValues:
    def test_forms(self) -> None:
        def values(text: str, start: list[str] | None = None) -> list[tuple[str, ...]]:
            return [dimension.values for dimension in dimensions("key", text, start)]

        assert values("0.6,1,1.4") == [("0.6", "1", "1.4")]
        assert values("0:1:0.25") == [("0", "0.25", "0.5", "0.75", "1")]
        assert values("-1:1:1,7") == [("-1", "0", "1", "7")]
        assert values("0.1:0.35:0.1") == [("0.1", "0.2", "0.3")]
        assert values("0,1", ["1", "1"]) == [("0", "1"), ("0", "1")]
        assert values("[1,2],[3, 4]", ["1", "1"]) == [("[1,2]", "[3,4]")]
        assert values("simplex:2", ["1", "1", "1"]) == [
            ("[0,0,1]", "[0,0.5,0.5]", "[0,1,0]", "[0.5,0,0.5]", "[0.5,0.5,0]", "[1,0,0]")
        ]

    @pytest.mark.parametrize(("size", "steps"), list(itertools.product((1, 2, 3), (1, 3, 4))))
    def test_a_simplex_has_all_lists_that_sum_to_one(self, size: int, steps: int) -> None:
        (dimension,) = dimensions("key", f"simplex:{steps}", ["1"] * size)
        lists = [tuple(round(steps * item) for item in json.loads(text)) for text in dimension.values]
        expected = [x for x in itertools.product(range(steps + 1), repeat=size) if sum(x) == steps]
        assert sorted(lists) == expected

    def test_elements_make_one_argument(self) -> None:
        space = [*dimensions("w", "0,1", ["1", "1"]), *dimensions("p", "2", None)]
        assert arguments(space, ("0", "1", None)) == ["w=[0,1]"]
        assert arguments(space, ("1", "1", "2")) == ["w=[1,1]", "p=2"]

    @pytest.mark.parametrize(
        "text", ["", "a", "1,", "nan", "inf", "1:2", "2:1:1", "1:2:0", "1:2:-1", "0:1:1e-300", "1_0", "9" * 50]
    )
    def test_that_cannot_be_read(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"tune\.key"):
            dimensions("key", text, None)
        with pytest.raises(ConfigError, match=r"tune\.key"):
            dimensions("key", text, ["1"])

    @pytest.mark.parametrize("text", ["[1", "[1],2", "[a,b]", "simplex", "simplex:0", "simplex:x", "simplex:9999"])
    def test_of_lists_that_cannot_be_read(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"tune\.key"):
            dimensions("key", text, ["1", "1", "1"])
        with pytest.raises(ConfigError, match=r"tune\.key"):
            dimensions("key", text, None)


def test_a_tuned_key_of_a_component_is_above_its_fixed_value() -> None:
    cfg = compose(TuneConfig, ["generation.search=diverse_beam", "search.groups=2", "search.strength=0.5"])
    found = _settings(cfg, cfg.generation, {})(["search.groups=3"])
    assert found["components"] == {"search.groups": 3, "search.strength": 0.5}


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((), ["nothing to tune"]),
            (("tune.generation.lenpem=1",), ["lenpem", "did you mean 'generation.lenpen'"]),
            (("tune.generatoin.lenpen=1",), ["tune.generatoin.lenpen", "did you mean 'generation'"]),
            (("tune.lenpen=0.6,1",), ["tune.lenpen: only", "did you mean 'tune.generation.lenpen'"]),
            (("tune.combnation.weights=1",), ["tune.combnation.weights", "did you mean 'combination'"]),
            (("generation.lenpen=0.6,1",), ["a number; seqgen-tune tune.generation.lenpen=0.6,1 decodes with each"]),
            (("tune.combination.weigths=0,1",), ["combination.weigths", "did you mean 'weights'"]),
            (("tune.generation.search=1,2",), ["tune.generation.search", "only numbers"]),
            (("tune.generation.sampling=0,1",), ["tune.generation.sampling", "only numbers"]),
            (("tune.generation.suppress=1,2",), ["tune.generation.suppress", "only numbers"]),
            (("tune.generation.lenpen=high",), ["tune.generation.lenpen", "'high' is not a number"]),
            (("tune.generation.lenpen=[1]",), ["tune.generation.lenpen", "not a list"]),
            (("tune.generation.beam=0,1",), ["tune.generation: beam=0", "minimum"]),
            (("tune.generation.beam=1.5",), ["tune.generation: beam=1.5 should be a whole number"]),
            (("tune.combination.weights=-1,1",), ["combination.weights=-1", "minimum"]),
            (("tune.search.delta=1",), ["search.delta", "no effect"]),
            (("tune.generation.lenpen=1", "tune.generation.lenpen=2"), ["given twice"]),
            (("tune.generation.lenpen",), ["key=value"]),
            (("tune.generation.lenpen=1", "rounds=2"), ["rounds=2", "method=coordinate"]),
            (("tune.generation.lenpen=1", "dataset.gen_subset=test"), ["has no effect"]),
            (("tune.generation.lenpen=1", "metric=exact_match", "lowercase=true"), ["no effect"]),
            (("tune.generation.lenpen=1", "tokenize=char"), ["tokenize=char", "no effect on metric=chrf"]),
            (("tune.generation.sampling_topk=2,3",), ["fewer than two settings", "sampling_topk"]),
            (("tune.generation.lenpen=1", "reference="), ["reference is missing"]),
            (("tune.generation.nbest=5,6", "generation.nbest=4"), ["fewer than two settings can be decoded", "nbest"]),
        ],
    )
    def test_keys(self, place: Path, tmp_path: Path, arguments: tuple[str, ...], words: list[str]) -> None:
        refused(tune(place, tmp_path / "out", *arguments), *words)

    def test_files(self, place: Path, tmp_path: Path) -> None:
        (tmp_path / "short").write_text("a\n")
        key = "tune.generation.lenpen=1"
        refused(tune(place, tmp_path / "out", key, f"reference={tmp_path}/short"), "12 lines", "has 1")
        (tmp_path / "empty").write_text("")
        refused(tune(place, tmp_path / "out", key, f"input={tmp_path}/empty"), "has 0 lines")
        refused(tune(place, tmp_path / "out", key, f"input={tmp_path}/none"), "none")
        refused(tune(place, tmp_path / "short", key), "short")
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "outputs.jsonl").write_text('{"key": 1}\n')
        refused(tune(place, tmp_path / "out", key), "outputs.jsonl, line 1 is damaged")

    def test_a_folder_that_is_in_use(self, place: Path, tmp_path: Path) -> None:
        with run_lock(tmp_path / "out"):
            refused(tune(place, tmp_path / "out", "tune.generation.lenpen=1"), f"output={tmp_path}/out is in use")

    def test_values_that_exclude_each_other_are_left_out(self, place: Path, tmp_path: Path) -> None:
        outcome = tune(place, tmp_path / "out", "tune.generation.beam=1,2,4", "generation.nbest=2")
        found = result(outcome, tmp_path / "out")
        assert "left out: generation.beam=1: " in outcome.err
        assert [item["setting"] for item in found["refused"]] == [["generation.beam=1"]]
        assert len(found["trials"]) == 3, "beam 3 is given"


def test_intervals_are_those_of_sacrebleu() -> None:
    hypotheses = ["der Hund sieht einen Mann", "der Mann hat einen Ball und einen Kahn", "ein Baum"]
    references = ["der Hund sieht den Mann", "der Mann hat einen Ball und einen Hund", "der Baum"]
    for name, metric in (("bleu", sacrebleu.BLEU()), ("chrf", sacrebleu.CHRF())):
        expected = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
        score, interval = score_with_interval(name, hypotheses, references)
        assert score.value == text_scores(hypotheses, references)[name].value
        assert interval == pytest.approx(float(re.findall(r"± ([\d.]+)", expected.format(width=6))[0]), abs=1e-6)
        assert interval > 0
    assert score_with_interval("exact_match", hypotheses, references)[1] is None
