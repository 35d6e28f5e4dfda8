"""Sessions that return to an earlier step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from seqgen.core import Candidates, Component, Composite, DecodingError, EachRow, FirstFinished, Session, own_beams
from seqgen.core.component import flattened
from seqgen.core.errors import listing
from seqgen.decoding.search.sampling import RandomSearch


def rewind(session: Session, step: int) -> None:
    """Return to an earlier step: its tokens, scores and fields, and the states that the decoders had.

    Args:
        session: the session, in which each beam has continued itself since that step, as in greedy search and sampling.
        step: the number of tokens of each beam that are kept.

    Raises:
        DecodingError: there is no such step; sentences have left or joined the batch, or beams were reordered since; or
            a component or decoder has a state that cannot go back; or a convolution has dropped what it would need.
    """
    pointers, finished, coverage = session.backpointers, session.finished, session.coverage
    states: list[Any] = [(one, one.state.fork()) for one in session.members if one.state is not None]
    parts = [*flattened(session.components[:-2]), *([coverage] if coverage.weight else [])]
    free, known = (Component.advance, Composite.advance), ((), RandomSearch.sentence_state)  # which does not change
    fixed: list[Any] = [
        c for c in parts if c.beam_state or c.sentence_state not in known or type(c).advance not in free
    ]
    fixed += [] if type(finished) in (EachRow, FirstFinished) else [finished]
    fixed += [one.model.decoder for one, _ in states if not one.model.decoder.can_roll_back]
    others = pointers.parents[:, step : pointers.length] != own_beams(session.scores).unsqueeze(1)
    joined = session.sentences.start_offsets is not None
    reasons = {
        f"it has decoded {pointers.length} steps": not 0 <= step <= pointers.length,
        "sentences have left or joined the batch": len(session.live) < len(session.ids) or joined,
        f"a {type(session).__name__} cannot go back": not session.can_rewind,
        "beams were reordered": bool(others.any()),
        f"{listing([type(one).__name__ for one in fixed])} has a state that cannot go back": fixed,
    }
    if reason := next((reason for reason, applies in reasons.items() if applies), ""):
        raise DecodingError(f"the session cannot return to step {step}: {reason}; fork the session at that step")
    for one, state in states:
        one.model.decoder.roll_back(state, one.model.decoder.positions_seen(state) - step)
    for one, state in states:  # after all have returned, since one may refuse
        one.state = state
    finished.lengths = finished.lengths.masked_fill(finished.lengths > step, 0)
    vars(pointers).update(length=step, _matrix=None)
    session.scores = pointers.cumulative[:, step - 1].clone() if step else torch.zeros_like(session.scores)
    newest = pointers.last_tokens()
    done = finished.done(Candidates(session.scores, newest, newest), step - 1, session.sentences.own_limits)
    session.sentences = replace(session.sentences, done=done)
    session.num_done, session.timed_out = int(done.sum()), None
