"""Rerankers of examples/papers: the order is that of the score, computed by plain forward passes."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import examples.papers.noisy_channel  # noqa: F401  # registers the reranker
from examples.papers.marginalized_tokenizations import MarginalConfig, estimate
from examples.papers.quality_estimation import FUNCTIONS, batch_quality
from seqgen.extend import ModelInMemory, TextHypothesis, Translation, WhitespaceTokenizer
from seqgen.text.translator import Translator
from tests.scripted_model import dictionary
from tests.text_models import TEXTS, Pieces, task_for, task_of, text_model

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {"beam": 6, "nbest": 6, "max_len_b": 6, "suppress": ["<s>", "<unk>"]}
"""So that each output is the tokens of its text."""


def log_probability(models: Sequence[ModelInMemory], source: str, target: Sequence[int]) -> float:
    """Of tokens with end-of-sentence, by the mean of the models' probabilities."""
    task, ids = models[0].task, torch.tensor([*target])
    given, prefix = task.encode_source(source).unsqueeze(0), ids.roll(1).unsqueeze(0)
    prefix[:, 0] = models[0].model.start_token(task.target_dictionary.eos())
    with torch.no_grad():
        each = [item.model(given, torch.tensor([given.size(1)]), prefix).logits[0].softmax(-1) for item in models]
    return float(torch.stack(each).mean(0).log().gather(1, ids.unsqueeze(1)).sum())


def of_text(model: ModelInMemory, source: str, target: str) -> float:
    return log_probability([model], source, model.task.encode_target(target).tolist())


def assert_ranked(before: list[Translation], after: list[Translation], score: Callable[..., list[float]]) -> None:
    """The hypotheses are ranked by their scores, which changes some line; equal ones keep their order."""
    for one, two in zip(before, after, strict=True):
        scores = score(one)
        order = sorted(range(len(scores)), key=lambda index: -round(scores[index], 9))
        assert [item.text for item in two.hypotheses] == [one.hypotheses[index].text for index in order]
        assert [item.score for item in two.hypotheses] == pytest.approx([one.hypotheses[i].score for i in order])
        assert [item.rerank_score for item in two.hypotheses] == pytest.approx([scores[index] for index in order])
    assert [line.text for line in before] != [line.text for line in after]


def of_each(score: Callable[[Translation, TextHypothesis], float]) -> Callable[[Translation], list[float]]:
    return lambda line: [score(line, item) for item in line.hypotheses]


