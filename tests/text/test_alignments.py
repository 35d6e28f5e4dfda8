"""Alignments, with attention that is written down."""

from __future__ import annotations

import torch

from seqgen.incremental_state import StateDict
from seqgen.structures import DecoderOut, EncoderOut, Hypothesis
from seqgen.text.results import alignment_pairs, attend_to_source
from seqgen.text.translator import ModelInMemory, Translator
from tests.scripted_model import ScriptedDecoder, ScriptedModel
from tests.text_models import WORDS, task_of

EOS = 2


class Backwards(ScriptedDecoder):
    """Token ``t`` attends to the source's word ``t`` from the end, and half as much to end-of-sentence and padding."""

    def forward(
        self,
        prev_output_tokens: torch.Tensor,
        encoder_out: EncoderOut,
        incremental_state: StateDict | None = None,
        need_attention: bool = False,
    ) -> DecoderOut:
        out = super().forward(prev_output_tokens, encoder_out, incremental_state, need_attention)
        if not need_attention:
            return out
        assert out.attention is not None
        assert encoder_out.encoder_padding_mask is not None
        steps = torch.arange(prev_output_tokens.size(1))[-out.attention.size(1) :]
        words = (~encoder_out.encoder_padding_mask).sum(1) - 1
        attention = torch.full_like(out.attention, 0.1)
        for row, count in enumerate(words.tolist()):
            attention[row, :, count:] = 2.0  # more than any word has
            for column, step in enumerate(steps.tolist()):
                attention[row, column, max(0, count - 1 - step)] = 1.0
        return DecoderOut(out.logits, attention)


def reversing(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
    """Generates the source in reverse order."""
    words = source[-2::-1]
    logits = torch.full((WORDS + 4,), -9.0, dtype=torch.float64)
    logits[words[len(history)] if len(history) < len(words) else EOS] = 9.0
    return logits


def translator() -> Translator:
    model = ScriptedModel(reversing)
    model.decoder = Backwards(reversing, 50)
    model.register_parameter("weight", torch.nn.Parameter(torch.zeros(1)))
    return Translator(ModelInMemory(task_of(), model), beam=2)


def test_alignment_leaves_out_the_end_and_padding() -> None:
    found = translator().translate(["w1 w5 w8", "w5"], return_attention=True)
    assert found[0].hypotheses[0].alignment is not None
    assert found[0].hypotheses[0].alignment.tolist() == [2, 1, 0, 0]
    assert found[0].hypotheses[0].attention is not None
    assert found[0].hypotheses[0].attention[:, -1].tolist() == [2.0] * 4, "the weight itself is still there"
    assert found[1].hypotheses[0].alignment is not None
    assert found[1].hypotheses[0].alignment.tolist() == [0, 0]
    assert found[1].hypotheses[0].attention is not None
    assert found[1].hypotheses[0].attention.shape == (2, 2)


def test_attention_beside_padding() -> None:
    attention = torch.tensor([[9.0, 9.0, 0.2, 0.1, 0.4]])
    left = Hypothesis(torch.tensor([4]), 0.0, torch.zeros(1), attention.clone())
    left = attend_to_source(left, width=5, length=3, left_pad=True)
    assert left.attention is not None
    assert left.attention.tolist() == attention[:, 2:].tolist()
    assert left.alignment is not None
    assert left.alignment.tolist() == [0]
    other = Hypothesis(torch.tensor([4]), 0.0, torch.zeros(1), attention.clone(), torch.tensor([1]))
    other = attend_to_source(other, width=4, length=3, left_pad=False)
    assert (other.attention, other.alignment) == (None, None), "it is over another member's source"
    assert alignment_pairs(torch.tensor([4, 9, 2]), torch.tensor([1, 0, 0]), EOS) == [(1, 0), (0, 1)]
