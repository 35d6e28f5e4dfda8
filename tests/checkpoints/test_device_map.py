"""Layers on several devices. Values cannot be computed on ``meta``, but an operation on two devices fails there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.checkpoints import device_map
from seqgen.checkpoints.device_map import Transfer, layers_of, parse, place, plan
from seqgen.errors import ConfigError
from seqgen.modules.inspection import memory_footprint
from seqgen.structures import Batch, Hypothesis, Source
from tests.commands import command
from tests.generators import make_generator
from tests.huggingface_bart import tiny_folder
from tests.model_zoo import TinyDictionary, build, inputs

CPU, META = torch.device("cpu"), torch.device("meta")
MODELS = ["transformer_tiny", "transformer_shared", "t5_bias_per_layer"]


def test_layers_are_distributed_in_the_order_of_execution() -> None:
    model = build("transformer_tiny")
    layers = list(layers_of(model).values())
    assert len(layers) == 4
    rest = memory_footprint(model) - sum(memory_footprint(layer) for layer in layers)
    room = rest + memory_footprint(layers[0]) + memory_footprint(layers[1]) + 1
    placed = plan(model, {CPU: int(room / device_map._USED) + 2, META: 1 << 40})
    assert [device.type for device in placed.values()] == ["cpu"] * 2 + ["meta"] * 2
    assert list(placed) == [f"{side}.layers.{i}" for side in ("encoder", "decoder") for i in range(2)]
    with pytest.raises(ConfigError, match="more than fits on cpu, meta"):
        plan(model, {CPU: int(room / device_map._USED) + 2, META: 1000})
    with pytest.raises(ConfigError, match="more than fits"):
        plan(model, {CPU: rest // 2, META: 1 << 40})


def test_explicit_maps() -> None:
    model = build("transformer_tiny")
    assert list(parse("encoder=cpu, decoder.layers.1=cpu", model)) == [
        *(f"encoder.layers.{i}" for i in range(2)),
        "decoder.layers.1",
    ]
    for text, words in (
        ("encoder", "LAYERS=DEVICE"),
        ("encoder.layer=cpu", "no layers encoder.layer "),
        ("encoder.layers.2=cpu", "no layers encoder.layers.2"),
        ("encoder=cuda:77", "cuda:77 is not available"),
        ("encoder=meta", "stores no values"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse(text, model)
    with pytest.raises(ConfigError, match="cannot be distributed"):
        parse("encoder=cpu", build("fconv_tiny"))


def _generate(name: str, model: Any) -> list[list[Hypothesis]]:
    given = inputs(name, [5, 3], 1)
    batch = Batch(torch.arange(2), Source(given.src_tokens, given.src_lengths))
    return make_generator([model], TinyDictionary(), beam_size=3, max_len_b=6).generate(batch)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.nightly
def test_a_search_with_layers_elsewhere_does_not_mix_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[str, str]] = []

    def move(tensor: Tensor, device: torch.device) -> Tensor:
        moved.append((tensor.device.type, device.type))
        return tensor.to(device) if device == META else torch.zeros(tensor.shape, dtype=tensor.dtype)

    monkeypatch.setattr(device_map, "move", move)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # fails for meta
    model = build(name)
    names = list(layers_of(model))
    monkeypatch.setattr(device_map, "parse", lambda text, model: dict.fromkeys(names[:-1], META))
    place(model, CPU, "all but the last")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu", "meta"}
    results = _generate(name, model)
    assert all(len(hypotheses) == 3 for hypotheses in results)
    assert ("cpu", "meta") in moved
    assert ("meta", "cpu") in moved
    assert ("cpu", "cpu") not in moved


def test_each_side_gives_its_output_to_the_main_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after the last layer of a side, such as its norm, is on the main device, whatever has the layers."""

    def move(tensor: Tensor, device: torch.device) -> Tensor:
        return tensor.to(device) if device == META else torch.zeros(tensor.shape, dtype=tensor.dtype)

    monkeypatch.setattr(device_map, "move", move)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # fails for meta
    name = "t5_bias_per_layer"
    model, given = build(name), inputs(name, [5, 3], 2)
    monkeypatch.setattr(device_map, "parse", lambda text, model: dict.fromkeys(layers_of(model), META))
    place(model, CPU, "all layers")
    encoder_out = model.encoder(given.src_tokens, given.src_lengths)
    assert encoder_out.encoder_out.device == CPU
    assert model.decoder(given.prev_output_tokens, encoder_out).logits.device == CPU


@pytest.mark.parametrize("name", MODELS)
def test_hooks_do_not_change_the_result(name: str) -> None:
    plain, mapped = build(name), build(name)
    place(mapped, CPU, "encoder=cpu,decoder=cpu")
    for one, other in zip(_generate(name, plain), _generate(name, mapped), strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a.tokens, b.tokens)
            assert torch.equal(a.positional_scores, b.positional_scores)


def test_a_tensor_that_is_used_again_is_moved_once() -> None:
    transfer, tensor = Transfer(META), torch.ones(3)
    first = transfer(tensor)
    assert first.device == META
    assert transfer((tensor, None, 2))[0] is first
    assert transfer(torch.ones(3)) is not first
    assert transfer(first) is first


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "bart", "bart")
    (tmp_path / "in").write_text("w7 w8 w9\nw10\n")
    arguments = (f"path={folder}", f"input={tmp_path / 'in'}", "common.device=cpu")
    plain = command("generate", *arguments)
    assert plain.code == 0, plain.err
    for text in ("auto", "encoder.layers=cpu", "encoder.layers.0=cpu,decoder=cpu"):
        outcome = command("generate", *arguments, f"common.device_map={text}")
        assert (outcome.code, outcome.out) == (0, plain.out), outcome.err
    wrong = command("generate", *arguments, "common.device_map=encoder.layer=cpu")
    assert wrong.code == 2
    assert "did you mean 'encoder.layers'" in wrong.err
    training = command("train", f"run_dir={tmp_path / 'run'}", "common.device_map=auto")
    assert training.code == 2
    assert "common.device_map" in training.err
