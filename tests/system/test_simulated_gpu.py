"""The simulated GPU of the tests finds what a GPU would refuse, wait for or be sent."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.simulated_gpu import Graph, simulated_gpu

WAITS: dict[str, Callable[[Tensor], object]] = {
    **{"item": lambda x: x[0].item(), "tolist": lambda x: x.tolist(), "int": lambda x: int(x[0]), "cpu": Tensor.cpu},
    **{"bool": lambda x: bool(x[0] > 0), "nonzero": lambda x: x.nonzero(), "mask": lambda x: x[x > 0]},
    **{"where": lambda x: torch.where(x > 0), "equal": lambda x: torch.equal(x, x), "unique": lambda x: x.unique()},
    "copy": lambda x: torch.zeros(3).copy_(x),
}
TRANSFERS: dict[str, Callable[[Tensor], object]] = {
    **{"to": lambda x: torch.ones(3).to(x.device), "tensor": lambda x: torch.tensor([1, 2], device=x.device)},
    **{"copy": lambda x: x.copy_(torch.ones(3)), "index": lambda x: x[torch.tensor([0, 2])]},
}


ACTIONS = [*WAITS.values(), *TRANSFERS.values()]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("action", ACTIONS, ids=[*WAITS, *TRANSFERS])
def test_what_waits_and_what_is_a_transfer(action: Callable[[Tensor], object], inference: bool) -> None:
    with simulated_gpu() as counts, torch.inference_mode(inference):
        x = torch.ones(3, device="gpu")
        action(x)
        (line,) = counts.waits if action in WAITS.values() else counts.transfers
        assert counts.waits.total() + counts.transfers.total() == 1
        assert line.startswith("tests/system/test_simulated_gpu.py:")


@pytest.mark.parametrize("inference", [False, True])
def test_what_is_a_launch(inference: bool) -> None:
    with simulated_gpu() as counts, torch.inference_mode(inference):
        x = torch.ones(2, 3, device="gpu")
        x.view(6)[1:].unsqueeze(0).expand(4, -1).transpose(0, 1).squeeze()
        assert counts.launches == {"ones": 1}
        (x.t() + 2 * torch.tensor(3.0)).sum()  # the factor is a number on the CPU
        assert counts.launches == {"ones": 1, "add": 1, "sum": 1}


def test_two_devices_are_refused() -> None:
    with simulated_gpu():
        x = torch.ones(3, device="gpu")
        with pytest.raises(RuntimeError, match="same device"):
            x + torch.ones(3)
        with pytest.raises(RuntimeError, match="same device"):
            torch.cat([torch.ones(3), x])
        with pytest.raises(TypeError, match=r"Tensor\.cpu"):
            x.numpy()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_replayed_graph_repeats_launches_and_not_python(frozen: bool) -> None:
    """With a position on the device the sum is 2 + 3 + 4; a number of Python stays that of the recording: 2 + 2 + 2."""
    with simulated_gpu() as counts, torch.inference_mode():
        x, total = torch.ones(3, device="gpu"), torch.zeros(3, device="gpu")
        position, step, graph = torch.zeros((), device="gpu"), 0, Graph()
        with graph.capture():
            total.add_(x * 2 + (step if frozen else position))
        for step in (1, 2):  # noqa: B007  # what is recorded reads it
            position.add_(1)
            counts.clear()
            graph.replay()
            assert counts.launches == {"replay": 1}
        assert total.tolist() == ([6.0] if frozen else [9.0]) * 3


@pytest.mark.parametrize("action", ACTIONS, ids=[*WAITS, *TRANSFERS])
def test_a_recording_neither_waits_nor_transfers(action: Callable[[Tensor], object]) -> None:
    graph = Graph()
    with simulated_gpu():
        x = torch.ones(3, device="gpu")
        with graph.capture(), pytest.raises(RuntimeError, match="while a graph is recorded"):
            action(x)
