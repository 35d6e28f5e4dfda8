"""Components of the user's own, one of each kind: on the command line, and the same from Python."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqgen.config.user_files import import_user_dir
from seqgen.core.beam_search import BeamSearch
from seqgen.core.errors import ConfigError
from seqgen.decoding.search.constrained import ConstrainedSearch
from seqgen.decoding.search.diverse import DiverseBeamSearch
from seqgen.decoding.search.sampling import Sampling
from seqgen.text.translator import Translator
from tests import user_components
from tests.commands import Outcome, command
from tests.text_models import TEXTS, text_model
from tests.training_runs import TINY

FILE = user_components.__file__
LINES = ["12", "7", "305", "41", "18"]
LIMITS = ("generation.max_len_b=8", "common.device=cpu", "common.threads=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose validation decodes with the user's own search strategy and processor."""
    folder = tmp_path_factory.mktemp("own") / "run"
    outcome = command(
        *("train", f"run_dir={folder}", f"common.user_dir={FILE}", *TINY, "optimization.max_update=6", *LIMITS),
        *("generation.search=cropping", "search.delta=1.5", "generation.processors=[variety]"),
        *("processor.variety.weight=0.5", "dataset.validate_decode=3"),
    )
    assert outcome.code == 0, outcome.err
    return folder


def decode(run: Path, *arguments: str) -> Outcome:
    text = "\n".join(LINES).encode() + b"\n"
    base = ("generation.search=beam", "generation.processors=[]", "generation.nbest=3", "format=json", *LIMITS)
    given = {argument.partition("=")[0] for argument in arguments}
    base = tuple(item for item in base if item.partition("=")[0] not in given)
    return command("generate", f"path={run}", f"common.user_dir={FILE}", "input=-", *base, *arguments, stdin=text)


def rows(outcome: Outcome) -> list[Any]:
    assert outcome.code == 0, outcome.err
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    return [[(item["tokens"], pytest.approx(item["score"], abs=1e-5)) for item in line["hypotheses"]] for line in lines]


def in_python(run: Path | list[Path], **settings: Any) -> list[Any]:
    base = {"search": "beam", "processors": [], "nbest": 3, "max_len_b": 8}
    found = Translator(run).translate(LINES, **{**base, **settings})
    return [[(item.tokens.tolist(), pytest.approx(item.score, abs=1e-5)) for item in line.hypotheses] for line in found]


def test_validation_decoding_has_them_in_its_config(run: Path) -> None:
    generation = yaml.safe_load((run / "config.yaml").read_text())["generation"]
    assert generation["components"] == {"search.delta": 1.5, "processor.variety.weight": 0.5}
    resumed = command(
        *("train", f"run_dir={run}", f"common.user_dir={FILE}", *TINY, "optimization.max_update=6", *LIMITS),
        *("generation.search=cropping", "search.delta=1.5", "generation.processors=[variety]"),
        *("processor.variety.weight=0.5", "dataset.validate_decode=3"),
    )
    assert resumed.code == 0, resumed.err


def test_a_runs_own_keys_are_used_where_its_component_is(run: Path) -> None:
    own_settings = decode(run, "generation.search=cropping", "generation.processors=[variety]")
    named = decode(
        *(run, "generation.search=cropping", "search.delta=1.5", "generation.processors=[variety]"),
        "processor.variety.weight=0.5",
    )
    assert rows(own_settings) == rows(named)
    changed = decode(
        *(run, "generation.search=cropping", "search.delta=0.0", "generation.processors=[variety]"),
    )
    assert rows(changed) == in_python(
        run, search="cropping", processors=["variety"], **{"search.delta": 0.0, "processor.variety.weight": 0.5}
    )
    assert rows(changed) != rows(named)
    assert rows(decode(run)) == in_python(run)  # no key of the run's own is left over for beam search


