"""Invariants of decoding with each architecture: the cache, the batch and an ensemble of itself change nothing.

Search uses a model only through its passes, steps and states, which test_laws_models.py and test_fast_paths.py test
with every registered model.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from seqgen.addons.checks import search
from seqgen.addons.checks.models import SEARCH
from seqgen.core.model import EncoderDecoderModel
from seqgen.extend import Batch, CachedWeight, GenerationConfig, Hypothesis, SequenceGenerator, build_setup
from seqgen.modules.kv_cache import indirection
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import ARCHITECTURES, VOCAB, sharp
from tests.scripted_model import batch_of, dictionary
from tests.subjects import subject_of

WITHOUT_CACHED_WEIGHTS = ("lstm_tiny", "average")
SOURCES = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (2,), (7, 8, 9, 2)]


def batch_for(*models: EncoderDecoderModel, sources: Sequence[Sequence[int]] = SOURCES) -> Batch:
    """The sources, as each model reads them."""
    read = [batch_of(sources, left=model.left_pad_source) for model in models]
    return read[0] if len(read) == 1 else replace(read[0], member_sources=[batch.source for batch in read])


WORDS = dictionary(VOCAB - 4)


def decode(models: list[EncoderDecoderModel], batch: Batch, **options: object) -> list[list[Hypothesis]]:
    return make_generator(models, WORDS, **{"beam_size": 4, "max_len_b": 12, **options}).generate(batch)


names = pytest.mark.parametrize("name", ARCHITECTURES)


@names
@pytest.mark.parametrize("law", [law for law in SEARCH if law != "search: beams in place = moved"])
def test_invariants(name: str, law: str) -> None:
    """The invariant that is left out has the test below."""
    with torch.no_grad():
        SEARCH[law](subject_of(name, peaked=True))


@names
def test_indirection_table_equals_moving_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the memory grows, and if the table is given up during decoding because too many slots are in use."""
    monkeypatch.setattr(indirection, "_BLOCK", 3)
    for seed, most in enumerate((2048, 40, 3)):
        monkeypatch.setattr(indirection, "_MOST_SLOTS", most)
        search.indirection_equals_moving(subject_of(name, seed=seed, peaked=True))


@pytest.mark.parametrize("average", ["probability", "log"])
def test_ensembles_of_different_architectures(average: str) -> None:
    """Cached equals uncached, alone equals batched, and the order does not matter."""
    models = [sharp(name) for name in ARCHITECTURES]
    batch = batch_for(*models)
    options = {"average": average, "weights": [1.0 + i for i in range(len(models))]}
    results = decode(models, batch, **options)
    assert_same(results, decode(models, batch, use_cache=False, **options))
    backwards = {**options, "weights": options["weights"][::-1]}
    assert_same(results, decode(models[::-1], batch_for(*models[::-1]), **backwards))
    for source, hypotheses in zip(SOURCES, results, strict=True):
        assert_same(decode(models, batch_for(*models, sources=[source]), **options), [hypotheses])


@names
def test_weights_are_prepared_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second decode uses the weights that the first has prepacked."""
    original, made = CachedWeight.kept, []
    noted = lambda self, key, make: original(self, key, lambda: (made.append(key), make())[1])  # noqa: E731
    monkeypatch.setattr(CachedWeight, "kept", noted)
    model = sharp(name)
    decode([model], batch_for(model))
    assert bool(made) == (name not in WITHOUT_CACHED_WEIGHTS)
    made.clear()
    decode([model], batch_for(model))
    assert made == []


@pytest.mark.parametrize(
    ("limits", "longest"),
    [({}, 200), ({"max_len": 300}, 299), ({"max_len": 50}, 49), ({"max_len": 300, "max_len_b": 10}, 10)],
    ids=str,
)
def test_max_len_without_max_len_b_is_the_only_limit(limits: dict[str, int], longest: int) -> None:
    cfg = GenerationConfig(**limits)
    generator = SequenceGenerator(build_setup([sharp("fconv_tiny")], WORDS, cfg))
    assert generator.setup.limits.last_steps(torch.tensor([5])).tolist() == [longest]
