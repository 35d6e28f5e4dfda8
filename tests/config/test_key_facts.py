"""The keys of the ``generation`` group with their facts, and keys with their roles and their names elsewhere."""

from dataclasses import fields

import pytest

from seqgen.cli.keys import every_key
from seqgen.config import GenerateConfig, GenerationConfig, TrainConfig
from seqgen.config.keys import OTHER_NAMES, similar_keys
from seqgen.config.options import SCOPES, decoding_key


def test_every_key_has_facts_and_one_scope() -> None:
    for field in fields(GenerationConfig):
        assert len(field.metadata["facts"] & SCOPES) == 1, field.name
    with pytest.raises(TypeError, match="facts"):
        decoding_key(1, "a key without facts")  # type: ignore[call-arg]


def test_names_in_other_toolkits() -> None:
    keys = {key.name: key.other_names for key in [*every_key(TrainConfig), *every_key(GenerateConfig)]}
    names = [name for other in keys.values() for name in other]
    assert not {*names} & {*OTHER_NAMES}, "a name is in one place"
    for key, others in keys.items():
        if not key.startswith("criterion.decode."):
            assert all(key in similar_keys(name, keys) for name in others), key
    known = dict.fromkeys(
        ["model", "task.source_lang", "task.target_lang", "reference", "source", "path", "json", "remove_bpe"], ()
    )
    for key in " | ".join(OTHER_NAMES.values()).split(" | "):
        assert key.partition("=")[0] in {**known, **keys}, key
