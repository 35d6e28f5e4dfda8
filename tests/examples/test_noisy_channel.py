"""Noisy-channel reranking against its formula, computed with plain forward passes."""

from __future__ import annotations

import pytest
import torch

import examples.papers.noisy_channel  # noqa: F401  # registers the reranker
from seqgen.text.members import ModelInMemory
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

OPTIONS = {"beam": 6, "max_len_b": 6, "suppress": ["<s>", "<unk>"]}  # so that each output is the tokens of its text
DIRECT, CHANNEL, LM = (
    text_model(name, seed=seed, sharpness=1.2)
    for seed, name in enumerate(["transformer_tiny", "transformer_tiny", "transformer_lm_tiny"])
)


def log_probability(model: ModelInMemory, source: str, target: str) -> float:
    ids, wanted = model.task.encode_source(source).unsqueeze(0), model.task.encode_target(target)
    prefix = torch.cat([torch.tensor([2]), wanted[:-1]]).unsqueeze(0)
    with torch.no_grad():
        scores = model.model(ids, torch.tensor([ids.size(1)]), prefix).logits[0].log_softmax(-1)
    return float(scores.gather(1, wanted.unsqueeze(1)).sum())


@pytest.mark.parametrize("batch_size", [1, 64])
def test_is_the_formula(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {"reverse": CHANNEL, "lm": LM}
    monkeypatch.setattr("seqgen.text.translator.load_models", lambda given, device: [paths[path] for path in given])
    keys = {"channel": "reverse", "lm": "lm", "channel_weight": 0.8, "lm_weight": 0.5}
    translator = Translator(DIRECT, **OPTIONS)
    plain = translator.translate(TEXTS, nbest=6)
    by_key = {f"reranker.{key}": value for key, value in keys.items()}
    found = translator.translate(TEXTS, nbest=6, rerank="noisy_channel", batch_size=batch_size, **by_key)
    for text, before, after in zip(TEXTS, plain, found, strict=True):
        scores = []
        for item in before.hypotheses:
            direct = log_probability(DIRECT, text, item.text) / len(item.tokens)
            back, fluency = log_probability(CHANNEL, item.text, text), log_probability(LM, "", item.text)
            scores.append(direct + (0.8 * back + 0.5 * fluency) / (len(text.split()) + 1))
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        expected = [before.hypotheses[index].score for index in order]
        assert [item.score for item in after.hypotheses] == pytest.approx(expected)
        assert [item.rerank_score for item in after.hypotheses] == pytest.approx([scores[index] for index in order])
    assert [line.score for line in found] != [line.score for line in plain]
