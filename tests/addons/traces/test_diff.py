"""``seqgen-diff``: the first difference between two decodes, and its cause."""

import re
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from seqgen.addons.traces.difference import DONE, OUTCOME, PARENT, SCORE, TOKEN, Difference, LineTrace, first_difference
from seqgen.addons.traces.trace import StepTrace
from seqgen.core.member import Member
from tests.addons.traces.test_trace import step_of
from tests.commands import SMALL_TRANSFORMER, Outcome as Result, command, corpus, done, training_arguments

EXACT_SEARCH = Path(__file__).parents[3] / "examples" / "papers" / "exact_search"

SOURCES = ["the dog sees a man\x1b", "the tree has a ball and the man finds a boat", "", "the man has a dog"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs ``a`` and ``b`` with different weights, ``c`` with the weights of ``a`` and other settings, and a text."""
    folder = tmp_path_factory.mktemp("runs")
    data = corpus(folder / "data")
    for name, own in (("a", ()), ("b", ("common.seed=2",)), ("c", ("generation.length_penalty=3.0",))):
        arguments = (*training_arguments(data, folder / name), *SMALL_TRANSFORMER, "optimization.lr=[1e-2]")
        done("train", *arguments, "optimization.max_update=30", *own)
    (folder / "text.en").write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    return folder


def diff(runs: Path, *arguments: str) -> Result:
    outcome = command("diff", f"path={runs}/a", f"input={runs}/text.en", "generation.max_len_b=12", *arguments)
    assert "Traceback" not in outcome.err, outcome.err
    assert "\x1b" not in outcome.out, "a report contains no commands for a terminal"
    return outcome


def cause(outcome: Result) -> str:
    """The cause that the report names, without the values."""
    assert outcome.code == 1, (outcome.out, outcome.err)
    (line,) = re.findall(r"^cause: (.*)", outcome.out, flags=re.MULTILINE)
    return re.sub(r" \([^)]*\)", "", line)


def place(outcome: Result) -> tuple[int, int, int, str]:
    """The line, step and rank of the first difference, and what differs."""
    found: Any = re.search(r"(?m)^line (\d+): (?s:.*?)^first difference: step (\d+) .*, rank (\d+): (.*)", outcome.out)
    return int(found[1]), int(found[2]), int(found[3]), found[4]


def test_equal_decodes_and_all_optimizations(runs: Path) -> None:
    for arguments in ((), ("other.generation.length_penalty=1.0",), (f"other={runs}/a", "generation.beam=3")):
        outcome = diff(runs, *arguments)
        assert outcome.code == 0, outcome.out
        assert "no difference in 4 lines" in outcome.out
        assert "without optimizations" in outcome.err


KEYS = [
    ("length_penalty=2.0", "generation.length_penalty", "score of the finished hypothesis"),
    ("semantics=huggingface", "generation.semantics", "token"),
    ("search=diverse_siblings other.search.rate=2.0", "generation.search, search.rate", ""),
]


@pytest.mark.parametrize(
    ("keys", "named", "what"), [KEYS[0], *(pytest.param(*row, marks=pytest.mark.nightly) for row in KEYS[1:])]
)
def test_keys_are_named(runs: Path, keys: str, named: str, what: str) -> None:
    outcome = diff(runs, *f"other.generation.{keys}".split())
    assert cause(outcome) == named
    assert what in place(outcome)[3]


@pytest.mark.slow
def test_other_models(runs: Path) -> None:
    outcome = diff(runs, f"other={runs}/b")
    assert cause(outcome).startswith("the models; with all keys of the other decode")
    assert place(outcome)[:3] == (1, 0, 1)
    outcome = diff(runs, f"other={runs}/c")
    assert cause(outcome) == "generation.length_penalty"
    assert "(1.0 | 3.0, taken from the model)" in outcome.out
    outcome = diff(runs, f"other=[{runs}/a,{runs}/b]")
    assert cause(outcome).startswith("the models")


@pytest.mark.slow
def test_a_strategy_without_steps(runs: Path) -> None:
    arguments = ("generation.beam=1", "generation.max_len=3", "other.generation.search=exact")
    outcome = diff(runs, f"common.user_dir={EXACT_SEARCH}", *arguments)
    assert cause(outcome) == "generation.search"
    assert "n-best lists differ first at rank 1" in outcome.out


def test_broken_reordering(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    working = Member.reorder_beams

    def reorder(self: Member, parents: Tensor) -> None:
        if self.state is None or self.state.beam_indirection is False:
            working(self, parents)

    monkeypatch.setattr(Member, "reorder_beams", reorder)
    outcome = diff(runs)
    assert cause(outcome) == "fast.beam_indirection"
    line, step, _, _ = place(outcome)
    assert (line, step) == (1, 2), "at step 1 all beams have the same parent"
    assert "so it has a bug" in outcome.out
    assert cause(diff(runs, "other.fast.beam_indirection=off")) == "fast.beam_indirection"
    assert cause(diff(runs, "first.fast.beam_indirection=on", "other.fast.use_cache=false")) == "fast.use_cache"


TOKENS, SCORES = [5, 6, 7, 8], [-1.0, -1.5, -2.0, -3.0]
PLAIN = step_of(TOKENS, SCORES)
TIED, SWAPPED = step_of([5, 6], [-1.0, -1.0]), step_of([6, 5], [-1.0, -1.0])
AFTER_TIED, AFTER_SWAPPED = (step_of([7, 8, 9], [-2.0, -3.0, -4.0], beams) for beams in ([0, 1, 1], [1, 0, 0]))
THREE = step_of([5, 6, 7], [-1.0, -1.5, -1.5])


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([PLAIN], [step_of([5, 6, 9, 7], [-1.0, -1.5, -2.1, -3.0])], None),
        ([PLAIN], [step_of([5, 7, 8, 9], [-1.0, -1.5, -1.9, -3.0])], Difference(0, 1, TOKEN, 0.0)),
        ([PLAIN], [step_of([6, 5, 7, 8], [-1.5, -1.0, -2.0, -3.0])], Difference(0, 0, TOKEN, 0.5)),
        ([PLAIN], [step_of([5, 6, 7, 8], [-1.0, -1.75, -2.0, -3.0])], Difference(0, 1, SCORE, 0.25)),
        ([PLAIN], [step_of(TOKENS, SCORES, beam=3)], Difference(0, 2, OUTCOME, 0.0)),
        ([PLAIN], [step_of(TOKENS, SCORES, done=True)], Difference(0, 0, DONE, 0.0)),
        ([PLAIN], [step_of([5], [-1.0])], Difference(0, 1, OUTCOME, float("inf"))),
        ([PLAIN, PLAIN], [PLAIN, step_of(TOKENS, SCORES, [0, 1, 0, 0])], Difference(1, 1, PARENT, 0.0)),
        ([PLAIN], [PLAIN, PLAIN], Difference(1, 0, DONE, float("inf"))),
        # beams that tie may change places
        ([TIED, AFTER_TIED], [SWAPPED, AFTER_SWAPPED], None),
        ([TIED, AFTER_TIED], [SWAPPED, AFTER_TIED], Difference(1, 0, PARENT, 0.0)),
        # ties at the end of the beam
        ([THREE], [step_of([5, 7, 6], [-1.0, -1.5, -1.5])], Difference(0, 1, OUTCOME, 0.0, tie=True)),
        ([step_of([5, 6], [-1.0, -1.5])], [step_of([5, 7], [-1.0, -1.5])], Difference(0, 1, TOKEN, 0.0, tie=True)),
        # no tie: only one of the decodes can tell that the candidate is worse
        ([step_of([5, 6, 7], [-1.0, -1.5, -3.0])], [step_of([5, 7], [-1.0, -1.5])], Difference(0, 1, TOKEN, 0.0)),
    ],
)
def test_steps_are_compared(one: list[StepTrace], other: list[StepTrace], expected: Difference | None) -> None:
    for pair in ((one, other), (other, one)):
        assert first_difference(LineTrace(pair[0], []), LineTrace(pair[1], []), 1e-3) == expected
