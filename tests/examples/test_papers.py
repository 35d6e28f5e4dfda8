"""Laws of the components of examples/papers: the invariants of decoding, and keys that do what the object does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from examples.papers.align_att import AlignAtt
from examples.papers.arithmetic_sampling import ArithmeticSampling
from examples.papers.bilevel import BilevelSearch
from examples.papers.context_aware import ContextAware
from examples.papers.contrastive_sources import Contrast
from examples.papers.determinantal_beams import DeterminantalBeams
from examples.papers.dola import Dola
from examples.papers.dynamic_beams import ThresholdPruning
from examples.papers.exact_search.lattice import LatticeSearch
from examples.papers.lookahead import Lookahead
from examples.papers.mbr.aggregation import AggregatedMbr
from examples.papers.mbr.low_rank import LowRankMbr
from examples.papers.mbr.pruning import PrunedMbr
from examples.papers.mc_dropout import McDropout
from examples.papers.poisson_beams import PoissonBeams
from examples.papers.shallow_fusion import DensityRatio
from examples.papers.simultaneous import WaitK
from examples.papers.stochastic_beam import StochasticBeam
from examples.papers.watermark import GreenLists, Watermark
from seqgen.text.reranking import Chrf
from seqgen.text.results import Translation
from seqgen.text.translator import Translator
from tests.commands import command
from tests.text_models import TEXTS, WORDS, text_model

pytestmark = pytest.mark.slow

PAPERS = Path(__file__).parent.parent.parent / "examples" / "papers"


EXPECTED = {
    "align_att": ["scores are the model's"],  # they are those for the part of the source that is read
    "mc_dropout": ["[m, m] = m"],  # each member has another dropout mask
    "simultaneous": ["scores are the model's"],
}
"""Invariants that do not hold, on purpose."""


@pytest.mark.parametrize(
    "component",
    [
        "align_att search=align_att",
        "arithmetic_sampling search=arithmetic",
        "bilevel search=bilevel",
        "context_aware combination=context_aware",
        "contrastive_sources combination=contrast combination.weights=[0.3]",
        "determinantal_beams search=determinantal",
        "dola processor=dola processor.dola.layers=[1]",
        "dynamic_beams search=threshold_pruning",
        "lookahead search=lookahead",
        *(f"lora model=lora model.rank=2 model.base={base}" for base in ("transformer_tiny", "t5_tiny", "fconv_tiny")),
        "mc_dropout search=mc_dropout search.rate=0.2",
        "poisson_beams search=poisson_beams",
        "simultaneous search=wait_k",
        "stochastic_beam search=stochastic_beam",
        "watermark processor=watermark",
    ],
)
def test_invariants(component: str) -> None:
    file, *keys = component.split()
    outcome = command("check", f"common.user_dir={PAPERS / file}.py", *keys, "common.threads=1")
    failed = re.findall(r"^(.+?)  +failed", outcome.out, re.MULTILINE)
    assert failed == EXPECTED.get(file, []), outcome.out + outcome.err
    assert "invariants hold" in outcome.out


GREEN = GreenLists(4 + WORDS, 0.4, 7)
BY_KEYS: list[tuple[str, dict[str, Any], Any]] = [
    ("search=align_att", {"f": 1}, AlignAtt(1)),
    ("search=arithmetic", {"resolution": 0.01, "seed": 4}, ArithmeticSampling(0.01, 4)),
    ("search=bilevel", {"lower_beam": 1}, BilevelSearch(1)),
    ("search=determinantal", {"weight": 0.5, "order": 1, "pool": 4}, DeterminantalBeams(0.5, 1, 0.5, 4)),
    ("search=lattice", {"ngram": 1, "expansions": 12}, LatticeSearch(ngram=1, expansions=12)),
    ("search=lookahead", {"depth": 1, "weight": 3.0}, Lookahead(1, 3.0)),
    ("search=mc_dropout", {"seed": 3, "rate": 0.2}, McDropout(3, 0.2)),
    ("search=poisson_beams", {"seed": 3}, PoissonBeams(3)),
    ("search=stochastic_beam", {"seed": 3}, StochasticBeam(3)),
    ("search=threshold_pruning", {"absolute": 0.6}, ThresholdPruning(0.6)),
    ("search=threshold_pruning", {"relative": 0.3}, ThresholdPruning(relative=0.3)),
    ("search=threshold_pruning", {"local": 0.3}, ThresholdPruning(local=0.3)),
    ("search=threshold_pruning", {"per_beam": 1}, ThresholdPruning(per_beam=1)),
    ("search=wait_k", {"k": 1}, WaitK(1)),
    ("combination=contrast", {"weights": [0.4]}, Contrast([0.4])),
    ("combination=context_aware", {"alpha": 0.8}, ContextAware(0.8)),
    ("combination=density_ratio", {"source_weight": 0.3, "target_weight": 0.6}, DensityRatio(0.3, 0.6)),
    ("rerank=mbr_aggregated", {"finalists": 3}, AggregatedMbr(Chrf(), finalists=3)),
    ("rerank=mbr_low_rank", {"rank": 1, "reduction": 2.0}, LowRankMbr(Chrf(), rank=1, reduction=2.0)),
    ("rerank=mbr_pruned", {"alpha": 0.5, "first": 2}, PrunedMbr(Chrf(), alpha=0.5, first=2)),
    ("processor=dola", {"layers": [1], "alpha": 0.01}, Dola([1], 0.01)),
    ("processor=watermark", {"gamma": 0.4, "delta": 1.0, "key": 7}, Watermark(GREEN, 1.0)),
]
"""A component by name, values of its keys, and the object that they stand for."""


def shown(found: list[Translation]) -> list[list[Any]]:
    return [[(item.text, round(item.score, 6), item.rerank_score) for item in line.hypotheses] for line in found]


@pytest.mark.parametrize(("component", "keys", "wanted"), BY_KEYS, ids=[component for component, _, _ in BY_KEYS])
def test_the_keys_of_a_component_make_its_object(component: str, keys: dict[str, Any], wanted: Any) -> None:
    """And each of them matters."""
    kind, name = component.split("=")
    group = "reranker" if kind == "rerank" else kind
    models = {"bilevel": 2, "context_aware": 2, "contrast": 2, "density_ratio": 3}.get(name, 1)
    nbest = 1 if name == "align_att" else 4
    members = [text_model(seed=seed, decoder_layers=4) for seed in range(models)]
    translator = Translator(members, beam=4, nbest=nbest, max_len_b=7)
    choice, prefix = ({"processors": [name]}, f"processor.{name}") if kind == "processor" else ({kind: name}, group)

    def translate(own: dict[str, Any], **settings: Any) -> list[list[Any]]:
        return shown(
            translator.translate(TEXTS, **settings, **{f"{prefix}.{key}": value for key, value in own.items()})
        )

    found = translate(keys, **choice)
    assert found == translate({}, **({"processors": [wanted]} if kind == "processor" else {kind: wanted}))
    for key in keys:
        assert translate({other: keys[other] for other in keys if other != key}, **choice) != found, key
