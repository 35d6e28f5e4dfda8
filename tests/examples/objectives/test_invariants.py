"""The invariants of criteria hold for those of examples/objectives, as ``seqgen-check`` tests them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commands import command
from tests.examples.objectives.teachers import teachers  # noqa: F401  # a fixture

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent.parent.parent.parent / "examples" / "objectives"
MBR = "mbr_distillation criterion=mbr_distillation criterion.decode.max_len=6"


@pytest.mark.parametrize(
    "criterion",
    [
        "actor_critic criterion=actor_critic criterion.decode.max_len=6",
        "group_relative criterion=group_relative criterion.decode.max_len=6 criterion.beta=0.1 criterion.reference=%t",
        MBR,
        f"{MBR} criterion.teacher=%t",
        "preference criterion=dpo criterion.decode.max_len=6 criterion.reference=%t",
        "preference criterion=cpo criterion.decode.max_len=6",
        "r_drop criterion=r_drop",
        "r_drop criterion=r_drop criterion.label_smoothing=0.1",
        "scheduled_sampling criterion=scheduled_sampling",
        "self_critical criterion=self_critical criterion.decode.max_len=6",
        "sequence_distillation criterion=sequence_distillation criterion.teachers=[%t,%f] criterion.decode.max_len=6 "
        "criterion.token_loss=0.2",
        "unlikelihood criterion=unlikelihood",
        "unlikelihood criterion=sequence_unlikelihood criterion.decode.max_len=6 criterion.ngram=1",
        "word_distillation criterion=word_distillation criterion.teachers=[%t,%f] criterion.temperature=1.5",
    ],
)
def test_invariants(criterion: str, teachers: dict[str, str]) -> None:  # noqa: F811
    line = criterion.replace("%t", teachers["transformer"]).replace("%f", teachers["fconv"])
    file, *keys = line.split()
    outcome = command("check", f"common.user_dir={FOLDER / file}.py", *keys, "common.threads=1")
    assert outcome.code == 0, outcome.out + outcome.err
    assert re.search(r"^(7 of 7|10 of 10) invariants hold$", outcome.out, re.MULTILINE), outcome.out
