"""The keys of the ``generation`` group with their facts, and keys with their roles and their names elsewhere."""

from __future__ import annotations

from dataclasses import fields

import pytest

import seqgen.models
import seqgen.tasks  # noqa: F401  # declares the built-in tasks
from seqgen.cli.keys import every_key
from seqgen.config import GenerateConfig, GenerationConfig, TrainConfig, options
from seqgen.config.generation import keys_tagged
from seqgen.config.keys import OTHER_NAMES, similar_keys
from seqgen.config.options import SCOPES, decoding_key
from tests.conftest import of_installed

FACTS = {
    "CALL": "max_time quality_features review_share review_risk top_tokens observers member_sources dtype",
    "INPUT": "input_split input_split_lang",
    "FILES": "glossary draft replace_unknown allowed_outputs shortlist confidence",
    "SPEED": "max_tokens batch_size buffer_size",
    "ENSEMBLE": "guidance_scale combination member_sources",
    "STRATEGY": "constraints seed",
    "WARPER": "top_k top_p min_p typical_p epsilon_cutoff eta_cutoff",
    "KEEPS_SCORES": """
        semantics beam nbest source_lang max_len_a max_len_b max_len
        early_stopping end_symbols stop_strings max_time normalize_scores length_penalty length_penalty_form seed draft
        draft_tokens prompt_lookup mbr rerank top_tokens replace_unknown observers member_sources max_tokens batch_size
        buffer_size dtype input_split input_split_lang quality_features confidence review_share review_risk
    """,
    "CONSTRAINS": "constraints glossary",
    "NOT_IN_TRAINING": """
        nbest source_lang target_lang max_time constraints draft rerank
        top_tokens replace_unknown member_sources max_tokens batch_size
        buffer_size dtype input_split input_split_lang glossary quality_features confidence review_share review_risk
    """,
    "LISTS_OUTPUTS": "allowed_outputs",
    "NEEDS_STEPS": "top_tokens shortlist",
    "WHOLE_LINE": "nbest constraints member_sources certificate",
    "SCORES_TARGETS": "source_lang target_lang normalize_scores combination batch_size bit_exact",
}
"""The keys with each fact, except ``MODEL``, which the keys without another scope have."""


@pytest.mark.parametrize("fact", FACTS)
def test_the_keys_with_a_fact(fact: str) -> None:
    assert keys_tagged(getattr(options, fact)) == tuple(sorted(of_installed(FACTS[fact].split()), key=order().index))


def order() -> list[str]:
    return [field.name for field in fields(GenerationConfig)]


def test_every_key_has_facts_and_one_scope() -> None:
    for field in fields(GenerationConfig):
        assert len(field.metadata["facts"] & SCOPES) == 1, field.name
    assert not frozenset[str]().union(*(field.metadata["facts"] for field in fields(GenerationConfig))) - {
        "MODEL", *FACTS
    }  # fmt: skip
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
