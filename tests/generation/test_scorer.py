"""The scorer gives a combination the step context of decoding: forced scores are those of beam search."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import pytest
import torch
from torch import Tensor

from seqgen.core.component import ATTENTION, HIDDEN_STATES, LAYER_LOGITS, MEMBER_LOGITS, BatchInfo
from seqgen.extend import Candidates, Combination, SequenceScorer, StepContext
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
        outputs, total = context.outputs, context.tokens.sum(1) % 5 + context.steps + context.step
        total = total + context.sentence_ids + self.count.flatten()
        total = total + 0.1 * context.scores + (context.src_tokens > 5).sum(1)
        total = total + context.by_row(torch.tensor([len(text) for text in context.source_texts]))
        parts = {
            **{"features": (HIDDEN_STATES, lambda x: x.sum(1)), "attention": (ATTENTION, lambda x: x.amax(1))},
            "member_logits": (MEMBER_LOGITS, lambda x: sum(logits[:, 7] for logits in x)),
            "layer_logits": (LAYER_LOGITS, lambda x: x[0][:, 5]),
        }
        for name, (need, function) in parts.items():
            assert (getattr(outputs, name) is not None) == (need in self.needs)
            total = total + (function(getattr(outputs, name)) if need in self.needs else 0)
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


def test_targets_have_their_own_last_steps_and_stay_as_they_are() -> None:
    """The last token of a target of three tokens is generated at step 2; a member's start token is its own."""

    class Limits(Combination):
        def __call__(self, lprobs: Sequence[Tensor], context: StepContext) -> Tensor:
            limits.append(context.max_lengths.tolist())
            return torch.stack(list(lprobs)).sum(0)

    limits: list[list[int]] = []
    models = [ScriptedModel(random_rule(9, 0)) for _ in range(2)]
    models[1].start_token = lambda task_eos: 0  # type: ignore[method-assign]
    previous = torch.tensor([[2, 4, 5], [2, 6, 2]])
    given = {"target": torch.tensor([[4, 5, 2], [6, 2, 1]]), "prev_output_tokens": previous.clone()}
    batch = replace(batch_of([(4, 2), (5, 2)]), **given)
    SequenceScorer(models, 1, 2, combination=Limits()).score(batch)
    assert limits == [[2, 1]] * 3
    assert torch.equal(batch.prev_output_tokens, previous)


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
