"""Invariants of tasks: text and ids, datasets, and batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_columns

from seqgen.addons.checks.checking import ADVICE, Compared, Invariants, Violation, needs, require
from seqgen.extend import ConfigError, Dataset, EncoderDecoderModel, Example, PairDataset, Task

MOST = 40
"""Number of examples or lines that an invariant looks at."""


@dataclass
class Prepared(Compared):
    """A task whose invariants are checked.

    Attributes:
        task: the task.
        again: makes the task once more from its run folder, as a resumed run or decoding does.
        model: a small model in float64 that the task has built.

    The splits whose examples are looked at are the variants: the training data, and before them another one.
    """

    advice = ADVICE["task"]
    varied = "split"
    task: Task
    again: Callable[[], Task]
    model: EncoderDecoderModel

    @property
    def dataset(self) -> Dataset:
        """The dataset of the split."""
        return self.task.dataset(self.variant)

    def examples(self) -> list[Example]:
        """The first examples."""
        return [self.dataset.example(i, epoch=1, seed=1) for i in range(min(MOST, len(self.dataset)))]


def _target(example: Example) -> Tensor:
    """The target; an empty one if there is none."""
    return example.source[:0] if example.target is None else example.target


def text_survives(subject: Prepared) -> None:
    """Encoding a text, decoding it and encoding it again gives the same ids, unless some are unknown."""
    task, words = subject.task, subject.task.target_dictionary
    checked = 0
    for number, line in enumerate(_texts(subject)):
        ids = task.encode_target(line)
        if words.unk() in ids.tolist():
            continue
        checked += 1
        text = task.decode(ids)
        again = task.encode_target(text)
        require(torch.equal(ids, again), f"{line!r} becomes {text!r} when it is encoded and decoded", sentence=number)
        padded = torch.cat([ids, ids.new_full((2,), words.pad())])
        wrong = f"padding changes the text of {line!r}: {task.decode(padded)!r}"
        require(task.decode(padded) == text, wrong, sentence=number)
    needs(checked, "there is no text without unknown tokens")


def _texts(subject: Prepared) -> list[str]:
    """The first references of the split, or the target text of its examples."""
    with suppress(ConfigError):  # several sources that are read one at a time
        if found := list(itertools.islice(subject.task.references(subject.variant) or (), MOST)):
            return found
    return [subject.task.decode(_target(example)) for example in subject.examples()]


def ids_are_in_the_vocabulary(subject: Prepared) -> None:
    """Examples have ids of the vocabularies, no padding, and at least one token on each side."""
    task = subject.task
    for example in subject.examples():
        for side in ("source", "target"):
            ids, words = getattr(example, side), getattr(task, f"{side}_dictionary")
            if ids is None:
                continue
            what = f"the {side} of an example is {tuple(ids.shape)} {ids.dtype} and should be (length,) int64"
            require(ids.dim() == 1 and ids.dtype == torch.int64 and len(ids), what, sentence=example.id)
            what = f"has the id {int(ids.max())}, but the vocabulary has {len(words)} tokens"
            inside = int(ids.min()) >= 0 and int(ids.max()) < len(words)
            require(inside, f"the {side} of an example {what}", sentence=example.id)
            if words.pad() != words.eos() and words.pad() in ids.tolist():
                step = ids.tolist().index(words.pad())
                raise Violation(f"the {side} of an example has padding", step=step, sentence=example.id)


def examples_are_fixed(subject: Prepared) -> None:
    """An example is the same whenever it is read, in any order; its lengths are those of ``lengths``."""
    dataset, first = subject.dataset, subject.examples()
    torch.manual_seed(1)
    backwards = [dataset.example(i, epoch=1, seed=1) for i in reversed(range(len(first)))]
    for one, two in zip(first, reversed(backwards), strict=True):
        pairs = [(example.id, example.source.tolist(), _target(example).tolist()) for example in (one, two)]
        what = "an example differs when it is read again: its id, source and target are {} and {}".format(*pairs)
        require(pairs[0] == pairs[1], what, sentence=one.id)
    lengths = dataset.lengths(1, 1)
    require(len(lengths) == len(dataset), f"lengths has {len(lengths)} rows for {len(dataset)} examples")
    for example, row in zip(first, lengths.tolist(), strict=False):
        sizes = [len(example.source)] + ([] if example.target is None else [len(example.target)])
        what = f"lengths says {row}, but the example has {sizes} tokens"
        require(row[: len(sizes)] == sizes, what, sentence=example.id)


def training_and_decoding_encode_alike(subject: Prepared) -> None:
    """The examples of a split are its lines as ``encode_source`` and ``encode_target`` encode them."""
    task, dataset = subject.task, subject.dataset
    needs(subject.variant == subject.variants[0], "training data may be augmented")
    needs(isinstance(dataset, PairDataset), f"the examples of a {type(dataset).__name__} are not the lines of a split")
    sources = list(itertools.islice(task.source_lines(subject.variant), 10 * MOST))
    references = task.references(subject.variant)
    targets = None if references is None else list(itertools.islice(references, 10 * MOST))
    for example in subject.examples():
        if example.id >= len(sources):
            continue
        text = task.split_columns(task.input_of(sources[example.id]), example.id)[0]
        pairs = {"source": (example.source, task.encode_source(text))}
        if targets is not None and example.target is not None:
            pairs["target"] = example.target, task.encode_target(targets[example.id])
        for side, (got, wanted) in pairs.items():
            what = f"the {side} of an example is {got.tolist()}, but encode_{side} gives {wanted.tolist()}"
            require(torch.equal(got, wanted), what, sentence=example.id)


def batches_have_the_examples(subject: Prepared) -> None:
    """A batch is that of ``Task.collate``, and perhaps more padding; first target tokens may be the decoder's start."""
    task, model = subject.task, subject.model
    # a few examples whose lengths differ as much as possible
    ordered = sorted(subject.examples(), key=lambda example: (len(example.source), len(_target(example))))
    examples = ordered[:: max(1, len(ordered) // 4)][:5]
    batch: Any = task.collate(examples, model)
    plain: Any = Task.collate(task, examples, model)
    require(batch.num_sentences == len(examples), f"a batch of {len(examples)} examples has {batch.num_sentences} rows")
    pad, columns = task.target_dictionary.pad(), dict[str, tuple[Tensor, Tensor, int, bool]]()
    if batch.target is not None and plain.target is not None:
        previous = batch.prev_output_tokens
        fits = previous is not None and previous.shape == batch.target.shape
        require(fits, "prev_output_tokens is missing, or has another shape than the target")
        if torch.equal(previous[:, 0], starts := plain.target[:, 0]):
            shorter = [example._replace(target=_target(example)[1:]) for example in examples]
            plain = Task.collate(task, shorter, model)
            plain.prev_output_tokens[:, 0] = starts
        columns = {
            "target": (batch.target, plain.target, pad, False),
            "prev_output_tokens": (previous, plain.prev_output_tokens, pad, False),
        }
    sources = batch.source.src_tokens, plain.source.src_tokens
    columns["src_tokens"] = (*sources, task.source_dictionary.pad(), model.left_pad_source)
    columns["src_lengths"] = (batch.source.src_lengths[:, None], plain.source.src_lengths[:, None], 0, False)
    for name, (got, wanted, value, left) in columns.items():
        extra = got.size(1) - wanted.size(1)
        wanted = pad_columns(wanted, (extra, 0) if left else (0, extra), value=value)
        for row, (ids, expected) in enumerate(zip(got.tolist(), wanted.tolist(), strict=True)):
            require(ids == expected, f"{name} is {ids} and should be {expected}", sentence=row)
    if batch.target is not None:
        counted = f"ntokens is {batch.ntokens}, but the targets have {plain.ntokens} tokens"
        require(batch.ntokens == plain.ntokens, counted)


def task_is_restored(subject: Prepared) -> None:
    """The task that is made again from its run folder has the same vocabularies and examples."""
    again = subject.again()
    for side in ("source", "target"):
        ours, theirs = (getattr(task, f"{side}_dictionary") for task in (subject.task, again))
        same = list(ours) == list(theirs)
        require(same, f"the {side} vocabulary of the task differs when it is made again from the run folder")
    restored = again.dataset(subject.variant)
    for position, example in enumerate(subject.examples()):
        other = restored.example(position, epoch=1, seed=1)
        same = torch.equal(example.source, other.source) and torch.equal(_target(example), _target(other))
        require(same, "an example differs when the task is made again from the run folder", sentence=example.id)


TASK: Invariants[Prepared] = {
    "text survives": text_survives,
    "ids are in the vocabulary": ids_are_in_the_vocabulary,
    "examples are fixed": examples_are_fixed,
    "training and decoding encode alike": training_and_decoding_encode_alike,
    "batches have the examples": batches_have_the_examples,
    "restored task = task": task_is_restored,
}
"""The invariants of a task."""
