"""examples/papers/determinantal_beams.py against the formulas, computed plainly, and against beam search."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from examples.papers.determinantal_beams import DeterminantalBeams, subsequence_kernel
from seqgen.core.errors import ConfigError
from seqgen.text.translator import Translator
from tests.generators import scripted_generator
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import Beam, Settings, beam_search
from tests.scripted_model import batch_of, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
RULE = random_rule(vocab=9, seed=4)


def kernel(s: tuple[int, ...], t: tuple[int, ...], order: int, decay: float) -> float:
    """The string subsequence kernel by enumeration, not normalized."""
    total = 0.0
    for i, j in itertools.product(
        itertools.combinations(range(len(s)), order), itertools.combinations(range(len(t)), order)
    ):
        if [s[k] for k in i] == [t[k] for k in j]:
            total += decay ** (i[-1] - i[0] + 1 + j[-1] - j[0] + 1)
    return total


def similarity(s: tuple[int, ...], t: tuple[int, ...], order: int, decay: float) -> float:
    norm = kernel(s, s, order, decay) * kernel(t, t, order, decay)
    return kernel(s, t, order, decay) / math.sqrt(norm) if norm > 0 else 0.0


@pytest.mark.parametrize(("order", "decay"), [(1, 0.5), (2, 0.3), (3, 1.0)])
def test_kernel(order: int, decay: float) -> None:
    tokens = torch.randint(0, 3, (2, 6, 5), generator=torch.Generator().manual_seed(order))
    found = subsequence_kernel(tokens, order, decay)
    for sentence in range(2):
        rows = [tuple(row) for row in tokens[sentence].tolist()]
        wanted = [
            [1.0 if i == j else similarity(a, b, order, decay) for j, b in enumerate(rows)] for i, a in enumerate(rows)
        ]
        torch.testing.assert_close(found[sentence], torch.tensor(wanted, dtype=torch.float64))


def greedy(matrix: torch.Tensor, count: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(count):
        rest = [item for item in range(len(matrix)) if item not in chosen]
        chosen.append(max(rest, key=lambda item: float(matrix[[*chosen, item]][:, [*chosen, item]].logdet())))
    return chosen


def plain(source: tuple[int, ...], weight: float, order: int, decay: float, pool: int, beam: int) -> Pairs:
    """Determinantal beam search, as loops over one sentence."""

    def choose(found: list[Beam]) -> list[Beam | None]:
        found = found[: pool * beam]
        quality = torch.tensor([total for total, _ in found], dtype=torch.float64).softmax(0)
        kernels = [[1.0 if s == t else similarity(s, t, order, decay) for _, t in found] for _, s in found]
        matrix = quality.diag() + weight * torch.tensor(kernels, dtype=torch.float64)
        return [found[item] for item in greedy(matrix, min(2 * beam, len(found)))]

    return beam_search(RULE, source, Settings(beam, max_len=5, min_len=0), choose)


@pytest.mark.parametrize(("weight", "order", "decay"), [(0.05, 2, 0.5), (0.3, 1, 0.9), (2.0, 2, 1.0)])
def test_search(weight: float, order: int, decay: float) -> None:
    found = scripted_generator([RULE], DeterminantalBeams(weight, order, decay), 3).generate(batch_of(SOURCES))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert_same_pairs(as_pairs(hypotheses), plain(source, weight, order, decay, 3, 3))


def test_by_its_keys() -> None:
    translator = Translator(text_model(), beam=4, nbest=4, max_len_b=8)
    keys = {"search.weight": 0.5, "search.order": 1, "search.pool": 4}
    found = translator.translate(TEXTS, search="determinantal", **keys)
    by_object = translator.translate(TEXTS, search=DeterminantalBeams(0.5, 1, 0.5, 4))
    texts = [[item.text for item in line.hypotheses] for line in found]
    assert texts == [[item.text for item in line.hypotheses] for line in by_object]
    assert texts != [[item.text for item in line.hypotheses] for line in translator.translate(TEXTS)]
    with pytest.raises(ConfigError, match="below its minimum"):
        translator.translate(TEXTS, search="determinantal", **{"search.weight": -1.0})
