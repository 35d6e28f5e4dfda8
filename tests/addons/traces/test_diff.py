"""``seqgen-diff``: the first difference between two decodes, and its cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch import Tensor

import seqgen.core.scoring
from seqgen.addons.traces.difference import DONE, OUTCOME, PARENT, SCORE, TOKEN, Difference, LineTrace, first_difference
from seqgen.addons.traces.trace import StepTrace
from seqgen.core.member import Member
from seqgen.decoding.continuous_batching import RollingSession
from tests.commands import SMALL_TRANSFORMER, Outcome as Result, command, corpus, training_arguments
from tests.step_traces import step_of

EXACT_SEARCH = Path(__file__).parents[3] / "examples" / "papers" / "exact_search"

SOURCES = ["the dog sees a man\x1b", "the tree has a ball and the man finds a boat", "", "the man has a dog"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs ``a`` and ``b`` with different weights, ``c`` with the weights of ``a`` and other settings, and a text."""
    folder = tmp_path_factory.mktemp("runs")
    data = corpus(folder / "data")
    for name, own in (("a", ()), ("b", ("common.seed=2",)), ("c", ("generation.length_penalty=3.0",))):
        arguments = (*training_arguments(data, folder / name), *SMALL_TRANSFORMER, "optimization.lr=[1e-2]")
        outcome = command("train", *arguments, "optimization.max_update=30", *own)
        assert outcome.code == 0, outcome.err
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
    line = re.findall(r"^line (\d+): ", outcome.out)[0]
    found = re.findall(r"^first difference: step (\d+) .*, rank (\d+): (.*)", outcome.out, flags=re.MULTILINE)
    return int(line), int(found[0][0]), int(found[0][1]), found[0][2]


def test_equal_decodes_and_all_optimizations(runs: Path) -> None:
    for arguments in ((), ("other.generation.length_penalty=1.0",), (f"other={runs}/a", "generation.beam=3")):
        outcome = diff(runs, *arguments)
        assert outcome.code == 0, outcome.out
        assert "no difference in 4 lines" in outcome.out
        assert "without optimizations" in outcome.err


KEYS = [
    (["other.generation.length_penalty=2.0"], "generation.length_penalty", "score of the finished hypothesis"),
    (["first.generation.beam=2", "generation.beam=3"], "generation.beam", "outcome"),
    (["other.generation.semantics=huggingface"], "generation.semantics", "token"),
    (["other.generation.search=diverse_siblings", "other.search.rate=2.0"], "generation.search, search.rate", ""),
    (["generation.search=diverse_siblings", "first.search.rate=0.5", "other.search.rate=1.5"], "search.rate", ""),
]


@pytest.mark.parametrize(
    ("arguments", "named", "what"), [KEYS[0], *(pytest.param(*row, marks=pytest.mark.nightly) for row in KEYS[1:])]
)
def test_keys_are_named(runs: Path, arguments: list[str], named: str, what: str) -> None:
    outcome = diff(runs, *arguments)
    assert cause(outcome) == named
    assert what in place(outcome)[3]


@pytest.mark.slow
def test_the_place_is_that_of_the_shown_lists(runs: Path) -> None:
    """Before the step the candidates are equal, which an independent decode with a maximum length shows."""
    arguments = ("other.generation.no_repeat_ngram_size=2",)
    line, step, _, _ = place(diff(runs, *arguments))
    assert step > 1
    lines = (runs / "text.en").read_text(encoding="utf-8").splitlines()
    outputs = [
        command(
            "generate",
            f"path={runs}/a",
            "input=-",
            f"generation.max_len_b={step - 1}",
            *more,
            stdin=f"{lines[line - 1]}\n".encode(),
        ).out
        for more in ((), ("generation.no_repeat_ngram_size=2",))
    ]
    assert outputs[0] == outputs[1]


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


