"""Members of an ensemble that read other sources: a second field of the line, or nothing."""

import pytest

from examples.extending.member import Blind, decode
from seqgen.checkpoints.loaders import DecodingConfig, DecodingTask
from seqgen.extend import ConfigError, DiverseBeamSearch, Fusion, MemberSpec, ModelInMemory, Translation
from seqgen.text.translator import Translator
from tests.text_models import task_of, text_model

LINES = ["w3 w4 w5", "w6 w6", "w7 w3 w8 w9"]
OTHERS = ["w9 w8", "w5 w4 w3 w10", "w6"]


def outputs(translations: list[Translation]) -> list[list[tuple[list[int], float]]]:
    return [[(h.tokens.tolist(), pytest.approx(h.score, abs=1e-5)) for h in t.hypotheses] for t in translations]


def both() -> list[str]:
    return [f"{line}\t{other}" for line, other in zip(LINES, OTHERS, strict=True)]


def test_models_of_other_languages_are_refused_unless_each_has_its_source() -> None:
    def of(source: str, target: str) -> ModelInMemory:
        tokenizer = task_of().source_tokenizer
        return text_model(task=DecodingTask(DecodingConfig(source, target), tokenizer, tokenizer))

    german, unknown = of("en", "de"), text_model()
    for other in (of("en", "pt"), of("de", "en"), of("fr", "de")):
        pair = "-".join(other.task.language_pair)
        message = rf"model 1 translates en-de, and model 3 {pair}; .* such as \[input,input,input\]"
        with pytest.raises(ConfigError, match=message):
            Translator([german, unknown, other])
        Translator([german, other], member_sources=["field1", "field2"])
    Translator([german, of("en", "de_AT"), of("eng", "deu"), unknown, of("source", "target")])


def test_specs_as_objects() -> None:
    one, other = text_model(seed=1), text_model(seed=2)
    options = {"beam": 3, "nbest": 3, "max_len_b": 8}
    names = ["field1", "field2"]
    specs = [MemberSpec(one.model, "field1"), MemberSpec(other.model, "field2")]
    expected = outputs(Translator([one, other], member_sources=names, **options).translate(both()))
    translator = Translator([one, other], **options)
    for members in (names, specs, [names[0], specs[1]]):
        assert outputs(translator.translate(both(), member_sources=members)) == expected
        assert outputs(Translator([one, other], member_sources=members, **options).translate(both())) == expected


@pytest.mark.slow
def test_a_spec_with_a_source_of_its_own() -> None:
    model = text_model(seed=1)
    hidden = model.task.source_tokenizer.encode("w3")
    blind = Blind(model.model, hidden=tuple(hidden), unk=model.task.source_dictionary.unk())
    translator = Translator([model, model], member_sources=["input", blind], combination=Fusion(-0.6), nbest=5)
    for line, translation in zip(LINES, translator.translate(LINES), strict=True):
        expected = decode(model, line, ["w3"], weight=-0.6)
        assert [h.tokens.tolist() for h in translation.hypotheses] == [h.tokens.tolist() for h in expected]
    assert outputs(translator.translate(LINES, combination="probability")) != outputs(translator.translate(LINES))


def test_objects_in_the_constructor_are_used_until_a_call_replaces_them() -> None:
    model, options = text_model(seed=1), {"beam": 4, "nbest": 4, "max_len_b": 8}
    translator = Translator(model, search=DiverseBeamSearch(2, 3.0), **options)
    plain = Translator(model, **options)
    diverse = outputs(plain.translate(LINES, search=DiverseBeamSearch(2, 3.0)))
    assert outputs(translator.translate(LINES)) == diverse != outputs(plain.translate(LINES))
    assert outputs(translator.translate(LINES, search="beam")) == outputs(plain.translate(LINES))
