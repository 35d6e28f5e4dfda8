"""Scheduled sampling (examples/objectives/scheduled_sampling.py) against its two passes, written plainly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.objectives.scheduled_sampling import ScheduledSampling, ScheduledSamplingConfig
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Batch
from seqgen.data.combined_datasets import pack
from seqgen.training.criteria import TrainingContext
from tests.examples.objectives.small import (
    EOS,
    PAIRS,
    TASK,
    WORDS,
    batch_of,
    checked,
    plain_logits,
    same_gradients,
    student,
)
from tests.training_runs import assert_identical, everything, lab, records  # noqa: F401  # lab is a fixture


def criterion_of(**values: Any) -> ScheduledSampling:
    return ScheduledSampling(ScheduledSamplingConfig(**values), TASK)


def constant(share: float, choice: str = "sample") -> ScheduledSampling:
    """The probability of a reference token is the same in all updates."""
    return criterion_of(decay="linear", k=share, slope=0.0, choice=choice)


def inputs_of(criterion: ScheduledSampling, model: EncoderDecoderModel, batch: Batch, share: float) -> list[list[int]]:
    """The mixed decoder input of each sentence without padding."""
    mixed = criterion.mixed_inputs(model, batch, share).tolist()
    return [row[: len(target)] for row, (_, target) in zip(mixed, PAIRS, strict=True)]


def predictions(model: EncoderDecoderModel) -> list[list[int]]:
    """The decoder input of each sentence that has the most probable tokens after the reference prefix."""
    found = []
    for source, target in PAIRS:
        logits = plain_logits(model, source, [EOS, *target[:-1]])
        logits[:, WORDS.pad()] = -torch.inf
        found.append([EOS, *logits.argmax(1).tolist()[:-1]])
    return found


def nll_after(model: EncoderDecoderModel, inputs: list[list[int]]) -> Tensor:
    losses = []
    for (source, target), previous in zip(PAIRS, inputs, strict=True):
        lprobs = plain_logits(model, source, previous).log_softmax(-1)
        losses += [-lprobs[t, token] for t, token in enumerate(target)]
    return torch.stack(losses).sum()


@pytest.mark.parametrize("choice", ["sample", "argmax"])
def test_the_loss_is_that_of_the_mixed_inputs(choice: str) -> None:
    """No gradient comes from the first pass."""
    model = student().train()
    criterion, batch = constant(0.5, choice), batch_of(model)
    torch.manual_seed(3)
    out = criterion(model, batch)
    torch.manual_seed(3)
    mixed = inputs_of(criterion, model, batch, 0.5)
    same_gradients(model, out.loss, nll_after(model, mixed))
    assert float(out.logging["nll_loss"]) == pytest.approx(out.loss.item())
    pairs = list(zip(mixed, predictions(model), PAIRS, strict=True))
    if choice == "argmax":
        for row, predicted, (_, target) in pairs:
            for t in range(1, len(row)):
                assert row[t] in (predicted[t], target[t - 1])
    assert mixed != predictions(model)
    assert mixed != [[EOS, *target[:-1]] for _, target in PAIRS]


def test_proportion_of_reference_tokens_and_distribution_of_the_others() -> None:
    model = student().train()
    source, target = [4, 5, EOS], [20, 21, EOS]
    batch = TASK.collate([(n, torch.tensor(source), torch.tensor(target)) for n in range(4000)], model)
    torch.manual_seed(0)
    mixed = constant(0.5).mixed_inputs(model, batch, 0.3)
    probs = plain_logits(model, source, [EOS, *target[:-1]]).softmax(-1).detach()
    probs[:, WORDS.pad()] = 0
    probs /= probs.sum(1, keepdim=True)
    assert (mixed[:, 0] == EOS).all()
    for t in (1, 2):
        wanted = 0.7 * probs[t - 1]
        wanted[target[t - 1]] += 0.3
        found = mixed[:, t].bincount(minlength=len(WORDS)) / 4000
        assert (found - wanted).abs().max() < 4 * math.sqrt(0.25 / 4000)
    assert (mixed != WORDS.pad()).all()


def test_start_tokens_of_packed_examples_stay() -> None:
    model = student().train()
    criterion = constant(0.0, "argmax")
    packed = pack([batch_of(model, [0, 3]), batch_of(model, [1, 2])], WORDS.pad(), WORDS.pad())
    same_gradients(model, criterion(model, packed).loss, criterion(model, batch_of(model)).loss)


def test_schedules() -> None:
    linear = criterion_of(decay="linear", k=0.9, slope=0.01, minimum=0.25)
    exponential = criterion_of(decay="exponential", k=0.99, minimum=0.1)
    sigmoid = criterion_of(decay="inverse_sigmoid", k=50.0)
    for update in (0, 1, 30, 65, 200, 10**6):
        for criterion in (linear, exponential, sigmoid):
            criterion.begin_update(TrainingContext(update))
        assert linear.reference_probability == pytest.approx(max(0.25, 0.9 - 0.01 * update))
        assert exponential.reference_probability == pytest.approx(max(0.1, 0.99**update))
        exact = 50 / (50 + math.exp(update / 50)) if update < 10**6 else 0.0
        assert sigmoid.reference_probability == pytest.approx(exact)


@pytest.mark.slow
def test_invariants() -> None:
    assert "7 of 7" in checked("scheduled_sampling", "criterion=scheduled_sampling")
