"""Invariants of models: the parallel pass, the weights, and all invariants by name; usual causes of violations.

A sentence does not depend on the others of its batch; every parameter is trained and saved; nothing that was computed
from weights is used after they have changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seqgen.addons.checks import search, stepping
from seqgen.addons.checks.checking import Invariants, Violation, needs, require
from seqgen.addons.checks.subject import LENGTHS, Subject
from seqgen.extend import EncoderDecoderModel, LayerDropList

_LEAST = 1e-9
"""A token is read if changing it changes a logit by more than this."""


def evaluation_is_deterministic(subject: Subject) -> None:
    """Two passes in evaluation mode are equal, also after that of another batch, or after ``train()``, ``eval()``."""
    batch, other = subject.inputs(), subject.inputs(seed=2)
    wanted = replace(subject, model=copy.deepcopy(subject.model)).logits(other)
    before = subject.logits(batch)
    subject.same(subject.logits(batch), before, what="a second pass over the same input differs")
    subject.same(subject.logits(other), wanted, what="the pass of an earlier batch changes the logits")
    subject.model.train().eval()
    subject.same(subject.logits(batch), before, what="the pass after train() and eval() differs")


def alone_equals_batched(subject: Subject) -> None:
    """A sentence alone, without padding, has the same logits as in a batch."""
    batch = subject.inputs()
    together = subject.logits(batch)
    for row in range(len(LENGTHS)):
        alone = batch.alone(row)
        features, own = (subject.encode(each).encoder_out for each in (batch, alone))
        columns = slice(-own.size(1), None) if batch.padded_left else slice(own.size(1))
        part = "logits" if torch.allclose(features[row : row + 1, columns], own) else "encoder's features"
        subject.same(together[row : row + 1], subject.logits(alone), rows=[row], what=f"the {part} differ")


def encoder_output_is_reordered(subject: Subject) -> None:
    """``reorder_encoder_out`` returns what the encoder returns for reordered sentences."""
    batch, order = subject.inputs(), torch.tensor([2, 0, 3, 2])
    encoder, targets = subject.model.encoder, batch.prev_output_tokens
    moved = encoder.reorder_encoder_out(subject.encode(batch), order)
    wanted = encoder(batch.src_tokens[order], batch.src_lengths[order])
    got = subject.model.decoder(targets, moved).logits
    what = "the output of reorder_encoder_out is not that of the reordered sentences"
    subject.same(got, subject.model.decoder(targets, wanted).logits, what=what)


def every_token_is_read(subject: Subject) -> None:
    """Each token changes the logits of its sentence; a target token changes none before it."""
    _target_tokens_are_read(subject)
    batch, ids = subject.inputs(target_length=5), subject.ids
    logits = subject.logits(batch)
    for row, length in enumerate(batch.src_lengths.tolist()):
        first = batch.src_tokens.size(1) - length if batch.padded_left else 0
        for column in range(first, first + length):
            changed = batch.inputs_with_source(row, column, ids.words)
            if torch.equal(changed.src_tokens, batch.src_tokens):
                continue
            moved = subject.logits(changed)
            if not ((moved[row] - logits[row]).abs().amax(-1) > _LEAST).all():
                raise Violation(f"source token {column - first} of a sentence does not change its logits", sentence=row)
            others = torch.arange(len(LENGTHS)) != row
            subject.same(moved[others], logits[others], what="a source token changes the logits of another sentence")


def _target_tokens_are_read(subject: Subject) -> None:
    batch = subject.inputs(target_length=5)
    logits = subject.logits(batch)
    for column in range(int(subject.is_language_model), 5):
        changed = batch.prev_output_tokens.clone()
        changed[:, column] = (changed[:, column] + 1) % subject.ids.vocab
        moved = subject.model(batch.src_tokens, batch.src_lengths, changed).logits
        subject.same(moved[:, :column], logits[:, :column], what=f"an earlier position sees target token {column}")
        apart = (moved - logits).abs().amax(-1) > _LEAST
        require(apart[:, column].all(), "a target token does not change the logits of its own position", step=column)
        if apart[:, -1].float().mean() <= 0.5 and column >= 2:  # convolutions have a limited width
            raise Violation(f"target token {column} does not change the logits of position 4", step=4)


def start_token_is_read(subject: Subject) -> None:
    """Noise on the embedding of the first target column changes the logits of the next position."""
    needs(not subject.is_language_model, "a decoder-only model does not read the start token")
    batch = subject.inputs(target_length=3)
    logits, shape = subject.logits(batch), batch.prev_output_tokens.shape
    noisy: list[nn.Module] = []

    def add_noise(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if arguments[0].shape != shape or module not in embeddings:
            return output
        noisy.append(module)
        return torch.cat([output[:, :1] + torch.linspace(-1, 1, output.size(-1)).to(output), output[:, 1:]], dim=1)

    encoder_out = subject.encode(batch)
    embeddings = [module for module in subject.model.decoder.modules() if isinstance(module, nn.Embedding)]
    with ExitStack() as hooks:
        for module in embeddings:
            hooks.enter_context(module.register_forward_hook(add_noise))
        moved = subject.model.decoder(batch.prev_output_tokens, encoder_out).logits
    needs(noisy, "no nn.Embedding of the decoder reads the target tokens")
    require(moved.isfinite().all(), "the logits after the start token are not finite", step=0)
    unread = (moved[:, 1] - logits[:, 1]).abs().amax(-1) <= _LEAST
    if unread.any():
        raise Violation("the second position does not see the start token", step=1, sentence=int(unread.nonzero()[0]))


def attention_is_a_distribution(subject: Subject) -> None:
    """Attention sums to one, is zero at padding and positive elsewhere, and does not change the logits."""
    batch = subject.inputs(target_length=4)
    asked = subject.model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens, need_attention=True)
    unasked = subject.model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens)
    subject.same(asked.logits, unasked.logits, what="need_attention changes the logits")
    require(unasked.attention is None, "attention is returned without need_attention")
    needs(asked.attention is not None, "the model returns no attention")
    widths = asked.attention.size(2), batch.src_tokens.size(1)
    require(widths[0] == widths[1], "attention over {} positions, the source has {}".format(*widths))
    total = asked.attention.sum(-1)
    subject.same(total, torch.ones_like(total), what="the attention of a position does not sum to one")
    padding = batch.src_tokens.eq(subject.ids.pad).unsqueeze(1).expand_as(asked.attention)
    hidden = asked.attention * padding
    subject.same(hidden, torch.zeros_like(hidden), what="attention to padding is not zero")
    require((asked.attention[~padding] > 0).all(), "attention to a source token is zero")


def probabilities_sum_to_one(subject: Subject) -> None:
    """``get_normalized_probs`` returns a distribution, and its logarithm."""
    logits = subject.logits(subject.inputs(target_length=3))
    probs = subject.model.get_normalized_probs(logits, log_probs=False)
    subject.same(probs.sum(-1), torch.ones_like(probs.sum(-1)), what="probabilities do not sum to one")
    lprobs = subject.model.get_normalized_probs(logits)
    subject.same(lprobs.exp(), probs, what="log-probabilities are not the logarithms of the probabilities")


def train_step(subject: Subject, model: EncoderDecoderModel, training: bool = True) -> dict[str, float]:
    """One step of training on random pairs; the largest gradient of each parameter.

    Args:
        subject: makes the pairs.
        model: the model, in evaluation mode before and after.
        training: whether the mode is changed for the step.
    """
    batch = subject.inputs([6, 4, 7], seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if training:
        model.train()
    with torch.enable_grad():
        logits = model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.prev_output_tokens[:, 1:].flatten())
        loss.backward()
    require(loss.isfinite(), f"the loss of a training step is {loss.item()}")
    gradients = {
        key: 0.0 if parameter.grad is None else parameter.grad.abs().max().item()
        for key, parameter in model.named_parameters()
    }
    optimizer.step()
    if training:
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


Change = Callable[[Subject, EncoderDecoderModel], object]


def never_stale(subject: Subject, what: str, changes: Sequence[Change]) -> None:
    """A decode after changes of the weights uses the new weights.

    Args:
        subject: the model.
        what: the changes, in words.
        changes: they change a copy of the model in place; each is followed by a decode.
    """
    model = copy.deepcopy(subject.model)
    for change in changes:
        before = stepped_logits(subject, model)
        change(subject, model)
        got = stepped_logits(subject, model)
        wanted = stepped_logits(subject, without_cached_weights(subject, model))
        subject.same(got, wanted.to(got.dtype), what=f"after {what}, a decode uses an outdated weight")
        require((got.to(before.dtype) - before).abs().max() > 1e-6, f"{what} does not change the logits")


def _load(subject: Subject, model: EncoderDecoderModel, assign: bool = False) -> None:
    weights = model.state_dict().items()
    larger = {key: value * 1.25 if value.is_floating_point() else value for key, value in weights}
    model.load_state_dict(larger, assign=assign)


def _change_in_place(subject: Subject, model: EncoderDecoderModel) -> None:
    for parameter in model.parameters():
        parameter.mul_(1.5)


def _replace_data(subject: Subject, model: EncoderDecoderModel) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.25


def every_parameter_is_trained(subject: Subject) -> None:
    """Each parameter that is trained has a gradient after a step."""
    model = copy.deepcopy(subject.model)
    for module in model.modules():
        if isinstance(module, LayerDropList):
            module.p = 0.0
    trained = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    without = [key for key, gradient in train_step(subject, model).items() if gradient == 0 and key in trained]
    require(not without, f"a training step gives no gradient to {', '.join(without[:3])}")


def saved_weights_are_the_model(subject: Subject) -> None:
    """A newly built model has the same logits once it has loaded the weights."""
    needs(subject.build is not None, "a trained model was itself loaded")
    other, batch = replace(subject, model=without_cached_weights(subject, subject.model)), subject.inputs()
    subject.same(other.logits(batch), subject.logits(batch), what="a new model with the same weights differs")


def never_stale_after_moving(subject: Subject) -> None:
    """A decode after a change of the dtype uses weights of the new dtype."""
    model = copy.deepcopy(subject.model).float()
    before = stepped_logits(subject, model)
    model.double()
    got = stepped_logits(subject, model)
    if (before.dtype, got.dtype) != (torch.float32, torch.float64):
        raise Violation(f"logits are {before.dtype} in float32 and {got.dtype} after a change to float64")
    subject.same(got, before, tolerance=1e-3, what="float32 and float64 differ")
    wanted = stepped_logits(subject, without_cached_weights(subject, model))
    subject.same(got, wanted, what="after a change of the dtype, a decode uses an outdated weight")


def inference_mode_changes_nothing(subject: Subject) -> None:
    """Values cached in inference mode are usable in later decodes, and training is possible afterwards."""
    model = copy.deepcopy(subject.model)
    wanted = stepped_logits(subject, model)
    model.train().eval()
    with torch.inference_mode():
        got = stepped_logits(subject, model).clone()
    subject.same(got, wanted, what="inference mode changes the logits")
    subject.same(stepped_logits(subject, model), wanted, what="a decode after inference mode differs")
    train_step(subject, model)


PASSES: Invariants[Subject] = {
    "evaluation is deterministic": evaluation_is_deterministic,
    "every token is read, later ones are not": every_token_is_read,
    "the start token is read": start_token_is_read,
    "alone = in a batch": alone_equals_batched,
    "encoder output is reordered": encoder_output_is_reordered,
    "attention is a distribution": attention_is_a_distribution,
    "probabilities sum to one": probabilities_sum_to_one,
}
STEPPING: Invariants[Subject] = {
    "steps = parallel pass": stepping.steps_equal_parallel_pass,
    "steps after any order of rows": stepping.reordering_rows_changes_nothing,
    "steps after reordering beams": stepping.reordering_beams_changes_nothing,
    "steps after rolling back": stepping.rolling_back_changes_nothing,
    "batches that join": stepping.joining_batches_changes_nothing,
    "start offsets": stepping.start_offsets_are_read,
    "attention in steps": stepping.attention_equals_parallel_pass,
    "two decodes at a time": stepping.states_do_not_mix,
    "copies share no state": stepping.copies_share_no_state,
}
_CHANGES: dict[str, tuple[str, list[Change]]] = {
    "training": ("training", [train_step] * 2),
    "a step in eval()": ("an optimizer step in evaluation mode", [partial(train_step, training=False)] * 2),
    "loading": ("loading weights", [_load, partial(_load, assign=True)]),
    "a change in place": ("a change in place", [_change_in_place, _replace_data]),
}
WEIGHTS: Invariants[Subject] = {
    "every parameter is trained": every_parameter_is_trained,
    "saved weights are the model": saved_weights_are_the_model,
    **{f"no stale weight after {name}": partial(never_stale, what=w, changes=c) for name, (w, c) in _CHANGES.items()},
    "no stale weight after moving": never_stale_after_moving,
    "inference mode": inference_mode_changes_nothing,
}
SEARCH: Invariants[Subject] = {
    "search: cached = uncached": search.cached_equals_uncached,
    "search: alone = in a batch": partial(search.alone_equals_batched, max_len_a=1.0, max_len_b=3),
    "search: beams in place = moved": search.indirection_equals_moving,
    "search: beam of one = greedy": search.beam_of_one_is_greedy,
    "search: beam = exhaustive": search.beam_equals_exhaustive,
    "search: scorer = generator": search.scorer_equals_generator,
    "search: [m, m] = m": partial(search.ensemble_of_itself, what="an ensemble with itself differs"),
}
