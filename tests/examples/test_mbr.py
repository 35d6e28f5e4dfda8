"""Minimum Bayes risk with pseudo-references and its estimators: against sacreBLEU and the formulas computed plainly."""

import math
from collections import Counter
from typing import Any
from unittest import mock

import numpy
import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF, TER

from examples.papers.mbr.aggregation import AggregatedMbr
from examples.papers.mbr.exact import UtilityMatrix
from examples.papers.mbr.low_rank import LowRankMbr, complete
from examples.papers.mbr.pruning import PrunedMbr
from examples.papers.mbr.references import PseudoReferences
from examples.papers.mbr.utilities import Embedding, Ter
from seqgen.extend import Bleu, Chrf, Matrix, Translation, Utility, UtilityLine
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

HYPOTHESES = ["the dog runs", "a cat", "the dogs run fast", "the dog ran", ""]
REFERENCES = ["the dog runs", "the dog", "a dog runs fast", "the dog runs", "dogs, they run"]
SETTINGS: dict[str, Any] = {"beam": 5, "max_len_b": 8}
SAMPLES = {"sampling": True, "beam": 12, "max_len_b": 8, "seed": 7}


class Given(Utility):
    """The utility of the text ``h3`` with the reference ``r5`` is ``matrix[3, 5]``."""

    def __init__(self, matrix: Matrix):
        self.matrix = matrix

    def __call__(self, line: UtilityLine) -> Matrix:
        return self.matrix[numpy.ix_(*([int(text[1:]) for text in texts] for texts in (line.texts, line.references)))]

    def as_line(self) -> UtilityMatrix:
        rows, columns = self.matrix.shape
        return UtilityMatrix(self, [f"h{i}" for i in range(rows)], [f"r{i}" for i in range(columns)])


@pytest.mark.parametrize(
    ("utility", "metric", "errors"),
    [(Chrf(), CHRF(), False), (Bleu(), BLEU(effective_order=True), False), (Ter(), TER(), True)],
)
def test_utilities_are_sacrebleus_sentence_scores(utility: Utility, metric: Any, errors: bool) -> None:
    scores = [[metric.sentence_score(own, [other]).score for other in REFERENCES] for own in HYPOTHESES]
    wanted = [[100 - score if errors else score for score in row] for row in scores]
    assert utility(UtilityLine("", HYPOTHESES, REFERENCES)) == pytest.approx(numpy.array(wanted))


def test_exact_is_the_double_loop_over_pseudo_references() -> None:
    translator = Translator(text_model(sharpness=1.2))
    plain = translator.translate(TEXTS, nbest=5, **SETTINGS)
    samples = translator.translate(TEXTS, nbest=12, **SAMPLES)
    keys = {"reranker.utility_keys": {"beta": 3.0}, "reranker.references": SAMPLES}
    found = translator.translate(TEXTS, nbest=5, rerank="mbr", **SETTINGS, **keys)
    metric, changed = CHRF(beta=3), 0
    for before, drawn, after in zip(plain, samples, found, strict=True):
        texts = [item.text for item in drawn.hypotheses]
        assert len(texts) == 12
        own = [item.text for item in before.hypotheses]
        mean = {text: sum(metric.sentence_score(text, [other]).score for other in texts) / 12 for text in own}
        wanted = sorted(map(mean.__getitem__, own), reverse=True)
        assert [item.rerank_score for item in after.hypotheses] == pytest.approx(wanted)
        assert [mean[item.text] for item in after.hypotheses] == pytest.approx(wanted)
        changed += before.hypotheses[0].text != after.hypotheses[0].text
    assert changed


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_pseudo_references_of_lines_together_are_those_of_each_line(batch_size: int) -> None:
    """The lines are decoded in one call, or two if they are far apart; their numbers begin at 5, and have gaps."""
    texts = ["w1 w5 w8 w2 w2", "", *TEXTS[:3]]
    numbers = [8, 5, 6, 1 << 30, 11]
    lines = [
        Translation(n, text, torch.empty(0), prefix="w3" if n == 8 else "")
        for n, text in zip(numbers, texts, strict=True)
    ]
    keys = {**SAMPLES, "beam": 6, "max_len_b": 6, "batch_size": batch_size}
    together, alone = PseudoReferences([text_model()], keys), PseudoReferences([text_model()], keys)
    together.prepare(lines)
    known, together.known = together.known, {}
    assert len({tuple(known[line.id, line.source, line.prefix]) for line in lines}) == 5
    for line in lines:
        assert known[line.id, line.source, line.prefix] == alone(line)


def test_pruning_is_the_algorithm_with_bootstrap_by_loops() -> None:
    random = numpy.random.default_rng(4)
    utilities = random.normal(size=(6, 8)) + numpy.arange(6)[:, None] * 0.2
    matrix = Given(utilities).as_line()
    found = PrunedMbr(matrix.utility, alpha=0.9, first=4, samples=40, seed=5).expected(matrix, 2)
    rng = numpy.random.default_rng((5, 2))
    order = list(rng.permutation(8))
    active = list(range(6))
    times, seen = rng.multinomial(4, [1 / 4] * 4, size=40), utilities[:, order[:4]]
    best = max(active, key=lambda row: seen[row].sum())
    wins = [sum(draw @ (seen[row] - seen[best]) >= -1e-9 for draw in times) for row in active]
    active = [row for row in active if wins[row] / 40 > 1 - 0.9]
    assert 1 < len(active) < 6
    assert matrix.computed == 6 * 4 + len(active) * 4
    assert found.argmax() == max(active, key=lambda row: utilities[row].sum())
    assert found[active] == pytest.approx(utilities[active].mean(1))