def test_keys_of_components_that_the_run_names(run: Path) -> None:
    """Its ``generation`` group names the search and the processor, so that their keys can be given alone."""

    def bare(*keys: str) -> Outcome:
        text = "\n".join(LINES).encode() + b"\n"
        fixed = ("input=-", "generation.nbest=3", "format=json", *LIMITS)
        return command("generate", f"path={run}", f"common.user_dir={FILE}", *fixed, *keys, stdin=text)

    keys = ("search.delta=0.0", "processor.variety.weight=2.0")
    named = rows(decode(run, "generation.search=cropping", "generation.processors=[variety]", *keys))
    assert rows(bare(*keys)) == named != rows(bare())
    assert 'generation.processors=["variety"], search=cropping\n' in bare(*keys).err
    assert 'generation.processors=["variety"], search=cropping, search.delta=1.5\n' in bare(keys[1]).err
    values = {"search.delta": 0.0, "processor.variety.weight": 2.0}
    for found in (
        Translator(run, nbest=3, max_len_b=8, **values).translate(LINES),
        Translator(run).translate(LINES, nbest=3, max_len_b=8, **values),
    ):
        assert [[(item.tokens.tolist(), item.score) for item in line.hypotheses] for line in found] == named
    for key, said in (
        ("search.dleta=1", "unknown key 'search.dleta' of search strategy cropping (did you mean 'delta'?)"),
        ("search.delta=wide", "search.delta=wide should be a number"),
        ("processor.journal.x=1", "generation.processors does not name its logits processor"),
    ):
        outcome = bare(key)
        assert outcome.code == 2
        assert said in outcome.err
    text = run.parent / "input"
    text.write_text("\n".join(LINES) + "\n")
    diff = ("diff", f"path={run}", f"input={text}", f"common.user_dir={FILE}", *LIMITS)
    same = command(*diff, "other.search.delta=1.5", "fast.use_cache=false", "other.fast.use_cache=true")
    assert (same.code, "no difference" in same.out) == (0, True), same.err
    other = command(*diff, "other.search.delta=0.0")
    assert (other.code, "search.delta" in other.out) == (1, True), other.err


