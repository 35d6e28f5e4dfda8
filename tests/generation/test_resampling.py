"""A strategy with a rule of its own for finished hypotheses: resampling keeps finished particles among the others."""

from __future__ import annotations

import torch
from torch import Tensor

from seqgen.generation.candidates import Candidates
from seqgen.generation.component import BatchInfo
from seqgen.generation.context import StepContext
from seqgen.generation.finished import FinishedHypotheses, Ranking
from seqgen.generation.search.base import Search
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule

EOS = 2
SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]


class BestAndLast(FinishedHypotheses):
    """Keeps the best finished hypotheses; a sentence is done when no beam continues."""

    def finalize(self, candidates: Candidates, ends: Tensor, step: int | Tensor, bonus: Tensor | None) -> Candidates:
        scores = self._ranked(candidates, step, bonus).masked_fill(~ends, -torch.inf)
        self._keep_best(candidates, scores, step)
        return self._first_active(candidates, ends)

    def done(self, active: Candidates, step: int | Tensor, max_lengths: Tensor) -> Tensor:
        return (active.scores == -torch.inf).all(1) | (max_lengths <= step)


class Cloning(Search):
    """Each beam writes its most probable token; then the worst beam is replaced by a copy of the best one.

    The copy continues with the second most probable token.
    """

    def finished(self, batch: BatchInfo, ranking: Ranking, early_stopping: str) -> FinishedHypotheses:
        return BestAndLast(batch, ranking)

    def step(self, context: StepContext, lprobs: Tensor, scores: Tensor) -> Candidates:
        beam = lprobs.size(1)
        best, tokens = lprobs.topk(2, dim=-1)
        beams = torch.arange(beam).expand(len(lprobs), -1)
        firsts = Candidates(scores + best[..., 0], tokens[..., 0], beams)
        seconds = Candidates(scores + best[..., 1], tokens[..., 1], beams)
        order = firsts.scores.argsort(dim=1, descending=True, stable=True)
        kept, clone = firsts.gather(order[:, : beam - 1]), seconds.gather(order[:, :1])
        joined = (torch.cat([a, b], dim=1) for a, b in zip(vars(kept).values(), vars(clone).values(), strict=True))
        return Candidates(*joined)


def plain(rule: object, source: tuple[int, ...], beam: int, longest: int) -> list[tuple[list[int], float]]:
    """The same as a loop over one sentence."""
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())] * beam
    finished: list[tuple[float, tuple[int, ...]]] = []
    for step in range(longest + 1):
        options = []
        for total, history in beams:
            scores = rule(source, history).log_softmax(-1)  # type: ignore[operator]
            scores[1] = -torch.inf
            if step == longest:
                scores[torch.arange(len(scores)) != EOS] = -torch.inf
            best, tokens = scores.topk(2)
            options.append([(total + s, (*history, t)) for s, t in zip(best.tolist(), tokens.tolist(), strict=True)])
        options.sort(key=lambda pair: -pair[0][0])
        chosen = [pair[0] for pair in options[: beam - 1]] + [options[0][1]] if options else []
        chosen = [own for own in chosen if own[0] > -torch.inf]
        finished = sorted([*finished, *((s / len(h), h) for s, h in chosen if h[-1] == EOS)], key=lambda p: -p[0])
        finished = finished[:beam]
        beams = [own for own in chosen if own[1][-1] != EOS]
        beams += [(-torch.inf, ())] * (beam - len(beams))
        if all(total == -torch.inf for total, _ in beams):
            break
    return [(list(h), s) for s, h in finished]


def test_the_finished_rule_of_a_strategy_counts() -> None:
    sizes = set()
    for seed in range(6):
        rule = random_rule(7, seed)
        for lazy in (True, False):
            generator = make_generator(
                [ScriptedModel(rule)], dictionary(3), beam_size=4, max_len_b=4, min_len=0, search_strategy=Cloning(),
                lazy_compaction=lazy,
            )  # fmt: skip
            found = generator.generate(batch_of(SOURCES))
            for source, hypotheses in zip(SOURCES, found, strict=True):
                wanted = plain(rule, source, 4, 4)
                assert [h.tokens.tolist() for h in hypotheses] == [tokens for tokens, _ in wanted]
                torch.testing.assert_close(
                    torch.tensor([h.score for h in hypotheses]), torch.tensor([score for _, score in wanted])
                )
                sizes.add(len(hypotheses))
                assert_same(generator.generate(batch_of([source])), [hypotheses])
    assert len(sizes) > 1
