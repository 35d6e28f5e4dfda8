"""Users' own data: sampling by losses (papers/group_dro.py), a context and an image (extending/columns.py)."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.extending import columns  # noqa: F401  # registered
from examples.objectives import minimum_risk  # noqa: F401  # registered
from examples.papers import group_dro  # noqa: F401  # registered
from seqgen import Translator
from tests.commands import SMALL_TRANSFORMER, corpus, done
from tests.training_runs import assert_identical, everything, records


def train(folder: Path, name: str, updates: int, keys: str) -> dict[str, Any]:
    """Train a run on the corpus, or resume it."""
    keys += f" run_dir={folder}/{name} task.train={folder}/train task.valid={folder}/val task.cache_dir={folder}/cache"
    keys += " task.tokenizer=whitespace task.workers=1 common.threads=1 optimization.lr=[0.02]"
    done("train", *SMALL_TRANSFORMER, *keys.split(), f"optimization.max_update={updates}")
    return everything(folder / name)


@pytest.mark.slow
@pytest.mark.parametrize("pack", ["false", "true"])
def test_a_run_whose_rates_follow_losses_can_be_interrupted(tmp_path: Path, pack: str) -> None:
    """Within an epoch of three updates, at its end, and in the next one; rates are those of the definition."""
    keys = f"task=group_dro task.pairs=[en-de,de-en] task.epoch_size=100 dataset.max_tokens=500 dataset.pack={pack} "
    keys += "dataset.validate_interval_updates=1 training.observers=[group_dro] training_observer.group_dro.step_size=5"
    once, rates = train(corpus(tmp_path), "once", 8, keys), [0.5, 0.5]
    for record in records(tmp_path / "once", "valid"):
        weights = [rates[i] * math.exp(5 * record[f"{pair}.loss"]) for i, pair in enumerate(("en-de", "de-en"))]
        rates = [weight / sum(weights) for weight in weights]
    state = once["state"]["iterator"]
    assert (state["epoch"], state["dataset"]["next"]["rates"]) == (3, pytest.approx(rates))
    for updates in (2, 3, 5):
        train(tmp_path, f"twice-{updates}", updates, keys)
        assert_identical(train(tmp_path, f"twice-{updates}", 8, keys), once)


LINES = ["dog\ta\t0", "dog\ta\t1", "dog\tb\t0", "the dog sees a man\ta b a b\t2", "man\tb c\t1", "a dog has a b\t\t2"]


@pytest.mark.slow
def test_columns_reach_criteria_and_decoding(tmp_path: Path) -> None:
    """A criterion that decodes, an interrupted run, batches of every kind, and the scores of outputs."""
    np.save(tmp_path / "features.npy", np.random.default_rng(0).standard_normal((3, 5)))
    for split, count in (("train", 300), ("val", 30)):
        lines = (f"{'a b'[: i % 4]}\t{i % 3}\n" for i in range(count))
        (corpus(tmp_path) / f"{split}.columns").write_text("".join(lines))
    keys = "task=with_columns model=with_columns task.source_lang=en task.target_lang=de dataset.max_tokens=900 "
    keys += f"task.features={tmp_path}/features.npy criterion=minimum_risk criterion.decode.beam=2 "
    keys += "criterion.decode.max_len=8 criterion.token_loss=0.5 dataset.validate_decode=3"
    train(tmp_path, "twice", 2, f"{keys} dataset.validate_interval=0")
    assert_identical(*(train(tmp_path, name, 4, keys)["weights"] for name in ("once", "twice")))
    translator = Translator(str(tmp_path / "once"), beam=3, nbest=3, max_len=8)

    def found(lines: list[str], **settings: Any) -> list[list[tuple[str, float]]]:
        return [[(one.text, one.score) for one in each.hypotheses] for each in translator.translate(lines, **settings)]

    wanted = [[(text, pytest.approx(score, abs=1e-4)) for text, score in row] for row in found(LINES)]
    assert all(found(LINES[row : row + 1]) != wanted[:1] for row in (1, 2)), "an image or a context has no effect"
    assert list(itertools.chain(*(found([line]) for line in LINES))) == wanted
    for switch in ("use_cache", "share_encoder_output", "continuous_batching", "lazy_compaction"):
        assert found(LINES, **{f"fast.{switch}": False, "batch_size": 3}) == wanted, switch
    assert found(LINES, batch_size=2) == wanted, "sentences join a running batch"
    scored = [each.score for each in translator.score(LINES, [row[0][0] for row in wanted])]
    assert scored == [row[0][1] for row in wanted], "by teacher forcing"