@pytest.mark.parametrize("batch_size", [1, 64])
@pytest.mark.parametrize(
    "names", [("transformer_tiny", "t5_tiny", "llama_tiny"), ("llama_tiny", "transformer_tiny", "transformer_lm_tiny")]
)
def test_noisy_channel(names: tuple[str, ...], batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all outputs of up to three tokens; the direct model is an encoder-decoder, or reads a prompt."""
    words = WhitespaceTokenizer(dictionary(2))
    models = [text_model(name, 2 * seed, task_for(name, words)) for seed, name in enumerate(names)]
    direct, channel, lm = models
    paths = {"reverse": channel, "lm": lm}
    monkeypatch.setattr("seqgen.text.translator.load_models", lambda given, *_, **__: [paths[path] for path in given])
    keys = {"channel": "reverse", "lm": "lm", "channel_weight": 0.8, "lm_weight": 0.5}
    by_key = {"rerank": "noisy_channel", **{f"reranker.{key}": value for key, value in keys.items()}}

    def score(line: Translation, item: TextHypothesis) -> float:
        others = 0.8 * of_text(channel, item.text, line.source) + 0.5 * of_text(lm, "", item.text)
        return of_text(direct, line.source, item.text) / len(item.tokens) + others / (len(line.source.split()) + 1)

    translator = Translator(direct, **{**OPTIONS, "max_len_a": 0, "max_len_b": 3, "beam": 14, "nbest": 14})
    lines = ["w1 w0", "w0 w1 w1 w0 w1", "w1"]
    plain, found = translator.translate(lines), translator.translate(lines, batch_size=batch_size, **by_key)
    assert_ranked(plain, found, of_each(score))
    assert all(len({item.text for item in one.hypotheses}) == 2 + 4 + 8 for one in found)


@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_quality_estimation_ranks_by_the_function_and_the_score(weight: float, batch_size: int) -> None:
    def score(line: Translation, item: TextHypothesis) -> float:
        ratio = (1 + len(item.text.split())) / (1 + len(line.source.split()))
        return -abs(math.log(ratio)) + weight * item.score

    translator = Translator(text_model(seed=3), beam=6, nbest=6, max_len_b=8)
    keys = {"rerank": "quality", "reranker.weight": weight, "batch_size": batch_size}
    assert_ranked(translator.translate(TEXTS), translator.translate(TEXTS, **keys), of_each(score))


def test_a_function_of_quality_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def new_words(source: str, texts: Sequence[str]) -> list[float]:
        return [len({*text.split()} - {*source.split()}) for text in texts]

    monkeypatch.setattr("examples.papers.quality_estimation.FUNCTIONS", {**FUNCTIONS})
    batch_quality("new_words")(new_words)
    translator = Translator(text_model(), beam=6, nbest=6, max_len_b=8)
    found = translator.translate(TEXTS, rerank="quality", **{"reranker.function": "new_words"})
    score = of_each(lambda line, item: new_words(line.source, [item.text])[0])
    assert_ranked(translator.translate(TEXTS), found, score)


PIECES = ["a", "b", "ab", "ba", "aab", "c"]
SOURCES, OUTPUTS = ["ab", "bca", "aabc", "b"], ["abaab", "aab", "cabba", "c"]


def model_of(name: str, seed: int = 0) -> ModelInMemory:
    return text_model(name, seed, task_of(Pieces(PIECES)), sharpness=1.2)


def tokenizations(text: str) -> Iterator[list[str]]:
    if not text:
        yield []
    for piece in filter(text.startswith, PIECES):
        yield from ([piece, *rest] for rest in tokenizations(text[len(piece) :]))


def enumerated(models: Sequence[ModelInMemory], source: str, text: str) -> float:
    """The logarithm of the sum over all tokenizations."""
    words = models[0].task.target_dictionary
    ids = [[*(4 + PIECES.index(piece) for piece in pieces), words.eos()] for pieces in tokenizations(text)]
    scores = [log_probability(models, source, target) for target in ids]
    return float(torch.tensor(scores, dtype=torch.float64).logsumexp(0))


@pytest.mark.parametrize(
    ("names", "temperature"),
    [(["transformer_tiny"], 1.0), (["transformer_lm_tiny"], 2.0), (["transformer_tiny"] * 2, 1.0)],
)
def test_the_mean_of_estimates_is_the_sum_over_all_tokenizations(names: list[str], temperature: float) -> None:
    models = [model_of(name, seed) for seed, name in enumerate(names)]
    wanted = [enumerated(models, *pair) for pair in zip(SOURCES, OUTPUTS, strict=True)]
    settings = [MarginalConfig(400, seed, temperature) for seed in range(2)]
    runs = [estimate(Translator(models), SOURCES, OUTPUTS, cfg) for cfg in settings]
    for i, (source, text) in enumerate(zip(SOURCES, OUTPUTS, strict=True)):
        best = models[0].task.encode_target(text).tolist()
        assert runs[0][i].one_best == pytest.approx(log_probability(models, source, best))
        estimates = [run[i].marginal for run in runs]
        assert min(estimates) >= runs[0][i].one_best
        mean = sum(map(math.exp, estimates)) / len(estimates)
        assert math.log(mean) == pytest.approx(wanted[i], abs=0.05), text
    assert wanted[0] > runs[0][0].one_best + 0.1  # the other tokenizations matter
    assert wanted[3] == pytest.approx(runs[0][3].marginal)  # there is only one


@pytest.mark.parametrize("name", ["transformer_tiny", "transformer_lm_tiny"])
@pytest.mark.parametrize("batch_size", [1, 64])
def test_ranks_by_the_marginal(name: str, batch_size: int) -> None:
    model = model_of(name)

    def score(line: Translation) -> list[float]:
        texts = list(dict.fromkeys(item.text for item in line.hypotheses))
        own = estimate(Translator(model), [line.source] * len(texts), texts, MarginalConfig(8, 7 + line.id))
        return [own[texts.index(item.text)].marginal for item in line.hypotheses]

    translator = Translator(model, **{**OPTIONS, "max_len_a": 0.0, "max_len_b": 5})
    keys = {"rerank": "marginal", "batch_size": batch_size, "reranker.samples": 8, "reranker.seed": 7}
    assert_ranked(translator.translate(SOURCES), translator.translate(SOURCES, **keys), score)
