"""Several examples in a row: the same as each in a row of its own, in loss and gradient."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from seqgen.data.combined_datasets import PackedDataset, pack
from seqgen.extend import Batch, ConfigError, EncoderDecoderModel, Example, collate
from seqgen.modules.masks import segment_mask, segment_positions
from seqgen.training.criteria import CrossEntropyConfig, CrossEntropyCriterion
from tests.commands import corpus, done, training_arguments
from tests.data.test_iterator import EOS, PAD, Numbers
from tests.model_zoo import ZOO, TinyTask, build
from tests.training_runs import assert_identical, everything

PACKABLE = [name for name in ZOO if build(name).supports_packing]


def alone(examples: list[Example], model: EncoderDecoderModel) -> Batch:
    return collate(examples, source_pad=PAD, target_pad=PAD, start_token=model.start_token(EOS))


def packed(rows: list[list[Example]], model: EncoderDecoderModel) -> Batch:
    return pack([alone(row, model) for row in rows], PAD, PAD)


def test_the_zoo_has_models_that_pack() -> None:
    assert {"transformer_tiny", "t5_tiny"} <= {*PACKABLE}
    assert len(PACKABLE) < len(ZOO)


def test_masks_and_positions() -> None:
    segments = torch.tensor([[1, 1, 2, 2, 2, 0]])
    assert segment_positions(segments).tolist() == [[0, 1, 0, 1, 2, 0]]
    triangles = torch.block_diag(*(torch.ones(size, size).tril() for size in (2, 3, 1)))
    assert torch.equal(segment_mask(segments, segments, causal=True)[0, 0], triangles.bool())


def loss_and_gradients(model: EncoderDecoderModel, batch: Batch) -> list[Tensor]:
    out = CrossEntropyCriterion(CrossEntropyConfig(), TinyTask())(model, batch)
    model.zero_grad()
    out.loss.backward()
    assert out.logging["nsentences"] == 23
    assert out.sample_size == batch.ntokens
    return [out.loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", PACKABLE)
@pytest.mark.parametrize("length", [16, 60])
def test_packed_equals_unpacked(name: str, length: int) -> None:
    """The law of packing, in float64."""
    model, data = build(name), Numbers(23)
    dataset = PackedDataset(data, length)
    rows = [dataset.example(i, epoch=1, seed=1) for i in range(len(dataset.lengths(1, 1)))]
    assert len(rows) < len(data)
    together = packed(rows, model)
    apart = alone([example for row in rows for example in row], model)
    assert together.source.src_tokens.size(0) < apart.source.src_tokens.size(0)
    assert together.ids.tolist() == apart.ids.tolist()
    assert together.segments is not None
    assert together.segments.target.min() > 0, "padding, too, has keys that are not masked"
    assert together.source.src_lengths.sum() == apart.source.src_lengths.sum()
    for got, wanted in zip(loss_and_gradients(model, together), loss_and_gradients(model, apart), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


def test_rows_contain_each_example_once_and_are_full() -> None:
    data = Numbers(200)
    dataset = PackedDataset(data, 40)
    for epoch in (1, 2):
        lengths = dataset.lengths(epoch, 3)
        rows = [dataset.example(i, epoch=epoch, seed=3) for i in range(len(lengths))]
        assert sorted(example.id for row in rows for example in row) == list(range(200))
        for row, sizes in zip(rows, lengths.tolist(), strict=True):
            assert sizes == [sum(len(e.source) for e in row), sum(len(e.target) for e in row if e.target is not None)]
        assert lengths.max() <= 40
        assert lengths.max(1)[:-1].mean() > 0.85 * 40
    assert len(dataset) == 200
    other, same = PackedDataset(data, 40), PackedDataset(data, 40)
    assert other.example(3, epoch=2, seed=3)[0].id == dataset.example(3, epoch=2, seed=3)[0].id
    assert [e.id for e in same.example(0, epoch=1, seed=3)] != [e.id for e in same.example(0, epoch=2, seed=3)]


def test_an_example_that_is_too_long_has_a_row_of_its_own() -> None:
    dataset = PackedDataset(Numbers(23), 2)
    assert sorted(dataset.example(i, epoch=1, seed=1)[0].id for i in range(23)) == list(range(23))


def test_a_decoder_whose_forward_does_not_support_packing_is_refused() -> None:
    model = build("transformer_tiny")

    class Doubled(type(model.decoder)):  # type: ignore[misc]
        def forward(self, *args: Tensor, **keys: object) -> object:
            out = super().forward(*args, **keys)
            return out._replace(logits=2 * out.logits)

    model.decoder.__class__ = Doubled
    words = torch.tensor([5, EOS])
    batch = packed([[Example(0, words, words), Example(1, words, words)]], model)
    with pytest.raises(ConfigError, match="pack=true is not possible with TransformerModel"):
        CrossEntropyCriterion(CrossEntropyConfig(), TinyTask())(model, batch)


def test_training_with_packed_rows(tmp_path: Path) -> None:
    """Stopped and resumed as without."""
    data = corpus(tmp_path / "data")

    def train(name: str, updates: int) -> Path:
        keys = ["model=t5_tiny", "model.d_model=16", "model.num_layers=1", "model.num_heads=2", "model.d_ff=16"]
        keys += ["dataset.pack=true", "dataset.pack_length=64", f"optimization.max_update={updates}"]
        done("train", *training_arguments(data, tmp_path / name), *keys)
        return tmp_path / name

    once, twice = train("once", 12), train("twice", 5)
    train("twice", 12)
    assert_identical(everything(twice), everything(once))
