"""Rerankers: the order of n-best lists after decoding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from sacrebleu.metrics import BLEU, CHRF

from examples.extending.reranker import LengthRatio
from examples.papers.noisy_channel import NoisyChannel
from seqgen.extend import Fusion, GenerationConfig, MemberSource, ModelInMemory, Resources, option
from seqgen.registry import register_member_source, register_reranker
from seqgen.system.error_messages import missing_hook
from seqgen.text.reranking import Bleu, Chrf, Ranker, Reranker, Utility, UtilityLine, expected_utilities
from seqgen.text.results import TextHypothesis, Translation
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, text_model

SETTINGS = {"beam": 6, "max_len_b": 8}


@pytest.mark.parametrize("batch_size", [1, 64])
def test_ranks_all_hypotheses_of_the_search(batch_size: int) -> None:
    translator, reranker = Translator(text_model()), LengthRatio(0.5, 2.0)
    plain = translator.translate(TEXTS, nbest=6, **SETTINGS)
    keys = {"reranker.ratio": 0.5, "reranker.weight": 2.0}
    found = translator.translate(TEXTS, nbest=2, rerank="length_ratio", batch_size=batch_size, **SETTINGS, **keys)
    changed = 0
    for before, after in zip(plain, found, strict=True):
        scores = reranker(before, before.hypotheses)
        order = sorted(range(6), key=lambda index: -scores[index])[:2]
        assert [item.text for item in after.hypotheses] == [before.hypotheses[index].text for index in order]
        assert [item.rerank_score for item in after.hypotheses] == pytest.approx([scores[index] for index in order])
        changed += order[0] > 0
    assert changed


@register_reranker("test_rescoring")
class Rescoring(Reranker):
    """Ranks by the log-probability under the ensemble that decodes."""

    def __init__(self, translator: Translator):
        self.translator = translator

    @classmethod
    def build(cls, cfg: Any, resources: Resources) -> Self:
        return cls(Translator(list(resources.models), **resources.ensemble))

    def __call__(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> list[float]:
        texts, lines = [item.text for item in hypotheses], [translation.source] * len(hypotheses)
        options = {"numbers": [translation.id] * len(texts), "normalize_scores": False, **translation.languages}
        found = self.translator.score(lines, texts, **options)
        return [item.score for item in found]


@dataclass
class NumberedConfig:
    shift: int = option(3, "what is added to the number")


@register_member_source("test_numbered", config=NumberedConfig)
class Numbered(MemberSource):
    def __init__(self, shift: int = 3):
        self.shift = shift

    def __call__(self, line: str, number: int) -> str:
        return f"w{number} w{number + self.shift}"


MODELS = [text_model(seed=seed, sharpness=1.2) for seed in (0, 1)]


@torch.no_grad()
def distributions(loaded: ModelInMemory, source: str, target: torch.Tensor) -> torch.Tensor:
    """The log-probabilities ``(T, V)`` of one model at each position of a target ``(T,)``."""
    ids, start = loaded.task.encode_source(source).unsqueeze(0), torch.tensor([2])
    previous = torch.cat([start, target[:-1]]).unsqueeze(0)
    return loaded.model(ids, torch.tensor([ids.size(1)]), previous).logits[0].log_softmax(-1)


@pytest.mark.parametrize(
    ("settings", "second", "weights"),
    [
        ({"member_sources": ["field1", "field2"], "combination.weights": [3.0, 1.0]}, "w7 w7 w2", None),
        ({"member_sources": ["field1", "empty"], "combination": "fusion", "combination.weight": 0.5}, "", 0.5),
        ({"member_sources": ["field1", "test_numbered"], "combination": Fusion(-0.25)}, "numbered", -0.25),
        ({"member_sources": ["field1", "test_numbered"], "source.test_numbered.shift": 5}, "shifted", 0.0),
        ({"member_sources": ["field1", "input"], "combination.weights": [3.0, 1.0]}, "input", None),
    ],
    ids=["fields", "fusion", "numbered", "shifted", "input"],
)
def test_a_reranker_scores_with_the_sources_and_weights_of_the_search(
    settings: dict[str, Any], second: str, weights: float | None
) -> None:
    lines = [f"{text}\tw7 w7 w2" for text in TEXTS]
    options = {**SETTINGS, **settings, "nbest": 6, "length_penalty": 2.0, "suppress": ["<s>", "<unk>"], "max_len_b": 6}
    translator = Translator(MODELS, **options)
    plain = translator.translate(lines)
    found = translator.translate(lines, rerank="test_rescoring", batch_size=3)
    for number, (before, after) in enumerate(zip(plain, found, strict=True)):
        numbers = {"numbered": f"w{number} w{number + 3}", "shifted": f"w{number} w{number + 5}"}
        other = {**numbers, "input": lines[number]}.get(second, second)
        assert before.member_sources == [TEXTS[number], other]
        wanted = {}
        for item in before.hypotheses:
            ids = MODELS[0].task.encode_target(item.text)
            one, two = distributions(MODELS[0], TEXTS[number], ids), distributions(MODELS[1], other, ids)
            mixed = (0.75 * one.exp() + 0.25 * two.exp()).log() if weights is None else one + weights * two
            mixed = (0.5 * one.exp() + 0.5 * two.exp()).log() if weights == 0 else mixed
            wanted[item.text] = float(mixed.gather(1, ids.unsqueeze(1)).sum())
        assert {item.text: item.rerank_score for item in after.hypotheses} == pytest.approx(wanted, abs=1e-6)
        assert [item.rerank_score for item in after.hypotheses] == pytest.approx(sorted(wanted.values(), reverse=True))
    assert len({score for line in found for score in (h.rerank_score for h in line.hypotheses)}) > 10


def test_guidance_is_part_of_the_ensemble() -> None:
    """The scorer contrasts with the empty source as the search does."""
    translator = Translator(MODELS[0], guidance_scale=1.5, normalize_scores=False, max_len_b=6)
    for line in translator.translate(TEXTS, suppress=["<s>", "<unk>"]):
        (scored,) = translator.score([line.source], [line.hypotheses[0].text])
        assert scored.score == pytest.approx(line.hypotheses[0].score, abs=1e-5)
    own = Translator(replace(MODELS[0], generation={"guidance_scale": 1.5}), normalize_scores=False)
    plain = Translator(MODELS[0], normalize_scores=False)
    scores = [[found.score for found in one.score(["w1 w5"], ["w2 w3"])] for one in (plain, own, translator)]
    assert scores[0] == scores[1] != scores[2], "guidance of the model's own settings is for decoding alone"


def test_the_channel_model_scores_what_the_first_member_reads() -> None:
    options = {"beam": 5, "nbest": 5, "max_len_b": 6, "suppress": ["<s>", "<unk>"]}
    channel = NoisyChannel(Translator(text_model(seed=4, sharpness=1.2)))
    fields = Translator(MODELS, member_sources=["field2", "field2"], **options)
    found = fields.translate([f"w9 w9\t{text}" for text in TEXTS], rerank=channel)
    plain = Translator(MODELS, **options).translate(TEXTS, rerank=channel)
    assert [[h.rerank_score for h in t.hypotheses] for t in found] == [
        pytest.approx([h.rerank_score for h in t.hypotheses]) for t in plain
    ]


# --- minimum Bayes risk, against the plain double loop and numbers worked out by hand


SAMPLES = ["the dog runs", "the dog ran", "a cat", "the dog runs", "", "der Hund läuft", "the dogs run"]


UTILITIES: dict[str, Utility] = {"chrf": Chrf(), "bleu": Bleu()}
METRICS = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}
WORDS = st.text(alphabet="ab ü.,-\u00a0'", max_size=12)


@pytest.mark.parametrize("utility", UTILITIES)
@settings(max_examples=80, deadline=None)
@example(candidates=SAMPLES)
@given(candidates=st.lists(WORDS, min_size=1, max_size=6))
def test_is_the_plain_double_loop(utility: str, candidates: list[str]) -> None:
    wanted = [
        sum(METRICS[utility].sentence_score(candidate, [other]).score for other in candidates) / len(candidates)
        for candidate in candidates
    ]
    lines = [("", SAMPLES), ("", candidates)]
    assert expected_utilities(lines, UTILITIES[utility])[1] == pytest.approx(wanted, abs=1e-9)


def test_ties_keep_the_order_of_the_search() -> None:
    given: Any = mock.Mock(setting="rerank", of_lines=lambda lines: [[3.0, 5.0, 3.0, 5.0]])
    (line,) = Translator(text_model(), beam=4, nbest=4, max_len_b=8).translate(TEXTS[:1])
    ranker = Ranker(GenerationConfig(), {"rerank": given}, 4, mock.Mock())
    (ranked,) = ranker.ranked([(line, line.hypotheses)])
    assert [item.text for item in ranked] == [line.hypotheses[index].text for index in (1, 3, 0, 2)]
    assert expected_utilities([("", ["only"])], Chrf()) == [pytest.approx([100])]


@pytest.mark.parametrize("utility", UTILITIES)
def test_translations_come_by_expected_utility(utility: str) -> None:
    translator = Translator(text_model(sharpness=1.2), sampling=True, beam=6, max_len_b=8)
    plain = translator.translate(TEXTS, nbest=6)
    changed = 0
    for before, translation in zip(plain, translator.translate(TEXTS, nbest=3, mbr=utility), strict=True):
        texts = [h.text for h in before.hypotheses]
        means = dict(zip(texts, expected_utilities([("", texts)], UTILITIES[utility])[0], strict=True))
        order = sorted(texts, key=lambda text: -means[text])
        assert [h.text for h in translation.hypotheses] == order[:3]
        assert [h.utility for h in translation.hypotheses] == pytest.approx([means[text] for text in order[:3]])
        changed += texts[0] != order[0]
    assert changed, "the choice must differ somewhere from that of the search"


def test_utilities_have_keys() -> None:
    """Character order 1 counts letters alone: ``ab`` and ``ba`` are then the same."""
    assert expected_utilities([("", ["ab", "ba"])], Chrf(char_order=1)) == [pytest.approx([100, 100])]
    assert Bleu(max_ngram_order=1)(UtilityLine("", ["a b c"], ["c b a"])) == pytest.approx(100)
    translator = Translator(text_model(sharpness=1.2), sampling=True, beam=6, max_len_b=8, mbr="chrf")
    for key, value, utility in (("utility.char_order", 2, Chrf(char_order=2)), ("utility.beta", 0.5, Chrf(beta=0.5))):
        by_key = translator.translate(TEXTS, nbest=6, **{key: value})
        by_object = translator.translate(TEXTS, nbest=6, mbr=utility)
        default = translator.translate(TEXTS, nbest=6)
        assert _utilities(by_key) == _utilities(by_object) != _utilities(default)
    assert _utilities(translator.translate(TEXTS, mbr="chrf3")) == _utilities(
        translator.translate(TEXTS, mbr=Chrf(beta=3.0))
    )


def _utilities(translations: list[Translation]) -> list[list[float | None]]:
    return [[hypothesis.utility for hypothesis in translation.hypotheses] for translation in translations]


@pytest.mark.parametrize(("key", "base"), [("mbr", Utility), ("rerank", Reranker)])
def test_a_class_without_any_method_misses_a_hook(key: str, base: type) -> None:
    with pytest.raises(NotImplementedError) as caught:
        Translator(text_model()).translate(TEXTS, beam=2, **{key: type("Empty", (base,), {})()})
    assert "Empty" in missing_hook(caught.value)
