"""Members with one encoder: one run gives exactly what separate runs give, and no other encoders are shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from seqgen.config import DebugConfig, GenerationConfig
from seqgen.encoder import Encoder
from seqgen.generation.options import build_setup
from seqgen.generation.search.base import Search
from seqgen.generation.search.diverse import DiverseBeamSearch
from seqgen.generation.search.sampling import Sampling
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Batch, Hypothesis
from tests.covering import covering
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, ZOO, sharp
from tests.scripted_model import batch_of, dictionary
from tests.waiting_sentences import queue, sources

SOURCES = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (7, 8, 9, 2)]
OFF = DebugConfig(shared_encoders=False)


@pytest.fixture(name="runs")
def _runs() -> Iterator[list[nn.Module]]:
    """The encoders that ran."""
    ran: list[nn.Module] = []

    def note(module: nn.Module, arguments: Any) -> None:
        if isinstance(module, Encoder):
            ran.append(module)

    handle = register_module_forward_pre_hook(note)
    yield ran
    handle.remove()


def with_the_encoder_of(model: EncoderDecoderModel, name: str, seed: int = 1) -> EncoderDecoderModel:
    """A model with the same encoder and another decoder."""
    other = sharp(name, seed)
    other.encoder = model.encoder
    return other


def generator(models: list[EncoderDecoderModel], debug: DebugConfig | None = None, **options: Any) -> SequenceGenerator:
    cfg = GenerationConfig(beam=4, max_len_b=8)
    return SequenceGenerator(build_setup(models, dictionary(VOCAB - 4), cfg, **options, debug=debug))


def decode(
    models: list[EncoderDecoderModel], batch: Batch, debug: DebugConfig | None = None, **options: Any
) -> list[list[Hypothesis]]:
    return generator(models, debug, **options).generate(batch)


def batch_for(model: EncoderDecoderModel) -> Batch:
    return batch_of(SOURCES, left=model.left_pad_source)


STRATEGIES: dict[str, Callable[[], Search | None]] = {
    "beam": lambda: None,
    "diverse": lambda: DiverseBeamSearch(2, 0.5),
    "sampling": lambda: Sampling(seed=3),
}


@pytest.mark.parametrize(("name", "strategy"), covering(list(ZOO), list(STRATEGIES)))
def test_sharing_changes_no_bit(name: str, strategy: str, runs: list[nn.Module]) -> None:
    model = sharp(name)
    models, batch = [model, with_the_encoder_of(model, name), sharp(name, seed=5)], batch_for(model)
    shared = decode(models, batch, search_strategy=STRATEGIES[strategy](), need_attention=True)
    assert runs == [model.encoder, models[2].encoder]
    separate = decode(models, batch, OFF, search_strategy=STRATEGIES[strategy](), need_attention=True)
    assert runs[-3:] == [one.encoder for one in models]
    assert_same(shared, separate, tolerance=0)


def test_one_model_twice_runs_its_encoder_once(runs: list[nn.Module]) -> None:
    model = sharp("transformer_tiny")
    twice = decode([model, model], batch_for(model))
    assert len(runs) == 1
    assert_same(twice, decode([model], batch_for(model)))


def test_members_with_other_sources_are_not_shared(runs: list[nn.Module]) -> None:
    model = sharp("transformer_tiny")
    models = [model, *(with_the_encoder_of(model, "transformer_tiny", seed) for seed in (1, 2))]
    batch, again = batch_of(SOURCES), batch_of(SOURCES)
    other = batch_of([source[1:] if len(source) > 2 else source for source in SOURCES])
    batch = replace(batch, member_sources=[batch.source, other.source, again.source])
    shared = decode(models, batch)
    assert len(runs) == 2  # the first and the third member read equal sources, which are different tensors
    assert_same(shared, decode(models, batch, OFF), tolerance=0)


class AlwaysRandom(nn.Dropout):
    """Dropout that stays active in evaluation, as for Monte Carlo estimates."""

    def train(self, mode: bool = True) -> AlwaysRandom:
        return super().train(True)


def test_an_encoder_that_is_random_in_evaluation_is_not_shared(runs: list[nn.Module]) -> None:
    model = sharp("transformer_tiny")
    model.encoder.dropout = AlwaysRandom(0.5)
    decode([model, model], batch_of(SOURCES))
    assert len(runs) == 2


def test_an_encoder_output_that_is_given_is_read_by_its_member_alone(runs: list[nn.Module]) -> None:
    model = sharp("transformer_tiny")
    batch = batch_of(SOURCES)
    output = model.encoder(batch.source.src_tokens, batch.source.src_lengths)
    edited = replace(output, encoder_out=2 * output.encoder_out)
    sources = [replace(batch.source, encoder_out=edited), batch.source]
    runs.clear()
    shared = decode([model, model], replace(batch, member_sources=sources))
    assert len(runs) == 1
    assert_same(shared, decode([model, model], replace(batch, member_sources=sources), OFF), tolerance=0)


@pytest.mark.parametrize("name", ["transformer_tiny", "fconv_tiny", "t5_tiny"])
def test_continuous_batching_shares_and_gives_what_each_sentence_gets_alone(name: str, runs: list[nn.Module]) -> None:
    model, rows = sharp(name, seed=3), sources(11, seed=4)
    decoder = generator([model, with_the_encoder_of(model, name)], max_len_a=1.0, max_len_b=3)
    assert decoder.can_merge
    take, asked = queue(rows, 4, left=model.left_pad_source)
    found = dict(decoder.generate_continuously(take))
    assert len([running for running in asked if 0 < running < 4]) > 1
    joined = len(runs)
    take, _ = queue(rows, 4, left=model.left_pad_source)
    dict(generator(decoder.models, OFF, max_len_a=1.0, max_len_b=3).generate_continuously(take))
    assert len(runs) == 3 * joined  # the members share one run for each batch that joins, or have one each
    for number, row in enumerate(rows):
        assert_same([found[number]], decoder.generate(batch_of([row])))


def test_the_output_of_the_encoder_is_not_changed_by_a_member(runs: list[nn.Module]) -> None:
    """Compaction drops sentences of one member at a time."""
    model = sharp("transformer_tiny", seed=2)
    outputs: list[tuple[Tensor, Tensor]] = []
    model.encoder.register_forward_hook(
        lambda module, given, output: outputs.append((output.encoder_out, output.encoder_out.clone()))
    )
    debug = DebugConfig(lazy_compaction=False)
    decode([model, model], batch_for(model), debug, max_len_a=1.0, max_len_b=0)
    ((now, before),) = outputs
    assert torch.equal(now, before)
