"""Invariants of weights: all are trained and saved, and nothing computed from them is used after they have changed."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from seqgen.lab.checks.checking import NotApplicableError, Violation
from seqgen.lab.checks.subject import Subject
from seqgen.model import EncoderDecoderModel
from seqgen.modules.dropout import LayerDropList


def train_step(subject: Subject, model: EncoderDecoderModel) -> dict[str, float]:
    """One step of training on random pairs; the largest gradient of each parameter."""
    batch = subject.inputs([6, 4, 7], seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    with torch.enable_grad():
        logits = model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.prev_output_tokens[:, 1:].flatten())
        loss.backward()
    if not loss.isfinite():
        raise Violation(f"the loss of a training step is {loss.item()}")
    gradients = {
        key: 0.0 if parameter.grad is None else parameter.grad.abs().max().item()
        for key, parameter in model.named_parameters()
    }
    optimizer.step()
    model.eval()
    return gradients


def stepped_logits(subject: Subject, model: EncoderDecoderModel) -> Tensor:
    """Logits of a decode in evaluation mode, step by step; cached weights are used."""
    batch = subject.inputs(target_length=5)
    encoder_out = model.encoder(batch.src_tokens, batch.src_lengths)
    state: Any = {}
    arguments = () if not hasattr(model.decoder, "positions_seen") else (state,)
    steps = [model.decoder(batch.prev_output_tokens[:, : t + 1], encoder_out, *arguments).logits for t in range(5)]
    return torch.cat([logits[:, -1:] for logits in steps], dim=1)


def without_cached_weights(subject: Subject, model: EncoderDecoderModel) -> EncoderDecoderModel:
    """A model with the same weights that has not decoded yet; of a trained model a copy, without what it caches."""
    if subject.build is None:
        return copy.deepcopy(model)
    other = subject.build().to(next(model.parameters()).dtype).eval()
    other.load_state_dict(model.state_dict())
    return other


def _assert_fresh(subject: Subject, model: EncoderDecoderModel, before: Tensor, what: str) -> None:
    """The logits are not those from before the change, but those of a model without cached weights."""
    got = stepped_logits(subject, model)
    wanted = stepped_logits(subject, without_cached_weights(subject, model))
    subject.same(got, wanted.to(got.dtype), what=f"after {what} a decode uses a weight from before")
    if not (got.to(before.dtype) - before).abs().max() > 1e-6:
        raise Violation(f"{what} does not change the logits")


def every_parameter_is_trained(subject: Subject) -> None:
    """Each parameter that is trained has a gradient after a step."""
    model = copy.deepcopy(subject.model)
    for module in model.modules():
        if isinstance(module, LayerDropList):
            module.p = 0.0
    trained = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    without = [key for key, gradient in train_step(subject, model).items() if gradient == 0 and key in trained]
    if without:
        raise Violation(f"a training step gives no gradient to {', '.join(without[:3])}")


def fresh_after_training(subject: Subject) -> None:
    """A decode after training and evaluation and training again uses the new weights."""
    model = copy.deepcopy(subject.model)
    for _ in range(2):
        before = stepped_logits(subject, model)
        train_step(subject, model)
        _assert_fresh(subject, model, before, "training")


def fresh_after_a_step_in_evaluation_mode(subject: Subject) -> None:
    """An optimizer may step without ``train()`` ever being called."""
    model = copy.deepcopy(subject.model)
    before = stepped_logits(subject, model)
    batch = subject.inputs(target_length=5)
    with torch.enable_grad():
        model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens).logits.logsumexp(-1).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    _assert_fresh(subject, model, before, "an optimizer step in evaluation mode")


def fresh_after_loading(subject: Subject) -> None:
    """A decode after ``load_state_dict`` uses the new weights; saved weights give the same logits in a new model."""
    for assign in (False, True):
        model = copy.deepcopy(subject.model)
        before = stepped_logits(subject, model)
        other = {key: value * 1.25 if value.is_floating_point() else value for key, value in model.state_dict().items()}
        model.load_state_dict(other, assign=assign)
        _assert_fresh(subject, model, before, "loading weights")


def saved_weights_are_the_model(subject: Subject) -> None:
    """A newly built model has the same logits once it has loaded the weights."""
    if subject.build is None:
        raise NotApplicableError("a trained model was itself loaded")
    other, batch = without_cached_weights(subject, subject.model), subject.inputs()
    got = other(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens).logits
    subject.same(got, subject.logits(batch), what="a new model with the same weights differs")


def fresh_after_moving(subject: Subject) -> None:
    """A decode after a change of the dtype uses weights of the new dtype."""
    model = copy.deepcopy(subject.model).float()
    before = stepped_logits(subject, model)
    model.double()
    got = stepped_logits(subject, model)
    if (before.dtype, got.dtype) != (torch.float32, torch.float64):
        raise Violation(f"logits are {before.dtype} in float32 and {got.dtype} after a change to float64")
    subject.same(got, before, tolerance=1e-3, what="float32 and float64 differ")
    wanted = stepped_logits(subject, without_cached_weights(subject, model))
    subject.same(got, wanted, what="after a change of the dtype a decode uses a weight from before")


def fresh_after_a_change_in_place(subject: Subject) -> None:
    """A decode after parameters are changed in place or replaced uses the new ones."""
    model = copy.deepcopy(subject.model)
    before = stepped_logits(subject, model)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    _assert_fresh(subject, model, before, "a change in place")
    before = stepped_logits(subject, model)
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.25
    _assert_fresh(subject, model, before, "new parameter data")


def inference_mode(subject: Subject) -> None:
    """What is cached in inference mode is usable in later decodes, and training is possible afterwards."""
    model = copy.deepcopy(subject.model)
    wanted = stepped_logits(subject, model)
    model.train().eval()
    with torch.inference_mode():
        got = stepped_logits(subject, model).clone()
    subject.same(got, wanted, what="inference mode changes the logits")
    subject.same(stepped_logits(subject, model), wanted, what="a decode after inference mode differs")
    train_step(subject, model)
