"""Shortlists: columns equal the whole vocabulary, and both equal a softmax over the allowed tokens."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from examples.shortlist import write_map
from seqgen.addons.catalogue import shortlist
from seqgen.addons.catalogue.vocabulary_map import VocabularyMap
from seqgen.checkpoints.loaders import DecodingConfig, DecodingTask
from seqgen.config import FastConfig, GenerationConfig
from seqgen.extend import Batch, ConfigError, Dictionary, Linear, SequenceGenerator, WhitespaceTokenizer, build_setup
from seqgen.modules.dtypes import to_dtype
from seqgen.text.translator import Translator
from tests.covering import covering
from tests.exhaustive import ranked_outputs
from tests.hypotheses import as_pairs, assert_same, assert_same_pairs
from tests.model_zoo import VOCAB, ZOO, build, sharp
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model
from tests.waiting_sentences import assert_continuous_equals_alone, sources

WORDS = dictionary(VOCAB - 4)
EOS = 2
EVERYTHING = VocabularyMap({(): np.arange(VOCAB)})
SOURCES = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (7, 8, 9, 2)]


def random_map(count: int = 2, seed: int = 0) -> VocabularyMap:
    """``count`` words for each source token, and the word ``w9`` for all sources."""
    draw = np.random.default_rng(seed)
    keys = [*((token,) for token in range(VOCAB)), (9, 12)]
    words = {key: draw.choice(np.arange(4, VOCAB), count, replace=False) for key in keys}
    return VocabularyMap({(): np.array([13]), **words})


def allowed(candidates: VocabularyMap, source: tuple[int, ...]) -> set[int]:
    """The shortlist of a source by its definition, special tokens included."""
    begins = range(len(source) + 1)
    found = (ids for key, ids in candidates.targets.items() if any(source[i : i + len(key)] == key for i in begins))
    return {0, 1, 2, 3}.union(*(ids.tolist() for ids in found))


def generator(
    models: Any, candidates: VocabularyMap | None, columns: bool = True, words: Dictionary = WORDS, **keys: Any
) -> SequenceGenerator:
    """A generator that reads the candidates from a file."""
    objects = {name: keys.pop(name) for name in ("processors", "observers", "need_attention") if name in keys}
    with TemporaryDirectory() as folder:
        if candidates is not None:
            write_map(candidates.targets, Path(folder) / "list", words, words)
            keys["shortlist"] = f"{folder}/list"
        cfg = GenerationConfig(**{"beam": 4, "nbest": 1, "max_len_a": 1.0, "max_len_b": 3, **keys})
        objects |= {"fast": FastConfig(narrowed_scores=columns), "source_dictionary": words}
        return SequenceGenerator(build_setup(models, words, cfg, **objects))


@pytest.fixture(name="made", autouse=True)
def _made(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each choice of columns, whether there are some; their number is not limited."""
    made: list[bool] = []
    choose = shortlist.ShortlistScoring.attach

    def note(scoring: shortlist.ShortlistScoring, members: Any) -> None:
        choose(scoring, members)
        made.append(scoring.columns is not None)

    monkeypatch.setattr(shortlist, "LARGEST_SHARE", 1.0)
    monkeypatch.setattr(shortlist.ShortlistScoring, "attach", note)
    return made


OPTIONS: dict[str, dict[str, Any]] = {
    "fairseq": {},
    "greedy": {"search": "greedy", "beam": 1},
    "hf beam": {"semantics": "huggingface", "early_stopping": "never"},
    "hf greedy": {"semantics": "huggingface", "beam": 1},
    "hf forced": {"semantics": "huggingface", "forced_first": "w3", "forced_last": "w7", "max_len": 6},
    "min_len": {"min_len": 3},
    "penalties": {"unkpen": -2.0, "suppress": ["w2", "w4", "w6"], "sequence_bias": ["w9=-1"]},
    "ends": {"end_symbols": ["w8"], "suppress_at_begin": ["w8", "w9"], "temperature": 1.7},
    "top tokens": {"top_tokens": 30},
    "groups": {"search": "diverse_beam"},
    "siblings": {"search": "diverse_siblings"},
    "attention": {"coverage_penalty": 0.5, "need_attention": True},
}
ENSEMBLES: dict[str, dict[str, Any]] = {
    "mean": {},
    "log": {"combination": "log", "components": {"combination.weights": [1.0, 3.0]}},
    "negative fusion": {"combination": "fusion", "components": {"combination.weight": -0.2}},
    "fusion": {"combination": "fusion", "components": {"combination.weight": 1.0}},
    "guidance": {"guidance_scale": 1.5},
}
SUPPORTS = [name for name, model in ZOO.items() if not model.is_language_model and name not in ("lstm_tiny", "average")]
TWO = ["transformer_tiny", "fconv_tiny"]
CASES = [
    pytest.param(["transformer_lm_tiny"], {"max_len": 30}, id="the source tokens are those of the prompt"),
    *(pytest.param(["transformer_marian"], keys, id=name) for name, keys in OPTIONS.items()),
    *(pytest.param(TWO, keys, id=name, marks=pytest.mark.slow) for name, keys in ENSEMBLES.items()),
]


