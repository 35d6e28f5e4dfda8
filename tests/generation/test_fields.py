"""The fields of hypotheses in speculative decoding, in JSON and in joined lines.

That fields follow the beams is a law of components.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from seqgen.core.observers import Observer
from seqgen.core.search import Search
from seqgen.decoding.search.sampling import Sampling
from seqgen.decoding.speculative.drafters import PromptLookup
from seqgen.decoding.speculative.verification import SpeculativeSearch
from seqgen.text.output_formats import FORMATS
from seqgen.text.translator import Translator
from tests.generation.test_laws_components import Watching, assert_fields_follow, hashed
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model

SOURCES = [(4, 5, 6, 2), (7, 2), (8, 4, 4, 5, 6, 7, 2)]


class Fields(Watching):
    """The fields alone."""

    needs = frozenset()
    observe = Observer.observe


@pytest.mark.parametrize(
    ("search", "beam"),
    [(SpeculativeSearch(PromptLookup(2), 3, Sampling(4)), 4), (SpeculativeSearch(PromptLookup(1), 3), 1)],
    ids=["sampling", "greedy"],
)
def test_drafted_tokens_have_fields(search: Search, beam: int) -> None:
    options = {"beam_size": beam, "max_len": 6, "min_len": 0, "search_strategy": search}
    generator = make_generator([ScriptedModel(random_rule(9, 0))], dictionary(5), **options)
    found, plain = (generator.generate(batch_of(SOURCES), observers=own) for own in ([Fields()], []))
    assert_fields_follow(found)
    assert_same(found, plain)


def test_in_texts_json_and_parts_of_a_line() -> None:
    translator = Translator(text_model(seed=3, sharpness=1.0), beam=3, nbest=2)
    decoding = translator.prepare(observers=[Fields()])
    lines = [json.loads(FORMATS["json"](decoding, None)(one)) for one in decoding.translate(TEXTS)]
    for line in lines:
        for item in line["hypotheses"]:
            tokens = item["tokens"]
            assert item["fields"]["prefix"] == [hashed(tokens[: t + 1]) for t in range(len(tokens))]
            assert item["fields"]["of"] == [list(pair) for pair in enumerate(tokens)]
    unknown = lambda self, candidates, context: {"nan": torch.full_like(candidates.scores, math.nan)}  # noqa: E731
    decoding = translator.prepare(observers=[type("Nothing", (Observer,), {"token_fields": unknown})()])
    line = json.loads(FORMATS["json"](decoding, None)(next(iter(decoding.translate(TEXTS)))))
    assert {*line["hypotheses"][0]["fields"]["nan"]} == {None}


def test_sentences_of_a_line_are_joined() -> None:
    translator = Translator(text_model(seed=3, sharpness=1.0), beam=2)
    split: dict[str, Any] = {"input_split": "sentences", "input_split_lang": "en", "batch_size": 1}
    line = translator.translate(["W1 w5. W2 w3! W4 w4 w6."], observers=[Fields()], **split)[0]
    parts = [part.hypotheses[0] for part in line.sentences]
    assert len(parts) > 1
    joined = line.hypotheses[0].fields
    assert {*joined} == {"prefix", "of", "sum"}
    assert joined["of"].tolist() == [row for part in parts for row in part.fields["of"].tolist()]
