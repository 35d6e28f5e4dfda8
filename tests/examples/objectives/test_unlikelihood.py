"""Unlikelihood (examples/objectives/unlikelihood.py) against its formulas, token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from examples.objectives.unlikelihood import (
    SequenceUnlikelihood,
    SequenceUnlikelihoodConfig,
    Unlikelihood,
    UnlikelihoodConfig,
)
from seqgen.config import GenerationConfig
from seqgen.core.model import EncoderDecoderModel
from seqgen.data.combined_datasets import pack
from tests.examples.objectives.small import (
    EOS,
    PAIRS,
    TASK,
    WORDS,
    batch_of,
    checked,
    plain_logits,
    plain_lprobs,
    plain_nll,
    same_gradients,
    student,
)


def complement(lprob: Tensor) -> Tensor:
    return torch.log(torch.clamp(1 - lprob.exp(), min=1e-5))


def plain_unlikelihood(model: EncoderDecoderModel) -> Tensor:
    losses = []
    for source, target in PAIRS:
        lprobs = plain_lprobs(model, source, target)
        for t, token in enumerate(target):
            losses += [-complement(lprobs[t, candidate]) for candidate in {*target[:t]} - {token}]
    return torch.stack(losses).sum()


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.5])
def test_token_level(alpha: float) -> None:
    model = student()
    out = Unlikelihood(UnlikelihoodConfig(alpha), TASK)(model, batch_of(model))
    nll, unlikelihood = plain_nll(model), plain_unlikelihood(model)
    same_gradients(model, out.loss, nll + alpha * unlikelihood)
    tokens = sum(len(target) for _, target in PAIRS)
    correct = sum((plain_lprobs(model, *pair).argmax(1) == torch.tensor(pair[1])).sum() for pair in PAIRS)
    values = {name: float(value) for name, value in out.logging.items()}
    assert out.sample_size == tokens
    assert values == {
        "nll_loss": pytest.approx(nll.item()),
        "unlikelihood": pytest.approx(unlikelihood.item()),
        "ntokens": tokens,
        "nsentences": len(PAIRS),
        "correct": correct,
    }


def test_packed_examples_have_no_candidates_in_common() -> None:
    model = student()
    criterion = Unlikelihood(UnlikelihoodConfig(), TASK)
    rows = [batch_of(model, [0, 3]), batch_of(model, [1, 2])]
    packed = pack(rows, WORDS.pad(), WORDS.pad())
    assert packed.segments is not None
    same_gradients(model, criterion(model, packed).loss, criterion(model, batch_of(model)).loss)


def repeats(tokens: list[int], n: int) -> list[int]:
    """The starts of n-grams that an earlier position has too, by comparing all pairs."""
    starts = range(len(tokens) - n + 1)
    return [j for j in starts if any(tokens[i : i + n] == tokens[j : j + n] for i in range(j))]


def greedy(model: EncoderDecoderModel, source: list[int], most: int) -> list[int]:
    """The most probable token of each step; padding is never generated, and the last token is end-of-sentence."""
    tokens: list[int] = []
    while not tokens or tokens[-1] != EOS:
        logits = plain_logits(model, source, [model.start_token(EOS), *tokens])[-1].detach().clone()
        logits[WORDS.pad()] = -torch.inf
        tokens.append(EOS if len(tokens) == most else int(logits.argmax()))
    return tokens


@pytest.mark.parametrize(("n", "weight"), [(1, 0.0), (2, 0.0), (2, 0.4), (4, 0.5)])
def test_sequence_level(n: int, weight: float) -> None:
    model = student(seed=4, factor=1.5)
    decode = GenerationConfig(beam=1, mbr="chrf", max_len_a=0.0, max_len_b=9, min_len=0)
    criterion = SequenceUnlikelihood(SequenceUnlikelihoodConfig(decode=decode, token_loss=weight, ngram=n), TASK)
    out = criterion(model, batch_of(model))
    losses, proportion = [torch.zeros((), dtype=torch.float64)], 0.0
    for source, _ in PAIRS:
        tokens = greedy(model, source, 9)
        lprobs = plain_lprobs(model, source, tokens)
        starts = repeats(tokens, n)
        for t in {start + offset for start in starts for offset in range(n)}:
            losses.append(-complement(lprobs[t, tokens[t]]))
        proportion += len(starts) / max(len(tokens) - n + 1, 1)
    assert proportion > 0
    assert len(losses) > 2
    wanted = (1 - weight) * torch.stack(losses).sum()
    same_gradients(model, out.loss, wanted + weight * plain_nll(model) if weight else wanted)
    assert out.logging["repeated"] == pytest.approx(proportion)
    assert out.sample_size == len(PAIRS)


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["unlikelihood", "sequence_unlikelihood criterion.decode.max_len=6 criterion.ngram=1"])
def test_invariants(keys: str) -> None:
    name, *others = keys.split()
    assert "invariants hold" in checked("unlikelihood", f"criterion={name}", *others)
