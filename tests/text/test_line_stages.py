"""Line stages: their order, phrases, counts, and add-ons that are not installed."""

from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest

from seqgen.extend import Details, GenerationConfig, InputLine, Translation
from seqgen.registry import MissingAddonError
from seqgen.text import line_stages
from seqgen.text.line_stages import LINE_STAGES, LineOrder, LineStage, register_line_stage, summaries
from seqgen.text.translator import Translator
from tests.text_models import text_model


def test_stages_run_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LINE_STAGES, "_entries", {})

    @register_line_stage("a")
    class Demand(LineStage):
        order = LineOrder.PHRASES

        def read(self, line: InputLine) -> InputLine:
            return line.demanding(["w9"]).with_extra("read", line.text)

        def write(self, line: InputLine, translation: Translation) -> Translation:
            return translation.with_extra("read", line.extras["read"])

    @register_line_stage("b")
    class Change(LineStage):
        order = LineOrder.TEXT
        key = "constraints"

        def read(self, line: InputLine) -> InputLine:
            return replace(line, text="w5 w6")

        def counts(self, translation: Translation) -> Counter[str]:
            return Counter(lines=1)

        @classmethod
        def summary(cls, sums: object) -> str:
            return f"counted {sums}"

    (found,) = Translator(text_model(), beam=3, max_len_b=10).translate(["w1\tw8"], constraints="unordered")
    assert (found.read, found.source, found.constraints) == ("w5 w6", "w5 w6", ["w8", "w9"])
    assert {"w8", "w9"} <= {*found.text.split()}
    assert summaries(GenerationConfig(constraints="ordered"), {"b.lines": 2}) == [f"counted {Counter(lines=2)}"]
    assert summaries(GenerationConfig(), {}) == []
    register_line_stage("c")(type("Alike", (Change,), {}))
    counts = {"b.lines": 2, "c.lines": 2}
    assert len(summaries(GenerationConfig(constraints="ordered"), counts)) == 1, "equal sentences are said once"


def test_a_line_is_decoded_again_until_no_stage_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LINE_STAGES, "_entries", {})
    wanted = Translator(text_model(), beam=3, max_len_b=10).translate(["w2 w5 w1 w1", "w5", ""], return_scores=True)

    @register_line_stage("a")
    class Twice(LineStage):
        def read(self, line: InputLine) -> InputLine:
            return replace(line, text=line.text + " w1" * line.extras.get("times", 0))

        def again(self, line: InputLine, translation: Translation) -> InputLine | None:
            times = line.extras.get("times", 0)
            return line.with_extra("times", times + 1) if times < 2 and "w2" in line.text else None

    on_line = mock.Mock()
    decoding = Translator(text_model(), beam=3, max_len_b=10).prepare(Details(scores=True))
    found = decoding.translate(["w2 w5", "w5", ""], on_line=on_line)
    described = [
        [(t.source, t.text, round(h.score, 9), round(h.model_score or 0, 9)) for t in some for h in t.hypotheses]
        for some in (wanted, found)
    ]
    assert described[0] == described[1]
    assert on_line.call_count == 2, "a line counts once"


def test_a_stage_of_a_missing_add_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_stages, "_DECLARED", {"constraints": "seqgen.addons.absent.stage"})
    message = "^generation.constraints belongs to the add-on absent, which is not installed$"
    with pytest.raises(MissingAddonError, match=message):
        Translator(text_model()).translate(["w1"], constraints="ordered", beam=2)
