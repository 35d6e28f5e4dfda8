"""COMET by ``unbabel-comet`` in an environment of its own, whose Python the variable ``COMET_PYTHON`` names::

    python -m venv comet && comet/bin/pip install unbabel-comet
    COMET_PYTHON=comet/bin/python seqgen-score common.user_dir=examples/comet_elsewhere.py \\
        metrics=[comet_elsewhere] hypothesis=test.hyp reference=test.de source=test.en

That Python reads a JSON object for each line, after one with the model, and writes a score for each.
"""

import json
import os
import subprocess

from seqgen.extend import ConfigError, Texts, TextScore, register_metric

WORKER = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the package prints is no answer
from comet import download_model, load_from_checkpoint
name, *rows = map(json.loads, sys.stdin)
model = load_from_checkpoint(name if name.endswith(".ckpt") else download_model(name))
for score in model.predict(rows, batch_size=16, gpus=0, progress_bar=False).scores:
    print(float(score), file=answers)
"""


@register_metric("comet_elsewhere", "COMET in an environment of its own", needs_sources=True, settings=["model"])
def comet_elsewhere(texts: Texts) -> TextScore:
    """The mean of the sentences and of their references, times 100, as the metric ``comet`` has it.

    Args:
        texts: outputs, references and sources.

    Returns:
        The score.

    Raises:
        ConfigError: the other Python is not named or cannot be started, or it fails.
    """
    python = os.environ.get("COMET_PYTHON", "")
    if not python:
        raise ConfigError(
            "metric comet_elsewhere: set COMET_PYTHON to the Python of the environment with unbabel-comet"
        )
    rows = [
        {"src": source, "mt": output, "ref": reference}
        for source, output, references in zip(
            texts.sources, texts.hypotheses, texts.references_of_sentences(), strict=True
        )
        for reference in references
    ]
    lines = "".join(json.dumps(row) + "\n" for row in [texts.model, *rows])
    try:
        done = subprocess.run([python, "-c", WORKER], input=lines, capture_output=True, text=True, check=True)
        values = [100 * float(line) for line in done.stdout.splitlines()]
    except OSError as error:
        raise ConfigError(f"COMET_PYTHON={python} cannot be started: {error.strerror}") from None
    except (subprocess.CalledProcessError, ValueError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines() or ["without a message"]
        raise ConfigError(f"metric comet_elsewhere: {python} failed: {said[-1]}") from None
    if len(values) != len(rows):
        raise ConfigError(f"metric comet_elsewhere: {python} gave {len(values)} scores for {len(rows)} texts")
    count = len(texts.every_reference)
    means = tuple(sum(values[place : place + count]) / count for place in range(0, len(values), count))
    return TextScore(sum(means) / len(means), f"comet|model:{texts.model}", means)
