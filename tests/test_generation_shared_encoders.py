"""Members with identical encoders: one run gives exactly what separate runs give, and no other encoders are shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqgen.config import DebugConfig
from seqgen.generation.ensemble import shared_encoders
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
def _runs(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The encoders that ran."""
    ran: list[nn.Module] = []
    run = shared_encoders._run

    def note(encoder: Any, source: Any) -> Any:
        ran.append(encoder)
        return run(encoder, source)

    monkeypatch.setattr(shared_encoders, "_run", note)
    return ran


def with_the_same_encoder(name: str, seed: int = 0, other_decoder: int = 1) -> EncoderDecoderModel:
    """The model of a seed, in which all weights that the encoder does not use are different."""
    other = sharp(name, seed)
    of_encoder = {id(parameter) for parameter in other.encoder.parameters()}
    torch.manual_seed(other_decoder)
    with torch.no_grad():
        for parameter in other.decoder.parameters():
            if id(parameter) not in of_encoder:
                parameter.mul_(1 + 0.3 * torch.rand_like(parameter))
    return other


def generator(models: list[EncoderDecoderModel], debug: DebugConfig | None = None, **options: Any) -> SequenceGenerator:
    return SequenceGenerator(
        models, dictionary(VOCAB - 4), **{"beam_size": 4, "max_len_b": 8, **options}, debug=debug or DebugConfig()
    )


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
    models, batch = [model, with_the_same_encoder(name), sharp(name, seed=5)], batch_for(model)
    shared = decode(models, batch, search_strategy=STRATEGIES[strategy](), need_attention=True)
    has_weights = next(model.encoder.parameters(), None) is not None
    if name == "lstm_tiny":  # has attributes that cannot be compared
        assert len(runs) == 3
    else:
        assert runs == [model.encoder, *[models[2].encoder] * has_weights]
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
    models = [model, *(with_the_same_encoder("transformer_tiny", 0, seed) for seed in (1, 2))]
    batch, again = batch_of(SOURCES), batch_of(SOURCES)
    other = batch_of([source[1:] if len(source) > 2 else source for source in SOURCES])
    batch = replace(batch, member_sources=[batch.source, other.source, again.source])
    shared = decode(models, batch)
    assert len(runs) == 2  # the first and the third member read equal sources, which are different tensors
    assert_same(shared, decode(models, batch, OFF), tolerance=0)


def in_place(encoder: nn.Module) -> None:
    with torch.no_grad():
        next(encoder.parameters()).mul_(1.5)


def loaded(encoder: nn.Module) -> None:
    encoder.load_state_dict({name: 1.5 * weight for name, weight in encoder.state_dict().items()})


def another_attribute(encoder: nn.Module) -> None:
    encoder.embed_scale = 0.5  # type: ignore[assignment]


def a_hook(encoder: nn.Module) -> None:
    encoder.layers[0].register_forward_hook(lambda module, given, output: 2 * output)  # type: ignore[index,union-attr]


class AlwaysRandom(nn.Dropout):
    """Dropout that stays active in evaluation, as for Monte Carlo estimates."""

    def train(self, mode: bool = True) -> AlwaysRandom:
        return super().train(True)


def of_another_class(encoder: nn.Module) -> None:
    encoder.dropout = AlwaysRandom(0.5)


@pytest.mark.parametrize(
    "change", [in_place, loaded, another_attribute, a_hook, of_another_class], ids=lambda f: f.__name__
)
def test_a_change_after_the_first_batch_ends_the_sharing(
    change: Callable[[nn.Module], None], runs: list[nn.Module]
) -> None:
    model = sharp("transformer_tiny")
    models = [model, with_the_same_encoder("transformer_tiny")]
    batch, kept = batch_for(model), generator(models)
    before = kept.generate(batch)
    kept.generate(batch)
    assert len(runs) == 2
    change(models[1].encoder)
    torch.manual_seed(0)
    after = kept.generate(batch)
    assert len(runs) == 4
    torch.manual_seed(0)
    assert_same(after, decode(models, batch, OFF), tolerance=0)
    assert [line[0].score for line in after] != [line[0].score for line in before]


def test_two_encoders_that_are_random_in_evaluation_are_not_shared(runs: list[nn.Module]) -> None:
    models = [sharp("transformer_tiny"), with_the_same_encoder("transformer_tiny")]
    for model in models:
        model.encoder.dropout = AlwaysRandom(0.5)
    decode(models, batch_of(SOURCES))
    decode(models[:1] * 2, batch_of(SOURCES))
    assert len(runs) == 4


def test_encoders_that_become_identical_are_shared(runs: list[nn.Module]) -> None:
    models = [sharp("transformer_tiny", seed) for seed in (1, 2)]
    kept, batch = generator(models), batch_for(models[0])
    kept.generate(batch)
    assert len(runs) == 2
    models[1].encoder.load_state_dict(models[0].encoder.state_dict())
    kept.generate(batch)
    assert len(runs) == 3


def test_an_attribute_that_cannot_be_compared_counts_as_different(runs: list[nn.Module]) -> None:
    models = [sharp("transformer_tiny"), with_the_same_encoder("transformer_tiny")]
    for value, expected in ((lambda: torch.zeros(2), 1), (lambda: [torch.zeros(2)], 2)):
        for model in models:
            model.encoder.table = value()  # type: ignore[assignment]
        runs.clear()
        decode(models, batch_of(SOURCES))
        assert len(runs) == expected


@pytest.mark.parametrize("name", ["transformer_tiny", "fconv_tiny", "t5_tiny"])
def test_continuous_batching_shares_and_gives_what_each_sentence_gets_alone(name: str, runs: list[nn.Module]) -> None:
    model, rows = sharp(name, seed=3), sources(11, seed=4)
    decoder = generator([model, with_the_same_encoder(name, seed=3)], max_len_a=1.0, max_len_b=3)
    assert decoder.can_merge
    take, asked = queue(rows, 4, left=model.left_pad_source)
    found = dict(decoder.generate_continuously(take))
    assert len([running for running in asked if 0 < running < 4]) > 1
    assert set(runs) == {model.encoder}  # never that of the second member
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
