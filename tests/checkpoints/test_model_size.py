"""Models whose weights are allocated only once they are known."""

import pytest
import torch
from torch import nn

from seqgen.checkpoints.model_weights import can_materialize, materialize
from tests.model_zoo import ZOO

CPU = torch.device("cpu")


class Unsaved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(3), persistent=False)


class PlainTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = [torch.ones(3)]


@pytest.mark.parametrize("module", [Unsaved, PlainTensor])
def test_values_that_would_be_lost_are_noticed(module: type[nn.Module]) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), module())
    assert not can_materialize(model)
    assert can_materialize(nn.Sequential(nn.Linear(2, 2), module()))


@pytest.mark.parametrize("name", [name for name in ZOO if "lstm" not in name])
def test_a_model_is_complete_with_its_saved_weights(name: str) -> None:
    built = ZOO[name].build()
    with torch.device("meta"):
        model = ZOO[name].build()
    assert can_materialize(model)
    materialize(model, CPU)
    model.load_state_dict(built.state_dict())
    for (key, wanted), got in zip(
        [*built.named_parameters(), *built.named_buffers()], [*model.parameters(), *model.buffers()], strict=True
    ):
        assert torch.equal(got, wanted), key
