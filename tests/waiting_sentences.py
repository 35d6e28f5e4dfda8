"""Queues of sentences for continuous batching."""

from collections.abc import Callable
from dataclasses import replace

import torch

from seqgen.extend import Batch, SequenceGenerator, generate_continuously
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB
from tests.scripted_model import batch_of


def sources(count: int, seed: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 9, (count,), generator=generator).tolist()
    return [(*torch.randint(4, VOCAB, (n,), generator=generator).tolist(), 2) for n in lengths]


def queue(
    rows: list[tuple[int, ...]], size: int, left: bool = False
) -> tuple[Callable[[int, int], Batch | None], list[int]]:
    """The function from which continuous batching takes sentences, and the number of running sentences at each call."""
    waiting, asked = list(enumerate(rows)), []

    def take(running: int, width: int) -> Batch | None:
        asked.append(running)
        taken = [waiting.pop(0) for _ in range(min(size - running, len(waiting)))]
        if not taken:
            return None
        batch = batch_of([row for _, row in taken], left=left)
        return replace(batch, ids=torch.tensor([number for number, _ in taken]))

    return take, asked


def assert_continuous_equals_alone(
    generator: SequenceGenerator, rows: list[tuple[int, ...]], size: int, left: bool = False
) -> list[int]:
    """Continuous batching gives each source the hypotheses of the source alone.

    Returns:
        The number of running sentences each time that sentences were asked for.
    """
    take, asked = queue(rows, size, left)
    found = dict(generate_continuously(generator, take))
    assert sorted(found) == list(range(len(rows)))
    for number, row in enumerate(rows):
        alone = replace(batch_of([row]), ids=torch.tensor([number]))
        assert_same([found[number]], generator.generate(alone))
    return asked
