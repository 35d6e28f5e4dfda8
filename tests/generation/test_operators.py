"""The operators and Python calls of a decoding step have bounds, so that no change adds some unseen."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from seqgen.config import GenerationConfig
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.session import Session
from seqgen.data.dictionary import Dictionary
from seqgen.decoding.options import build_setup
from seqgen.models.t5 import T5Config
from seqgen.models.transformer import TransformerConfig
from seqgen.registry import MODELS
from tests.scripted_model import batch_of

STEPS = 40
"""Steps of a decode; the last but one is counted, so that memory has grown already."""

VIEWS = re.compile(
    "alias|as_strided|chunk|detach|diagonal|expand|flatten|movedim|narrow|permute|reshape|resolve|select|slice|split|"
    "squeeze|t$|transpose|unbind|unflatten|unfold|unsqueeze|view"
)
"""The beginnings of the names of operators that compute nothing."""

SIZES: dict[str, int] = {f"{side}_{name}": 32 for side in ("encoder", "decoder") for name in ("embed_dim",)}
CONFIGS: dict[str, Any] = {
    "t5": T5Config(d_model=32, d_kv=4, d_ff=128),
    "transformer": TransformerConfig(encoder_ffn_embed_dim=128, decoder_ffn_embed_dim=128, **SIZES),
    "fconv": MODELS.config("fconv_tiny"),
}
"""Six layers and eight heads, in the encoder and in the decoder; fconv has three layers in the decoder."""

BOUNDS = {
    # operators, those that are no views, Python calls
    ("t5", 1): (330, 222, 725),
    ("t5", 5): (353, 232, 820),
    ("transformer", 1): (267, 165, 760),
    ("transformer", 5): (289, 172, 860),
    ("fconv", 1): (137, 83, 305),
    ("fconv", 5): (159, 94, 340),
}


class Operators(TorchDispatchMode):
    """Records the names of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.partition("::")[2])
        return func(*args, **(kwargs or {}))


def counted(model: str, beam: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """The operators of one step, those that are no views, and the Python calls of the same step of another decode."""
    words = Dictionary()
    for number in range(96):
        words.add_symbol(f"w{number}")

    class Task:
        source_dictionary = target_dictionary = words

    built = MODELS.entry(model).component.build_model(CONFIGS[model], Task()).eval()
    cfg = GenerationConfig(semantics="huggingface", beam=beam, min_len=STEPS, max_len=STEPS)
    generator = SequenceGenerator(build_setup([built], words, cfg))
    batch, step = batch_of([[*range(10, 40), words.eos()]], words.pad(), built.left_pad_source), Session.step
    operators, calls = Operators(), 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    def counting_operators(session: Session) -> bool:
        if session.backpointers.length != STEPS - 2:
            return step(session)
        with operators:
            return step(session)

    def counting_calls(session: Session) -> bool:
        if session.backpointers.length != STEPS - 2:
            return step(session)
        sys.setprofile(count)
        try:
            return step(session)
        finally:
            sys.setprofile(None)

    for counting in (step, counting_operators, counting_calls):
        monkeypatch.setattr(Session, "step", counting)
        generator.generate(batch)
    return len(operators.names), sum(VIEWS.match(name) is None for name in operators.names), calls


@pytest.mark.parametrize(("model", "beam"), BOUNDS)
def test_a_step_has_few_operators_and_calls(model: str, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted(model, beam, monkeypatch)
    assert all(one <= bound for one, bound in zip(found, BOUNDS[model, beam], strict=True)), found


def test_operators_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One operator more in each layer is found."""
    before = counted("t5", 1, monkeypatch)
    plain = torch.nn.functional.relu

    def relu(x: Tensor) -> Tensor:
        return plain(x + 0)

    monkeypatch.setitem(sys.modules["seqgen.models.t5"].FEED_FORWARDS, "relu", relu)
    assert counted("t5", 1, monkeypatch)[0] == before[0] + 6
