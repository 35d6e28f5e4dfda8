"""Invariants of training criteria: the gradient, padding, and sums over parts of a batch.

Of criteria that decode also: the model of decoding is the model of training.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad as pad_columns

from seqgen.addons.checks.checking import ADVICE, Compared, Invariants, Violation, at, require
from seqgen.addons.checks.search import same_hypotheses
from seqgen.addons.checks.subject import Ids
from seqgen.config import KEEPS_SCORES, GenerationConfig, keys_tagged
from seqgen.extend import Batch, EncoderDecoderModel, SequenceCriterion, TrainingContext, tensors_in

LENGTHS, TARGETS = [5, 2, 8, 1], [3, 6, 1, 4]
"""The length of each source and each target, end-of-sentence included."""


@dataclass
class Training(Compared):
    """A criterion whose invariants are checked, and a small model.

    Attributes:
        criterion: called as ``criterion(model, batch)``; see ``seqgen.training.criteria.Criterion``.
        model: the model, in float64.
        ids: the ids of its inputs.
    """

    advice = ADVICE["criterion"]
    criterion: Any
    model: EncoderDecoderModel
    ids: Ids

    def restore(self) -> None:
        """Put the model into evaluation mode, without gradients."""
        self.model.eval()
        self.model.zero_grad(set_to_none=True)
        self.criterion.context = TrainingContext()

    def parts(self) -> nn.Module:
        """What has the parameters of the model and of the criterion."""
        return nn.ModuleDict({"model": self.model, "criterion": getattr(self.criterion, "module", nn.Module())})

    def batch(self, rows: Sequence[int] | None = None, source_padding: int = 0, target_padding: int = 0) -> Batch:
        """Random pairs of unequal lengths.

        Args:
            rows: the sentences; all if not given. Padding that only the others need is left out.
            source_padding: further columns of padding in the sources.
            target_padding: the same in the targets.
        """
        batch, pad = self.ids.batch(LENGTHS, rows, TARGETS, seed=3), self.ids.pad
        sides = (source_padding, 0) if self.ids.left else (0, source_padding)
        source = replace(batch.source, src_tokens=pad_columns(batch.source.src_tokens, sides, value=pad))
        columns: Any = (batch.target, batch.prev_output_tokens)
        target, previous = (pad_columns(one, (0, target_padding), value=pad) for one in columns)
        lengths = torch.tensor([TARGETS[row] for row in batch.ids.tolist()]) if pad == self.ids.eos else None
        return replace(batch, source=source, target=target, prev_output_tokens=previous, target_lengths=lengths)

    def compute(self, batch: Batch, training: bool = False) -> Any:
        """The criterion's result for a batch; random numbers are the same in each call."""
        self.model.train(training)
        torch.manual_seed(5)
        return self.criterion(self.model, batch)

    def gradient(self, batch: Batch, training: bool = False) -> dict[str, Tensor]:
        """The gradient of the loss, by name of the parameter; zero where there is none."""
        self.parts().zero_grad(set_to_none=True)
        with torch.enable_grad():
            self.compute(batch, training).loss.backward()
        named = self.parts().named_parameters()
        return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in named}

    def same_number(self, got: Any, wanted: Any, what: str, tolerance: float | None = None) -> None:
        """Compare two numbers or scalar tensors."""
        one, two = float(got), float(wanted)
        self.same_value(one, two, f"{what}: {one:.10g} in place of {two:.10g}", tolerance)

    def same_gradient(self, got: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str) -> None:
        """Compare two gradients."""
        for name, value in wanted.items():
            self.same_value(got[name], value, f"{what} ({name})")


def loss_is_a_sum(subject: Training) -> None:
    """The loss is a finite scalar with a gradient, ``sample_size`` a positive number, and logged values have none."""
    for training in (False, True):
        with torch.enable_grad():
            out = subject.compute(subject.batch(), training)
        scalar = isinstance(out.loss, Tensor) and out.loss.dim() == 0 and out.loss.is_floating_point()
        require(scalar, f"the loss is not a scalar tensor: {_described(out.loss)}")
        require(out.loss.isfinite(), f"the loss is {out.loss.item()}")
        require(out.loss.requires_grad, "the loss has no gradient")
        positive = not isinstance(out.sample_size, Tensor) and out.sample_size > 0
        require(positive, f"sample_size is not a positive number: {_described(out.sample_size)}")
        for name, value in out.logging.items():
            if isinstance(value, Tensor):
                require(not value.requires_grad, f"the logged value {name} has a gradient: detach it")
                require(value.numel() == 1, f"the logged value {name} has {value.numel()} elements")


def _described(value: Any) -> str:
    return f"shape {tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else repr(value)


