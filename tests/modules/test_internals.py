"""Hidden states and attention weights of all layers: those of transformers, in forward passes and in decoding."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from seqgen.extend import Batch, SequenceScorer, load_model
from seqgen.modules.inspection import StackInternals, record_passes
from seqgen.text.translator import Translator
from tests import huggingface_gpt2
from tests.huggingface_internals import assert_near, every_kind, pair_of
from tests.model_zoo import ZOO, build
from tests.scripted_model import batch_of
from tests.subjects import inputs
from tests.text_models import TEXTS, text_model

FEW = ["transformer_prenorm_gelu_learned", "t5_gated_untied", "fconv_uneven", "transformer_lm_learned"]
FURTHER = [name for name in ZOO if name not in ("lstm_tiny", "average", *FEW)]
slow = lambda names: [pytest.param(name, marks=pytest.mark.slow) for name in names]  # noqa: E731
TRANSFORMERS = {"output_hidden_states": True, "output_attentions": True}


def assert_stacks_near(got: StackInternals, wanted: StackInternals, tolerance: float = 1e-4) -> None:
    for name in ("hidden_states", "self_attention", "cross_attention"):
        for one, other in zip(getattr(got, name), getattr(wanted, name), strict=True):
            assert_near(one, other, tolerance)


def assert_rows_near(got: StackInternals, hidden_states: list[Tensor], attention: list[Tensor], mask: Tensor) -> None:
    """Hidden states and weights are equal at the positions of ``mask``."""
    for mine, other in zip(got.hidden_states, hidden_states, strict=True):
        assert_near(mine[mask], other[mask])
    for mine, other in zip(got.self_attention, attention, strict=True):
        assert mine.shape == other.shape
        assert_near(mine.transpose(1, 2)[mask], other.transpose(1, 2)[mask])


# --- forward passes


@every_kind
@torch.no_grad()
def test_a_forward_pass_is_that_of_transformers(kind: str) -> None:
    pair = pair_of(kind)
    theirs = pair.original_pass(**TRANSFORMERS)
    with record_passes(pair.model) as recording:
        pair.pass_()
    (encoder,), (decoder,) = recording.encoder, recording.decoder
    assert_rows_near(encoder, theirs.encoder_hidden_states, theirs.encoder_attentions, pair.mask)
    wanted = (theirs.decoder_hidden_states, theirs.decoder_attentions, theirs.cross_attentions)
    assert_stacks_near(decoder, StackInternals(*map(list, wanted)))
    assert not encoder.cross_attention


@torch.no_grad()
def test_a_forward_pass_of_gpt2_is_that_of_transformers(tmp_path: Path) -> None:
    original = huggingface_gpt2.tiny_model()
    model = load_model(huggingface_gpt2.tiny_folder(tmp_path / "gpt2")).model.eval()
    tokens = torch.tensor([[5, 9, 20, 298, 44, 7, 8], [299, 299, 7, 1, 250, 2, 298]])
    real = torch.arange(7) >= torch.tensor([[0], [2]])
    positions = (real.long().cumsum(1) - 1).clamp(min=0)
    theirs = original(tokens, attention_mask=real.long(), position_ids=positions, **TRANSFORMERS)
    with record_passes(model) as recording:  # prompts of 5 and 3 tokens, and two further tokens
        model(tokens[:, :5], torch.tensor([5, 3]), torch.cat([tokens[:, :1], tokens[:, 5:]], dim=1))
    (decoder,) = recording.decoder
    assert not recording.encoder
    assert not decoder.cross_attention
    assert_rows_near(decoder, theirs.hidden_states, theirs.attentions, real)


@pytest.mark.parametrize("name", [*FEW, *slow(FURTHER)])
@torch.no_grad()
def test_recording_changes_nothing_and_ends(name: str) -> None:
    model, given = build(name), inputs(name, [5, 2, 3], 4)
    arguments = (given.src_tokens, given.src_lengths, given.prev_output_tokens)
    plain = model(*arguments)
    with record_passes(model) as recording:
        out = model(*arguments)
    assert out.attention is None
    torch.testing.assert_close(out.logits, plain.logits, rtol=0, atol=1e-5)
    (decoder,) = recording.decoder
    features = model.decoder.extract_features(given.prev_output_tokens, model.encoder(*arguments[:2]))[0]
    torch.testing.assert_close(decoder.hidden_states[-1][:, -4:], features, rtol=0, atol=1e-5)
    for weights in (*decoder.self_attention, *decoder.cross_attention):
        if not ZOO[name].is_language_model:  # whose rows of padding attend to nothing
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    model(*arguments)
    assert len(recording.decoder) == 1
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# --- decoding


@every_kind
@torch.no_grad()
def test_a_decode_is_that_of_transformers(kind: str) -> None:
    """Of each token of the chosen hypothesis; transformers returns the rows of all beams, and where each token was."""
    pair, beam, length = pair_of(kind), 3, 6
    theirs = pair.original_decode(beam, length, **TRANSFORMERS)
    scorer = SequenceScorer([pair.model], pair.pad, pair.eos)
    start = torch.tensor([pair.model.start_token(pair.eos)])
    for sentence, (best, *_) in enumerate(pair.decode(beam, length)):
        size, read = len(best.tokens), int(pair.source.src_lengths[sentence])
        assert torch.equal(best.tokens, theirs.sequences[beam * sentence, 1 : size + 1])
        alone = batch_of([pair.source.src_tokens[sentence, :read].tolist()], pad=pair.pad)
        previous = torch.cat([start, best.tokens[:-1]]).unsqueeze(0)
        ((found,),) = scorer.internals(Batch(alone.ids, alone.source, previous, best.tokens.unsqueeze(0)), [size])
        for layer, hidden in enumerate(theirs.encoder_hidden_states):
            assert_near(found.encoder.hidden_states[layer], hidden[sentence, :read])
        for step, row in enumerate(theirs.beam_indices[beam * sentence, :size].tolist()):
            for layer, hidden in enumerate(theirs.decoder_hidden_states[step]):
                assert_near(found.decoder.hidden_states[layer][step], hidden[row, -1])
            for layer, weights in enumerate(theirs.decoder_attentions[step]):
                assert_near(found.decoder.self_attention[layer][:, step, : step + 1], weights[row, :, -1])
            for layer, weights in enumerate(theirs.cross_attentions[step]):
                assert_near(found.decoder.cross_attention[layer][:, step], weights[row, :, -1, :read])


@pytest.mark.parametrize("name", ["t5_tiny", "transformer_lm_tiny", *slow(["transformer_tiny", "fconv_tiny"])])
def test_the_translator_returns_the_internals_of_hypotheses(name: str) -> None:
    """Alone as in the batch; the last hidden states are those of ``return_hidden``."""
    translator = Translator(text_model(name), beam=3, nbest=2, max_len_b=6)
    options = {"return_internals": True, "return_hidden": True}
    for text, translation in zip(TEXTS[:3], translator.translate(TEXTS[:3], **options), strict=True):
        (alone,) = translator.translate([text], return_internals=True)
        source = len(translation.source_tokens)
        for hypothesis, other in zip(translation.hypotheses, alone.hypotheses, strict=True):
            ((mine,), (theirs,)), size = (hypothesis.internals, other.internals), len(hypothesis.tokens)
            assert_stacks_near(mine.decoder, theirs.decoder, 1e-10)
            assert_near(mine.decoder.hidden_states[-1][-size:], hypothesis.hidden[0], 1e-10)
            width = size + source - 1 if name == "transformer_lm_tiny" else size
            assert {hidden.size(0) for hidden in mine.decoder.hidden_states} == {width}
            assert all(weights.shape[1:] == (width, width) for weights in mine.decoder.self_attention)
            assert all(weights.shape[1:] == (size, source) for weights in mine.decoder.cross_attention)
            assert (mine.encoder is None) == (name == "transformer_lm_tiny")
            if mine.encoder is not None:
                assert_stacks_near(mine.encoder, theirs.encoder, 1e-10)
                assert mine.encoder.hidden_states[0].size(0) == source
    assert translator.translate(TEXTS[:1])[0].hypotheses[0].internals is None
