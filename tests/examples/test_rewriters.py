"""The rewriters among the examples: pools of decodes, and fusions of outputs."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any
from zlib import crc32

import numpy
import pytest

from examples.papers.qe_fusion import Edit, FusionReranker, QualityFusion, applied, differences, fuse
from examples.pool import Pool
from seqgen.text.reranking import Utility, UtilityLine
from seqgen.text.results import TextHypothesis
from seqgen.text.translator import Translator
from tests.addons.rewriting.test_rewriters import Function
from tests.refusals import Row, refusals
from tests.text_models import TEXTS, task_for, task_of, text_model

MODELS = [text_model(seed=seed, sharpness=1.2) for seed in (0, 1)]
LANGUAGE_MODEL = text_model("transformer_lm_tiny", task=task_for("transformer_lm_tiny", task_of().target_tokenizer))
SETTINGS = {"beam": 4, "nbest": 4, "max_len_b": 8, "suppress": ["<s>", "<unk>"]}


@pytest.mark.parametrize(
    ("models", "settings"),
    [
        (MODELS[0], {}),
        (MODELS, {"combination.weights": [3.0, 1.0], "length_penalty": 0.4}),
        (MODELS[0], {"sampling": True, "seed": 5, "temperature": 0.9}),
        (MODELS[0], {"constraints": "unordered"}),
        (LANGUAGE_MODEL, {"prompt": "w3 {source}"}),
    ],
    ids=["beam", "ensemble", "sampling", "constraints", "prompts"],
)
def test_a_pool_of_the_same_decode_changes_nothing(models: Any, settings: dict[str, Any]) -> None:
    def outputs(**pool: Any) -> Any:
        found = translator.translate(lines, prefixes=prefixes, **pool)
        return [[(h.text, h.score, h.origin) for h in line.hypotheses] for line in found]

    lines = [f"{text}\tw4" if "constraints" in settings else text for text in TEXTS]
    translator, prefixes = Translator(models, **SETTINGS, **settings), ["", "w3", "", "w1 w2", ""]
    plain, pool = outputs(), {"rewriters": ["pool"], "rewriter.pool.decodes": {"same": {}}}
    wanted = [[(text, pytest.approx(score), origin) for text, score, origin in line] for line in plain]
    assert outputs(batch_size=2, **pool) == wanted


@pytest.mark.parametrize("batch_size", [1, 64])
def test_a_pool_of_seeds_and_models_is_the_union_of_the_decodes(batch_size: int) -> None:
    """The models that decode score it."""
    sampling = {"sampling": True, "seed": 1, "normalize_scores": False, **SETTINGS}
    translator, other = Translator(MODELS[0], **sampling), Translator(MODELS[1], beam=3, suppress=["<s>", "<unk>"])
    decodes = [translator.translate(TEXTS), translator.translate(TEXTS, seed=2), other.translate(TEXTS, nbest=3)]
    seen: list[tuple[int, Sequence[TextHypothesis]]] = []
    recorder = Function(lambda line, hypotheses: seen.append((line.id, hypotheses)) or [])
    pool = {"rewriters": ["pool", Pool({"b": other}), recorder], "rewriter.pool.decodes": {"second": {"seed": 2}}}
    found = translator.translate(TEXTS, batch_size=batch_size, **pool)
    for number, (source, line, *lines) in enumerate(zip(TEXTS, found, *decodes, strict=True)):
        names = zip(lines[::-1], ("Pool:b", "pool:second", ""), strict=True)
        origins = {h.text: origin for one, origin in names for h in one.hypotheses if len(h.tokens) <= 9}
        everything = dict(seen)[number]
        assert {h.text: h.origin for h in everything} == origins
        assert [h.score for h in everything] == sorted((h.score for h in everything), reverse=True)
        assert [h.text for h in line.hypotheses] == [h.text for h in everything[:4]]
        for h in everything:
            (alone,) = Translator(MODELS[0]).score([source], [h.text], normalize_scores=False)
            assert h.origin == "" or h.score == pytest.approx(alone.score, abs=1e-6)
    assert sum(h.origin != "" for _, hypotheses in seen for h in hypotheses) > 15


def fusion(candidates: Sequence[str], value: Callable[[str], float], beam: int) -> tuple[str, list[str]]:
    """The fusion of candidates, and the texts that were rated."""
    fusing, rated = fuse(candidates, beam), list[str]()
    texts = next(fusing)
    while True:
        rated += texts
        try:
            texts = fusing.send([value(text) for text in texts])
        except StopIteration as done:
            return done.value, rated


def enumerated(candidates: Sequence[str], value: Callable[[str], float]) -> float:
    """The value of the best text that alternatives of spans make together."""
    base, *others = (text.split() for text in sorted(candidates, key=lambda text: -value(text)))
    spans = product(*([None, *edits] for edits in differences(base, others)))
    chosen = [[edit for edit in edits if edit is not None] for edits in spans]
    allowed = [edits for edits in chosen if all(one.stop <= two.start for one, two in pairwise(edits))]
    return max(value(applied(base, edits)) for edits in allowed)


def test_a_wide_fusion_finds_the_best_of_all_combinations() -> None:
    """A narrow one is no worse than the best candidate; no text is rated twice."""
    sets = [["a b c", "a x c y", "z b c d", "a c"], ["a a b", "b a", "a c a b b", "c"], ["a"], ["a b", "", "b b a"]]
    better = 0
    for candidates, seed in product(sets, range(8)):

        def value(text: str, seed: int = seed) -> float:
            pairs = list(pairwise([".", *text.split(), "."]))
            return sum(crc32(f"{pair}{seed}".encode()) % 97 for pair in pairs) / len(pairs)

        best, rated = fusion(candidates, value, beam=10**6)
        assert value(best) == enumerated(candidates, value) == max(map(value, rated))
        assert len(rated) == len(set(rated))
        narrow, _ = fusion(candidates, value, beam=1)
        assert max(map(value, candidates)) <= value(narrow) <= value(best)
        better += value(narrow) < value(best)
    assert better
    assert differences(list("abc"), [list("axcy")]) == [[Edit(1, 2, ("x",))], [Edit(3, 3, ("y",))]]


@pytest.mark.parametrize("batch_size", [1, 64])
def test_the_fused_output_comes_first(batch_size: int) -> None:
    translator, calls = Translator(MODELS[0], sampling=True, **{**SETTINGS, "max_len_b": 20}), list[int]()

    def value(source: str, text: str) -> float:
        return len({*text.split()} & {*source.split()}) - 0.1 * len(text.split())

    class Estimator(Utility):
        def of_lines(self, lines: Sequence[UtilityLine]) -> list[Any]:
            calls.append(len(lines))
            return [
                numpy.array([[value(one.source, text)] * len(one.references) for text in one.texts]) for one in lines
            ]

    objects = {"rewriters": [QualityFusion(Estimator(), 3)], "rerank": FusionReranker(Estimator())}
    fused = 0
    found = translator.translate(TEXTS, batch_size=batch_size, **objects)
    for before, after in zip(translator.translate(TEXTS), found, strict=True):
        wanted, _ = fusion([h.text for h in before.hypotheses], partial(value, before.source), 3)
        assert after.text == wanted
        fused += after.hypotheses[0].origin == "QualityFusion"
    assert fused
    assert max(calls) == min(batch_size, len(TEXTS))


def pool(decode: dict[str, Any], *words: str) -> Row:
    settings = {"rewriters": ["pool"], "rewriter.pool.decodes": {"two": decode}, **SETTINGS}
    return lambda: Translator(MODELS[0]).translate(TEXTS, **settings), "rewriter.pool.decodes, two: ", *words


test_refusals = refusals(
    pool({"nbest": 1, "rewriters": ["pool"]}, "as they are decoded; remove nbest and rewriters"),
    pool({"sead": 2}, "did you mean 'seed'?"),
    pool({"path": "nowhere"}, "nowhere: there is no"),
)
