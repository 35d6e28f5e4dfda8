"""The models of the zoo with random inputs, and as subjects of the checks."""

import functools

import torch

from seqgen.addons.checks.subject import Ids, Inputs, Subject
from tests.model_zoo import VOCAB, ZOO, build, sharp
from tests.scripted_model import dictionary

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
"""The largest difference of two logits that counts as equal."""


@functools.cache
def ids_of(name: str) -> Ids:
    """The ids of a model's inputs."""
    with torch.random.fork_rng():
        return Ids.of(ZOO[name].build(), dictionary(), VOCAB)


def inputs(name: str, lengths: list[int], target_length: int, rows_per_sentence: int = 1, seed: int = 1) -> Inputs:
    """Random inputs.

    Args:
        name: the model of the zoo.
        lengths: length of each source, end-of-sentence included.
        target_length: columns of the target prefix.
        rows_per_sentence: target rows for each source.
        seed: seed of the tokens.
    """
    return ids_of(name).inputs(lengths, target_length, rows_per_sentence, seed)


def subject_of(name: str, dtype: torch.dtype = torch.float64, seed: int = 0, *, peaked: bool = False) -> Subject:
    """A model of the zoo whose invariants are checked."""
    model = sharp(name, seed) if peaked else build(name, dtype, seed)
    return Subject(model, dictionary(), VOCAB, ZOO[name].build, tolerance=TOLERANCE[dtype])
