"""Laws of the components of examples: invariants of decoding and criteria, and keys that do what the object does."""

import re
from pathlib import Path
from typing import Any

import pytest

from examples.papers.align_att import AlignAtt
from examples.papers.arithmetic_sampling import ArithmeticSampling
from examples.papers.bilevel import BilevelSearch
from examples.papers.context_aware import ContextAware
from examples.papers.contrastive_decoding import ContrastiveDecoding
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
from examples.papers.proxy_tuning import ProxyTuning
from examples.papers.shallow_fusion import DensityRatio
from examples.papers.simultaneous import WaitK
from examples.papers.stochastic_beam import StochasticBeam
from examples.papers.t5_objectives import OBJECTIVES
from examples.papers.watermark import GreenLists, Watermark
from seqgen.extend import Chrf, Translation
from seqgen.text.translator import Translator
from tests.commands import command, corpus, done
from tests.examples.objectives.teachers import teachers  # noqa: F401  # a fixture
from tests.text_models import TEXTS, WORDS, text_model

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


EXPECTED = {
    "papers/align_att": ["scores are the model's"],  # they are those for the part of the source that is read
    "papers/mc_dropout": ["[m, m] = m"],  # each member has another dropout mask
    "papers/simultaneous": ["scores are the model's"],
}
"""Invariants that do not hold, on purpose."""

COMPONENTS = """
papers/align_att search=align_att
papers/arithmetic_sampling search=arithmetic
papers/bilevel search=bilevel
papers/context_aware combination=context_aware
papers/contrastive_decoding combination=contrastive_decoding
papers/contrastive_sources combination=contrast combination.weights=[0.3]
papers/determinantal_beams search=determinantal
papers/dola processor=dola processor.dola.layers=[1]
papers/dynamic_beams search=threshold_pruning
papers/lookahead search=lookahead
papers/lora model=lora model.rank=2 model.base=transformer_tiny
papers/lora model=lora model.rank=2 model.base=t5_tiny
papers/lora model=lora model.rank=2 model.base=fconv_tiny
papers/lora model=lora model.rank=2 model.base=llama_tiny
papers/mc_dropout search=mc_dropout search.rate=0.2
papers/poisson_beams search=poisson_beams
papers/pointer_generator model=pointer_generator_tiny
papers/simultaneous search=wait_k
papers/smc_steering search=short_words
papers/stochastic_beam search=stochastic_beam
papers/watermark processor=watermark
objectives/actor_critic criterion=actor_critic %d
objectives/brio criterion=brio %d criterion.margin=0.1
papers/ctc criterion=ctc model=ctc
objectives/group_relative criterion=group_relative %d criterion.beta=0.1 criterion.reference=%t
objectives/mbr_distillation criterion=mbr_distillation %d
objectives/mbr_distillation criterion=mbr_distillation %d criterion.teacher=%t
objectives/preference criterion=dpo %d criterion.reference=%t
objectives/preference criterion=cpo %d
objectives/r_drop criterion=r_drop
objectives/r_drop criterion=r_drop criterion.label_smoothing=0.1
objectives/scheduled_sampling criterion=scheduled_sampling
objectives/self_critical criterion=self_critical %d
objectives/sequence_distillation criterion=sequence_distillation criterion.teachers=[%t,%f] %d criterion.token_loss=0.2
objectives/unlikelihood criterion=unlikelihood
objectives/unlikelihood criterion=sequence_unlikelihood %d criterion.ngram=1
objectives/word_distillation criterion=word_distillation criterion.teachers=[%t,%f] criterion.temperature=1.5
"""


@pytest.mark.parametrize("component", COMPONENTS.strip().splitlines())
def test_invariants(component: str, teachers: dict[str, str]) -> None:  # noqa: F811
    values = {"%d": "criterion.decode.max_len=6", "%t": teachers["transformer"], "%f": teachers["fconv"]}
    file, *keys = re.sub("%.", lambda found: values[found[0]], component).split()
    outcome = command("check", f"common.user_dir={EXAMPLES / file}.py", *keys, "common.threads=1")
    failed = re.findall(r"^(.+?)  +failed", outcome.out, re.MULTILINE)
    assert failed == EXPECTED.get(file, []), outcome.out + outcome.err
    assert re.search(r"^\d+ of (7|8|9|\d\d) invariants hold$", outcome.out, re.MULTILINE), outcome.out


RUNS = [f"t5_objectives DATA.en model=t5_tiny task.input_length=20 task.objective={name}" for name in OBJECTIVES]
RUNS += ["subword_regularization DATA model=transformer_tiny task.source_lang=en task.target_lang=de"]


@pytest.mark.parametrize("run", RUNS)
def test_models_are_trained_on_a_task(run: str, tmp_path: Path) -> None:
    name, data, *keys = run.replace("DATA", f"{corpus(tmp_path / 'data')}/train").split()
    keys += [f"common.user_dir={EXAMPLES}/papers/{name}.py", f"task={name}", f"task.train={data}", f"task.valid={data}"]
    keys += ["task.vocab_size=60", "task.hard_vocab_limit=false", "optimization.max_update=1"]
    done("train", f"run_dir={tmp_path / 'run'}", *keys, "common.tensorboard=false")


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
    ("combination=contrastive_decoding", {"alpha": 0.001, "temperature": 0.8}, ContrastiveDecoding(0.001, 0.8)),
    ("combination=density_ratio", {"source_weight": 0.3, "target_weight": 0.6}, DensityRatio(0.3, 0.6)),
    ("combination=proxy_tuning", {"alpha": 0.4}, ProxyTuning(0.4)),
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
    models = {"density_ratio": 3, "proxy_tuning": 3}.get(name, 2 if kind == "combination" or name == "bilevel" else 1)
    nbest = 1 if name == "align_att" else 4
    members = [text_model(seed=seed, decoder_layers=4) for seed in range(models)]
    translator = Translator(members, beam=4, nbest=nbest, max_len_b=7)
    prefix = {"rerank": "reranker", "processor": f"processor.{name}"}.get(kind, kind)

    def translate(own: dict[str, Any], component: Any = name) -> list[list[Any]]:
        choice = {"processors": [component]} if kind == "processor" else {kind: component}
        values = {f"{prefix}.{key}": value for key, value in own.items()}
        return shown(translator.translate(TEXTS, **choice, **values))

    found = translate(keys)
    assert found == translate({}, wanted)
    for key in keys:
        assert translate({other: keys[other] for other in keys if other != key}) != found, key