@pytest.mark.parametrize(("names", "keys"), CASES)
def test_columns_give_what_the_whole_vocabulary_gives(names: list[str], keys: dict[str, Any], made: list[bool]) -> None:
    """Alone and in a batch; every output is in the shortlist."""
    models, candidates = [sharp(name, seed=seed) for seed, name in enumerate(names, start=3)], random_map()
    left = models[0].left_pad_source
    fast, plain = (generator(models, candidates, columns, **keys) for columns in (True, False))
    found = fast.generate(batch_of(SOURCES, left=left))
    assert made == [True]
    assert_same(found, plain.generate(batch_of(SOURCES, left=left)))
    assert made == [True, False]
    ends = {WORDS.index(token) for token in (*keys.get("end_symbols", []), keys.get("forced_last")) if token}
    first = WORDS.index(keys["forced_first"]) if "forced_first" in keys else None
    for source, hypotheses in zip(SOURCES, found, strict=True):
        for hypothesis in hypotheses:
            tokens = hypothesis.tokens.tolist()
            if first is not None:
                assert tokens.pop(0) == first
            assert {*tokens} <= allowed(candidates, source) | ends
            assert hypothesis.score > -1e6
        for alone in (fast.generate(batch_of([source], left=left)), plain.generate(batch_of([source], left=left))):
            assert_same_pairs(as_pairs(alone[0]), as_pairs(hypotheses))


@pytest.mark.parametrize("columns", [True, False])
def test_an_end_token_that_the_map_does_not_have_ends_outputs(columns: bool) -> None:
    rule = random_rule(VOCAB, seed=1)
    models = [ScriptedModel(rule)] if not columns else [sharp("transformer_marian", seed=4)]
    made = generator(models, VocabularyMap({(): np.array([13])}), columns, end_symbols=["w8"], beam=8, nbest=8)
    ends = {one.tokens[-1].item() for found in made.generate(batch_of(SOURCES)) for one in found}
    assert ends == {EOS, WORDS.index("w8")}


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("name", ["transformer_tiny", "t5_tiny"])
@pytest.mark.slow
def test_sentences_that_join_a_batch(name: str, columns: bool, made: list[bool]) -> None:
    model, rows = sharp(name, seed=3), sources(17, seed=6)
    made_generator = generator([model], random_map(), columns)
    assert made_generator.can_merge
    asked = assert_continuous_equals_alone(made_generator, rows, 5)
    assert len([running for running in asked if 0 < running < 5]) > 2
    assert set(made) == {columns}


