"""Decoding and scoring text: the translator, its lines, rankings, streams, members and metrics."""

import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import seqgen
from seqgen import TextStreamer, Translator
from seqgen.cli.line_decoding import make_text_cleaner
from seqgen.extend import Chrf, DiverseBeamSearch, Ensemble, GenerationConfig, MemberSpec, Reranker, WhitespaceTokenizer
from seqgen.metrics import Texts, corpus_scores
from tests.refusals import Row, refusals
from tests.scripted_model import dictionary
from tests.text_models import task_of, text_model

MODEL, OTHER = text_model(), text_model(seed=1)
TRANSLATOR, PAIR = Translator(MODEL), Translator([MODEL, OTHER])


def translating(*words: str, lines: Any = ("w1", "w2"), by: Translator = TRANSLATOR, **keys: Any) -> Row:
    """A call of ``translate``."""
    return lambda: by.translate(lines if isinstance(lines, str) else list(lines), **keys), *words


def scoring(sources: Any, references: Any, *words: str, **keys: Any) -> Row:
    """A call of ``score``."""
    return lambda: list(TRANSLATOR.score(sources, references, **keys)), *words


def making(*words: str, models: Any = "nothere", **keys: Any) -> Row:
    """A new translator."""
    return lambda: Translator(models, **keys), *words


test_texts = refusals(
    translating("must be a list of texts", lines="w1 w2"),
    translating("line 2 is of type int", lines=["w1", 7]),
    translating("line 2 contains half of a surrogate pair, '\\ud800'", lines=["w1", "w2 \ud800"]),
    translating("the prefix of line 1 contains half of a surrogate pair", prefixes=["\udfff", ""]),
    translating("line 2 has no prefix", "one prefix for each line", prefixes=["w1"]),
    translating("prefix 3 has no line", "one prefix for each line", prefixes=["w1", "w2", "w3"]),
    scoring(["w1"], None, "references must be a list of texts"),
    scoring("w1", ["w1", "w2"], "sources must be a list of texts"),
    scoring(["w1", None], ["w1", "w1"], "source, line 2 is of type NoneType"),
    scoring(["w1", "w1"], ["w1", "\ud800"], "reference, line 2 contains half of a surrogate pair"),
    scoring(["w1", "w2"], ["w1"], "2 sources"),
    scoring(["w1"], ["w2"], "beam, length_penalty has no effect on the scores of known", beam=3, length_penalty=2.0),
)

