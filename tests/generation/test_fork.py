"""A forked session decodes as the session does, whatever happens to either; merged forks decode as each alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.core.candidates import Candidates
from seqgen.core.errors import ConfigError
from seqgen.core.session import Session
from seqgen.core.setup import DecodingRequest
from seqgen.core.structures import Hypothesis
from seqgen.decoding.continuous_batching import RollingSession
from seqgen.decoding.speculative.drafters import PromptLookup
from seqgen.decoding.speculative.verification import SpeculativeSearch
from tests.covering import covering
from tests.generation.test_gpu import CASES, FURTHER, OPTIONS, decode
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, sharp
from tests.scripted_model import batch_of, dictionary
from tests.waiting_sentences import sources

Results = list[list[Hypothesis]]
Run = Callable[[Session], Results]

BRANCHED = [case for case in CASES if "draft" not in case[1] and case[1] not in ("look-up", "continuous")]
FAST = {
    *(("transformer_tiny", f"search={name}") for name in ("beam", "contrastive", "diverse_beam", "constrained")),
    *(("transformer_tiny", f"processor={name}") for name in ("allowed_outputs", "no_repeat_ngram", "sequence_bias")),
    *(("transformer_tiny", name) for name in ("table", "no table", "guidance", "no cache", "prefix")),
    *((name, "beam") for name in ("fconv_uneven", "t5_tiny", "lstm_tiny", "transformer_lm_tiny", "average")),
}


def branching(wanted: list[Results], found: list[Results], before: int) -> Run:
    """A ``Session.run`` that forks the session after some steps, and lets the forks decode in between its own steps."""

    def disturbed(session: Session) -> Session:
        """A session that continues with other tokens and beams than it should."""
        choose = session.choose

        def other(*arguments: Any) -> Candidates:
            best = choose(*arguments)
            beams = best.beams if session.search.continues_each_beam else best.beams.flip(1)
            return Candidates(best.scores, (best.tokens + 5) % session.setup.vocab_size, beams)

        session.choose = other  # type: ignore[method-assign]
        return session

    def run(session: Session) -> Results:
        if not all(session.step() for _ in range(before)):
            session.collect_all()
            return session.results
        rows = torch.arange(len(session.live), device=session.live.device).flip(0).repeat(2)[:-1]
        sentences = session.live[rows].tolist()
        first, some = session.fork(), session.fork(rows)
        second = first.fork(torch.arange(len(session.live), device=rows.device))
        alive = [disturbed(session.fork()), first, session, disturbed(session.fork(rows)), some]
        while alive:
            alive = [each for each in alive if each.step()]
        later = second.fork()
        for each in (session, first, some, second, later):
            if each in (second, later):  # when the others are done
                while each.step():
                    pass
            each.collect_all()
        wanted.extend([session.results, [session.results[row] for row in sentences]])
        found.extend([first.results, some.results])
        live = sorted(set(sentences), key=sentences.index)[::-1]
        for each in (second, later):
            wanted.append([session.results[row] for row in live])
            found.append(each.results)
        return session.results

    return run


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize(
    ("name", "option"), [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in BRANCHED]
)
def test_forks_decode_as_the_session(name: str, option: str, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**OPTIONS, **FURTHER}[option]
    wanted: list[Results] = []
    found: list[Results] = []
    plain = decode(name, "cpu", options)
    monkeypatch.setattr(Session, "run", branching(wanted, found, before))
    assert_same(decode(name, "cpu", options), plain)
    assert wanted or all(len(best.tokens) <= before for line in plain for best in line)
    for one, two in zip(found, wanted, strict=True):
        assert_same(one, two)


model = cache(lambda name: sharp(name, seed=3))


def begin(options: dict[str, Any], name: str = "transformer_tiny", kind: type[Session] = Session) -> Session:
    """A session of five sentences that has not decoded a step."""
    values = {"beam_size": 3, "max_len_a": 1.0, "max_len_b": 8, "min_len": 6, **options}
    setup = make_generator([model(name)], dictionary(VOCAB - 4), **values).setup
    return kind(setup, DecodingRequest(batch_of(sources(5, seed=4))))


@pytest.mark.parametrize("kind", [Session, RollingSession])
@pytest.mark.parametrize(
    ("name", "options"),
    covering(
        ["transformer_tiny", "fconv_uneven", "t5_tiny"],
        [{}, {"semantics": "huggingface"}, {"beam_indirection": "off"}, {"beam_size": 1, "top_tokens": 2}],
    ),
)
def test_prefixes_of_different_steps_decode_in_one_batch(
    name: str, options: dict[str, Any], kind: type[Session]
) -> None:
    def rows(*numbers: int) -> Tensor:
        return torch.tensor(numbers)

    with torch.inference_mode():
        wanted = begin(options, name).run()
        session = begin(options, name, kind)
        assert session.step()
        merged = session.fork(rows(3, 0))
        assert session.step()
        later = session.fork(rows(*range(len(session.live))).flip(0))
        numbers = session.live.flip(0).tolist()
        assert merged.step()
        assert later.step()
        assert later.step()
        longer = later.fork()
        later.merge(merged)
        again = begin(options, name, kind)
        assert again.step()
        again.merge(longer.fork(rows(0, 0)) if len(longer.live) else longer)
        assert again.sentences.start_offsets is not None
        for each in (later, longer, session, again):
            each.run()
    assert_same(session.results, wanted)
    assert_same(longer.results, [wanted[number] for number in numbers])
    assert_same(later.results, [wanted[number] for number in (*numbers, 3, 0)])
    assert_same(again.results[:5], wanted)
    for found in again.results[5:]:
        assert_same([found], [wanted[int(longer.ids[0])]])


@pytest.mark.parametrize("name", ["transformer_lm_tiny", "transformer_tiny"])
@torch.inference_mode()
def test_sessions_are_merged_after_their_first_step_only(name: str) -> None:
    """Before it, prompts of different lengths would be padded on the right."""
    for steps in ((0, 0), (0, 1), (1, 0)):
        one, two = (begin({}, name) for _ in steps)
        for session, count in zip((one, two), steps, strict=True):
            for _ in range(count):
                session.step()
        with pytest.raises(ValueError, match="only after both have decoded a step"):
            one.merge(two)


@torch.inference_mode()
def test_what_a_fork_is_made_of() -> None:
    """Attributes of subclasses are copied as well, and components that refer to each other are copied together."""

    class Counting(Session):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            self.seen: list[int] = []
            self.others = {"one": [self.backpointers]}

    session = begin({}, kind=Counting)
    assert isinstance(session, Counting)
    session.step()
    other = session.fork(torch.tensor([4, 1]))
    other.seen.append(1)
    assert session.seen == []
    assert other.others["one"][0] is not session.backpointers
    assert other.sentences.ids.tolist() == other.ids.tolist() == [4, 1]
    assert [len(each) for each in (other.results, other.live, session.live)] == [2, 2, 5]
    search = SpeculativeSearch(PromptLookup(3))
    drafted = begin({"search_strategy": search, "beam_size": 1}, kind=search.session_class)
    with pytest.raises(ConfigError, match="remove the draft"):
        drafted.fork()
