"""kNN-MT (examples/papers/knn_mt.py) against its formula, computed from the files of the datastore."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from examples.papers.knn_mt import BuildConfig, KnnMT, build, write_datastore
from seqgen.cli.command import run as run_command
from seqgen.core.errors import ConfigError
from seqgen.core.structures import Batch, Hypothesis
from seqgen.text.members import ModelInMemory
from seqgen.text.translator import Translator
from tests.commands import SMALL_TRANSFORMER, command, corpus, training_arguments
from tests.hypotheses import assert_same
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
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


def features_and_lprobs(loaded: ModelInMemory, source: str, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Features ``(T, C)`` and log-probabilities ``(T, V)`` of the tokens of a target ``(T,)``, by teacher forcing."""
    task, model = loaded.task, loaded.model
    batch: Batch = task.collate([(0, task.encode_source(source), target)], model)
    assert batch.prev_output_tokens is not None
    encoded = model.encoder(batch.source.src_tokens, batch.source.src_lengths)
    features = model.decoder.extract_features(batch.prev_output_tokens, encoded)[0][0]
    return features, model.decoder.output_layer(features).log_softmax(-1)


def formula(
    features: np.ndarray[Any, Any], lprobs: torch.Tensor, keys: Any, values: Any, count: int, weight: float, heat: float
) -> list[float]:
    """``log(w p_kNN + (1 - w) p)`` for every token, by sorting all distances."""
    distances = [sum((float(a) - float(b)) ** 2 for a, b in zip(key, features, strict=True)) for key in keys]
    nearest = sorted(range(len(keys)), key=lambda entry: distances[entry])[:count]
    total = sum(math.exp(-distances[entry] / heat) for entry in nearest)
    neighbors = dict.fromkeys(range(len(lprobs)), 0.0)
    for entry in nearest:
        neighbors[int(values[entry])] += math.exp(-distances[entry] / heat) / total
    return [math.log(weight * neighbors[token] + (1 - weight) * math.exp(p)) for token, p in enumerate(lprobs.tolist())]


@torch.no_grad()
def test_the_datastore_has_the_features_that_predict_each_target_token(model: ModelInMemory, datastore: Path) -> None:
    keys, values = np.load(datastore / "features.npy"), np.load(datastore / "tokens.npy")
    wanted_values, wanted_keys = [], []
    for source, target in PAIRS:
        tokens = model.task.encode_target(target)
        wanted_values += tokens.tolist()
        wanted_keys.append(features_and_lprobs(model, source, tokens)[0])
    assert values.tolist() == wanted_values
    torch.testing.assert_close(torch.from_numpy(keys).double(), torch.cat(wanted_keys), atol=3e-3, rtol=3e-3)


@torch.no_grad()
@pytest.mark.parametrize(("count", "weight", "heat"), [(3, 0.5, 2.0), (1, 0.9, 1.0), (50, 0.3, 20.0)])
def test_scores_are_those_of_the_formula(
    model: ModelInMemory, datastore: Path, count: int, weight: float, heat: float
) -> None:
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
                wanted = formula(features[step].numpy(), lprobs[step], keys, values, count, weight, heat)
                assert float(hypothesis.positional_scores[step]) == pytest.approx(wanted[token], abs=1e-6)
                assert sum(map(math.exp, wanted)) == pytest.approx(1.0)


def hypotheses(translator: Translator, **settings: Any) -> list[list[Hypothesis]]:
    return [translation.hypotheses for translation in translator.translate(TEXTS, **settings)]


@torch.no_grad()
def test_forced_decoding_has_the_scores_of_the_search(model: ModelInMemory, datastore: Path) -> None:
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
    translator = Translator(model, **OPTIONS)
    if importlib.util.find_spec("faiss") is None:
        with pytest.raises(ConfigError, match="install faiss-cpu"):
            translator.translate(TEXTS, **keys, **{"combination.index": "faiss"})
        pytest.skip("faiss is not installed")
    assert_same(hypotheses(translator, **keys, **{"combination.index": "faiss"}), hypotheses(translator, **keys), 1e-6)


@pytest.mark.slow
def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command builds the datastore, and another one decodes with it."""
    data, run, file = corpus(tmp_path / "DATA"), tmp_path / "run", ROOT / "examples" / "papers" / "knn_mt.py"
    arguments = [*training_arguments(data, run), *SMALL_TRANSFORMER, "optimization.max_update=1"]
    assert command("train", *arguments).code == 0
    names = [f"source={data}/test.en", f"target={data}/test.de", f"datastore={tmp_path / 'knn'}", f"path={run}"]
    for code in (0, 2):  # the second time, the folder exists
        with pytest.raises(SystemExit) as exit_:
            run_command(BuildConfig, build, "", [*names, "common.threads=1"])
        assert exit_.value.code == code
    assert "does not exist yet" in capsys.readouterr().err
    decode = (f"common.user_dir={file}", f"path={run}", f"input={data}/test.en", "format=json", "common.threads=1")
    keys = ("generation.combination=knn_mt", f"combination.datastore={tmp_path / 'knn'}")
    outcome = command("generate", *decode, *keys, "combination.interpolation=0.9", "combination.temperature=1")
    assert outcome.code == 0, outcome.err
    outputs = [json.loads(line)["hypotheses"][0]["text"] for line in outcome.out.splitlines()]
    combination = KnnMT(datastore=str(tmp_path / "knn"), interpolation=0.9, temperature=1.0)
    lines = (data / "test.en").read_text(encoding="utf-8").splitlines()
    assert outputs == [t.text for t in Translator(str(run)).translate(lines, combination=combination)]
    references = (data / "test.de").read_text(encoding="utf-8").splitlines()
    assert set(outputs) & set(references), "the model has hardly been trained, but the datastore has these references"
