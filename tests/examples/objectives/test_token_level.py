"""R-Drop, unlikelihood and scheduled sampling against their formulas, token by token."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.objectives import unlikelihood
from examples.objectives.r_drop import RDrop, RDropConfig
from examples.objectives.scheduled_sampling import ScheduledSampling, ScheduledSamplingConfig
from seqgen.data.combined_datasets import pack
from seqgen.extend import Criterion, EncoderDecoderModel, GenerationConfig, TrainingContext
from tests.examples.objectives import small
from tests.examples.objectives.small import EOS, PAIRS, TASK, batch_of, plain_logits, plain_lprobs, plain_nll, student

TOKENS, PAD = sum(len(target) for _, target in PAIRS), small.WORDS.pad()
UNLIKELIHOOD = unlikelihood.Unlikelihood(unlikelihood.UnlikelihoodConfig(), TASK)


@pytest.mark.parametrize(("alpha", "smoothing"), [(0.0, 0.0), (5.0, 0.0), (1.5, 0.2)])
def test_r_drop(alpha: float, smoothing: float) -> None:
    """The two passes are two calls of the model, with other random numbers."""
    model = student(dropout=0.4).train()
    batch = batch_of(model)
    torch.manual_seed(11)
    out = RDrop(RDropConfig(alpha, smoothing), TASK)(model, batch)
    torch.manual_seed(11)
    inputs: Any = (batch.source.src_tokens, batch.source.src_lengths, batch.prev_output_tokens)
    first, second = (model(*inputs).logits.log_softmax(-1) for _ in range(2))
    assert (first - second).abs().max() > 0.1
    nlls, losses, kls, correct = [], [], [], 0.0
    for row, (_, target) in enumerate(PAIRS):
        one, two = first[row, : len(target)], second[row, : len(target)]
        for lprobs in (one, two):
            own = lprobs[range(len(target)), target]
            nlls.append(-own.sum())
            losses.append(-((1 - smoothing) * own + smoothing / (first.size(-1) - 1) * (lprobs.sum(1) - own)).sum())
            correct += 0.5 * int((lprobs.argmax(1) == torch.tensor(target)).sum())
        kls.append(0.5 * (one.exp() * (one - two)).sum() + 0.5 * (two.exp() * (two - one)).sum())
    wanted = torch.stack(losses).sum() + alpha * torch.stack(kls).sum()
    small.same_gradients(model, out.loss, wanted)
    assert float(out.logging["nll_loss"]) == pytest.approx(torch.stack(nlls).sum().item() / 2)
    assert float(out.logging["kl"]) == pytest.approx(torch.stack(kls).sum().item())
    assert out.logging["kl"] > 0.1
    assert out.logging["correct"] == correct
    assert (out.sample_size, out.logging["ntokens"], out.logging["nsentences"]) == (TOKENS, TOKENS, len(PAIRS))


def test_r_drop_in_evaluation_is_twice_the_cross_entropy() -> None:
    model = student(dropout=0.4)
    state = torch.get_rng_state()
    out = RDrop(RDropConfig(), TASK)(model, batch_of(model))
    assert torch.equal(torch.get_rng_state(), state)
    nll = plain_nll(model)
    small.same_gradients(model, out.loss, 2 * nll)
    assert out.logging["kl"] == 0
    assert float(out.logging["nll_loss"]) == pytest.approx(nll.item())


def complement(lprob: Tensor) -> Tensor:
    return torch.log(torch.clamp(1 - lprob.exp(), min=1e-5))


def plain_unlikelihood(model: EncoderDecoderModel) -> Tensor:
    losses = []
    for source, target in PAIRS:
        for t, lprobs in enumerate(plain_lprobs(model, source, target)):
            losses += [-complement(lprobs[candidate]) for candidate in {*target[:t]} - {target[t]}]
    return torch.stack(losses).sum()


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.5])
def test_unlikelihood(alpha: float) -> None:
    model = student()
    out = unlikelihood.Unlikelihood(unlikelihood.UnlikelihoodConfig(alpha), TASK)(model, batch_of(model))
    nll, unlikely = plain_nll(model), plain_unlikelihood(model)
    small.same_gradients(model, out.loss, nll + alpha * unlikely)
    correct = sum((plain_lprobs(model, *pair).argmax(1) == torch.tensor(pair[1])).sum() for pair in PAIRS)
    assert out.sample_size == TOKENS
    counts = {"ntokens": TOKENS, "nsentences": len(PAIRS), "correct": int(correct)}
    wanted = {"nll_loss": nll.item(), "unlikelihood": unlikely.item(), **counts}
    assert {name: float(value) for name, value in out.logging.items()} == pytest.approx(wanted)


def repeats(tokens: list[int], n: int) -> list[int]:
    """The starts of n-grams that an earlier position has too, by comparing all pairs."""
    starts = range(len(tokens) - n + 1)
    return [j for j in starts if any(tokens[i : i + n] == tokens[j : j + n] for i in range(j))]


def greedy(model: EncoderDecoderModel, source: list[int], most: int) -> list[int]:
    """The most probable token of each step; padding is never generated, and the last token is end-of-sentence."""
    tokens: list[int] = []
    while not tokens or tokens[-1] != EOS:
        logits = plain_logits(model, source, [model.start_token(EOS), *tokens])[-1].detach().clone()
        logits[PAD] = -torch.inf
        tokens.append(EOS if len(tokens) == most else int(logits.argmax()))
    return tokens


@pytest.mark.parametrize(("n", "weight"), [(1, 0.0), (2, 0.0), (2, 0.4), (4, 0.5)])
def test_sequence_unlikelihood(n: int, weight: float) -> None:
    model = student(seed=4, factor=1.5)
    decode = GenerationConfig(beam=1, mbr="chrf", max_len_a=0.0, max_len_b=9, min_len=0)
    cfg = unlikelihood.SequenceUnlikelihoodConfig(decode=decode, token_loss=weight, ngram=n)
    out = unlikelihood.SequenceUnlikelihood(cfg, TASK)(model, batch_of(model))
    losses, proportion = [torch.zeros((), dtype=torch.float64)], 0.0
    for source, _ in PAIRS:
        tokens = greedy(model, source, 9)
        lprobs = plain_lprobs(model, source, tokens)
        starts = repeats(tokens, n)
        losses += [-complement(lprobs[t, tokens[t]]) for t in {start + i for start in starts for i in range(n)}]
        proportion += len(starts) / max(len(tokens) - n + 1, 1)
    assert proportion > 0
    assert len(losses) > 2
    wanted = (1 - weight) * torch.stack(losses).sum()
    small.same_gradients(model, out.loss, wanted + weight * plain_nll(model) if weight else wanted)
    assert out.logging["repeated"] == pytest.approx(proportion)
    assert out.sample_size == len(PAIRS)


def criterion_of(**values: Any) -> ScheduledSampling:
    return ScheduledSampling(ScheduledSamplingConfig(**values), TASK)


def constant(share: float, choice: str = "sample") -> ScheduledSampling:
    """The probability of a reference token is the same in all updates."""
    return criterion_of(decay="linear", k=share, slope=0.0, choice=choice)


@pytest.mark.parametrize("choice", ["sample", "argmax"])
def test_scheduled_sampling_has_the_loss_of_the_mixed_inputs(choice: str) -> None:
    """No gradient comes from the first pass, whose most probable tokens follow the reference prefix."""
    model = student().train()
    criterion, batch = constant(0.5, choice), batch_of(model)
    torch.manual_seed(3)
    out = criterion(model, batch)
    torch.manual_seed(3)
    mixed, losses, kept = criterion.mixed_inputs(model, batch, 0.5).tolist(), [], []
    for row, (source, target) in zip(mixed, PAIRS, strict=True):
        read = row[: len(target)]
        losses.append(-plain_logits(model, source, read).log_softmax(-1)[range(len(target)), target].sum())
        logits = plain_logits(model, source, [EOS, *target[:-1]])
        logits[:, PAD] = -torch.inf
        predicted = [EOS, *logits.argmax(1).tolist()[:-1]]
        assert choice == "sample" or all(
            own in each for own, *each in zip(read, predicted, [EOS, *target[:-1]], strict=True)
        )
        kept.append((read == predicted, read == [EOS, *target[:-1]]))
    small.same_gradients(model, out.loss, torch.stack(losses).sum())
    assert float(out.logging["nll_loss"]) == pytest.approx(out.loss.item())
    assert not any(map(all, zip(*kept, strict=True))), "some tokens are predictions, and some are references"


def test_proportion_of_reference_tokens_and_distribution_of_the_others() -> None:
    model = student().train()
    source, target = [4, 5, EOS], [20, 21, EOS]
    batch = TASK.collate([(n, torch.tensor(source), torch.tensor(target)) for n in range(4000)], model)
    torch.manual_seed(0)
    mixed = constant(0.5).mixed_inputs(model, batch, 0.3)
    probs = plain_logits(model, source, [EOS, *target[:-1]]).softmax(-1).detach()
    probs[:, PAD] = 0
    probs /= probs.sum(1, keepdim=True)
    assert (mixed[:, 0] == EOS).all()
    for t in (1, 2):
        wanted = 0.7 * probs[t - 1]
        wanted[target[t - 1]] += 0.3
        found = mixed[:, t].bincount(minlength=len(small.WORDS)) / 4000
        assert (found - wanted).abs().max() < 4 * math.sqrt(0.25 / 4000)
    assert (mixed != PAD).all()


@pytest.mark.parametrize("criterion", [UNLIKELIHOOD, constant(0.0, "argmax")])
def test_packed_examples_are_apart(criterion: Criterion) -> None:
    """They have no candidates in common, and each keeps its start token."""
    model = student().train()
    packed = pack([batch_of(model, [0, 3]), batch_of(model, [1, 2])], PAD, PAD)
    small.same_gradients(model, criterion(model, packed).loss, criterion(model, batch_of(model)).loss)


def test_schedules() -> None:
    linear = criterion_of(decay="linear", k=0.9, slope=0.01, minimum=0.25)
    exponential = criterion_of(decay="exponential", k=0.99, minimum=0.1)
    sigmoid = criterion_of(decay="inverse_sigmoid", k=50.0)
    for update in (0, 1, 30, 65, 200, 10**6):
        for criterion in (linear, exponential, sigmoid):
            criterion.begin_update(TrainingContext(update))
        assert linear.reference_probability == pytest.approx(max(0.25, 0.9 - 0.01 * update))
        assert exponential.reference_probability == pytest.approx(max(0.1, 0.99**update))
        exact = 50 / (50 + math.exp(update / 50)) if update < 10**6 else 0.0
        assert sigmoid.reference_probability == pytest.approx(exact)