def test_the_result_is_that_of_a_softmax_over_the_allowed_tokens() -> None:
    """A beam that covers all prefixes finds the best outputs of an exhaustive search; the model has no columns."""
    vocab, candidates = 7, VocabularyMap({(): np.array([4]), (5,): np.array([6]), (4, 5): np.array([5])})
    rule = random_rule(vocab, seed=5)

    def scores(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        hidden = torch.tensor([token not in allowed(candidates, source) for token in range(vocab)])
        return rule(source, history).masked_fill(hidden, -torch.inf).log_softmax(0)

    made = generator([ScriptedModel(rule)], candidates, words=dictionary(vocab - 4), beam=300, nbest=5, max_len_a=0.0)
    for source in ((5, 2), (4, 5, 2), (4, 2)):
        wanted = [pair for pair in ranked_outputs(scores, source, vocab, 3, 5) if pair[1] > -torch.inf]
        assert_same_pairs(as_pairs(made.generate(batch_of([source]))[0][:5]), wanted)


def test_sampling_from_a_list_of_everything_changes_nothing() -> None:
    plain, *found = (
        generator([sharp("fconv_tiny")], candidates, columns, sampling=True).generate(batch_of(SOURCES))
        for candidates, columns in ((None, True), (EVERYTHING, True), (EVERYTHING, False))
    )
    assert_same(found[0], plain)
    assert_same(found[1], plain, 0.0)


NEEDING_ALL = [{"no_repeat_ngram_size": 2}, {"sequence_bias": ["w1 w2=1.0"]}, {"sampling": True, "top_k": 3}]


@pytest.mark.parametrize(("name", "keys"), [*(("transformer_tiny", keys) for keys in NEEDING_ALL), ("lstm_tiny", {})])
@pytest.mark.slow
def test_what_needs_the_whole_vocabulary_gets_it(name: str, keys: dict[str, Any], made: list[bool]) -> None:
    model, candidates = sharp(name, seed=3), random_map()
    here = generator([model], candidates, **keys)
    found = here.generate(batch_of(SOURCES))
    assert made == [False]
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert {t for h in hypotheses for t in h.tokens.tolist()} <= allowed(candidates, source)
        if "sampling" not in keys:  # random numbers depend on the sentence's number
            assert_same([hypotheses], here.generate(batch_of([source])))


def test_tokens_of_a_prefix_of_a_batch_and_of_constraints_are_added(made: list[bool]) -> None:
    candidates = VocabularyMap({(): np.array([9, 10])})
    prefix, first = torch.tensor([[15, 1], [16, 17]]), torch.tensor([18, 20])
    model = sharp("transformer_tiny", seed=3)
    batch: Batch = batch_of(SOURCES[:2])
    by_prefix = generator([model], candidates).generate(batch, prefix)
    by_batch = generator([model], candidates, forced_first="w3").generate(replace(batch, first_tokens=first))
    for given, found in ((prefix, by_prefix), (first.unsqueeze(1), by_batch)):
        for own, hypotheses in zip(given, found, strict=True):
            wanted = [token for token in own.tolist() if token != 1]
            for hypothesis in hypotheses:
                assert hypothesis.tokens.tolist()[: len(wanted)] == wanted
                assert set(hypothesis.tokens.tolist()) <= {0, 2, 3, 7, 9, 10, *wanted}
                assert hypothesis.score > -1e6
    constrained = generator([model], candidates, constraints="unordered", search="constrained")
    found = constrained.generate(batch, constraints=[[[15, 16]], [[[17], [18, 19]]]])
    one, other = (set(hypotheses[0].tokens.tolist()) for hypotheses in found)
    assert {15, 16} <= one
    assert {17} <= other or {18, 19} <= other
    assert made == [False, True, True]  # a prefix is compared with ids


def test_source_and_target_vocabularies_may_differ(tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_text("\tw3 w4\nw1\tw11\nw5 w8\tw12\nw17\tw0\n")  # the target vocabulary has no w17
    one = text_model(task=DecodingTask(DecodingConfig(), *(WhitespaceTokenizer(dictionary(size)) for size in (19, 13))))
    (first, second, *_) = Translator(one, beam=3, nbest=3, max_len_b=6).translate(TEXTS, shortlist=str(file))
    for line, words in ((first, {"w3", "w4", "w11", "w12"}), (second, {"w3", "w4"})):
        assert {word for h in line.hypotheses for word in h.text.split()} <= {*words, "<unk>", "<s>"}


@pytest.mark.parametrize("name", SUPPORTS)
def test_columns_of_an_output_layer(name: str) -> None:
    decoder, ids = build(name).eval().decoder, torch.tensor([7, 4, 20, 5])
    with torch.inference_mode():
        features = torch.randn(3, decoder.embed_tokens.embedding_dim, dtype=torch.float64)
        torch.testing.assert_close(decoder.output_columns(ids)(features), decoder.output_layer(features)[:, ids])


@pytest.mark.parametrize(
    ("name", "bias", "packs"), covering(["float32", "bfloat16", "int8"], [True, False], [True, False], times=2)
)
def test_columns_of_a_projection(name: str, bias: bool, packs: bool) -> None:
    torch.manual_seed(1)
    layer = Linear(256, 700, bias=bias)
    try:
        layer = to_dtype(layer, name)
    except ConfigError:
        pytest.skip("this processor has no instructions for int8")
    layer.packs = packs
    x, ids = torch.randn(5, 256).to(torch.bfloat16 if name == "bfloat16" else torch.float32), torch.randperm(700)[:400]
    with torch.inference_mode():
        part, whole = layer.columns(ids)(x), layer(x)[:, ids]
    torch.testing.assert_close(part, whole, atol=1e-5 if name != "bfloat16" else 2e-2, rtol=0)
