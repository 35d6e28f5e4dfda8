"""Every registered search strategy with small values, for the invariants that are tested on each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seqgen.extend import Batch, EncoderDecoderModel, Hypothesis, Phrases, Search
from seqgen.registry import SEARCHES
from tests.generators import make_generator
from tests.scripted_model import Rule, ScriptedDecoder, ScriptedModel, batch_of, dictionary

SOURCES = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (2,)]
PHRASES: list[Phrases] = [[[5, 7], [9]], [], [[8]], [[[10, 11], [12]], [6], [6]]]


@dataclass(frozen=True)
class Strategy:
    """A strategy's configuration, and what the tests expect of it.

    Attributes:
        values: values of its configuration.
        phrases: whether it decodes with constraints.
        reads_features: whether it reads hidden features; it then refuses ensembles.
        scores_are_the_models: whether scores are those of the model, with neutral settings.
        differ: whether the hypotheses of a sentence are distinct.
        renormalized_by: names of the rules by which scores are renormalized after the processors.
    """

    values: dict[str, Any]
    phrases: bool = False
    reads_features: bool = False
    scores_are_the_models: bool = True
    differ: bool = True
    renormalized_by: tuple[str, ...] = ()


STRATEGIES = {
    "beam": Strategy({}),
    "greedy": Strategy({}, renormalized_by=("huggingface",)),
    "sampling": Strategy({"seed": 3}, differ=False, renormalized_by=("fairseq", "huggingface")),
    "beam_sampling": Strategy({"seed": 3}),
    "diverse_beam": Strategy({"groups": 2, "strength": 0.7}, scores_are_the_models=False, differ=False),
    "diverse_siblings": Strategy({"rate": 0.4}, scores_are_the_models=False),
    "constrained": Strategy({}, phrases=True),
    "contrastive": Strategy({}, reads_features=True, renormalized_by=("fairseq", "huggingface")),
    "marian": Strategy({}),
}


class ReadableDecoder(ScriptedDecoder):
    """A scripted decoder whose hidden features are its logits."""

    def extract_features(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        return ScriptedDecoder.forward(self, *args, **kwargs)

    def output_layer(self, features: Tensor) -> Tensor:
        return features


class Readable(ScriptedModel):
    def __init__(self, rule: Rule):
        super().__init__(rule)
        self.decoder = ReadableDecoder(rule, longest=1000)


def strategy(name: str) -> Search:
    entry = SEARCHES.entry(name)
    search: Search = entry.component(**STRATEGIES[name].values)  # type: ignore[attr-defined]
    return search


def decode(
    name: str, models: Sequence[EncoderDecoderModel], batch: Batch, words: int, phrases: Any = None, **options: Any
) -> list[list[Hypothesis]]:
    if STRATEGIES[name].phrases:
        phrases = phrases or [[]] * batch.num_sentences
    prefix = options.pop("prefix_tokens", None)
    values = {"beam_size": 4, "max_len": 7, "min_len": 0, **options}
    generator = make_generator(models, dictionary(words), search_strategy=strategy(name), **values)
    return generator.generate(batch, prefix, phrases)


def lines(rows: Sequence[int] = range(len(SOURCES))) -> Batch:
    """Some of the sources, each with the number of its line."""
    return replace(batch_of([SOURCES[row] for row in rows]), ids=torch.tensor(list(rows)))
