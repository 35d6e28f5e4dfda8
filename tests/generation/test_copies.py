"""What depends on the source alone is never copied while sentences are being decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seqgen.generation import session
from seqgen.generation.session import Session
from seqgen.generation.setup import DecodingRequest
from seqgen.modules.multihead_attention import MultiheadAttention
from tests.generators import make_generator
from tests.model_zoo import VOCAB, ZOO, build
from tests.scripted_model import batch_of, dictionary

BEAM = 3
SOURCES = [(*(4 + (3 * i + n) % (VOCAB - 4) for i in range(n)), 2) for n in (3, 12, 7)]
"""Longer ones than there are beams, so that averages of values are smaller than the values."""


class CountCopies(TorchDispatchMode):
    """Records every operation that makes something new out of a watched tensor, more than half as large as that.

    Products do, which attention is made of; what they copy before they multiply is recorded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict[int, Tensor] = {}
        self.copies: list[str] = []

    def watch(self, tensors: Iterator[Tensor]) -> None:
        self.watched = {storage(tensor): tensor for tensor in tensors if tensor.is_floating_point()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and storage(x) in self.watched]
        outputs = [x for x in tree_leaves(out) if isinstance(x, Tensor) and storage(x) not in self.watched]
        if func is not torch.ops.aten.bmm.default and any(
            new.numel() > old.numel() / 2 for new in outputs for old in inputs
        ):
            self.copies.append(str(func))
        return out


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def static_tensors(decoded: Session) -> Iterator[Tensor]:
    """The encoder's outputs, and the keys and values that attention made of them."""
    for member in decoded.members:
        yield from (tensor for tensor in vars(member.encoder_out).values() if isinstance(tensor, Tensor))
        for module in member.model.decoder.modules():
            if isinstance(module, MultiheadAttention) and module.encoder_decoder:
                assert member.state is not None
                seen = member.state[module.state_key]["cache"].view()
                yield from (seen.keys, seen.values)


WITH_ENCODER_ATTENTION = [
    name for name in ZOO if build(name).decoder.shares_encoder_output and not ZOO[name].is_language_model
]


def copies(name: str, lazy_compaction: bool) -> tuple[list[str], bool]:
    """The copies after the first step, and whether any sentence was compacted away."""
    generator = make_generator(
        [build(name)],
        dictionary(VOCAB - 4),
        beam_size=BEAM,
        max_len_a=0.5,
        max_len_b=3,
        lazy_compaction=lazy_compaction,
    )
    batch = batch_of(SOURCES)
    with torch.no_grad(), CountCopies() as counted:
        decoded = Session(generator.setup, DecodingRequest(batch))
        assert decoded.step()
        live = len(decoded.live)
        counted.watch(static_tensors(decoded))
        assert len(counted.watched) >= 2
        while decoded.step():
            pass
    return counted.copies, len(decoded.live) < live


@pytest.mark.parametrize("name", WITH_ENCODER_ATTENTION)
def test_static_tensors_are_not_copied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_LAZY", 1)  # finished sentences stay until all are done
    assert copies(name, lazy_compaction=True) == ([], False)


def test_the_count_sees_compaction() -> None:
    found, compacted = copies("transformer_tiny", lazy_compaction=False)
    assert compacted
    assert {"aten.index_select.default"} <= set(found)
