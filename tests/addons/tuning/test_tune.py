"""``seqgen-tune``: its best setting is that of exhaustive decoding."""

import itertools
import json
import re
from pathlib import Path

import pytest
import sacrebleu

from seqgen.addons.tuning.command import arguments_of
from tests.commands import SMALL_FCONV, SMALL_TRANSFORMER, Outcome, corpus, done, sentences, training_arguments
from tests.refusals import Row, refusals

PROCESSOR = Path(__file__).parents[3] / "examples" / "extending" / "logits_processor.py"
WORD_REWARD = "tune.processor.word_reward.reward=-9,9"
SHORT = ("generation.max_len_b=14", "generation.beam=3", "common.threads=1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with one vocabulary, ``a`` and ``b``, and a validation set."""
    folder = tmp_path_factory.mktemp("tune")
    data = corpus(folder / "data")
    for name, model in (("a", SMALL_FCONV), ("b", SMALL_TRANSFORMER)):
        further = ("optimization.lr=[2e-2]", "optimization.max_update=60", "dataset.validate_interval=0")
        done("train", *training_arguments(data, folder / name), *model, *further)
    pairs = sentences(500, 12)
    for side, language in enumerate(("en", "de")):
        (folder / f"val.{language}").write_text("".join(pair[side] + "\n" for pair in pairs))
    (folder / "short").write_text("a\n")
    (folder / "empty").write_text("")
    return folder


def tune(place: Path, *arguments: str, models: str = "a") -> tuple[Outcome, dict[tuple[str, ...], float]]:
    """The outcome, and the score of each setting, which is a tuple of arguments."""
    runs = ",".join(f"{place}/{name}" for name in models)
    texts = (f"input={place}/val.en", f"reference={place}/val.de")
    outcome = done("tune", f"path=[{runs}]", *texts, f"json={place}/tuned", "metric=chrf", *SHORT, *arguments)
    trials = json.loads((place / "tuned").read_text())["trials"]
    scores = {tuple(f"{key}={value}" for key, value in trial["setting"].items()): trial["score"] for trial in trials}
    assert len(scores) == len(trials)
    return outcome, scores


def exhaustive(place: Path, *keys: str, models: str = "a") -> float:
    """chrF of what seqgen-generate decodes, by sacreBLEU itself."""
    runs = ",".join(f"{place}/{name}" for name in models)
    outcome = done("generate", f"path=[{runs}]", f"input={place}/val.en", *SHORT, *keys)
    references = (place / "val.de").read_text().splitlines()
    return float(sacrebleu.corpus_chrf(outcome.out.split("\n")[:-1], [references]).score)


def test_the_best_setting_is_that_of_exhaustive_decoding(place: Path) -> None:
    keys = ("tune.generation.no_repeat_ngram_size=0:2:2", "tune.combination.weights=simplex:2")
    _, trials = tune(place, *keys, models="ab")
    weights = ("[0,1]", "[0.5,0.5]", "[1,0]")
    settings = {(f"generation.no_repeat_ngram_size={p}", f"combination.weights={w}") for p in "02" for w in weights}
    assert settings < set(trials)
    assert len(trials) == 7, "six settings, and the user's own"
    expected = {setting: exhaustive(place, *setting, models="ab") for setting in trials}
    assert trials == pytest.approx(expected)
    assert len(set(expected.values())) > 2, "otherwise the comparison shows nothing"
    assert next(iter(trials.values())) == max(expected.values())


def test_the_best_setting_is_printed_as_keys_of_seqgen_generate(place: Path) -> None:
    outcome, trials = tune(place, "tune.generation.length_penalty=0,2", "generation.min_len=2")
    (line,) = re.findall(r"^decode: seqgen-generate (.*)$", outcome.out, re.MULTILINE)
    words = line.split()
    best, score = next(iter(trials.items()))
    assert {"generation.min_len=2", "input=FILE", *best} <= {*words}
    assert exhaustive(place, *(word for word in words if word != "input=FILE")) == pytest.approx(score)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "keys", "tuned"),
    [
        ("ab", ("generation.combination=fusion",), "tune.combination.weight=-0.5,2"),
        ("a", (f"common.user_dir={PROCESSOR}", "generation.processors=[word_reward]"), WORD_REWARD),
    ],
)
def test_keys_of_components(place: Path, models: str, keys: tuple[str, ...], tuned: str) -> None:
    _, trials = tune(place, *keys, tuned, models=models)
    assert trials == pytest.approx({setting: exhaustive(place, *keys, *setting, models=models) for setting in trials})
    assert len(set(trials.values())) > 1


