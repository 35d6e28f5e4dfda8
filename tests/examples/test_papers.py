"""The invariants of decoding hold for the components of examples/papers, as ``seqgen-check`` tests them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commands import command

pytestmark = pytest.mark.slow

PAPERS = Path(__file__).parent.parent.parent / "examples" / "papers"


EXPECTED = {
    "align_att": ["scores are the model's"],  # they are those for the part of the source that is read
    "mc_dropout": ["[m, m] = m"],  # each member has another dropout mask
    "simultaneous": ["scores are the model's"],
}
"""Invariants that do not hold, on purpose."""


@pytest.mark.parametrize(
    "component",
    [
        "align_att search=align_att",
        "arithmetic_sampling search=arithmetic",
        "bilevel search=bilevel",
        "context_aware combination=context_aware",
        "contrastive_sources combination=contrast combination.weights=[0.3]",
        "determinantal_beams search=determinantal",
        "dola processor=dola processor.dola.layers=[1]",
        "dynamic_beams search=threshold_pruning",
        "lookahead search=lookahead",
        "mc_dropout search=mc_dropout search.rate=0.2",
        "poisson_beams search=poisson_beams",
        "simultaneous search=wait_k",
        "stochastic_beam search=stochastic_beam",
        "watermark processor=watermark",
    ],
)
def test_invariants(component: str) -> None:
    file, *keys = component.split()
    outcome = command("check", f"common.user_dir={PAPERS / file}.py", *keys, "common.threads=1")
    failed = re.findall(r"^(.+?)  +failed", outcome.out, re.MULTILINE)
    assert failed == EXPECTED.get(file, []), outcome.out + outcome.err
    assert "invariants hold" in outcome.out
