"""All faults."""

from __future__ import annotations

from tests.mutants import generation, models, modules, training

FAULTS = generation.FAULTS + modules.FAULTS + models.FAULTS + training.FAULTS
