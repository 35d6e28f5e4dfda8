"""Invariants of criteria that decode: the model of decoding is the model of training, and expectations are exact."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from seqgen.config import GenerationConfig
from seqgen.config.generation import KEEPS_SCORES, keys_with
from seqgen.lab.checks.checking import Invariants, Outcome, at, check_all, needs, require
from seqgen.lab.checks.criteria import CRITERION, Training
from seqgen.structures import Batch, Hypothesis
from seqgen.training.sequence_criterion import SequenceCriterion

_LONGEST = 2
"""Tokens of the longest output where all outputs are enumerated."""


def _decoding(subject: Training) -> SequenceCriterion:
    assert isinstance(subject.criterion, SequenceCriterion)
    return subject.criterion


def _with_decoding(criterion: SequenceCriterion, decode: GenerationConfig) -> SequenceCriterion:
    """The criterion with other decoding keys, and without the cross-entropy with the references."""
    changed = copy.copy(criterion)
    changed.cfg = replace(criterion.cfg, decode=decode, token_loss=0.0)
    return changed


def decoding_equals_rescoring(subject: Training) -> None:
    """In evaluation and beam search, the log-probability of each token is the same in ``decode`` and in ``rescore``."""
    criterion, batch, kept = _decoding(subject), subject.batch(), set(keys_with(KEEPS_SCORES)) - {"seed"}
    plain = {name: getattr(criterion.cfg.decode, name) for name in kept}  # others change the scores of decoding
    beam_search = _with_decoding(criterion, GenerationConfig(**plain))
    subject.model.eval()
    found = beam_search.decode(subject.model, batch)
    scores = criterion.rescore(subject.model, batch, found).token_lprobs
    for row, hypotheses in enumerate(found):
        for place, one in enumerate(hypotheses):
            got, wanted = scores[row, place, : len(one.tokens)], one.positional_scores
            with at(sentence=row):
                subject.same_value(got, wanted, "rescore gives other log-probabilities than decode")


def decoding_reads_the_current_weights(subject: Training) -> None:
    """After the weights were changed in place, as by an optimizer, ``decode`` gives what a new model gives."""
    criterion, batch, model = _decoding(subject), subject.batch(), subject.model
    original = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        for mode in (True, False):
            model.train(mode)
            criterion.decode(model, batch)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.sin(torch.arange(parameter.numel()).view_as(parameter)), alpha=0.3)
            found = criterion.decode(model, batch)
            wanted = SequenceCriterion.decode(criterion, copy.deepcopy(model), batch)
            _same_hypotheses(subject, found, wanted, "decode uses weights from before an update")
    finally:
        model.load_state_dict(original)


def decoding_is_not_training(subject: Training) -> None:
    """``decode`` runs no module in training mode, and leaves the random numbers and the mode of training."""
    criterion, model = _decoding(subject), subject.model
    model.train()
    noted: list[str] = []

    def note(module: nn.Module, arguments: object) -> None:
        if module.training:
            noted.append(type(module).__name__)

    handles = [module.register_forward_pre_hook(note) for module in model.modules()]
    before = torch.get_rng_state()
    try:
        found = criterion.decode(model, subject.batch())
    finally:
        for handle in handles:
            handle.remove()
    require(not noted, f"decode runs {noted[0] if noted else ''} in training mode, with dropout")
    require(torch.equal(torch.get_rng_state(), before), "decode changes the state of random numbers of training")
    require(all(module.training for module in model.modules()), "decode leaves the model in evaluation mode")
    model.eval()
    wanted = criterion.decode(model, subject.batch())
    _same_hypotheses(subject, found, wanted, "decode in training differs from decode in evaluation")


def expected_risk_is_exact(subject: Training) -> None:
    """With all outputs as candidates, the gradient is that of the expected risk, computed by enumeration."""
    criterion = _decoding(subject)
    needs(criterion.is_expected_risk, "the criterion does not say that it is the expected risk of its candidates")
    batch, words = subject.batch(), criterion.task.target_dictionary
    outputs = [[words.eos()]]
    outputs += [[word, words.eos()] for word in range(len(words)) if word not in (words.eos(), words.pad())]
    decode = GenerationConfig(mbr=criterion.cfg.decode.mbr, beam=len(outputs), min_len=0, max_len=_LONGEST)
    every = _with_decoding(criterion, decode)
    got = replace(subject, criterion=every).gradient(batch)
    subject.model.zero_grad(set_to_none=True)
    with torch.enable_grad():
        _enumerated_risk(subject, criterion, batch, outputs).backward()  # type: ignore[no-untyped-call]
    wanted = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in subject.model.named_parameters()}
    subject.same_gradient(got, wanted, "the gradient is not that of the expected risk over all outputs")


def _enumerated_risk(subject: Training, criterion: SequenceCriterion, batch: Batch, outputs: list[list[int]]) -> Tensor:
    """The expected risk, summed over sentences, without ``decode`` and ``rescore``."""
    model, risks = subject.model, []
    hypotheses = [Hypothesis(torch.tensor(tokens), 0.0, torch.zeros(len(tokens))) for tokens in outputs]
    utilities = criterion.utilities(batch, [hypotheses] * batch.num_sentences)
    source, start = batch.source, torch.tensor([[subject.ids.start]])
    for row in range(batch.num_sentences):
        lprobs = []
        for one in hypotheses:
            previous = torch.cat([start, one.tokens[None, :-1]], dim=1)
            logits = model(source.src_tokens[row, None], source.src_lengths[row, None], previous).logits
            lprobs.append(logits.log_softmax(-1)[0].gather(1, one.tokens.unsqueeze(1)).sum())
        risks.append((torch.stack(lprobs).softmax(0) * (1 - utilities[row] / 100)).sum())
    return torch.stack(risks).sum()


def _same_hypotheses(subject: Training, got: list[list[Hypothesis]], wanted: list[list[Hypothesis]], what: str) -> None:
    for row, pair in enumerate(zip(got, wanted, strict=True)):
        one, two = ([hypothesis.tokens.tolist() for hypothesis in hypotheses] for hypotheses in pair)
        require(one == two, what, sentence=row)
        subject.same_value(_scores(pair[0]), _scores(pair[1]), what)


def _scores(hypotheses: list[Hypothesis]) -> Tensor:
    return torch.tensor([hypothesis.score for hypothesis in hypotheses])


DECODING_CRITERION: Invariants[Training] = {
    "decoding = rescoring": decoding_equals_rescoring,
    "decoding reads current weights": decoding_reads_the_current_weights,
    "decoding is not training": decoding_is_not_training,
    "expected risk = enumeration": expected_risk_is_exact,
}
"""The further invariants of a criterion that decodes."""


def check_criterion(subject: Training) -> Iterator[Outcome]:
    """Check a criterion; see ``check_all``."""
    decodes = isinstance(subject.criterion, SequenceCriterion)
    return check_all({**CRITERION, **(DECODING_CRITERION if decodes else {})}, subject)
