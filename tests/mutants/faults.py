"""All faults."""

from __future__ import annotations

from tests.mutants import (
    checkpoints,
    commands,
    config,
    data,
    export,
    generation,
    jobs,
    lab,
    models,
    modules,
    readers,
    records,
    text,
    training,
)

ROOMS = (
    *(generation, modules, models, training),
    *(jobs, text, data, lab, config, checkpoints, records, commands, export, readers),
)
FAULTS = [fault for room in ROOMS for fault in room.FAULTS]
