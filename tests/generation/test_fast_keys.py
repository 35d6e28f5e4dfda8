"""The ``fast.*`` keys: each switches its optimization off; that none changes an output is a law."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from seqgen.config import FastConfig
from seqgen.extend import Member, Observer, SequenceGenerator, StepRecord, generate_continuously
from seqgen.system.switches import KERNEL_CHOICE, PREPACKED_WEIGHTS
from seqgen.text.translator import Translator
from tests.conftest import of_installed
from tests.text_models import TEXTS, text_model

OFF = vars(FastConfig.off())


class Spy(Observer):
    """Records the switches, whether scores were computed the faster way, and finished sentences still in the batch."""

    def __init__(self) -> None:
        self.seen: dict[str, set[Any]] = defaultdict(set)

    def observe(self, record: StepRecord) -> None:
        self.seen["prepacked_weights"].add(PREPACKED_WEIGHTS.is_on())
        self.seen["kernel_choice"].add(KERNEL_CHOICE.is_on())
        self.seen["two_stage_candidates"].add(record.scored.in_blocks)
        self.seen["skip_log_softmax"].add(record.scored.log_sum is not None)
        self.seen["done"].add(int(record.was_done.sum()))


@pytest.fixture(name="members")
def _members() -> Iterator[list[Member]]:
    """The members of all sessions."""
    made: list[Member] = []
    begin = Member.__init__
    with mock.patch.object(Member, "__init__", lambda self, *given: (begin(self, *given), made.append(self))[0]):
        yield made


def decode(spy: Spy, fast: dict[str, Any]) -> SequenceGenerator:
    translator = Translator(text_model())
    settings: dict[str, Any] = {"beam": 3, "max_len_b": 12, **{f"fast.{key}": value for key, value in fast.items()}}
    lines = [" ".join(f"w{(7 * line + 5 * word) % 19}" for word in range(1 + line % 5)) for line in range(24)]
    translator.translate(lines, observers=[spy], **settings)
    return translator.prepare(**settings).generator


def test_the_page_has_a_switch_for_each_optimization() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "fast-decoding.md").read_text(encoding="utf-8")
    rows = [line.split("|")[3] for line in page.splitlines() if line.startswith("|")][2:]
    assert [row for row in rows if re.search(r"`(fast|common|generation)\.", row) is None] == []
    assert {field.name for field in fields(FastConfig)} == of_installed(re.findall(r"`fast\.(\w+)", "".join(rows)))


@pytest.mark.parametrize("key", ["", *OFF])
def test_each_switch_is_honoured(key: str, members: list[Member]) -> None:
    spy = Spy()
    generator = decode(spy, {key: OFF[key]} if key else {})
    assert members
    for member in members:
        assert (member.state is None) == (key == "use_cache")
        assert member.shares_encoder_output == (key not in ("use_cache", "share_encoder_output"))
        if member.state is not None:
            assert member.state.beam_indirection is (False if key == "beam_indirection" else None)
            assert ("indirection_table" in member.state.shared) == (key != "beam_indirection")
    for switch in ("prepacked_weights", "kernel_choice", "two_stage_candidates", "skip_log_softmax"):
        assert spy.seen[switch] == {key != switch}
    assert (max(spy.seen["done"]) > 0) == (key != "lazy_compaction")
    assert generator.can_merge == (key not in ("use_cache", "continuous_batching"))


def test_a_switch_is_off_only_while_its_own_decode_computes() -> None:
    """The caller may decode with other switches between two results of continuous batching."""
    member = text_model()
    generator = Translator(member).prepare(**{"fast.prepacked_weights": False}).generator
    examples = [(number, member.task.encode_source(text), None) for number, text in enumerate(TEXTS)]
    batches = [member.task.collate(examples, member.model)]
    results = generate_continuously(generator, lambda running, width: batches.pop() if batches else None)
    assert generator.can_merge
    next(results)
    assert PREPACKED_WEIGHTS.is_on()
    assert len(list(results)) == len(TEXTS) - 1
