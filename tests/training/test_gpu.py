"""Training on a simulated GPU equals training on the CPU."""

from pathlib import Path

import pytest
import torch

from seqgen.training.train import train
from tests.simulated_gpu import simulated_gpu
from tests.training_runs import Lab, assert_identical, everything, records

KEYS = ["model.dropout=0", "optimization.max_update=4", "optimization.update_freq=2", "dataset.validate_decode=2"]
OBJECTIVES = {
    "cross-entropy": (),
    "bfloat16": ("common.bf16=true",),
    "decodes": ("criterion=minimum_risk", "optimization.max_update=2"),
}


def _train_on(device: str, lab: Lab, name: str, *keys: str) -> Path:
    folder = lab.root / name
    folder.mkdir(exist_ok=True)
    cfg = lab.config(*KEYS, *keys)
    assert train(cfg, lab.task(cfg, folder), folder, device) == 0
    return folder


def _compare(_: int, root: Path, name: str) -> None:
    import examples.objectives.minimum_risk  # noqa: F401  # registers it

    torch.set_num_threads(1)
    lab, keys = Lab(root), OBJECTIVES[name]
    with simulated_gpu(trains=True):
        found = _train_on("gpu", lab, "gpu", *keys)
        if name == "cross-entropy":
            for updates in (2, 4):
                parts = _train_on("gpu", lab, "parts", *keys, f"optimization.max_update={updates}")
            assert_identical(everything(parts), everything(found))
    wanted = _train_on("cpu", lab, "cpu", *keys)
    tolerance = 1e-2 if name == "bfloat16" else 1e-5
    assert len(records(found)) > 0
    for one, other in zip(records(found), records(wanted), strict=True):
        assert (one["loss"], one["gnorm"]) == pytest.approx((other["loss"], other["gnorm"]), rel=tolerance)


@pytest.mark.slow  # simulated decoding takes minutes
@pytest.mark.parametrize("name", [*list(OBJECTIVES)[:2], pytest.param("decodes", marks=pytest.mark.nightly)])
def test_training_equals_that_on_the_cpu(name: str, tmp_path: Path) -> None:
    """In a process of its own, whose first gradients are those of the GPU; with accumulation, and resumed."""
    torch.multiprocessing.start_processes(_compare, (tmp_path, name), 1, start_method="spawn")  # type: ignore[no-untyped-call]
