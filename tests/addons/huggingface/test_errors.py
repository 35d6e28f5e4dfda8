"""Errors of transformers 4.53.3 that seqgen does not repeat: both outputs, and that of a corrected transformers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.huggingface_decoding import EOS, PAD, Pair, assert_same, decode, original, sharp_model
from tests.huggingface_t5 import seqgen_model

logits_process = pytest.importorskip("transformers.generation.logits_process")

Lists = list[list[Pair]]
SOURCES = [(4, 5, 9, 7, EOS), (6, EOS), (3, 10, 9, 4, 6, 7, 8, EOS)]


def decoded_by_both(theirs: dict[str, Any], ours: dict[str, Any], seed: int) -> tuple[Lists, Lists]:
    """The n-best lists of transformers and of seqgen, each source alone."""
    model = sharp_model("t5", seed)
    wanted = [hypotheses for source in SOURCES for hypotheses in original(model, [source], **theirs)]
    return wanted, decode(seqgen_model(model), SOURCES, **ours)


def assert_corrected(theirs: dict[str, Any], ours: dict[str, Any], seed: int) -> None:
    """The corrected transformers gives seqgen's results."""
    wanted, found = decoded_by_both(theirs, ours, seed)
    for got, hypotheses in zip(found, wanted, strict=True):
        assert_same(got, hypotheses)


def shortest(found: Lists) -> int:
    return min(len(tokens) for hypotheses in found for tokens, _ in hypotheses)


def forbidding(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A processor that keeps what is forbidden."""
    return lambda self, input_ids, scores: call(self, input_ids, scores).masked_fill(scores == -torch.inf, -torch.inf)


@pytest.mark.parametrize("beam", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("removes", [False, True], ids=["", "remove_invalid_values"])
def test_decay_of_a_forbidden_end(beam: int, removes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decay adds infinity to -infinity, or a large number to the number that replaced it: the output ends."""
    theirs = {"min_new_tokens": 7, "num_beams": beam, "remove_invalid_values": removes}
    theirs["exponential_decay_length_penalty"] = (1, 1.7)
    ours = {"min_len": 7, "beam": beam, "nbest": beam, "remove_invalid": removes}
    ours |= {"exponential_decay_start": 1, "exponential_decay_factor": 1.7}
    wanted, found = decoded_by_both(theirs, ours, 3)
    assert shortest(wanted) < 8 <= shortest(found), "seven tokens and end-of-sentence"
    for name in ("ExponentialDecayLengthPenalty", "InfNanRemoveLogitsProcessor"):
        processor = getattr(logits_process, name)
        monkeypatch.setattr(processor, "__call__", forbidding(processor.__call__))
    assert_corrected(theirs, ours, 3)


def test_encoder_repetition_penalty_of_all_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers raises the scores of source tokens in the first row of a batch, and in no other beam."""
    theirs, ours = {"encoder_repetition_penalty": 1.8, "num_beams": 3}, {"encoder_repetition_penalty": 1.8}
    ours |= {"beam": 3, "nbest": 3}
    wanted, found = decoded_by_both(theirs, ours, 4)
    for got, hypotheses in zip(found, wanted, strict=True):
        assert [tokens for tokens, _ in got] != [tokens for tokens, _ in hypotheses]
    raises = logits_process.EncoderRepetitionPenaltyLogitsProcessor.__call__

    def penalize(self: Any, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.encoder_input_ids = self.encoder_input_ids[:1].expand(len(scores), -1)
        out: Tensor = raises(self, input_ids, scores)
        return out

    monkeypatch.setattr(logits_process.EncoderRepetitionPenaltyLogitsProcessor, "__call__", penalize)
    assert_corrected(theirs, ours, 4)


def test_groups_return_the_token_that_ended_a_hypothesis() -> None:
    """transformers writes the first of the end tokens in place of the others; the scores are those of the others."""
    ends, differing, strength = (EOS, 5, 7, 9, 4), 0, 1e-6
    model = sharp_model("t5", 4)
    keys = {"search": "diverse_beam", "components": {"search.groups": 2, "search.strength": strength}}
    groups = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": strength}
    ours = decode(seqgen_model(model), SOURCES, ends=ends, beam=4, nbest=4, **keys)
    for source, found in zip(SOURCES, ours, strict=True):
        for mine, theirs in zip(found, original(model, [source], ends, **groups)[0], strict=True):
            assert mine[1] == pytest.approx(theirs[1], abs=1e-5)
            assert mine[1] == pytest.approx(mean_log_probability(model, source, mine[0]), abs=1e-4)
            if mine[0][-1] in ends[1:]:
                assert theirs[0] == (*mine[0][:-1], EOS)
                differing += mine[1] != pytest.approx(mean_log_probability(model, source, theirs[0]), abs=1e-3)
    assert differing > 2


def mean_log_probability(model: Any, source: tuple[int, ...], tokens: tuple[int, ...]) -> float:
    with torch.no_grad():
        inputs = torch.tensor([[PAD, *tokens[:-1]]])
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=inputs).logits[0]
    return float(logits.log_softmax(-1)[range(len(tokens)), tokens].mean())
