"""Word-level distillation (examples/objectives/word_distillation.py) against its formulas, token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from examples.objectives.word_distillation import WordDistillation, WordDistillationConfig
from seqgen.checkpoints.loading import load_model
from seqgen.core.errors import ConfigError
from seqgen.core.model import EncoderDecoderModel
from seqgen.data.combined_datasets import pack
from tests.examples.objectives.small import (
    EOS,
    PAIRS,
    TASK,
    WORDS,
    batch_of,
    checked,
    plain_logits,
    plain_nll,
    same_gradients,
    student,
)
from tests.examples.objectives.teachers import teachers  # noqa: F401  # a fixture


def criterion_of(paths: list[str], alpha: float = 0.5, temperature: float = 1.0) -> WordDistillation:
    return WordDistillation(WordDistillationConfig(paths, alpha, temperature), TASK)


def plain_distillation(model: EncoderDecoderModel, paths: list[str], temperature: float) -> Tensor:
    members = [load_model(path, dtype="float64").model for path in paths]
    losses = []
    for source, target in PAIRS:
        read = target[:-1]
        logits = plain_logits(model, source, [EOS, *read])
        with torch.no_grad():
            probs = [
                (plain_logits(one, source, [one.start_token(EOS), *read]) / temperature).softmax(-1) for one in members
            ]
        for t in range(len(target)):
            lprobs = (logits[t] / temperature).log_softmax(-1)
            for token in range(len(WORDS)):
                mean = sum(one[t, token] for one in probs) / len(members)
                losses.append(-mean * lprobs[token])
    return torch.stack(losses).sum() * temperature**2


@pytest.mark.parametrize(
    ("names", "alpha", "temperature"),
    [
        ("transformer fconv", 0.5, 1.0),
        ("transformer fconv t5", 0.7, 2.5),  # T5 has another start token
        ("fconv", 0.0, 1.0),
    ],
)
def test_loss(teachers: dict[str, str], names: str, alpha: float, temperature: float) -> None:  # noqa: F811
    paths = [teachers[name] for name in names.split()]
    model = student().train()
    out = criterion_of(paths, alpha, temperature)(model, batch_of(model))
    nll, distilled = plain_nll(model), plain_distillation(model, paths, temperature)
    same_gradients(model, out.loss, (1 - alpha) * nll + alpha * distilled)
    tokens = sum(len(target) for _, target in PAIRS)
    assert float(out.logging["nll_loss"]) == pytest.approx(nll.item())
    assert float(out.logging["distillation"]) == pytest.approx(distilled.item())
    assert (out.sample_size, out.logging["ntokens"], out.logging["nsentences"]) == (tokens, tokens, len(PAIRS))


def test_a_teacher_that_pads_on_the_other_side(teachers: dict[str, str]) -> None:  # noqa: F811
    model, criterion = student(), criterion_of([teachers["transformer"]])
    loss = criterion(model, batch_of(model)).loss
    model.left_pad_source = True
    same_gradients(model, criterion(model, batch_of(model)).loss, loss)


def test_packed_rows(teachers: dict[str, str]) -> None:  # noqa: F811
    model = student()
    packed = pack([batch_of(model, [0, 3]), batch_of(model, [1, 2])], WORDS.pad(), WORDS.pad())
    criterion = criterion_of([teachers["transformer"]])
    same_gradients(model, criterion(model, packed).loss, criterion(model, batch_of(model)).loss)
    with pytest.raises(ConfigError, match=r"FConvModel cannot read packed batches; set dataset\.pack=false"):
        criterion_of([teachers["fconv"]])(model, packed)


def test_teachers_that_do_not_fit(teachers: dict[str, str]) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match=r"criterion.teachers is empty, but .* set it to one or more runs"):
        criterion_of([])
    with pytest.raises(ConfigError, match="vocabularies of this run"):
        criterion_of([teachers["transformer"], teachers["transformer_other"]])


@pytest.mark.slow
def test_invariants(teachers: dict[str, str]) -> None:  # noqa: F811
    paths = f"criterion.teachers=[{teachers['transformer']},{teachers['fconv']}]"
    assert "7 of 7" in checked("word_distillation", "criterion=word_distillation", paths, "criterion.temperature=1.5")
