"""examples/papers/best_first_beam.py against beam search."""

from __future__ import annotations

from typing import Any

import pytest

from examples.papers.best_first_beam import BestFirstBeamSearch
from seqgen.core.beam_search import BeamSearch
from seqgen.core.errors import ConfigError
from seqgen.core.observers import Observer
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, sharp
from tests.scripted_model import batch_of, dictionary
from tests.waiting_sentences import sources

OPTIONS: dict[str, Any] = {"len_penalty": 0.0, "semantics": "huggingface", "early_stopping": "never"}


def decode(search: Any, name: str = "transformer_tiny", **options: Any) -> Any:
    values = {"beam_size": 4, "max_len_a": 1.0, "max_len_b": 4, **OPTIONS, **options}
    generator = make_generator([sharp(name, seed=3)], dictionary(VOCAB - 4), search_strategy=search, **values)
    return generator.generate(batch_of(sources(7, seed=6)))


@pytest.mark.parametrize("at_once", [1, 5])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("transformer_tiny", {"beam_size": 1}),
        ("transformer_tiny", {"min_len": 4, "unk_penalty": 0.5}),
        ("t5_tiny", {"beam_size": 7}),
        ("fconv_uneven", {"tokens_to_suppress": ["w3"], "temperature": 1.5}),
    ],
)
def test_outputs_are_those_of_beam_search(name: str, options: dict[str, Any], at_once: int) -> None:
    assert_same(decode(BestFirstBeamSearch(at_once), name, **options), decode(BeamSearch(), name, **options), 1e-6)


def test_one_prefix_at_a_time_expands_fewest() -> None:
    """Several at once are expanded before it is known whether all of them are needed."""
    search = BestFirstBeamSearch(at_once=1)
    model = sharp("transformer_tiny", seed=3)
    values = {"beam_size": 3, "max_len_b": 9, **OPTIONS}
    generator = make_generator([model], dictionary(VOCAB - 4), search_strategy=search, **values)
    found = generator.generate(batch_of(sources(4, seed=6)))
    several = BestFirstBeamSearch(at_once=8)
    make_generator([model], dictionary(VOCAB - 4), search_strategy=several, **values).generate(
        batch_of(sources(4, seed=6))
    )
    assert 0 < search.expansions < several.expansions
    assert search.summary() == f"{search.expansions} prefixes were expanded"
    assert all(line for line in found)


def test_by_fairseqs_rules_outputs_are_never_worse() -> None:
    for one, two in zip(
        decode(BestFirstBeamSearch(), semantics="fairseq"), decode(BeamSearch(), semantics="fairseq"), strict=True
    ):
        assert one[0].score >= two[0].score - 1e-6


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match=r"takes no generation\.length_penalty"):
        decode(BestFirstBeamSearch(), len_penalty=1.0)
    with pytest.raises(ConfigError, match="observers"):
        decode(BestFirstBeamSearch(), observers=[Observer()])
    with pytest.raises(ConfigError, match="scores that only fall"):
        decode(BestFirstBeamSearch(), unk_penalty=-30.0, semantics="fairseq")
