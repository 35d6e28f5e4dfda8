"""The estimate of what limits training on many GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scaling import GPUS, MODELS, estimate, main, table

PAGE = Path(__file__).parent.parent.parent / "docs" / "scaling.md"


@pytest.mark.parametrize(
    ("name", "parameters"),
    # of the published checkpoints
    [
        ("T5-base", 222_903_552),
        ("T5-3B", 2_851_598_336),
        ("T5-11B", 11_307_321_344),
        ("NLLB-3.3B", 3_344_863_232),
    ],
)
def test_numbers_of_parameters(name: str, parameters: int) -> None:
    assert MODELS[name].parameters() == parameters


def test_more_gpus_need_less_memory_with_fsdp_only() -> None:
    def memory(count: int, sharding: str) -> float:
        return estimate(MODELS["T5-11B"], count, sharding, 8192, GPUS["h100"]).memory

    assert memory(8, "fsdp") > memory(64, "fsdp") > memory(1024, "fsdp")
    assert memory(8, "ddp") == memory(64, "ddp") > GPUS["h100"].memory
    weights = MODELS["T5-11B"].parameters()
    assert memory(8, "fsdp") - memory(64, "fsdp") == pytest.approx(16 * weights * (1 / 8 - 1 / 64))


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    main(["table"])
    shown = capsys.readouterr().out.splitlines()
    main(["table", "--tokens", "1024"])
    fewer = [line for line in capsys.readouterr().out.splitlines() if "| 1,024 |" in line]
    page = PAGE.read_text(encoding="utf-8")
    assert len(shown) == len(table(GPUS["h100"], 8192)) + 1 == 30
    assert all(line in page for line in shown)
    assert len(fewer) == 8
    assert all(line in page for line in fewer)
