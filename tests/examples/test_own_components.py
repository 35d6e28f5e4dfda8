"""Components of the user's own (examples/extending): keys of a run, of a command and of calls, one over the other."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.extending import search_strategy, stateful_processor, stopping_rule  # noqa: F401  # registered
from examples.extending.search_strategy import ThresholdSearch
from seqgen.extend import BeamSearch, ConstrainedSearch, Translation
from seqgen.text.translator import Translator
from tests.commands import command, done
from tests.text_models import TEXTS, text_model
from tests.training_runs import TINY

EXTENDING = Path(__file__).parent.parent.parent / "examples" / "extending"
NAMES = ("search_strategy", "stateful_processor", "stopping_rule", "combination", "observer")
FILES = f"common.user_dir=[{','.join(f'{EXTENDING}/{name}.py' for name in NAMES)}]"
LINES = ["12", "7", "305", "41", "18"]
LIMITS = ("generation.max_len_b=8", "common.device=cpu", "common.threads=1")
OWN = {"search.delta": 1.5, "processor.frequency_penalty.penalty": 0.5}
VALUES = tuple(f"{key}={value}" for key, value in OWN.items())
NAMED = ("generation.search=threshold", "generation.processors=[frequency_penalty]")
PLAIN = ("generation.search=beam", "generation.processors=[]")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose validation decodes with the user's own search strategy and processor."""
    folder = tmp_path_factory.mktemp("own") / "run"
    (folder.parent / "input").write_text("".join(f"{line}\n" for line in LINES))
    for last in (3, 6):  # it is resumed
        keys = (*TINY, f"optimization.max_update={last}", *LIMITS, *NAMED, *VALUES, "dataset.validate_decode=3")
        done("train", f"run_dir={folder}", FILES, *keys)
    return folder


def decode(run: Path, *keys: str) -> list[list[Any]]:
    base = (f"path={run}", f"input={run.parent / 'input'}", "generation.nbest=3", "format=json")
    outcome = done("generate", FILES, *base, *LIMITS, *keys)
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    return [[(item["tokens"], pytest.approx(item["score"], abs=1e-5)) for item in line["hypotheses"]] for line in lines]


def shown(found: list[Translation]) -> list[list[Any]]:
    return [[(item.tokens.tolist(), pytest.approx(item.score, abs=1e-5)) for item in t.hypotheses] for t in found]


def in_python(run: Path, **settings: Any) -> list[list[Any]]:
    base = {"search": "beam", "processors": [], "nbest": 3, "max_len_b": 8}
    return shown(Translator(run).translate(LINES, **{**base, **settings}))


def test_keys_of_a_run_are_used_where_its_component_is(run: Path) -> None:
    assert yaml.safe_load((run / "config.yaml").read_text())["generation"]["components"] == OWN
    named = decode(run, *NAMED, *VALUES)
    assert decode(run) == decode(run, *NAMED) == named
    penalty = {"processors": ["frequency_penalty"], "processor.frequency_penalty.penalty": 0.5}
    assert decode(run, "search.delta=0.0") == in_python(run, search=ThresholdSearch(0.0), **penalty) != named
    assert decode(run, *PLAIN) == in_python(run) != named  # no key of the run's own is left over for beam search
    assert decode(run, "generation.search=threshold_tight") == in_python(run, search="threshold_tight", **penalty)
    assert in_python(run, search="threshold_tight") == in_python(run, search=ThresholdSearch(0.5))
    # keys of components that the run names are given alone
    keys = ("search.delta=0.0", "processor.frequency_penalty.penalty=2.0")
    assert decode(run, *keys) == decode(run, *NAMED, *keys) != named
    named = decode(run, *keys)
    values = {"nbest": 3, "max_len_b": 8, "search.delta": 0.0, "processor.frequency_penalty.penalty": 2.0}
    assert shown(Translator(run, **values).translate(LINES)) == named
    assert shown(Translator(run).translate(LINES, **values)) == named


DIVERSE = {"search": "diverse_beam", "components": {"search.groups": 2}}


def test_a_search_of_the_user_replaces_the_one_that_the_models_keys_imply() -> None:
    """The models' own values of its keys are left out."""
    for search in (ConstrainedSearch(ordered=True), BeamSearch()):
        (having,) = Translator(text_model()).translate(["w1 w5\tw3"], search=search, constraints="ordered", max_len_b=6)
        assert "w3" in having.text.split()
    limits = {"beam": 4, "nbest": 4, "max_len_b": 6}
    plain = shown(Translator(text_model(), **limits).translate(TEXTS))
    for own in (DIVERSE, {"sampling": True, "top_k": 2, "seed": 3}):
        translator = Translator(replace(text_model(), generation=own), **limits)
        assert shown(translator.translate(TEXTS)) != plain
        assert translator.prepare(search=BeamSearch()).notes == []
        assert shown(translator.translate(TEXTS, search=BeamSearch())) == plain
        assert "sampling" in own or shown(translator.translate(TEXTS, search="beam")) == plain


def test_help_lists_the_components_and_their_keys() -> None:
    said = command("train", "--help", "generation", "search", "processor", "observer", FILES).out
    listed = ("generation.search=threshold (presets: threshold_tight)", "search.delta=2.5     ")
    for line in (*listed, "processor.frequency_penalty.penalty=0.3", "observer.outcomes.file=outcomes.jsonl"):
        assert f"\n  {line}" in said, line
