"""COMET and CometKiwi (Rei et al. 2022), which ``unbabel-comet`` computes in an environment of its own::

    python -m venv env && env/bin/pip install unbabel-comet
    export COMET_PYTHON=env/bin/python
    seqgen-score common.user_dir=examples/comet metrics=[comet] hypothesis=test.hyp reference=test.de source=test.en
    seqgen-generate common.user_dir=examples/comet path=runs/a input=test.en generation.sampling=true
        generation.beam=32 generation.mbr=comet
    seqgen-generate common.user_dir=examples/comet path=runs/a input=test.en generation.beam=16
        generation.rerank=cometkiwi

``comet`` reads source, output and reference; ``cometkiwi`` source and output. Training with ``criterion.decode.mbr``
has one process for each rank. Without ``COMET_PYTHON`` they run with this Python. ``scores.py`` is the program.
"""

import os
import sys
from pathlib import Path

from seqgen.addons.programs import Program, register_program

PYTHON = os.environ.get("COMET_PYTHON") or sys.executable
MODELS = {"comet": "Unbabel/wmt22-comet-da", "cometkiwi": "Unbabel/wmt22-cometkiwi-da"}

for name, model in MODELS.items():
    register_program(name, Program(Path(__file__).with_name("scores.py"), PYTHON, [model], batch=256, timeout=3600))
