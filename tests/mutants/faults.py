"""All faults."""

from __future__ import annotations

from tests.mutants import data, generation, models, modules, training

FAULTS = [fault for room in (generation, modules, models, training, data) for fault in room.FAULTS]