def repeated_losses_are_equal(subject: Training) -> None:
    """A second call gives the same loss, in evaluation without a seed, and without gradients."""
    batch = subject.batch()
    subject.model.eval()
    first = subject.criterion(subject.model, batch).loss
    subject.same_number(subject.criterion(subject.model, batch).loss, first, "a second call in evaluation differs")
    with torch.enable_grad():
        loss = subject.compute(batch).loss.detach()
    subject.same_number(loss, first, "the loss with gradients differs from that without")
    one, two = (subject.compute(batch, training=True).loss for _ in range(2))
    subject.same_number(two, one, "a second call in training, with the same seed, differs")


def gradient_equals_finite_differences(subject: Training) -> None:
    """The gradient, times a random direction, equals the central difference of the loss.

    The direction has length one in each parameter. If they differ, each parameter by itself shows where. What the
    criterion keeps for several optimizer steps is the same for all of the losses.
    """
    batch = subject.batch()
    subject.criterion.context = TrainingContext(kept={})
    gradient = subject.gradient(batch, training=True)
    generator = torch.Generator().manual_seed(0)
    directions = {}
    for name, parameter in subject.parts().named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        directions[name] = direction / direction.norm()
    try:
        _same_slope(subject, batch, gradient, directions, "the gradient")
    except Violation:
        for name, direction in directions.items():
            _same_slope(subject, batch, gradient, {name: direction}, f"the gradient of {name}")
        raise


def _same_slope(
    subject: Training, batch: Batch, gradient: Mapping[str, Tensor], directions: Mapping[str, Tensor], what: str
) -> None:
    """The gradient along a direction is the central difference of the loss."""
    step, losses = 1e-5, []
    parameters = {name: subject.parts().get_parameter(name) for name in directions}
    originals = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    for sign in (1, -1):
        for name, parameter in parameters.items():
            parameter.data.copy_(originals[name] + sign * step * directions[name])
        losses.append(subject.compute(batch, training=True).loss.detach())
    for name, parameter in parameters.items():
        parameter.data.copy_(originals[name])
    wanted = (losses[0] - losses[1]) / (2 * step)
    got = sum((gradient[name] * direction).sum() for name, direction in directions.items())
    subject.same_number(got, wanted, f"{what} is not that of the loss", tolerance=1e-6)


def padding_does_not_affect_the_loss(subject: Training) -> None:
    """Further padding, of sources or of targets, changes neither the loss nor the gradient nor what is counted."""
    usual, gradient = subject.compute(subject.batch()), subject.gradient(subject.batch())
    for side, padded in (("source", subject.batch(source_padding=3)), ("target", subject.batch(target_padding=3))):
        found = subject.compute(padded)
        _same_out(subject, found, usual, f"padding of the {side} changes")
        subject.same_gradient(subject.gradient(padded), gradient, f"padding of the {side} changes the gradient")


def ranks_sum_to_the_whole(subject: Training) -> None:
    """The losses, sample sizes, logged values and gradients of two parts, in any order, sum to those of the batch."""
    once, twice = (subject.compute(subject.batch(rows)).loss for rows in ([0, 1], [0, 1, 0, 1]))
    require(abs(twice - once) > 1e-8 or not once, "the loss is the same with each sentence twice")
    whole, gradient = subject.compute(subject.batch()), subject.gradient(subject.batch())
    for first in ([0], [1, 0], [3, 0, 2]):
        rest = [row for row in range(len(LENGTHS)) if row not in first]
        parts = [subject.compute(subject.batch(rows)) for rows in (first, rest)]
        keys = {name for part in parts for name in part.logging}
        total = replace(
            parts[0],
            loss=parts[0].loss + parts[1].loss,
            sample_size=parts[0].sample_size + parts[1].sample_size,
            logging={key: sum(float(part.logging.get(key, 0.0)) for part in parts) for key in keys},
        )
        _same_out(subject, total, whole, "dividing the batch among two ranks changes")
        gradients = [subject.gradient(subject.batch(rows)) for rows in (first, rest)]
        summed = {name: value + gradients[1][name] for name, value in gradients[0].items()}
        subject.same_gradient(summed, gradient, "the sum of the gradients of two ranks is not that of the batch")


def _same_out(subject: Training, got: Any, wanted: Any, what: str) -> None:
    subject.same_number(got.loss, wanted.loss, f"{what} the loss")
    subject.same_number(got.sample_size, wanted.sample_size, f"{what} sample_size")
    others = sorted({*got.logging} ^ {*wanted.logging})
    require(not others, f"{what} which values are logged: {others}")
    for name, value in wanted.logging.items():
        subject.same_number(got.logging[name], value, f"{what} the logged value {name}")


