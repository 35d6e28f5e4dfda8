"""The page for users of fairseq names keys that there are."""

from __future__ import annotations

import re
from pathlib import Path

import seqgen.models
import seqgen.tasks  # noqa: F401  # declares the built-in tasks, as the import above declares the models
from seqgen.cli.convert import ConvertConfig
from seqgen.config import GenerateConfig, TrainConfig
from seqgen.config.keys import known_keys
from seqgen.registry import GROUPS

PAGE = Path(__file__).parent.parent.parent / "docs" / "from-fairseq.md"


def test_the_keys_that_are_named_exist() -> None:
    known = {key for schema in (TrainConfig, GenerateConfig, ConvertConfig) for key, _, _ in known_keys(schema())}
    for group, registry in GROUPS.items():
        for entry in registry.entries():
            known |= {key for key, _, _ in known_keys(entry.config(), f"{group}.")}
    groups = "|".join(sorted({key.split(".")[0] for key in known if "." in key}))
    named = set(re.findall(rf"\b((?:{groups})\.[a-z_0-9]+)\b", PAGE.read_text(encoding="utf-8")))
    named -= {"model.pt", "seqgen.models"}
    assert len(named) > 50
    assert not sorted(named - known)
