"""The invariants of ``seqgen.addons.checks`` about the parallel pass, steps and weights, for every registered model."""

from typing import Any

import pytest
import torch

from seqgen.addons.checks.checking import NotApplicableError
from seqgen.addons.checks.models import PASSES, STEPPING, WEIGHTS
from tests.covering import covering
from tests.model_zoo import ARCHITECTURES, PAD, ZOO, build
from tests.subjects import TOLERANCE, inputs, subject_of

every_model = pytest.mark.parametrize("name", list(ZOO))
INVARIANTS = PASSES | STEPPING | WEIGHTS
IN_FLOAT32 = (
    "alone = in a batch",
    "steps = parallel pass",
    "steps after any order of rows",
    "steps after reordering beams",
)
"""The invariants that are also tested with the kernels of float32."""

BY_CACHE = ("steps after rolling back", "batches that join")
"""The invariants that tests/modules/test_fast_paths.py tests with each kind of cache."""

ATTENTION = {"attention is a distribution", "attention in steps"}
ABSENT = {
    "lstm_tiny": {"start offsets"},
    "average": {"start offsets"},
    "transformer_ssru": {"start offsets"},
    **{
        name: {*ATTENTION, "start offsets", "the start token is read"}
        for name, model in ZOO.items()
        if model.is_language_model
    },
}
"""The invariants that do not apply to a model."""


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


CASES = [
    pytest.param(name, law, marks=pytest.mark.slow if law in WEIGHTS and name not in ARCHITECTURES else ())
    for law in INVARIANTS
    if law not in BY_CACHE
    for name in ZOO
]
"""Weights are stored by layers, of which one model of each architecture has all."""


@pytest.mark.parametrize(("name", "law"), CASES)
def test_invariants(name: str, law: str) -> None:
    invariant = INVARIANTS[law]
    if law in ABSENT.get(name, ()):
        with pytest.raises(NotApplicableError):
            invariant(subject_of(name))
    else:
        invariant(subject_of(name))


@pytest.mark.parametrize(("name", "law"), covering(list(ZOO), IN_FLOAT32))
def test_invariants_in_float32(name: str, law: str) -> None:
    INVARIANTS[law](subject_of(name, torch.float32))


@pytest.mark.parametrize(("name", "dtype"), covering(list(ZOO), list(TOLERANCE)), ids=str)
def test_left_padding_equals_right_padding(name: str, dtype: torch.dtype) -> None:
    if not ZOO[name].either_padding:
        pytest.skip("the model reads sources padded on the right only")
    subject = subject_of(name, dtype)
    batch, model = subject.inputs(), subject.model
    padding = batch.src_tokens.eq(PAD).sum(1).tolist()
    turned = torch.stack([row.roll(count) for row, count in zip(batch.src_tokens, padding, strict=True)])
    right, left = (
        model(tokens, batch.src_lengths, batch.prev_output_tokens).logits for tokens in (batch.src_tokens, turned)
    )
    subject.same(left, right)


@every_model
def test_too_long(name: str) -> None:
    if not ZOO[name].has_table:
        pytest.skip("the model has no table of positions")
    model = build(name)
    longest_source, longest_target = model.max_positions()
    batch = inputs(name, [longest_source, 3], target_length=2)
    encoder_out = model.encoder(batch.src_tokens, batch.src_lengths)  # the maximum length itself is allowed
    short = encoder_out.index_select(torch.tensor([1]))
    targets = inputs(name, [3], target_length=longest_target + 1).prev_output_tokens
    state: Any = {}
    model.decoder(targets[:, :longest_target], short, state)
    with pytest.raises(ValueError, match=rf"{longest_target + 1} tokens.* {longest_target} positions"):
        model.decoder(targets, short, state)
    for lengths in ([longest_source + 1], [longest_source + 1, 3]):
        batch = inputs(name, lengths, target_length=2)
        with pytest.raises(ValueError, match=rf"{longest_source + 1} tokens.* {longest_source} positions"):
            model.encoder(batch.src_tokens, batch.src_lengths)