def logged_counts(subject: Training) -> None:
    """``nsentences`` is the number of sentences; ``ntokens`` and ``correct`` count target tokens without padding."""
    logging = subject.compute(subject.batch()).logging
    if "nsentences" in logging:
        subject.same_number(logging["nsentences"], len(LENGTHS), "the logged value nsentences is wrong")
    tokens, correct = (float(logging.get(name, 0.0)) for name in ("ntokens", "correct"))
    most = sum(TARGETS)
    require(0 <= tokens <= most, f"the logged value ntokens is {tokens:g}, but the batch has {most} target tokens")
    require(0 <= correct <= tokens, f"the logged value correct is {correct:g} of {tokens:g} tokens")


def inputs_are_not_changed(subject: Training) -> None:
    """The batch, the weights and the mode of the model stay as they are."""
    for training in (False, True):
        batch = subject.batch()
        before = copy.deepcopy(batch)
        weights = {name: value.clone() for name, value in subject.model.state_dict().items()}
        subject.gradient(batch, training)
        kept = all(map(torch.equal, tensors_in(batch), tensors_in(before)))
        require(kept, "the criterion changes a tensor of the batch in place")
        kept = all(torch.equal(value, weights[name]) for name, value in subject.model.state_dict().items())
        require(kept, "the criterion changes the weights of the model")
        kept = all(module.training is training for module in subject.model.modules())
        mode = "training" if training else "evaluation"
        require(kept, f"the criterion changes the mode of the model, which was {mode}")


CRITERION: Invariants[Training] = {
    "the loss is a scalar": loss_is_a_sum,
    "losses are repeatable": repeated_losses_are_equal,
    "gradient = finite differences": gradient_equals_finite_differences,
    "padding does not affect the loss": padding_does_not_affect_the_loss,
    "sum over ranks = whole batch": ranks_sum_to_the_whole,
    "logged counts": logged_counts,
    "inputs are not changed": inputs_are_not_changed,
}
"""The invariants of a criterion."""


def _decoding(subject: Training) -> SequenceCriterion:
    assert isinstance(subject.criterion, SequenceCriterion)
    return subject.criterion


def decoding_equals_rescoring(subject: Training) -> None:
    """In evaluation and beam search, the log-probability of each token is the same in ``decode`` and in ``rescore``."""
    criterion, batch, kept = _decoding(subject), subject.batch(), set(keys_tagged(KEEPS_SCORES)) - {"seed"}
    plain = {name: getattr(criterion.cfg.decode, name) for name in kept}  # others change the scores of decoding
    beam_search = copy.copy(criterion)
    beam_search.cfg = replace(criterion.cfg, decode=GenerationConfig(**plain), token_loss=0.0)
    subject.model.eval()
    found = beam_search.decode(subject.model, batch)
    scores = criterion.rescore(subject.model, batch, found).token_lprobs
    for row, hypotheses in enumerate(found):
        for place, one in enumerate(hypotheses):
            got, wanted = scores[row, place, : len(one.tokens)], one.positional_scores
            with at(sentence=row):
                subject.same_value(got, wanted, "rescore gives other log-probabilities than decode")


def decoding_reads_the_current_weights(subject: Training) -> None:
    """After the weights were changed in place, as by an optimizer, ``decode`` gives what a new model gives."""
    criterion, batch, model = _decoding(subject), subject.batch(), subject.model
    original = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        for mode in (True, False):
            model.train(mode)
            criterion.decode(model, batch)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.sin(torch.arange(parameter.numel()).view_as(parameter)), alpha=0.3)
            found = criterion.decode(model, batch)
            wanted = SequenceCriterion.decode(criterion, copy.deepcopy(model), batch)
            same_hypotheses(subject, found, wanted, "decode uses weights from before an update")
    finally:
        model.load_state_dict(original)


def decoding_is_not_training(subject: Training) -> None:
    """``decode`` runs no module in training mode, and leaves the random numbers and the mode of training."""
    criterion, model = _decoding(subject), subject.model
    model.train()
    noted: list[str] = []

    def note(module: nn.Module, arguments: object) -> None:
        if module.training:
            noted.append(type(module).__name__)

    before = torch.get_rng_state()
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(note))
        found = criterion.decode(model, subject.batch())
    require(not noted, f"decode runs {noted[0] if noted else ''} in training mode, with dropout")
    require(torch.equal(torch.get_rng_state(), before), "decode changes the state of random numbers of training")
    require(all(module.training for module in model.modules()), "decode leaves the model in evaluation mode")
    model.eval()
    wanted = criterion.decode(model, subject.batch())
    same_hypotheses(subject, found, wanted, "decode in training differs from decode in evaluation")


DECODING_CRITERION: Invariants[Training] = {
    "decoding = rescoring": decoding_equals_rescoring,
    "decoding reads current weights": decoding_reads_the_current_weights,
    "decoding is not training": decoding_is_not_training,
}
"""The further invariants of a criterion that decodes."""


def invariants_of(criterion: Any) -> Invariants[Training]:
    """The invariants of a criterion; one that decodes has more."""
    return {**CRITERION, **(DECODING_CRITERION if isinstance(criterion, SequenceCriterion) else {})}
