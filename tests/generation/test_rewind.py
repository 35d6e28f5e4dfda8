"""A session that returned to an earlier step decodes as one that never went further."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from seqgen.core.beam_search import BeamSearch, Greedy
from seqgen.core.observers import Observer
from seqgen.core.session import Session
from seqgen.core.setup import DecodingRequest
from seqgen.decoding.rewinding import rewind
from seqgen.decoding.search.sampling import Sampling
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import ARCHITECTURES, VOCAB, ZOO, sharp
from tests.scripted_model import batch_of, dictionary
from tests.waiting_sentences import sources

ROLLING = [name for name in ARCHITECTURES if ZOO[name].build().decoder.can_roll_back]


class Totals(Observer):
    """Has a field."""

    def token_fields(self, candidates: Any, context: Any) -> Any:
        return {"total": candidates.scores}


def begin(name: str, stays: bool = True, kind: type[Session] = Session, **options: Any) -> Session:
    """A session in which sentences that are done stay, so that it can return to a step before."""
    values = {"max_len_a": 1.0, "max_len_b": 4, "min_len": 0, "top_tokens": 2, "observers": [Totals()], **options}
    setup = make_generator([sharp(name, seed=3)], dictionary(VOCAB - 4), **values).setup
    session = kind(setup, DecodingRequest(batch_of(sources(9, seed=4))))
    for member in session.members:
        member.state.max_roll_back = 9  # convolutions keep their inputs
    if stays:
        session.compact = lambda active: active  # type: ignore[method-assign]
    return session


@pytest.mark.parametrize("name", ROLLING)
@pytest.mark.parametrize(("search", "beam"), [(Greedy(), 1), (Sampling(3), 3), (BeamSearch(), 1)])
@torch.inference_mode()
def test_a_session_that_returned_decodes_as_one_that_never_went_further(name: str, search: Any, beam: int) -> None:
    options = {"search_strategy": search, "beam_size": beam}
    wanted = begin(name, **options).run()
    sizes = [len(one.tokens) for row in wanted for one in row]
    assert min(sizes) <= 8 <= max(sizes), "some hypotheses finish before step 8"
    session = begin(name, **options)
    for step in (3, 1, 0, 8):
        while session.backpointers.length < 8 and session.step():
            pass
        rewind(session, min(step, session.backpointers.length))
        assert_same(session.fork().run(), wanted)
    assert_same(session.run(), wanted)
