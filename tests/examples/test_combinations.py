"""Combinations and member sources of examples/papers: formulas by enumeration, and plain ensembles of two fields."""

import importlib.util
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from examples.papers.context_aware import ContextAware
from examples.papers.contrastive_decoding import ContrastiveDecoding
from examples.papers.contrastive_sources import Contrast, RandomLine
from examples.papers.knn_mt import KnnMT, write_datastore
from examples.papers.proxy_tuning import ProxyTuning
from seqgen.extend import Batch, Combination, ConfigError, Dictionary, ModelInMemory, PromptTask, WhitespaceTokenizer
from seqgen.text.translator import Translator
from tests.exhaustive import ranked_outputs
from tests.generators import make_generator
from tests.hypotheses import as_pairs, assert_same, assert_same_pairs
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow


WORDS = dictionary(2)
RULES = [random_rule(len(WORDS), seed, sharpness=1.0) for seed in (1, 2, 3)]
SOURCES = [(4, 5, 2), (5, 2)]


def contrast(p: Tensor, *others: Tensor, weights: list[float]) -> Tensor:
    rest = p.exp() - sum(weight * q.exp() for weight, q in zip(weights, others, strict=True))
    return rest.where(rest > 0, torch.finfo(rest.dtype).tiny).log()


@pytest.mark.parametrize(
    ("combination", "formula"),
    [
        (ContextAware(0.8), lambda p, q: (1.8 * p - 0.8 * q).log_softmax(-1)),
        (Contrast([0.3, 0.1]), lambda p, q, r: contrast(p, q, r, weights=[0.3, 0.1])),
        (Contrast([0.4]), lambda p, q, r: contrast(p, q, r, weights=[0.4, 0.4])),  # the weight of each
    ],
)
def test_scores_are_the_formula_by_enumeration(combination: Combination, formula: Callable[..., Tensor]) -> None:
    rules = RULES[: len(inspect.signature(formula).parameters)]

    def scores(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        return formula(*(rule(source, history).log_softmax(-1) for rule in rules))

    models = [ScriptedModel(rule) for rule in rules]
    generator = make_generator(models, WORDS, beam_size=100, max_len_b=3, combination=combination)
    for source, found in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
        assert_same_pairs(as_pairs(found)[:10], ranked_outputs(scores, source, len(WORDS), 3, 10))


@pytest.mark.parametrize("batch_size", [1, 64])
@pytest.mark.parametrize("source", ["random_line", "language_tag"])
def test_a_source_is_a_second_field(source: str, batch_size: int, tmp_path: Path) -> None:
    """The keys give the same as two fields that the test pairs itself, whatever the batch; also for known targets."""
    model, lines = text_model(sharpness=1.2), ["w9 w8", "w5 w4 w3 w10", *TEXTS]
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    if source == "random_line":
        keys: dict[str, Any] = {"source.random_line.file": str(tmp_path / "lines"), "source.random_line.seed": 7}
        others = [RandomLine(lines, seed=7)(text, number) for number, text in enumerate(TEXTS)]
        assert all(other in lines and other != text for other, text in zip(others, TEXTS, strict=True))
    else:
        keys = {"source.language_tag.tag": "w9"}
        others = [" ".join(["w9", *text.split()[1:]]) for text in TEXTS]
    settings = {"combination": Contrast([0.4]), "batch_size": batch_size, "beam": 4, "nbest": 4, "max_len_b": 6}
    pairs = [f"{text}\t{other}" for text, other in zip(TEXTS, others, strict=True)]
    shown = []
    for members, texts, more in ((["input", source], TEXTS, keys), (["field1", "field2"], pairs, {})):
        translator = Translator([model, model], member_sources=members, **settings, **more)
        found = [[(h.tokens.tolist(), h.score) for h in line.hypotheses] for line in translator.translate(texts)]
        shown.append([found, [line.score for line in translator.score(texts, TEXTS[::-1])]])
    assert shown[0][0] == [[(tokens, pytest.approx(score, abs=1e-5)) for tokens, score in line] for line in shown[1][0]]
    assert shown[0][1] == pytest.approx(shown[1][1], abs=1e-6)


def contrastive_reference(expert: Tensor, amateur: Tensor) -> Tensor:
    """Contrastive decoding with alpha 0.2 and temperature 0.5, from the logits ``(V,)`` of one step, by its paper."""
    p, q = expert.softmax(-1), (amateur / 0.5).softmax(-1)
    head = [token for token in range(len(p)) if p[token] >= 0.2 * p.max()]
    return torch.tensor([math.log(p[token] / q[token]) if token in head else -math.inf for token in range(len(p))])


def proxy_reference(base: Tensor, tuned: Tensor, untuned: Tensor) -> Tensor:
    """Proxy tuning with alpha 0.7: the formula of its paper has logits."""
    return (base + 0.7 * (tuned - untuned)).softmax(-1).log()


@torch.no_grad()
@pytest.mark.parametrize(
    ("combination", "reference"),
    [(ContrastiveDecoding(0.2, 0.5), contrastive_reference), (ProxyTuning(0.7), proxy_reference)],
)
def test_language_models_of_different_sizes_by_enumeration(combination: Combination, reference: Any) -> None:
    """Each score is that of the members' passes over prompt and output, without cache, padding and other lines."""
    words, prompts, count = dictionary(2), ["w0 w1 w1 w0", "", "w1"], 5
    small = Dictionary(words.symbols, eos=0)  # its prompts and outputs have another end, as after tuning
    shapes = [(words, 32, 3), (small, 16, 1), (words, 16, 1)][: len(inspect.signature(reference).parameters)]
    members = []
    for seed, (known, size, layers) in enumerate(shapes):
        task = PromptTask(None, WhitespaceTokenizer(known), WhitespaceTokenizer(known))
        members.append(text_model("llama_tiny", seed, task, 3.0, hidden_size=size, num_hidden_layers=layers))

    def scores(line: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        sources = [member.task.encode_source(prompts[line[0]]) for member in members]
        target = torch.tensor([[0, *history]])
        passes = [m.model(s[None], torch.tensor([len(s)]), target) for m, s in zip(members, sources, strict=True)]
        return reference(*(out.logits[0, -1] for out in passes))

    wanted = [ranked_outputs(scores, (number,), len(words), 3, count) for number in range(len(prompts))]
    assert len({output for found in wanted for output, _ in found}) > count, "prompts matter"
    for batch_size in (1, 3):
        options: dict[str, Any] = {"beam": 100, "nbest": count, "max_len_b": 3, "batch_size": batch_size}
        found = Translator(members, combination=combination, **options).translate(prompts)
        for line, pairs in zip(found, wanted, strict=True):
            allowed = [(output, pytest.approx(score, abs=1e-6)) for output, score in pairs if score > -math.inf]
            assert as_pairs(line.hypotheses) == allowed  # positions are rotated in float32


PAIRS = [(text, f"{text} w4 w9") for text in TEXTS] + [("w7 w8", "w8 w7"), ("w2 w2 w6", "w6 w12")]
OPTIONS: dict[str, Any] = {"beam": 3, "nbest": 3, "max_len_b": 8}


@pytest.fixture(scope="module")
def model() -> ModelInMemory:
    return text_model(sharpness=1.2)


@pytest.fixture(scope="module")
def datastore(model: ModelInMemory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("knn") / "datastore"
    write_datastore(model, PAIRS, folder, batch_size=3)
    return folder


def features_and_lprobs(loaded: ModelInMemory, source: str, target: Tensor) -> tuple[Tensor, Tensor]:
    """Features ``(T, C)`` and log-probabilities ``(T, V)`` of the tokens of a target ``(T,)``, by teacher forcing."""
    task, model = loaded.task, loaded.model
    batch: Batch = task.collate([(0, task.encode_source(source), target)], model)
    encoded = model.encoder(batch.source.src_tokens, batch.source.src_lengths)
    features = model.decoder.extract_features(batch.prev_output_tokens, encoded)[0][0]
    return features, model.decoder.output_layer(features).log_softmax(-1)


def nearest(
    features: Any, lprobs: Tensor, keys: Any, values: Any, count: int, weight: float, heat: float
) -> list[float]:
    """``log(w p_kNN + (1 - w) p)`` for every token, by sorting all distances."""
    distances = [float(((key.astype(float) - features) ** 2).sum()) for key in keys]
    nearest = sorted(range(len(keys)), key=lambda entry: distances[entry])[:count]
    total = sum(math.exp(-distances[entry] / heat) for entry in nearest)
    neighbors = dict.fromkeys(range(len(lprobs)), 0.0)
    for entry in nearest:
        neighbors[int(values[entry])] += math.exp(-distances[entry] / heat) / total
    return [math.log(weight * neighbors[token] + (1 - weight) * math.exp(p)) for token, p in enumerate(lprobs.tolist())]


@torch.no_grad()
def test_the_datastore_has_the_features_that_predict_each_target_token(model: ModelInMemory, datastore: Path) -> None:
    keys, values = np.load(datastore / "features.npy"), np.load(datastore / "tokens.npy")
    targets = [model.task.encode_target(target) for _, target in PAIRS]
    wanted = [
        features_and_lprobs(model, *pair)[0] for pair in zip([source for source, _ in PAIRS], targets, strict=True)
    ]
    assert values.tolist() == torch.cat(targets).tolist()
    torch.testing.assert_close(torch.from_numpy(keys).double(), torch.cat(wanted), atol=3e-3, rtol=3e-3)


@torch.no_grad()
@pytest.mark.parametrize(("count", "weight", "heat"), [(3, 0.5, 2.0), (1, 0.9, 1.0), (50, 0.3, 20.0)])
def test_knn_mt_is_the_formula(model: ModelInMemory, datastore: Path, count: int, weight: float, heat: float) -> None:
    keys, values = np.load(datastore / "features.npy"), np.load(datastore / "tokens.npy")
    combination = KnnMT(datastore=str(datastore), neighbors=count, interpolation=weight, temperature=heat)
    combination.chunk = 7  # the search merges several chunks
    plain = Translator(model, **OPTIONS).translate(TEXTS[:3])
    found = Translator(model, **OPTIONS).translate(TEXTS[:3], combination=combination)
    assert [t.text for t in found] != [t.text for t in plain]
    for translation in found:
        for hypothesis in translation.hypotheses:
            features, lprobs = features_and_lprobs(model, translation.source, hypothesis.tokens)
            for step, token in enumerate(hypothesis.tokens.tolist()):
                wanted = nearest(features[step].numpy(), lprobs[step], keys, values, count, weight, heat)
                assert float(hypothesis.positional_scores[step]) == pytest.approx(wanted[token], abs=1e-6)
                assert sum(map(math.exp, wanted)) == pytest.approx(1.0)


@torch.no_grad()
def test_knn_mt_scores_known_targets_as_the_search_does(model: ModelInMemory, datastore: Path) -> None:
    """``model_score`` and ``Translator.score`` of an output are its score in beam search, neighbors included."""
    keys = {"combination": "knn_mt", "combination.datastore": str(datastore), "combination.interpolation": 0.5}
    translator = Translator(model, **keys)
    plain = Translator(model)
    for translation in translator.translate(TEXTS, return_scores=True, **OPTIONS):
        texts = [hypothesis.text for hypothesis in translation.hypotheses]
        sources = [translation.source] * len(texts)
        scored = zip(translation.hypotheses, translator.score(sources, texts), plain.score(sources, texts), strict=True)
        for hypothesis, forced, without in scored:
            assert hypothesis.model_score == pytest.approx(hypothesis.score, abs=1e-6)
            assert hypothesis.score != pytest.approx(without.score, abs=1e-3)
            if forced.tokens.tolist() == hypothesis.tokens.tolist():  # not cut off at the maximum length
                torch.testing.assert_close(forced.positional_scores, hypothesis.positional_scores, atol=1e-6, rtol=0)


def test_faiss_finds_the_same_neighbors(model: ModelInMemory, datastore: Path) -> None:
    keys = {"combination": "knn_mt", "combination.datastore": str(datastore), "combination.interpolation": 0.5}
    translator = Translator(model, **OPTIONS, **keys)
    if importlib.util.find_spec("faiss") is None:
        with pytest.raises(ConfigError, match="install faiss-cpu"):
            translator.translate(TEXTS, **{"combination.index": "faiss"})
        pytest.skip("faiss is not installed")
    by_faiss, exact = translator.translate(TEXTS, **{"combination.index": "faiss"}), translator.translate(TEXTS)
    assert_same([line.hypotheses for line in by_faiss], [line.hypotheses for line in exact], 1e-6)
