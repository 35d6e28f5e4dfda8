"""Criteria and tasks with bugs that are usual in new ones; the check finds each, and names the cause of many."""

import copy
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.dates import DatesConfig, DatesTask, LetterTokenizer
from examples.objectives.minimum_risk import MinimumRisk, MinimumRiskConfig
from seqgen.addons.checks.checking import Outcome, check, diagnose
from seqgen.addons.checks.criteria import LENGTHS, Training, invariants_of
from seqgen.addons.checks.kinds import new_model, small_transformer
from seqgen.addons.checks.subject import Ids, randomize_, tiny_dictionary
from seqgen.addons.checks.tasks import TASK, Prepared
from seqgen.extend import Batch, GenerationConfig, PairDataset, Task, WhitespaceTokenizer
from seqgen.training.criteria import Criterion, CriterionOut, target_logits

CRITERIA: dict[str, tuple[type[Criterion], str]] = {}
"""Criteria with a bug, and the beginning of the cause that the check should name, or the first invariant that fails."""


def bug(cause: str) -> Callable[[type[Criterion]], None]:
    return lambda criterion: CRITERIA.update({criterion.__name__: (criterion, cause)})


class Plain(Criterion):
    """Cross-entropy; each bug is a subclass."""

    def __call__(self, model: Any, batch: Batch) -> CriterionOut:
        logits, target = target_logits(model, batch, self.task.target_dictionary.pad())
        losses = -model.get_normalized_probs(logits).gather(1, target.unsqueeze(1)).squeeze(1)
        return self.of(losses, batch)

    def of(self, losses: Tensor, batch: Batch) -> CriterionOut:
        size = losses.numel()
        return CriterionOut(losses.sum(), size, {"ntokens": size, "nsentences": len(batch.ids)})


def bug_of_losses(name: str, cause: str, losses: Callable[..., Tensor] | None = None, **changes: Any) -> None:
    """A criterion with other ``losses`` of the tokens, or with other fields of its result, functions of the losses."""

    class Changed(Plain):
        def of(self, found: Tensor, batch: Batch) -> CriterionOut:
            out = super().of(found if losses is None else losses(found, batch), batch)
            return replace(out, **{field: change(found, batch, out) for field, change in changes.items()})

    CRITERIA[name] = Changed, cause


