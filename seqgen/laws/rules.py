"""Invariants of combinations of scores, stopping rules and observers."""

from __future__ import annotations

from dataclasses import replace

import torch

from seqgen.data.collate import pad_rows
from seqgen.generation.scorer import SequenceScorer
from seqgen.laws.checking import Invariants
from seqgen.laws.components import SHARED
from seqgen.laws.decoding import Decoding, under_all_rules
from seqgen.laws.search import same_hypotheses


def scorer_equals_generator(subject: Decoding) -> None:
    """Scoring the best hypotheses as given targets gives the scores that the search gave them."""
    batch, ids = subject.batch(), subject.ids
    setup = subject.generator().setup
    wanted = [hypotheses[:1] for hypotheses in subject.decode(batch, min_len=0, end_symbols=[])]
    target = pad_rows([hypotheses[0].tokens for hypotheses in wanted], ids.pad)
    previous = torch.cat([torch.full((len(target), 1), ids.start), target[:, :-1]], dim=1)
    scorer = SequenceScorer(setup.ensemble.members, ids.pad, ids.eos, combination=setup.ensemble.combination)
    lengths = [len(hypotheses[0].tokens) for hypotheses in wanted]
    scored = scorer.score(replace(batch, target=target, prev_output_tokens=previous), lengths)
    got = [[one.hypothesis] for one in scored]
    same_hypotheses(subject, got, wanted, "the scorer disagrees with the generator")


def observing_changes_nothing(subject: Decoding) -> None:
    """A decode without the observer gives the same result."""
    observed = subject.decode(subject.batch())
    alone = subject.decode(subject.batch(), observers=[], components={})
    same_hypotheses(subject, observed, alone, "the observer changes the result")


COMBINATION: Invariants[Decoding] = {
    **{name: law for name, law in SHARED.items() if name != "[m, m] = m"},
    "scorer = generator": under_all_rules(scorer_equals_generator),
}
"""The invariants of a combination, with two models."""

STOPPING: Invariants[Decoding] = SHARED
"""The invariants of a stopping rule."""

OBSERVER: Invariants[Decoding] = {**SHARED, "observed = not observed": under_all_rules(observing_changes_nothing)}
"""The invariants of an observer."""
