"""Marginal probabilities of texts against the sum over all tokenizations, scored by plain forward passes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from examples.papers.marginalized_tokenizations import MarginalConfig, estimate
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.text.members import ModelInMemory
from seqgen.text.translator import Translator
from tests.text_models import task_of, text_model

pytestmark = pytest.mark.slow

PIECES = ["a", "b", "ab", "ba", "aab", "c"]
SOURCES, OUTPUTS = ["ab", "bca", "aabc", "b"], ["abaab", "aab", "cabba", "c"]


class Pieces(Tokenizer):
    """Splits a text into the longest pieces, from left to right; its symbols are joined without separators."""

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            piece = max((piece for piece in PIECES if text.startswith(piece)), key=len)
            ids.append(self.dictionary.index(piece))
            text = text[len(piece) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.dictionary.symbol(i) for i in ids if i > 3)

    def fingerprint(self) -> str:
        return "pieces"

    def save(self, folder: Path) -> None:
        raise NotImplementedError

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        raise NotImplementedError


def vocabulary() -> Dictionary:
    words = Dictionary()
    for piece in PIECES:
        words.add_symbol(piece)
    return words


def model_of(name: str, seed: int = 0) -> ModelInMemory:
    return text_model(name, seed, task_of(Pieces(vocabulary())), sharpness=1.2)


def tokenizations(text: str) -> Iterator[list[str]]:
    if not text:
        yield []
    for piece in PIECES:
        if text.startswith(piece):
            yield from ([piece, *rest] for rest in tokenizations(text[len(piece) :]))


def log_probability(models: Sequence[ModelInMemory], source: str, pieces: Sequence[str]) -> float:
    words = models[0].task.target_dictionary
    ids = torch.tensor([*map(words.index, pieces), words.eos()])
    given, prefix = models[0].task.encode_source(source).unsqueeze(0), ids.roll(1).unsqueeze(0)
    with torch.no_grad():
        each = [item.model(given, torch.tensor([given.size(1)]), prefix).logits[0].softmax(-1) for item in models]
    return float(torch.stack(each).mean(0).log().gather(1, ids.unsqueeze(1)).sum())


def enumerated(models: Sequence[ModelInMemory], source: str, text: str) -> float:
    scores = [log_probability(models, source, pieces) for pieces in tokenizations(text)]
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
    best = [pieces_of(models[0], text) for text in OUTPUTS]
    for i, (source, text) in enumerate(zip(SOURCES, OUTPUTS, strict=True)):
        assert runs[0][i].one_best == pytest.approx(log_probability(models, source, best[i]))
        estimates = [run[i].marginal for run in runs]
        assert min(estimates) >= runs[0][i].one_best
        mean = sum(map(math.exp, estimates)) / len(estimates)
        assert math.log(mean) == pytest.approx(wanted[i], abs=0.05), text
    assert wanted[0] > runs[0][0].one_best + 0.1  # the other tokenizations matter
    assert wanted[3] == pytest.approx(runs[0][3].marginal)  # there is only one


def pieces_of(model: ModelInMemory, text: str) -> list[str]:
    task = model.task
    return [task.target_dictionary.symbol(i) for i in task.encode_target(text).tolist()[:-1]]


@pytest.mark.parametrize("name", ["transformer_tiny", "transformer_lm_tiny"])
@pytest.mark.parametrize("batch_size", [1, 64])
def test_ranks_by_the_marginal(name: str, batch_size: int) -> None:
    model = model_of(name)
    options: dict[str, Any] = {"beam": 6, "nbest": 6, "max_len_a": 0.0, "max_len_b": 5, "suppress": ["<s>", "<unk>"]}
    translator = Translator(model, **options)
    plain = translator.translate(SOURCES)
    keys = {"rerank": "marginal", "batch_size": batch_size, "reranker.samples": 8, "reranker.seed": 7}
    changed = 0
    for before, after in zip(plain, translator.translate(SOURCES, **keys), strict=True):
        texts = list(dict.fromkeys(item.text for item in before.hypotheses))
        own = estimate(Translator(model), [before.source] * len(texts), texts, MarginalConfig(8, 7 + before.id))
        scores = {text: item.marginal for text, item in zip(texts, own, strict=True)}
        ranked = sorted((item.text for item in before.hypotheses), key=lambda text: -scores[text])
        assert [item.text for item in after.hypotheses] == ranked
        assert [item.rerank_score for item in after.hypotheses] == pytest.approx([scores[text] for text in ranked])
        changed += ranked != [item.text for item in before.hypotheses]
    assert changed