def logging(value: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return lambda losses, batch, out: {**out.logging, "nll_loss": value(losses)}


bug_of_losses("mean loss", "the loss is a mean", loss=lambda losses, batch, out: losses.mean())
per_column = "source padding", "the loss depends on padding of the source"
bug_of_losses(*per_column, lambda losses, batch: losses / batch.source.src_tokens.size(1))
padded = "size of the padded batch", "padding does not affect the loss"
bug_of_losses(*padded, sample_size=lambda losses, batch, out: batch.target.numel())
detached = "detached weight", "a part of the loss has no gradient or a wrong one"
bug_of_losses(*detached, lambda losses, batch: (1 - (-losses.detach()).exp()) * losses)
normalized = "normalized by the batch", "the loss of a sentence depends on the other sentences"
bug_of_losses(*normalized, lambda losses, batch: losses * losses / losses.mean())
bug_of_losses("logs with gradient", "the loss is a scalar", logging=logging(torch.sum))
bug_of_losses("logs a mean", "sum over ranks = whole batch", logging=logging(lambda losses: losses.mean().detach()))


@bug("padding of the target is counted")
class CountsPadding(Plain):
    def __call__(self, model: Any, batch: Batch) -> CriterionOut:
        source = batch.source
        logits = model(source.src_tokens, source.src_lengths, batch.prev_output_tokens).logits
        lprobs = model.get_normalized_probs(logits)
        assert batch.target is not None
        return self.of(-lprobs.gather(2, batch.target.unsqueeze(2)).flatten(), batch)


@bug("inputs are not changed")
class ChangesTheTarget(Plain):
    def __call__(self, model: Any, batch: Batch) -> CriterionOut:
        assert batch.target is not None
        batch.target[batch.target == 2] = 1
        return super().__call__(model, batch)


@bug("the criterion calls train() or eval() of the model")
class LeavesTheModelInEvaluation(Plain):
    def __call__(self, model: Any, batch: Batch) -> CriterionOut:
        return super().__call__(model.eval(), batch)


@bug("the loss is random in evaluation")
class KeepsAnAverage(Plain):
    average: float = 1.0

    def of(self, losses: Tensor, batch: Batch) -> CriterionOut:
        self.average = 0.9 * self.average + 0.1 * float(losses.mean())
        return super().of(losses / self.average, batch)


class Risk(MinimumRisk):
    """Minimum risk training; each bug is a subclass."""

    def __init__(self, cfg: Any, task: Task):
        super().__init__(MinimumRiskConfig(decode=GenerationConfig(mbr="chrf", beam=4, max_len=6)), task)


@bug("decoding uses cached weights of an earlier update")
class DecodesWithAnOldCopy(Risk):
    kept: Any = None

    def decode(self, model: Any, batch: Batch, prefix_tokens: Tensor | None = None) -> Any:
        self.kept = self.kept or copy.deepcopy(model)
        return super().decode(self.kept, batch, prefix_tokens)


@bug("decoding interferes with training")
class DecodesWithDropout(Risk):
    def decode(self, model: Any, batch: Batch, prefix_tokens: Tensor | None = None) -> Any:
        training = model.training
        handle = model.encoder.register_forward_pre_hook(lambda module, _: module.train(training) and None)
        try:
            return super().decode(model, batch, prefix_tokens)
        finally:
            handle.remove()


@bug("decoding and rescore compute with different models or inputs")
class RescoresWithoutTheSource(Risk):
    def rescore(self, model: Any, batch: Batch, hypotheses: Any) -> Any:
        rows = torch.arange(len(batch.ids)).roll(1)
        tokens, lengths = batch.source.src_tokens, batch.source.src_lengths
        other = replace(batch, source=replace(batch.source, src_tokens=tokens[rows], src_lengths=lengths[rows]))
        return super().rescore(model, other if len(batch.ids) == len(LENGTHS) else batch, hypotheses)


def assert_found(outcomes: list[Outcome], subject: Any, cause: str) -> None:
    failed = {outcome.name: outcome.violation.what for outcome in outcomes if outcome.violation}
    assert next(iter(failed)) == cause or diagnose(outcomes, subject).startswith(cause), failed


def with_nightly(names: Iterable[str], fast: str) -> list[Any]:
    return [name if name == fast else pytest.param(name, marks=pytest.mark.nightly) for name in names]


@pytest.mark.parametrize("name", with_nightly(CRITERIA, "DecodesWithAnOldCopy"))
def test_bugs_of_criteria(name: str) -> None:
    criterion, cause = CRITERIA[name]
    words = tiny_dictionary(7)
    model = randomize_(new_model(small_transformer(), words))
    task = Task(None, *[WhitespaceTokenizer(words)] * 2)
    subject = Training(criterion(None, task), model, Ids.of(model, words, len(words)), tolerance=1e-9)
    assert_found(list(check(subject, invariants_of(subject.criterion))), subject, cause)


# -- tasks -------------------------------------------------------------------------------------------------------------

TASKS: dict[str, tuple[type, str, Callable[[Any], Any], str]] = {}
"""A class, the name of its attribute that is replaced, a function that returns the new one, and the same cause."""


def task_bug(owner: type, attribute: str, cause: str) -> Callable[[Callable[[Any], Any]], None]:
    return lambda change: TASKS.update({change.__name__: (owner, attribute, change, cause)})


@task_bug(LetterTokenizer, "decode", "text survives")
def decode_loses_the_last_token(old: Any) -> Any:
    return lambda self, ids: old(self, ids[:-1])


@task_bug(DatesTask, "collate", "batches have the examples")
def target_not_shifted(old: Any) -> Any:
    def collate(self: Task, examples: Any, model: Any) -> Batch:
        batch = old(self, examples, model)
        previous = batch.target.clone()
        previous[:, 0] = 2
        return replace(batch, prev_output_tokens=previous)

    return collate


@task_bug(DatesTask, "encode_source", "training data are encoded in another way than the input of decoding")
def decoding_without_end_of_sentence(old: Any) -> Any:
    return lambda self, text: torch.tensor(self.source_tokenizer.encode(text))


@task_bug(PairDataset, "example", "examples depend on the order in which they are read")
def examples_with_random_noise(old: Any) -> Any:
    def noisy(self: PairDataset, position: int, *, epoch: int, seed: int) -> Any:
        found = old(self, position, epoch=epoch, seed=seed)
        order = torch.cat([torch.randperm(len(found.source) - 1), torch.tensor([len(found.source) - 1])])
        return found._replace(source=found.source[order])

    return noisy


@task_bug(PairDataset, "lengths", "examples are fixed")
def lengths_without_end_of_sentence(old: Any) -> Any:
    return lambda self, epoch=0, seed=0: old(self, epoch, seed) - 1


@task_bug(DatesTask, "setup_task", "setup_task makes another vocabulary when a run is resumed")
def another_vocabulary_on_resuming(old: Any) -> Any:
    number = itertools.count()

    def setup_task(cls: Any, cfg: Any, folder: Path) -> Any:
        task = old(cfg, folder)
        if next(number):
            task.source_dictionary.add_symbol("another")
        return task

    return classmethod(setup_task)


@pytest.mark.parametrize("name", with_nightly(TASKS, "target_not_shifted"))
def test_bugs_of_tasks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, change, cause = TASKS[name]
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))

    def make() -> Task:
        return DatesTask.setup_task(DatesConfig(), tmp_path)

    task = make()
    model = randomize_(task.build_model(small_transformer()).double())
    subject = Prepared(task, make, model, variants=["valid", "train"])
    assert_found(list(check(subject, TASK)), subject, cause)