@pytest.mark.slow
def test_a_broken_log_sum_exp(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    working = seqgen.core.scoring.log_sum_exp
    monkeypatch.setattr(seqgen.core.scoring, "log_sum_exp", lambda *given: working(*given) + 0.01)
    outcome = diff(runs)
    assert cause(outcome) == "fast.skip_log_softmax"
    assert place(outcome) == (1, 0, 1, "cumulative score")
    assert "difference between the scores at this rank: 0.01 nats" in outcome.out
    assert diff(runs, "tolerance=0.5", "generation.max_len_b=2").code == 0


@pytest.mark.slow
def test_broken_continuous_batching(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    working = RollingSession.merge

    def merge(self: RollingSession, other: RollingSession) -> None:
        other.scores = other.scores + 1.0
        working(self, other)

    monkeypatch.setattr(RollingSession, "merge", merge)
    (tmp_path / "text").write_text("".join("the dog sees" + " a man" * n + "\n" for n in (3, 1, 2, 3, 2, 2)))
    lengths = (f"input={tmp_path}/text", "generation.max_len_a=1", "generation.max_len_b=1", "generation.batch_size=3")
    outcome = diff(runs, *lengths)
    assert cause(outcome) == "fast.continuous_batching"
    assert diff(runs, *lengths, "fast.continuous_batching=false").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "path is missing: set path=RUN_FOLDER"),
        (
            ["path=x", "input=y", "other.path=z"],
            "only keys of these groups can be set for one decode: generation, fast",
        ),
        (["path=x", "input=y", "other.generation.length_penlty=2"], "did you mean 'generation.length_penalty'"),
        (["path=x", "input=y", "generation.input_split=sentences"], "cannot be compared step by step"),
        (["path=x", "input=y", "generation.nbest=2"], "generation.nbest has no effect"),
    ],
)
def test_misuse_is_one_sentence(arguments: list[str], words: str) -> None:
    outcome = command("diff", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert len(outcome.err.splitlines()) == 1


PLAIN = step_of([5, 6, 7, 8], [-1.0, -1.5, -2.0, -3.0])


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (step_of([5, 6, 9, 7], [-1.0, -1.5, -2.1, -3.0]), None),
        (step_of([5, 7, 8, 9], [-1.0, -1.5, -1.9, -3.0]), (1, TOKEN, False)),
        (step_of([6, 5, 7, 8], [-1.5, -1.0, -2.0, -3.0]), (0, TOKEN, False)),
        (step_of([5, 6, 7, 8], [-1.0, -1.5, -2.0, -3.0], [0, 1, 0, 0]), (1, PARENT, False)),
        (step_of([5, 6, 7, 8], [-1.0, -1.6, -2.0, -3.0]), (1, SCORE, False)),
        (step_of([5, 6, 7, 8], [-1.0, -1.5, -2.0, -3.0], beam=3), (2, OUTCOME, False)),
        (step_of([5, 6, 7, 8], [-1.0, -1.5, -2.0, -3.0], done=True), (0, DONE, False)),
        (step_of([5], [-1.0]), (1, OUTCOME, False)),
    ],
)
def test_steps_are_compared(other: StepTrace, expected: tuple[int, str, bool] | None) -> None:
    for pair in ((PLAIN, other), (other, PLAIN)):
        found = first_difference(LineTrace([PLAIN, pair[0]], []), LineTrace([PLAIN, pair[1]], []), 1e-3)
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert (found.step, found.rank, found.what, found.tie) == (1, *expected)


def test_beams_that_tie_may_change_places() -> None:
    one = [step_of([5, 6], [-1.0, -1.0]), step_of([7, 8, 9], [-2.0, -3.0, -4.0], [0, 1, 1])]
    other = [step_of([6, 5], [-1.0, -1.0]), step_of([7, 8, 9], [-2.0, -3.0, -4.0], [1, 0, 0])]
    assert first_difference(LineTrace(one, []), LineTrace(other, []), 1e-3) is None
    unmoved = LineTrace([other[0], one[1]], [])
    assert first_difference(LineTrace(one, []), unmoved, 1e-3) == Difference(1, 0, PARENT, 0.0)


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (step_of([5, 6, 7], [-1.0, -1.5, -1.5]), step_of([5, 7, 6], [-1.0, -1.5, -1.5]), OUTCOME),
        (step_of([5, 6], [-1.0, -1.5]), step_of([5, 7], [-1.0, -1.5]), TOKEN),
    ],
)
def test_ties_at_the_end_of_the_beam(one: StepTrace, other: StepTrace, what: str) -> None:
    found = first_difference(LineTrace([one], []), LineTrace([other], []), 1e-3)
    assert found == Difference(0, 1, what, 0.0, tie=True)


def test_no_tie_if_one_decode_knows_that_the_candidate_is_worse() -> None:
    """The second decode cannot tell what comes after its last candidate, but the first one can."""
    one, other = step_of([5, 6, 7], [-1.0, -1.5, -3.0]), step_of([5, 7], [-1.0, -1.5])
    for pair in ((one, other), (other, one)):
        found = first_difference(LineTrace([pair[0]], []), LineTrace([pair[1]], []), 1e-3)
        assert found == Difference(0, 1, TOKEN, 0.0, tie=False)


def test_a_missing_step_is_a_difference() -> None:
    found = first_difference(LineTrace([PLAIN], []), LineTrace([PLAIN, PLAIN], []), 1e-3)
    assert found == Difference(1, 0, DONE, float("inf"))


def test_histories_follow_the_beams() -> None:
    steps = [step_of([5, 6], [-1.0, -1.5]), step_of([7, 8], [-2.0, -2.5], [1, 0])]
    trace = LineTrace(steps, [])
    assert [trace.tokens(1, rank) for rank in (0, 1)] == [[6, 7], [5, 8]]
    assert trace.tokens(0, 0) == [5]
