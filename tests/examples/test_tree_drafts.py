"""Tree drafts (examples/papers/tree_drafts.py) against greedy search, and against trees that are followed plainly."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from examples.papers.tree_drafts import TreeDrafts
from seqgen.core.beam_search import Greedy
from seqgen.core.model import EncoderDecoderModel
from tests.commands import SMALL_TRANSFORMER, command, corpus, training_arguments
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, sharp
from tests.scripted_model import ScriptedModel, batch_of, dictionary, random_rule

SOURCES = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (2,), (7, 8, 9, 2)]
PAPERS = Path(__file__).parent.parent.parent / "examples" / "papers"


def decode(models: list[EncoderDecoderModel], search: Any, sources: Any, **options: Any) -> Any:
    options = {"max_len_a": 0.5, "max_len_b": 8, "min_len": 0, **options}
    return make_generator(models, dictionary(VOCAB - 4), search_strategy=search, **options).generate(batch_of(sources))


@pytest.mark.parametrize(
    ("names", "draft", "options"),
    [
        (["transformer_tiny", "lstm_tiny"], "transformer_tiny", {}),
        (["transformer_tiny", "t5_tiny"], "lstm_tiny", {"lazy_compaction": False, "average": "log"}),
        (["transformer_tiny"], "fconv_tiny", {"semantics": "huggingface", "beam_indirection": "off"}),
        (["fconv_tiny", "transformer_tiny"], "transformer_tiny", {"use_cache": False, "no_repeat_ngram_size": 2}),
        (["transformer_lm_tiny"], "transformer_lm_tiny", {"max_len": 5, "sources": [(4, 9, 12, 2), (7, 8, 9, 2)]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("widths", [[1, 1, 1], [3, 2, 1]], ids=str)
def test_the_output_is_that_of_greedy_search(
    names: list[str], draft: str, options: dict[str, Any], widths: list[int]
) -> None:
    """In batches and alone."""
    options = dict(options)
    models: list[Any] = [sharp(name) for name in names]
    sources = options.pop("sources", SOURCES)
    wanted = decode(models, Greedy(), sources, **options)
    search = TreeDrafts(sharp(draft), widths)
    assert_same(decode(models, search, sources, **options), wanted)
    assert 0 < search.passes <= search.steps
    for source, hypotheses in list(zip(sources, wanted, strict=True))[:2]:
        assert_same(decode(models, search, [source], **options), [hypotheses])


@pytest.mark.parametrize("widths", [[1, 1, 1], [3, 2, 1], [2, 2]], ids=str)
def test_the_number_of_passes_is_that_of_trees_that_are_followed_plainly(widths: list[int]) -> None:
    words, source = 16, (4, 9, 12, 5, 2)
    ensemble, drafter = [random_rule(words, seed, 2) for seed in (1, 2)], random_rule(words, 1, 3)
    search = TreeDrafts(ScriptedModel(drafter), widths)
    options: dict[str, Any] = {"search_strategy": search, "max_len_b": 12, "min_len": 0}
    models = [ScriptedModel(rule) for rule in ensemble]
    found = make_generator(models, dictionary(words - 4), **options).generate(batch_of([source]))[0][0].tokens.tolist()
    passes, place = 0, 0
    while place < len(found):
        passes += 1
        for width in widths:  # an accepted token is read in the same pass
            history = tuple(found[:place])
            place += 1
            best = drafter(source, history).topk(width).indices.tolist()
            if place >= len(found) or found[place - 1] not in best:
                break
        else:
            place += 1
    assert search.passes == passes
    assert search.steps == len(found) > passes


@pytest.mark.slow
def test_command(tmp_path: Path) -> None:
    """The command prints the number of passes; the outputs are those of greedy search."""
    data, model = corpus(tmp_path / "DATA"), tmp_path / "run"
    arguments = [*training_arguments(data, model), *SMALL_TRANSFORMER, "optimization.max_update=1"]
    assert command("train", *arguments).code == 0
    decoded = [f"path=[{model},{model}]", f"input={data}/test.en", "generation.beam=1", "generation.max_len=6"]
    keys = [f"common.user_dir={PAPERS}/tree_drafts.py", "generation.search=tree_drafts"]
    alone = command("generate", *decoded, "common.threads=1")
    drafted = command("generate", *decoded, *keys, f"search.draft={model}", "search.widths=[2,1]", "common.threads=1")
    assert (drafted.code, drafted.out) == (0, alone.out), drafted.err
    passes, steps = map(int, re.search(r"(\d+) passes of the models for (\d+) steps", drafted.err).groups())
    assert passes < steps
    for wrong in ("search.widths=[2000]", f"search.draft={tmp_path}/nothing", "search.widths=[]"):
        outcome = command("generate", *decoded, *keys, f"search.draft={model}", wrong, "common.threads=1")
        assert outcome.code == 2
        assert len(outcome.err.strip().splitlines()) <= 3
