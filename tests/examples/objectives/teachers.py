"""Small teachers, trained for two updates on random text with the vocabulary of the tests of criteria."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.commands import SMALL_FCONV, SMALL_TRANSFORMER, command
from tests.examples.objectives.small import WORDS

T5 = [f"model.{key}" for key in ("d_model=16", "d_kv=8", "d_ff=32", "num_layers=1", "num_heads=2")]
MODELS = {"transformer": SMALL_TRANSFORMER, "fconv": SMALL_FCONV, "t5": ("model=t5_small", *T5)}


def train(folder: Path, name: str, words: list[str]) -> str:
    """Train a run on random lines of some words; returns its path."""
    data, rng = folder / f"data_{name}", random.Random(0)
    data.mkdir()
    (data / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    for split, count in (("train", 30), ("val", 3)):
        for side in ("a", "b"):
            lines = [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(count)]
            (data / f"{split}.{side}").write_text("".join(line + "\n" for line in lines))
    task = (f"train={data}/train", f"valid={data}/val", "workers=1", "tokenizer=whitespace", f"srcdict={data}/dict.txt")
    outcome = command(
        *("train", f"run_dir={folder / name}", "task=translation", "task.source_lang=a", "task.target_lang=b"),
        *(f"task.{key}" for key in task),
        *(*MODELS[name], "optimization.max_update=2", "optimization.lr=[0.05]"),
        *("lr_scheduler.warmup_updates=1", "dataset.max_tokens=300", "dataset.num_workers=0"),
        *("common.threads=1", "common.tensorboard=false", "common.device=cpu"),
    )
    assert outcome.code == 0, outcome.err
    return str(folder / name)


@pytest.fixture(scope="session")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The paths of runs of three architectures, by name."""
    folder = tmp_path_factory.mktemp("teachers")
    words = [f"w{number}" for number in range(len(WORDS) - 4)]
    return {name: train(folder, name, words) for name in MODELS}