def test_a_split_of_the_task(place: Path, tmp_path: Path) -> None:
    keys = (f"path={place}/a", "tune.generation.beam=1,2", "dataset.gen_subset=valid", *SHORT)
    outcome = done("tune", f"json={tmp_path}/out", *keys)
    (line,) = re.findall(r"^decode: seqgen-generate (.*)$", outcome.out, re.MULTILINE)
    done("generate", *line.replace("input=FILE", f"input={place}/val.en").split())  # of a file, and not the split
    assert json.loads((tmp_path / "out").read_text())["metric"] == "bleu"


def test_equal_settings_are_decoded_once_and_values_that_exclude_each_other_are_left_out(place: Path) -> None:
    keys = ("tune.generation.beam=1,2,4", "generation.nbest=2", "tune.generation.length_penalty=1,1.0,1e0")
    outcome, trials = tune(place, *keys, "tune.generation.unkpen=0,0.0")
    assert "left out: generation.beam=1" in outcome.err
    assert len(trials) == len(re.findall(r"\[\d\] ", outcome.err)) == 3, "beam 3 is given"


def test_forms_of_values() -> None:
    def values(text: str) -> tuple[str, ...]:
        return tuple(argument.removeprefix("key=") for argument in arguments_of("key", text, 3))

    assert values("0.6,1,1.4,1") == ("0.6", "1", "1.4")
    assert values("0:1:0.25") == ("0", "0.25", "0.5", "0.75", "1")
    assert values("-1:1:1,7") == ("-1", "0", "1", "7")
    assert values("0.1:0.39:0.1") == ("0.1", "0.2", "0.3")
    assert values("[1,2],[3, 4]") == ("[1,2]", "[3,4]")
    assert values("simplex:2") == ("[0,0,1]", "[0,0.5,0.5]", "[0,1,0]", "[0.5,0,0.5]", "[0.5,0.5,0]", "[1,0,0]")


@pytest.mark.parametrize(("size", "steps"), list(itertools.product((1, 2, 3), (1, 3, 7))))
def test_a_simplex_has_all_lists_that_sum_to_one(size: int, steps: int) -> None:
    found = [json.loads(argument[2:]) for argument in arguments_of("k", f"simplex:{steps}", size)]
    wholes = [each for each in itertools.product(range(steps + 1), repeat=size) if sum(each) == steps]
    assert sorted(found) == [pytest.approx([share / steps for share in each], rel=1e-11) for each in wholes]


def values(text: str) -> Row:
    return lambda: arguments_of("key", text, 3), "tune.key"


TUNE = "tune path={place}/a input={place}/val.en reference={place}/val.de json={tmp_path}/out metric=chrf "
KEY = TUNE + "tune.generation.length_penalty=1 "

test_refusals = refusals(
    *map(values, ("1:2", "2:1:1", "1:2:0", "a:b:c", "nan:1:1", "0:1e9999:1", "0:1:1e-300")),
    (values("0:10000:1")[0], "tune.key=0:10000:1 has 10001 values"),
    *map(values, ("simplex", "simplex:0", "simplex:x", "simplex:9999")),
    (TUNE, "nothing to tune"),
    (TUNE + "tune.generation.length_penaltz=1", "length_penaltz", "did you mean 'generation.length_penalty'"),
    (TUNE + "tune.length_penalty=1", "tune.length_penalty: only", "did you mean 'tune.generation.length_penalty'"),
    (TUNE + "generation.min_len=1,2", "seqgen-tune tune.generation.min_len=1,2 decodes with each"),
    (TUNE + "tune.generation.length_penalty=high", "'generation.length_penalty=high' cannot be used", "a number"),
    (TUNE + "tune.generation.beam=0,1", "generation.beam=0", "minimum"),
    (TUNE + "tune.combination.weights=-1,-2", "none of the settings can be", "combination.weights=-2", "minimum"),
    (TUNE + "tune.search.delta=1", "search.delta", "no effect"),
    (KEY + "tune.generation.length_penalty=2", "given twice"),
    (KEY + "reference=", "set both input=FILE and reference=FILE"),
    (KEY + "reference={place}/short", "12 lines", "has 1"),
    (KEY + "input={place}/empty", "has 0 lines"),
    (KEY + "input={place}/none", "none"),
    (KEY + "json={tmp_path}", "is a folder"),
    (KEY + "json={place}/val.de", "would overwrite the input"),
)
