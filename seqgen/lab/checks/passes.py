"""Invariants of the parallel pass: what it reads, and that a sentence does not depend on the other sentences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqgen.lab.checks.checking import NotApplicableError, Violation
from seqgen.lab.checks.subject import LENGTHS, Subject

_LEAST = 1e-9
"""A token is read if changing it changes a logit by more than this."""


def evaluation_is_deterministic(subject: Subject) -> None:
    """Two passes in evaluation mode are equal, also after ``train()`` and ``eval()``."""
    batch = subject.inputs()
    before = subject.logits(batch)
    subject.same(subject.logits(batch), before, what="a second pass over the same input differs")
    subject.model.train().eval()
    subject.same(subject.logits(batch), before, what="the pass after train() and eval() differs")


def alone_equals_batched(subject: Subject) -> None:
    """A sentence alone, without padding, has the same logits as in a batch."""
    batch = subject.inputs()
    together = subject.logits(batch)
    for row in range(len(LENGTHS)):
        subject.same(together[row : row + 1], subject.model(*batch.alone(row)).logits, rows=[row])


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
    for row, length in enumerate(LENGTHS):
        first = batch.src_tokens.size(1) - length if batch.padded_left else 0
        for column in range(first, first + length):
            changed = batch.inputs_with_source(row, column, ids.words[0])
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
        if not apart[:, column].all():
            raise Violation("a target token does not change the logits of its own position", step=column)
        if apart[:, -1].float().mean() <= 0.5 and column >= 2:  # convolutions have a limited width
            raise Violation(f"target token {column} does not change the logits of position 4", step=4)


def start_token_is_read(subject: Subject) -> None:
    """Noise on the embedding of the first target column changes the logits of the next position."""
    if subject.is_language_model:
        raise NotApplicableError("a decoder-only model does not read the start token")
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
    handles = [module.register_forward_hook(add_noise) for module in embeddings]
    try:
        moved = subject.model.decoder(batch.prev_output_tokens, encoder_out).logits
    finally:
        for handle in handles:
            handle.remove()
    if not noisy:
        raise NotApplicableError("no nn.Embedding of the decoder reads the target tokens")
    if not moved.isfinite().all():
        raise Violation("the logits after the start token are not finite", step=0)
    unread = (moved[:, 1] - logits[:, 1]).abs().amax(-1) <= _LEAST
    if unread.any():
        raise Violation("the second position does not see the start token", step=1, sentence=int(unread.nonzero()[0]))


def attention_is_a_distribution(subject: Subject) -> None:
    """Attention sums to one, is zero at padding and positive elsewhere, and does not change the logits."""
    batch = subject.inputs(target_length=4)
    asked = subject.model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens, need_attention=True)
    unasked = subject.model(batch.src_tokens, batch.src_lengths, batch.prev_output_tokens)
    subject.same(asked.logits, unasked.logits, what="need_attention changes the logits")
    if unasked.attention is not None:
        raise Violation("attention is returned without need_attention")
    if asked.attention is None:
        raise NotApplicableError("the model returns no attention")
    total = asked.attention.sum(-1)
    subject.same(total, torch.ones_like(total), what="the attention of a position does not sum to one")
    padding = batch.src_tokens.eq(subject.ids.pad).unsqueeze(1).expand_as(asked.attention)
    hidden = asked.attention * padding
    subject.same(hidden, torch.zeros_like(hidden), what="attention to padding is not zero")
    if not (asked.attention[~padding] > 0).all():
        raise Violation("attention to a source token is zero")


def probabilities_sum_to_one(subject: Subject) -> None:
    """``get_normalized_probs`` returns a distribution, and its logarithm."""
    logits = subject.logits(subject.inputs(target_length=3))
    probs = subject.model.get_normalized_probs(logits, log_probs=False)
    subject.same(probs.sum(-1), torch.ones_like(probs.sum(-1)), what="probabilities do not sum to one")
    lprobs = subject.model.get_normalized_probs(logits)
    subject.same(lprobs.exp(), probs, what="log-probabilities are not the logarithms of the probabilities")