NO_DTYPE = "is not a dtype that weights can have; choose one of: float64, float32"
DEVICES = ("is not available; available devices: ", "cpu")
COMPARED: dict[str, Any] = {"prompt_lookup": 2, "encoder_no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.5}


def two_vocabularies() -> Translator:
    task = task_of()
    task.source_tokenizer = WhitespaceTokenizer(dictionary(25))
    return Translator(text_model(task=task), beam=1)


UNEQUAL = two_vocabularies()


def dtype(value: Any) -> Row:
    return lambda: seqgen.load_model("nothere", dtype=value), NO_DTYPE


test_translators = refusals(
    making("no model", models=[]),
    making("nothere"),
    making("did you mean 'beam'", beem=3),
    *(making(f"device={device}", *DEVICES, device=device) for device in ("foo", "cuda:99", None)),
    making(*DEVICES, device=""),
    (lambda: seqgen.load_model("nothere", "foo"), "device=foo", *DEVICES),
    *map(dtype, ("int8", "bf16", torch.int8, 16)),
    making("must be one of", models=MODEL, dtype="float7"),
    translating("generation.dtype=bfloat16 applies to all", "constructor", dtype="bfloat16"),
    translating("beam='five' should be a whole number", beam="five"),
    making("max_len='many' should be a whole number", models=replace(MODEL, generation={"max_len": "many"})),
    *(translating("components=", "should be keys and values", components=value) for value in ({1: 2}, "x")),
    translating("should be keys and values", components={1: 2}, search="diverse_beam", **{"search.groups": 5}),
    # already here, before there is a text
    making("forced_last", models=MODEL, forced_last="w1"),
    making("top_k", models=replace(MODEL, generation={"sampling": True, "top_k": 50}), search="beam", top_k=5),
    (lambda: TRANSLATOR.task.build_generator(TRANSLATOR.models, GenerationConfig(nbest=6)), "nbest=6"),
    *(translating(f"{key}={value} compares target", by=UNEQUAL, **{key: value}) for key, value in COMPARED.items()),
)


class Constant(Reranker):
    def __call__(self, translation: Any, hypotheses: Any) -> list[float]:
        return [1.0] * len(hypotheses)


def streaming(*words: str, generation: Any = None, **keys: Any) -> Row:
    by = Translator(replace(MODEL, generation=generation or {}))
    return translating(*words, "cannot be streamed", by=by, streamer=TextStreamer(io.StringIO()), **keys)


def without_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = Translator(MODEL, coverage_penalty=1.0, max_len_b=3)
    monkeypatch.setattr(Ensemble, "combine_attention", lambda *unused: None)
    translator.translate(["w1"])


DIVERSE = Translator(MODEL, search=DiverseBeamSearch(2, 3.0), beam=4)
test_components = refusals(
    translating("there is no utility 'chfr'", "bleu, chrf", mbr="chfr"),
    translating("minimum Bayes risk compares", "generation.beam=2 or more", mbr=Chrf(), beam=1),
    translating("set only one of generation.mbr and generation.rerank", rerank=Constant(), mbr="chrf"),
    translating("reranking compares hypotheses, but only one is generated", rerank=Constant(), beam=1),
    translating("there is no reranker 'nosuch'", rerank="nosuch"),
    translating("generation.rerank does not name its reranker", **{"reranker.weight": 1.0}),
    # streams
    streaming("generation.beam=3", beam=3),
    # attention
    (without_attention, "generation.coverage_penalty needs attention weights, but this model returns none"),
    translating("does not apply to the search object DiverseBeamSearch", by=DIVERSE, sampling=True, seed=2),
)

SPEC = MemberSpec(MODEL.model)
NOT_A_SPEC = "entry 2 of member_sources must be a source, or a MemberSpec of model 2"
test_members = refusals(
    translating("has 1 entries for 2 models", by=PAIR, member_sources=["input"]),
    translating("'fields' is not a source", by=PAIR, member_sources=["input", "fields"]),
    translating(NOT_A_SPEC, by=PAIR, member_sources=["input", SPEC]),
    translating(NOT_A_SPEC, by=PAIR, member_sources=[SPEC, MemberSpec(OTHER.model, companion=True)]),
    (lambda: MODEL.task.build_generator([SPEC], GenerationConfig(member_sources=["field2"])), "the source field2 to"),
    translating("line 1 has 1 fields, and", by=PAIR, member_sources=["field1", "field2"]),
    translating("3 weights for 1 members", by=PAIR, combination="fusion", **{"combination.weights": [1.0, 2.0, 3.0]}),
)

TEXTS = Texts(["a"], ["b"])


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optional libraries are not installed."""
    for name in ("rouge_score.rouge_scorer", "sacremoses"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def texts(tmp_path: Path) -> str:
    for name in "hr":
        (tmp_path / name).write_text("a b\n")
    return f"hypothesis={tmp_path}{os.sep}h reference={tmp_path}{os.sep}r"


test_metrics = refusals(
    (lambda: corpus_scores(["blue"], TEXTS), "'blue' (did you mean 'bleu'?)"),
    (lambda absent: corpus_scores(["rougeL"], TEXTS), "pip install rouge-score"),
    (lambda absent: make_text_cleaner("", "de"), "pip install sacremoses"),
    (lambda: make_text_cleaner("", "german"), "detokenize=german: ", "the languages are ", "de, ", ", zh"),
    (lambda: make_text_cleaner("", "xx"), "detokenize=xx: ", "the languages are "),
    ("score {texts} source={tmp_path}/r", "has no effect"),
)
