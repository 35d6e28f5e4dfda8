"""Runs in the environment of ``unbabel-comet``: the scores of a model of the Hub or a ``.ckpt`` file, times 100."""

import sys

import torch
from comet import download_model, load_from_checkpoint

KEYS = {"source": "src", "text": "mt", "reference": "ref"}

model = load_from_checkpoint(sys.argv[1] if sys.argv[1].endswith(".ckpt") else download_model(sys.argv[1]))


def score(rows: "list[dict[str, str]]") -> "list[float]":
    """The score of each output; perfect ones have about 100.

    Args:
        rows: source, text and, for models that read it, reference.
    """
    data = [{KEYS[key]: value for key, value in row.items()} for row in rows]
    gpus = int(torch.cuda.is_available())
    found = model.predict(data, batch_size=16, gpus=gpus, num_workers=0, progress_bar=False)
    return [100 * value for value in found.scores]
