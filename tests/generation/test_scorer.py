"""The scorer gives a combination the step context of decoding: forced scores are those of beam search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import pytest
import torch
from torch import Tensor

from seqgen.core.candidates import Candidates
from seqgen.core.combinations import Combination
from seqgen.core.component import ATTENTION, HIDDEN_STATES, LAYER_LOGITS, MEMBER_LOGITS, BatchInfo
from seqgen.core.context import StepContext
from seqgen.decoding.scorer import SequenceScorer
from seqgen.text.translator import Translator
from tests.model_zoo import sharp
from tests.scripted_model import ScriptedModel, batch_of, random_rule
from tests.text_models import TEXTS, text_model


class Reading(Combination):
    """Adds something of everything that the context has, and of its own state, to the scores."""

    beam_state = ("count",)
    count: Tensor

    def __init__(self, needs: frozenset[str]):
        self.needs = needs  # type: ignore[misc]

    def begin(self, batch: BatchInfo) -> Self:
        copy = super().begin(batch)
        copy.count = torch.zeros(batch.num_sentences, batch.beam_size)
        return copy

    def advance(self, active: Candidates) -> None:
        super().advance(active)
        self.count = self.count + active.tokens % 3

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        assert context is not None
        outputs, total = context.outputs, context.tokens.sum(1) % 5 + context.steps + context.step
        total = total + context.sentence_ids + self.count.flatten()
        assert context.scores is not None
        assert context.src_tokens is not None
        total = total + 0.1 * context.scores + (context.src_tokens > 5).sum(1)
        total = total + torch.tensor([len(text) for text in context.source_texts or ()]).repeat_interleave(
            context.rows_per_sentence
        )
        parts = {"features": HIDDEN_STATES, "attention": ATTENTION, "member_logits": MEMBER_LOGITS}
        for name, need in {**parts, "layer_logits": LAYER_LOGITS}.items():
            assert (getattr(outputs, name) is not None) == (need in self.needs)
        if outputs.features is not None:
            total = total + outputs.features.sum(1)
        if outputs.attention is not None:
            total = total + outputs.attention.amax(1)
        if outputs.member_logits is not None:
            total = total + sum(logits[:, 7] for logits in outputs.member_logits)
        if outputs.layer_logits is not None:
            total = total + outputs.layer_logits[0][:, 5]
        words = torch.arange(lprobs[0].size(1)) % 4
        return torch.stack(list(lprobs)).sum(0) + 0.02 * total.unsqueeze(1) * words

    def attention_weights(self, members: int) -> list[float]:
        return [1.0, 3.0][:members]


MODELS = [text_model(seed=seed, sharpness=1.2) for seed in (0, 1)]
NEEDS = frozenset({HIDDEN_STATES, ATTENTION, MEMBER_LOGITS})


@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize(("members", "needs"), [(2, NEEDS), (1, NEEDS | {LAYER_LOGITS}), (2, frozenset[str]())])
def test_forced_scores_are_those_of_beam_search(members: int, needs: frozenset[str], batch_size: int) -> None:
    options = {"beam": 3, "nbest": 3, "max_len_b": 6, "suppress": ["<s>", "<unk>"], "normalize_scores": False}
    translator = Translator(MODELS[:members], combination=Reading(needs), normalize_scores=False)
    compared = 0
    for line in translator.translate(TEXTS, return_scores=True, batch_size=batch_size, **options):
        texts = [item.text for item in line.hypotheses]
        sources, numbers = [line.source] * len(texts), [line.id] * len(texts)
        forced = list(translator.score(sources, texts, numbers=numbers, batch_size=batch_size))
        for item, scored in zip(line.hypotheses, forced, strict=True):
            assert item.model_score == pytest.approx(item.score, abs=1e-6)
            if item.tokens.tolist() == scored.tokens.tolist():
                torch.testing.assert_close(scored.positional_scores, item.positional_scores, atol=1e-6, rtol=0)
                compared += 1
    assert compared > 8


class Limits(Combination):
    """Collects the last step of each target, and adds the members' scores."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        assert context is not None
        self.seen.append(context.max_lengths.tolist())
        return torch.stack(list(lprobs)).sum(0)


class OtherStart(ScriptedModel):
    def start_token(self, task_eos: int) -> int:
        return 0


def test_targets_have_their_own_last_steps_and_stay_as_they_are() -> None:
    """The last token of a target of three tokens is generated at step 2; a member's start token is its own."""
    rule, limits = random_rule(9, 0), Limits()
    target = torch.tensor([[4, 5, 2], [6, 2, 1]])
    previous = torch.tensor([[2, 4, 5], [2, 6, 2]])
    batch = replace(batch_of([(4, 2), (5, 2)]), target=target, prev_output_tokens=previous.clone())
    scorer = SequenceScorer([ScriptedModel(rule), OtherStart(rule)], 1, 2, combination=limits)
    scorer.score(batch)
    assert limits.seen == [[2, 1]] * 3
    assert torch.equal(batch.prev_output_tokens, previous)  # type: ignore[arg-type]


def test_targets_are_scored_after_the_start_token_of_their_sentence() -> None:
    model, target = sharp("transformer_tiny"), torch.tensor([[4, 5, 2], [6, 2, 1]])
    given = {"target": target, "prev_output_tokens": torch.tensor([[2, 4, 5], [2, 6, 2]])}
    batch = replace(batch_of([(4, 2), (5, 2)]), **given, start_tokens=torch.tensor([7, 8]))
    found = SequenceScorer([model], 1, 2).score(batch)
    with torch.no_grad():
        prefixes = torch.tensor([[7, 4, 5], [8, 6, 2]])
        lprobs = model(batch.source.src_tokens, batch.source.src_lengths, prefixes).logits.log_softmax(-1)
    wanted = lprobs.gather(2, target.unsqueeze(2)).squeeze(2)
    for row, one in zip(wanted, found, strict=True):
        torch.testing.assert_close(one.hypothesis.positional_scores, row[: len(one.hypothesis.tokens)])
