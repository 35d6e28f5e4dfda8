"""examples/papers/stochastic_beam.py against all orders in which outputs can be drawn, and the paper's formulas."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from examples.papers.stochastic_beam import StochasticBeam, downwards
from seqgen.decoding.search.sampling import draw, uniform
from tests.generation.test_sampling import chi_square, without_replacement
from tests.generators import make_generator
from tests.scripted_model import ScriptedModel, batch_of, dictionary, table_rule

pytestmark = pytest.mark.slow

EOS = 2

TABLE = {
    (): {4: 0.5, 5: 0.3, EOS: 0.2},
    (4,): {EOS: 0.6, 4: 0.1, 5: 0.3},
    (5,): {EOS: 0.5, 5: 0.5},
    (4, 4): {EOS: 1.0},
    (4, 5): {EOS: 0.7, 5: 0.3},
    (5, 5): {EOS: 1.0},
    (4, 5, 5): {EOS: 1.0},
}
OUTPUTS = {
    (EOS,): 0.2,
    (4, EOS): 0.3,
    (5, EOS): 0.15,
    (4, 4, EOS): 0.05,
    (4, 5, EOS): 0.105,
    (5, 5, EOS): 0.15,
    (4, 5, 5, EOS): 0.045,
}


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
@pytest.mark.parametrize("beam", [1, 2, 3])
def test_outputs_are_drawn_without_replacement(beam: int, semantics: str) -> None:
    """How often each set of outputs comes, against all orders in which its members can be drawn."""
    sentences = 1500
    generator = make_generator(
        [ScriptedModel(table_rule(TABLE, 6))], dictionary(2), beam_size=beam, search_strategy=StochasticBeam(11),
        min_len=0, max_len_b=8, normalize_scores=False, semantics=semantics,
    )  # fmt: skip
    found: Counter[frozenset[tuple[int, ...]]] = Counter()
    batch = batch_of([(4, EOS)] * sentences)
    for hypotheses in generator.generate(batch):
        outputs = [tuple(h.tokens.tolist()) for h in hypotheses]
        assert len(set(outputs)) == len(outputs) == beam
        for hypothesis, output in zip(hypotheses, outputs, strict=True):
            assert hypothesis.score == pytest.approx(math.log(OUTPUTS[output]), abs=1e-6)
        found[frozenset(outputs)] += 1
    names = list(OUTPUTS)
    wanted: Counter[frozenset[tuple[int, ...]]] = Counter()
    for order, chance in without_replacement(list(OUTPUTS.values()), beam).items():
        wanted[frozenset(names[i] for i in order)] += chance
    keys = list(wanted)
    observed = torch.tensor([found[key] for key in keys], dtype=torch.float64)
    assert abs(chi_square(observed, torch.tensor([wanted[key] for key in keys], dtype=torch.float64))) < 4


def test_perturbed_log_probabilities_downwards() -> None:
    """The largest few, given the largest of all, are distributed as those of variables moved by the formula."""
    sentences, maximum = 20000, -0.7
    probabilities = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    counters = torch.arange(sentences).unsqueeze(1), torch.arange(3)
    variables = probabilities.log() - (-uniform(1, 1, *counters).log()).log()
    largest = variables.amax(1, keepdim=True)
    moved = -((math.exp(-maximum)) - (-largest).exp() + (-variables).exp()).log()  # equation 23
    wanted = moved.sort(dim=1, descending=True).values
    _, left = draw(probabilities.log().expand(sentences, -1), uniform(1, 2, *counters))
    got = downwards(torch.full((sentences,), maximum), left, uniform(1, 3, *counters))
    assert (got.diff(dim=1) < 0).all()
    torch.testing.assert_close(got[:, 0], wanted[:, 0])
    for place in (1, 2):
        edges = wanted[:, place].quantile(torch.linspace(0, 1, 11, dtype=torch.float64)[1:-1])
        cells = torch.bucketize(got[:, place].contiguous(), edges).bincount(minlength=10)
        assert abs(chi_square(cells, torch.full((10,), 0.1))) < 5  # both of them are drawn
    assert (
        downwards(torch.tensor([-torch.inf]), left[:1], uniform(1, 3, torch.arange(3)).view(1, 3)) == -torch.inf
    ).all()
