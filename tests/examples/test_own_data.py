"""Users' own data: sampling by losses (papers/group_dro.py), a context and an image (extending/columns.py)."""

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


TEXTS = ["dog", "dog", "dog", "the dog sees a man", "man", "a dog has a b"]
CONTEXTS, IMAGES = ["a", "a", "b", "a b a b", "b c", ""], [0, 1, 0, 2, 1, 2]


@pytest.mark.slow
def test_columns_reach_criteria_and_decoding(tmp_path: Path) -> None:
    """A criterion that decodes, an interrupted run, batches of every kind, and the scores of outputs."""
    features = np.random.default_rng(0).standard_normal((3, 5)).astype("f4")
    for split, count in (("train", 300), ("val", 30)):
        (corpus(tmp_path) / f"{split}.context").write_text("".join(f"{'a b'[: i % 4]}\n" for i in range(count)))
        np.save(tmp_path / f"{split}.image.npy", features[np.arange(count) % 3])
    keys = "task=translation model=with_columns task.source_lang=en task.target_lang=de dataset.max_tokens=900 "
    keys += "task.columns={context:text,image:[5]} criterion=minimum_risk criterion.decode.beam=2 "
    keys += "criterion.decode.max_len=8 criterion.token_loss=0.5 dataset.validate_decode=3"
    train(tmp_path, "twice", 2, f"{keys} dataset.validate_interval=0")
    assert_identical(*(train(tmp_path, name, 4, keys)["weights"] for name in ("once", "twice")))
    for name, lines in (("test.en", TEXTS), ("test.context", CONTEXTS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    np.save(tmp_path / "test.image.npy", features[IMAGES])
    translator = Translator(str(tmp_path / "once"), beam=3, nbest=3, max_len=8)
    lines = list(translator.task.read_input(f"{tmp_path}/test.en"))

    def found(lines: list[str], **settings: Any) -> list[list[tuple[str, float]]]:
        return [[(one.text, one.score) for one in each.hypotheses] for each in translator.translate(lines, **settings)]

    wanted = [[(text, pytest.approx(score, abs=1e-4)) for text, score in row] for row in found(lines)]
    assert all(found(lines[row : row + 1]) != wanted[:1] for row in (1, 2)), "an image or a context has no effect"
    assert list(itertools.chain(*(found([line]) for line in lines))) == wanted
    for switch in ("use_cache", "share_encoder_output", "continuous_batching", "lazy_compaction"):
        assert found(lines, **{f"fast.{switch}": False, "batch_size": 3}) == wanted, switch
    assert found(lines, batch_size=2) == wanted, "sentences join a running batch"
    scored = [each.score for each in translator.score(lines, [row[0][0] for row in wanted])]
    assert scored == [row[0][1] for row in wanted], "by teacher forcing"
    (tmp_path / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))
    command = f"generate path={tmp_path}/once generation.beam=3 generation.max_len=8 input={tmp_path}"
    outputs = [done(*f"{command}/{name}".split()).out for name in ("test.en", "rows.jsonl")]
    assert outputs == ["".join(f"{row[0][0]}\n" for row in wanted)] * 2
