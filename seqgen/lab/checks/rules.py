"""Invariants of combinations of scores, stopping rules and observers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqgen.data.pair_dataset import pad_rows
from seqgen.generation.component import Composite
from seqgen.generation.context import StepContext
from seqgen.generation.ensemble.combinations import Combination
from seqgen.generation.scorer import SequenceScorer
from seqgen.lab.checks.checking import Invariants, Violation
from seqgen.lab.checks.components import SHARED
from seqgen.lab.checks.decoding import Decoding, under_all_rules
from seqgen.lab.checks.search import same_hypotheses


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


class CombinationProbe(Composite, Combination):
    """Calls a combination, and checks that it leaves the members' scores as they are.

    Args:
        combination: the combination.
    """

    def __init__(self, combination: Combination):
        self.parts = [combination]

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """See ``Combination``."""
        before = [scores.clone() for scores in lprobs]
        found: Tensor = self.parts[0](lprobs, context)
        for member, (scores, kept) in enumerate(zip(lprobs, before, strict=True)):
            if not torch.equal(scores, kept):
                raise Violation(f"the combination changes lprobs[{member}], the scores of a member, in place")
        return found

    def attention_weights(self, members: int) -> list[float]:
        """Those of the combination."""
        weights: list[float] = self.parts[0].attention_weights(members)
        return weights


def calls_change_no_scores(subject: Decoding) -> None:
    """A call does not change the members' scores."""
    probe = CombinationProbe(subject.generator().setup.ensemble.combination)
    others = subject.keys_without("combination.", "inner_combination.")
    options: dict[str, Any] = {"combination": "", "inner_combination": "", "components": others}
    subject.decode(subject.batch(), objects={"combination": probe}, **options)


def observing_changes_nothing(subject: Decoding) -> None:
    """A decode without the observer gives the same result."""
    observed = subject.decode(subject.batch())
    alone = subject.decode(subject.batch(), **subject.without)
    same_hypotheses(subject, observed, alone, "the observer changes the result")


COMBINATION: Invariants[Decoding] = {
    **{name: law for name, law in SHARED.items() if name != "[m, m] = m"},
    "scorer = generator": under_all_rules(scorer_equals_generator),
    "calls change nothing else": under_all_rules(calls_change_no_scores),
}
"""The invariants of a combination, with two models."""

STOPPING: Invariants[Decoding] = SHARED
"""The invariants of a stopping rule."""

OBSERVER: Invariants[Decoding] = {**SHARED, "observed = not observed": under_all_rules(observing_changes_nothing)}
"""The invariants of an observer."""
