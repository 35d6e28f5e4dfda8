"""Small teachers, trained for two updates on random text with the vocabulary of the tests of criteria."""

import random

import pytest

from tests.commands import SMALL_FCONV, SMALL_TRANSFORMER, done, training_arguments
from tests.scripted_model import dictionary

T5 = [f"model.{key}" for key in ("d_model=16", "d_kv=8", "d_ff=32", "num_layers=1", "num_heads=2")]
MODELS = {"transformer": SMALL_TRANSFORMER, "fconv": SMALL_FCONV, "t5": ("model=t5_small", *T5)}


@pytest.fixture(scope="session")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The paths of runs of three architectures, by name, which read the same random lines."""
    folder, rng = tmp_path_factory.mktemp("teachers"), random.Random(0)
    words = list(dictionary())[4:]
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    for file, count in (("train.en", 30), ("train.de", 30), ("val.en", 3), ("val.de", 3)):
        lines = (" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(count))
        (folder / file).write_text("".join(f"{line}\n" for line in lines))
    keys = ["task.test=", "task.tokenizer=whitespace", f"task.srcdict={folder}/dict.txt", "optimization.lr=[0.05]"]
    keys += ["optimization.max_update=2", "lr_scheduler.warmup_updates=1", "common.device=cpu"]
    for name, model in MODELS.items():
        done("train", *training_arguments(folder, folder / name), *keys, *model)
    return {name: str(folder / name) for name in MODELS}