@pytest.mark.parametrize("references", [REFERENCES, REFERENCES[:1]])
def test_aggregated_chrf_is_the_formula(references: list[str]) -> None:
    matrix = UtilityMatrix(Chrf(), HYPOTHESES, references)
    found = AggregatedMbr(matrix.utility).expected(matrix, 0)
    assert matrix.computed == len(HYPOTHESES)
    for value, text in zip(found, HYPOTHESES, strict=True):
        precisions, recalls = [], []
        for n in range(1, 7):
            own = _grams(list(text.replace(" ", "")), n)
            mean: dict[Any, float] = {}
            for other in references:
                for gram, count in _grams(list(other.replace(" ", "")), n).items():
                    mean[gram] = mean.get(gram, 0) + count / len(references)
            if own and mean:
                common = sum(min(count, mean.get(gram, 0)) for gram, count in own.items())
                precisions.append(common / sum(own.values()))
                recalls.append(common / sum(mean.values()))
        p, r = (sum(values) / max(1, len(values)) for values in (precisions, recalls))
        assert value == pytest.approx(100 * 5 * p * r / (4 * p + r) if p + r else 0)


def test_aggregated_bleu_is_the_formula() -> None:
    texts, references = ["a b c d e", "a b x c", "a"], ["a b c d f", "a b c", "a b c d e f g"]
    matrix = UtilityMatrix(Bleu(), texts, references)
    found = AggregatedMbr(matrix.utility).expected(matrix, 0)
    for value, text in zip(found, texts, strict=True):
        logs, misses = [], 0
        for n in range(1, min(4, len(text.split())) + 1):
            own = _grams(text.split(), n)
            means = {gram: sum(_grams(other.split(), n)[gram] for other in references) / 3 for gram in own}
            common = sum(min(count, means[gram]) for gram, count in own.items())
            misses += common == 0
            logs.append(math.log((common or 2.0**-misses) / sum(own.values())))
        length = sum(len(other.split()) for other in references) / 3
        brevity = min(0, 1 - length / len(text.split()))
        assert value == pytest.approx(100 * math.exp(brevity + sum(logs) / len(logs)))


def _grams(units: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(units[i : i + n]) for i in range(len(units) - n + 1))


def test_aggregation_in_parts_and_with_finalists() -> None:
    """With as many parts as references, or with all candidates as finalists, it is exact."""
    exact = Chrf()(UtilityLine("", HYPOTHESES, REFERENCES)).mean(1)
    for keys in ({"parts": 5}, {"parts": 50}, {"finalists": 5}):
        matrix = UtilityMatrix(Chrf(), HYPOTHESES, REFERENCES)
        assert AggregatedMbr(matrix.utility, **keys).expected(matrix, 0) == pytest.approx(exact)
    matrix = UtilityMatrix(Chrf(), HYPOTHESES, REFERENCES)
    rough = AggregatedMbr(matrix.utility).expected(matrix, 0)
    best = numpy.argsort(-rough)[:2]
    found = AggregatedMbr(matrix.utility, finalists=2).expected(matrix, 0)
    assert set(numpy.argsort(-found)[:2]) == set(best)
    assert found[best] == pytest.approx(exact[best])


def test_low_rank_reconstructs_a_low_rank_matrix() -> None:
    random = numpy.random.default_rng(0)
    utilities = random.normal(size=(24, 2)) @ random.normal(size=(2, 30))
    seen = numpy.where(random.random(utilities.shape) < 0.5, utilities, numpy.nan)
    assert complete(seen, 2, 0.0, 200, random) == pytest.approx(utilities, abs=1e-6)
    matrix = Given(utilities).as_line()
    found = LowRankMbr(matrix.utility, reduction=2.0, rank=2, penalty=0.0, iterations=200).expected(matrix, 0)
    assert matrix.computed == 24 * 30 / 2
    assert found == pytest.approx(utilities.mean(1), abs=1e-6)


def test_embedding_is_the_cosine_of_mean_states() -> None:
    """With an encoder whose states are rows of a table, and a tokenizer that pads on the right."""
    table = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    ids = {"a b": [1, 2], "c": [3], "a b c a": [1, 2, 3, 1]}

    class Inputs(dict[str, torch.Tensor]):
        def to(self, device: Any) -> Any:
            return self

    def tokenizer(texts: list[str], **keys: Any) -> Inputs:
        rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids[text]) for text in texts], batch_first=True)
        return Inputs(input_ids=rows, attention_mask=(rows > 0).long())

    encoder = mock.Mock(side_effect=lambda input_ids, attention_mask: mock.Mock(last_hidden_state=table[input_ids]))
    texts, references = ["a b", "c"], ["c", "a b c a"]
    found = Embedding(tokenizer, encoder)(UtilityLine("", texts, references))
    for i, own in enumerate(texts):
        for j, other in enumerate(references):
            one, two = (table[ids[text]].mean(0) for text in (own, other))
            assert found[i, j] == pytest.approx(100 * float(torch.cosine_similarity(one, two, dim=0)), abs=1e-3)
