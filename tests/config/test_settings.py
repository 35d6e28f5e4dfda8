"""Layers of settings, and their resolution."""

from unittest import mock

import pytest

from seqgen.config import FastConfig, GenerateConfig, GenerationConfig
from seqgen.config.settings import Layer, ResolvedSettings, Settings
from seqgen.decoding.resolution import resolve
from seqgen.extend import BeamSearch, ConfigError, DiverseBeamSearch, Forbid, compose_given
from seqgen.text.translator import Translator
from tests.text_models import text_model


def test_a_layer_overrides_those_below_it() -> None:
    user = Settings().with_layer("user", {"beam": 3, "length_penalty": 0.5, "fast.use_cache": False})
    call = user.with_layer("call", {"generation.beam": 4}).over("model", {"nbest": 2, "length_penalty": 2.0})
    assert call.generation == {"nbest": 2, "length_penalty": 0.5, "beam": 4}
    assert call.fast == {"use_cache": False}
    assert [call.layer_of(key) for key in ("beam", "length_penalty", "nbest", "fast.use_cache", "min_len")] == [
        "call", "user", "model", "user", "default"
    ]  # fmt: skip
    assert user.get("beam") == 3, "layers do not change"
    assert user.with_layer("call", {}) is user
    assert call.get("min_len", 7) == 7


OBJECT = BeamSearch()


@pytest.mark.parametrize(
    ("above", "kept"),
    [({"beam": 4}, True), ({"search": "diverse_beam"}, True), ({"search": "beam"}, False), ({"search": OBJECT}, False)],
)
def test_keys_of_a_component_stay_with_it(above: dict[str, object], kept: bool) -> None:
    below = Settings().with_layer("user", {"search": "diverse_beam", "search.groups": 2, "processor.top.k": 1})
    assert ("search.groups" in below.with_layer("call", above).values) == kept
    assert "search.groups" in below.with_layer("call", {"processors": ["top"]}).values
    several = Settings().with_layer("user", {"processors": ["top", "low"], "processor.top.k": 1, "processor.low.k": 2})
    left = several.with_layer("call", {"processors": ["low"], "components": {"processor.low.k": 3}})
    assert left.generation == {"processors": ["low"], "components": {"processor.low.k": 3}}


def test_equal_settings_are_equal_keys() -> None:
    one, other = ({"beam": 2, "bad_words": ["a"], "search": OBJECT} for _ in range(2))
    same = Settings().with_layer("user", one), Settings().with_layer("user", other)
    assert len(set(same)) == 1
    wrong = [{"generation.beam": True}, {"generation.beam": 2.0}]
    assert len({Settings(Layer("user", values)) for values in [*wrong, {"generation.beam": 2}]}) == 3
    for values in ({"bad_words": ["b"]}, {"search": BeamSearch()}, {"search": "beam"}):
        assert Settings().with_layer("user", {**one, **values}) != same[0], values
    assert Settings().with_layer("call", one) != same[0], "notes name the keys that come from the model"
    before = Settings().with_layer("user", one)  # neither compared nor hashed yet, which keeps the values
    one["bad_words"].append("b")
    assert before == same[1], "a list that changes later is not that of the settings"
    before.generation["bad_words"].append("c")
    assert before.generation["bad_words"] == ["a"], "nor is one that the settings return"


def test_resolved_settings_are_compared_by_their_effect() -> None:
    def resolved(**values: object) -> ResolvedSettings:
        return resolve(Settings().with_layer("user", values))

    layers = Settings().with_layer("user", {"beam": 5}).with_layer("call", {"beam": 4, "nbest": 1})
    assert len({resolved(beam=4), resolve(layers), resolve(Settings(), [{"beam": 4}])}) == 1
    assert resolved(processors=[Forbid([4])]) != resolved(processors=[Forbid([4])])
    assert resolved(**{"fast.use_cache": False}) != resolve(Settings())
    values = resolve(layers).values
    assert (values["generation.beam"], values["fast.use_cache"]) == (4, True)
    assert len(values) == len(vars(GenerationConfig())) - 1 + len(vars(FastConfig()))


def test_the_ensemble_has_its_keys_and_those_of_its_components_alone() -> None:
    ensemble = {"member_sources": ["field1", "empty"], "guidance_scale": 1.0}
    ensemble |= {"combination": "fusion", "combination.weight": 0.3}
    others = {"beam": 4, "search": "diverse_beam", "search.groups": 2, "length_penalty": 0.5}
    assert resolve(Settings().with_layer("user", {**ensemble, **others})).ensemble == ensemble


def test_objects_are_separated_from_names() -> None:
    search, processor = DiverseBeamSearch(2, 0.5), Forbid([4])
    given = {"search": search, "processors": ["checked", processor], "beam": 4}
    found = resolve(Settings().with_layer("user", given), [{"search": "sampling"}])
    assert found.objects == {"search": search, "processors": [processor]}
    assert (found.generation.search, found.generation.processors) == ("", ["checked"])
    with pytest.raises(ConfigError, match="generation: combination="):
        resolve(Settings().with_layer("user", {"combination": search}))


def test_what_the_command_line_gives() -> None:
    overrides = ["generation.beam=5", "fast.use_cache=false", "generation.search=diverse_beam", "search.groups=5",
                 "job.workers=2", "format=json"]  # fmt: skip
    assert compose_given(GenerateConfig, overrides)[1] == {
        "generation.beam": 5, "fast.use_cache": False, "generation.search": "diverse_beam", "search.groups": 5
    }  # fmt: skip


def test_a_second_call_prepares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    translator, texts = Translator(text_model(), beam=3), ["w4 w5", "w6"]
    first = translator.translate(texts, nbest=2, return_scores=True)
    for name in ("prepare", "_completed"):
        monkeypatch.setattr(Translator, name, mock.Mock(side_effect=AssertionError("settings are resolved again")))
    again = translator.translate(texts, nbest=2, return_scores=True)
    with pytest.raises(AssertionError):
        translator.translate(texts, nbest=3)
    assert [one.hypotheses[1].text for one in first] == [one.hypotheses[1].text for one in again]
    assert first[0] is not again[0]
