"""A forked session decodes as the session does, whatever happens to either; merged forks decode as each alone."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from seqgen.addons.speculative.drafters import PromptLookup
from seqgen.addons.speculative.verification import SpeculativeSearch
from seqgen.core.beam_search import BeamSearch, Greedy
from seqgen.core.errors import ConfigError, DecodingError
from seqgen.decoding.continuous_batching import RollingSession
from seqgen.extend import Candidates, DecodingRequest, Hypothesis, Observer, Sampling, Session, rewind
from tests.covering import covering
from tests.generation.test_gpu import CASES, FURTHER, OPTIONS, decode
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import ARCHITECTURES, VOCAB, ZOO, sharp
from tests.scripted_model import batch_of, dictionary
from tests.waiting_sentences import sources

Results = list[list[Hypothesis]]
Run = Callable[[Session], Results]

BRANCHED = [case for case in CASES if "draft" not in case[1] and case[1] not in ("look-up", "continuous", "stop texts")]
FAST = {
    *(("transformer_tiny", f"processor={name}") for name in ("allowed_outputs", "no_repeat_ngram", "sequence_bias")),
    *(("transformer_tiny", name) for name in ("table", "no table", "guidance", "no cache", "prefix")),
    *((name, "beam") for name in ("fconv_uneven", "t5_tiny", "lstm_tiny", "transformer_lm_tiny", "average")),
}
"""Besides these, test_laws_components.py forks every strategy."""


def branching(wanted: list[Results], found: list[Results], before: int | None) -> Run:
    """A ``Session.run`` that forks the session, and lets the forks decode in between its own steps.

    Args:
        wanted: gets what each fork should give.
        found: gets what it gives.
        before: steps before the fork; ``None`` for those until some sentences, but not all, have left the batch.
    """

    def disturbed(session: Session) -> Session:
        """A session that continues with other tokens and beams than it should."""
        choose = session.choose

        def other(*arguments: Any) -> Candidates:
            best = choose(*arguments)
            beams = best.beams if session.search.continues_each_beam else best.beams.flip(1)
            return Candidates(best.scores, (best.tokens + 5) % session.setup.vocab_size, beams)

        session.choose = other  # type: ignore[method-assign]
        return session

    def goes_on(session: Session) -> bool:
        if before is not None:
            return all(session.step() for _ in range(before))
        while session.step():
            if len(session.live) < len(session.ids):
                return True
        return False

    def run(session: Session) -> Results:
        if not goes_on(session):
            session.collect_all()
            return session.results
        rows = torch.arange(len(session.live), device=session.live.device).flip(0).repeat(2)[:-1]
        sentences = session.live[rows].tolist()
        first, some = session.fork(), session.fork(rows)
        assert [each.ids.tolist() for each in (first, some)] == [session.ids.tolist(), session.ids[sentences].tolist()]
        second = first.fork(torch.arange(len(session.live), device=rows.device))
        alive = [disturbed(session.fork()), first, session, disturbed(session.fork(rows)), some]
        while alive:
            alive = [each for each in alive if each.step()]
        later = second.fork()
        for each in (session, first, some, second, later):
            while each in (second, later) and each.step():  # when the others are done
                pass
            each.collect_all()
        live = sorted(set(sentences), key=sentences.index)[::-1]
        for each, rows in ((first, None), (some, sentences), (second, live), (later, live)):
            wanted.append([session.results[row] for row in rows] if rows else session.results)
            found.append(each.results)
        return session.results

    return run


@pytest.mark.parametrize("before", [0, None])
@pytest.mark.parametrize(
    ("name", "option"), [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in BRANCHED]
)
def test_forks_decode_as_the_session(
    name: str, option: str, before: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**OPTIONS, **FURTHER}[option]
    if before is None:
        options = {**options, "max_len_a": 1.0, "max_len_b": 0}  # sentences end at different steps
    wanted, found = list[Results](), list[Results]()
    plain = decode(name, "cpu", options)
    monkeypatch.setattr(Session, "run", branching(wanted, found, before))
    assert_same(decode(name, "cpu", options), plain)
    assert wanted or (name, option) not in FAST, "the session was not forked"
    for one, two in zip(found, wanted, strict=True):
        assert_same(one, two)


model = cache(lambda name: sharp(name, seed=3))


def begin(options: dict[str, Any], name: str = "transformer_tiny", kind: Any = Session, count: int = 5) -> Session:
    """A session that has not decoded a step."""
    values = {"beam_size": 3, "max_len_a": 1.0, "max_len_b": 8, "min_len": 0, **options}
    setup = make_generator([model(name)], dictionary(VOCAB - 4), **values).setup
    return kind(setup, DecodingRequest(batch_of(sources(count, seed=4))))


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
    """Some forks are made before any sentence has left the batch, others when sentences are done or have left."""
    with torch.inference_mode():
        wanted = begin(options, name).run()
        session = begin(options, name, kind)
        assert session.step()
        merged, others = session.fork(torch.tensor([3, 0])), session.live[[3, 0]].tolist()
        while len(session.live) == 5:
            assert session.step()
        later = session.fork(torch.arange(len(session.live)).flip(0))
        numbers = session.live.flip(0).tolist()
        assert numbers[::-1] != list(range(len(numbers))), "the rows of the batch are not those of the sentences"
        assert merged.step()
        longer = later.fork()
        later.merge(merged)
        again = begin(options, name, kind)
        assert again.step()
        again.merge(longer.fork(torch.tensor([0, 0])))
        for each in (later, longer, session, again):
            each.run()
    assert_same(session.results, wanted)
    assert_same(longer.results, [wanted[number] for number in numbers])
    assert_same(later.results, [wanted[number] for number in (*numbers, *others)])
    assert_same(again.results, [*wanted, wanted[numbers[0]], wanted[numbers[0]]])


@torch.inference_mode()
def test_a_fork_without_the_sentences_that_are_done_but_have_not_left() -> None:
    wanted, session, newcomers = begin({}, count=12).run(), begin({}, count=12), begin({}, count=12)
    while not session.num_done:
        assert session.step()
    rows = (~session.sentences.done).nonzero().flatten().flip(0)
    other, numbers = session.fork(rows), session.live[rows].tolist()
    assert newcomers.step()
    other.merge(newcomers)
    assert_same(other.run(), [*(wanted[number] for number in numbers), *wanted])


@pytest.mark.parametrize("name", ["transformer_lm_tiny", "llama_sliding", "transformer_tiny"])
@torch.inference_mode()
def test_sessions_are_merged_after_their_first_step_only(name: str) -> None:
    """Before it, prompts of different lengths would be padded on the right."""
    for begun in ([], [1], [0]):
        sessions = [begin({}, name) for _ in range(2)]
        for number in begun:
            sessions[number].step()
        with pytest.raises(ValueError, match="only after both have decoded a step"):
            sessions[0].merge(sessions[1])


@torch.inference_mode()
def test_containers_of_a_session_are_forked_and_drafts_are_not() -> None:
    session: Any = begin({})
    session.others = {"one": [session.backpointers]}
    assert session.fork().others["one"][0] is not session.backpointers
    search = SpeculativeSearch(PromptLookup(3))
    with pytest.raises(ConfigError, match="remove the draft"):
        begin({"search_strategy": search, "beam_size": 1}, kind=search.session_class).fork()


# --- a session that returned to an earlier step decodes as one that never went further


ROLLING = [name for name in ARCHITECTURES if ZOO[name].build().decoder.can_roll_back]


class Totals(Observer):
    """Has a field."""

    def token_fields(self, candidates: Any, context: Any) -> Any:
        return {"total": candidates.scores}


def begin_to_return(
    name: str, stays: bool = True, kind: type[Session] = Session, kept: int = 9, **options: Any
) -> Session:
    """A session in which sentences that are done stay, so that it can return to a step before."""
    values = {"max_len_a": 1.0, "max_len_b": 4, "min_len": 0, "top_tokens": 2, "observers": [Totals()], **options}
    setup = make_generator([sharp(each, seed=3) for each in name.split("+")], dictionary(VOCAB - 4), **values).setup
    session = kind(setup, DecodingRequest(batch_of(sources(9, seed=4))))
    for member in session.members:
        member.state.max_roll_back = kept  # convolutions keep their inputs
    if stays:
        session.compact = lambda active: active  # type: ignore[method-assign]
    return session


@pytest.mark.parametrize(("name", "how"), covering(ROLLING, [(Greedy(), 1), (Sampling(3), 3), (BeamSearch(), 1)]))
@torch.inference_mode()
def test_a_session_that_returned_decodes_as_one_that_never_went_further(name: str, how: Any) -> None:
    options = dict(zip(("search_strategy", "beam_size"), how, strict=True))
    wanted = begin_to_return(name, **options).run()
    sizes = [len(one.tokens) for row in wanted for one in row]
    assert min(sizes) <= 8 <= max(sizes), "some hypotheses finish before step 8"
    session = begin_to_return(name, **options)
    for step in (3, 1, 0, 8):
        while session.backpointers.length < 8 and session.step():
            pass
        rewind(session, min(step, session.backpointers.length))
        assert_same(session.fork().run(), wanted)
    assert_same(session.run(), wanted)


@torch.inference_mode()
def test_a_session_that_cannot_return_continues() -> None:
    wanted, session = (begin_to_return("transformer_tiny+fconv_tiny", kept=0, beam_size=1) for _ in range(2))
    assert all(session.step() for _ in range(4))
    with pytest.raises(DecodingError, match="set max_roll_back = 3 of the decoding state"):
        rewind(session, 1)
    assert_same(session.run(), wanted.run())