def test_a_preset(run: Path) -> None:
    assert in_python(run, search="cropping_narrow") == in_python(run, search=user_components.CroppingSearch(delta=0.5))
    assert in_python(run, processors=["much_variety"]) == in_python(
        run, processors=["variety"], **{"processor.variety.weight": 9.0}
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generation.search=croppping"], "did you mean 'cropping'"),
        (["generation.search=cropping", "search.delta=nan"], "search.delta=nan is not a finite number"),
        (["search.delta=2"], "unknown key 'search.delta' of search strategy beam"),
        (["generation.processors=[variety]", "processor.variety.weigth=2"], "did you mean 'weight'"),
        (["processor.variety.weight=2"], "'processor.variety.weight' has no effect"),
        (["generation.stopping_rules=[at_mots]"], "did you mean 'at_most'"),
        (["generation.combination=best_of", "combination.scale=11"], "is above its maximum, 10"),
        (["observer.journal.file=x"], "'observer.journal.file' has no effect"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(run: Path, arguments: list[str], said: str) -> None:
    outcome = decode(run, *arguments)
    assert outcome.code == 2, outcome.err
    assert "Traceback" not in outcome.err
    assert said in outcome.err.strip().splitlines()[-1]


def test_commands_that_do_not_decode_have_no_such_keys() -> None:
    outcome = command("score", "search.groups=3", "reference=x")
    assert (outcome.code, "unknown key 'search.groups'" in outcome.err) == (2, True), outcome.err


def test_keys_beside_an_object_are_refused() -> None:
    translator = Translator(text_model())
    with pytest.raises(ConfigError, match=r"'search\.groups' has no effect on a component that is given as an obj"):
        translator.translate(TEXTS, search=DiverseBeamSearch(2, 0.5), **{"search.groups": 3})
    with pytest.raises(ConfigError, match=r"'combination\.scale' has no effect on a component that is given as an ob"):
        translator.translate(TEXTS, combination=user_components.BestOf(1.0), **{"combination.scale": 2.0})


DIVERSE = {"search": "diverse_beam", "components": {"search.groups": 2}}


def test_flat_keys_beside_a_search_object_are_refused() -> None:
    """The models' own values of such keys are left out: the user's object replaces the strategy that they describe."""
    with pytest.raises(ConfigError, match=r"generation\.seed=5 does not apply to the search object Sampling"):
        Translator(text_model()).translate(TEXTS, search=Sampling(3), sampling=True, seed=5)
    with pytest.raises(ConfigError, match=r"constraints=ordered does not apply to the search object ConstrainedSearch"):
        Translator(text_model()).translate(TEXTS, search=ConstrainedSearch(ordered=False), constraints="ordered")
    for search in (ConstrainedSearch(ordered=True), BeamSearch()):
        (having,) = Translator(text_model()).translate(["w1 w5\tw3"], search=search, constraints="ordered", max_len_b=6)
        assert "w3" in having.text.split()
    for own_settings in (DIVERSE, {"sampling": True, "top_k": 2, "seed": 3}):
        model = replace(text_model(), generation=own_settings)
        found = Translator(model).prepare(search=BeamSearch(), beam=4)
        assert found.notes == []
        plain = Translator(text_model()).prepare(search=BeamSearch(), beam=4)
        assert [type(p) for p in found.generator.setup.processors] == [
            type(p) for p in plain.generator.setup.processors
        ]


def test_a_named_search_replaces_the_one_that_the_models_keys_imply() -> None:
    decoding = Translator(replace(text_model(), generation=DIVERSE)).prepare(search="beam", beam=4)
    assert type(decoding.generator.setup.search) is BeamSearch


def test_settings_of_the_constructor_and_of_a_call() -> None:
    """Keys of components are put over each other one by one, and go with a component that is replaced."""
    import_user_dir(Path(FILE))
    first = {"search": "cropping", "processors": ["variety"], "search.delta": 0.25, "processor.variety.weight": 2.0}
    translator = Translator(text_model(), beam=3, nbest=3, max_len_b=6, **first)

    def texts(**settings: Any) -> list[list[str]]:
        return [[item.text for item in line.hypotheses] for line in translator.translate(TEXTS, **settings)]

    plain = Translator(text_model(), beam=3, nbest=3, max_len_b=6)

    def alone(**settings: Any) -> list[list[str]]:
        return [[item.text for item in line.hypotheses] for line in plain.translate(TEXTS, **settings)]

    assert texts() == alone(**first)
    assert texts(**{"search.delta": 9.0}) == alone(**{**first, "search.delta": 9.0}) != texts()
    assert texts(search="beam") == alone(processors=["variety"], **{"processor.variety.weight": 2.0})
    assert texts(processors=[]) == alone(search="cropping", **{"search.delta": 0.25})


def test_other_objects_of_a_kind_make_another_generator() -> None:
    translator = Translator(text_model(), beam=2, max_len_b=6)
    found = [translator.translate(TEXTS, stopping_rules=[user_components.AtMost(tokens)]) for tokens in (1, 2, 3, 4)]
    lengths = [max(len(line.hypotheses[0].tokens) for line in lines) for lines in found]
    assert lengths == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["train", "generate"])
def test_help_lists_the_components_and_their_keys(name: str) -> None:
    topics = (
        ["all"] if name == "generate" else ["generation", "search", "processor", "stopping", "combination", "observer"]
    )
    said = command(name, "--help", *topics, f"common.user_dir={FILE}").out
    for line in (
        "generation.search=cropping (presets: cropping_narrow)",
        "generation.processors=variety (presets: much_variety)",
        "generation.stopping_rules=at_most (presets: at_most_two)",
        "generation.combination=best_of (presets: best_of_double)",
        "generation.observers=journal",
        "Keys with generation.search=cropping",
        "search.delta=5.0                  candidates this many nats below the best one",
        "processor.variety.weight=1.0",
        "stopping.at_most.tokens=3",
        "combination.scale=1.0",
        "observer.journal.file=",
        "search.groups=2",
    ):
        assert f"\n  {line}" in said or f"\n{line}" in said, line
    assert ("fast.use_cache=true" in said) == (name == "generate")
    assert "components=" not in said
    assert "user_files" not in said
