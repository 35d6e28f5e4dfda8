"""Embeddings in place of tokens: as transformers reads them, and equal to the tokens whose embeddings they are."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from seqgen.checkpoints.loading import load_model
from seqgen.config import GenerationConfig
from seqgen.core.errors import ConfigError
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import Batch, Source
from seqgen.data.dictionary import Dictionary
from seqgen.decoding.options import build_setup
from seqgen.inspection import given_embeddings
from tests import huggingface_gpt2
from tests.generators import make_generator
from tests.huggingface_internals import assert_near, every_kind, pair_of
from tests.model_zoo import PAD, build, sharp
from tests.scripted_model import batch_of, dictionary
from tests.subjects import inputs

few_models = pytest.mark.parametrize("name", ["transformer_marian", "t5_gated_untied", "fconv_uneven"])


@every_kind
@torch.no_grad()
def test_a_forward_pass_is_that_of_transformers(kind: str) -> None:
    pair = pair_of(kind)
    torch.manual_seed(2)
    dim = pair.original.config.d_model
    source, target = torch.randn(3, 6, dim), torch.randn(3, 4, dim)
    # the decoders of Pegasus and Marian multiply embeddings that are given by the scale, unlike their encoders
    scales = kind in ("pegasus", "marian")
    theirs = pair.original_pass(
        inputs_embeds=source, decoder_inputs_embeds=target / (pair.model.decoder.embed_scale if scales else 1)
    ).logits
    lengths = pair.source.src_lengths
    with given_embeddings(pair.model.encoder, source) as ids:
        src_tokens = ids.masked_fill(~pair.mask, pair.pad)
        assert_near(
            pair.model(src_tokens, lengths, pair.prefixes).logits, pair.original_pass(inputs_embeds=source).logits
        )
        with given_embeddings(pair.model.decoder, target) as target_ids:
            assert_near(pair.model(src_tokens, lengths, target_ids).logits, theirs)


@every_kind
@torch.no_grad()
def test_a_decode_is_that_of_transformers(kind: str) -> None:
    pair, beam = pair_of(kind), 3
    torch.manual_seed(3)
    source = torch.randn(3, 6, pair.original.config.d_model)
    theirs = pair.original_decode(beam, 6, inputs_embeds=source)
    with given_embeddings(pair.model.encoder, source) as ids:
        given = Source(ids.masked_fill(~pair.mask, pair.pad), pair.source.src_lengths)
        found = pair.decode(beam, 6, replace(pair.batch, source=given))
    for sentence, hypotheses in enumerate(found):
        best = hypotheses[0]
        row = theirs.sequences[beam * sentence]
        start = len(row) - theirs.beam_indices.size(1)  # the start token is missing where embeddings are given
        assert best.tokens.tolist() == row[start : start + len(best.tokens)].tolist()
        assert best.score == pytest.approx(float(theirs.sequences_scores[beam * sentence]), abs=1e-4)


@torch.no_grad()
def test_a_prompt_of_gpt2_is_read_as_by_transformers(tmp_path: Path) -> None:
    original = huggingface_gpt2.tiny_model()
    model = load_model(huggingface_gpt2.tiny_folder(tmp_path / "gpt2")).model.eval()
    prompt, further = torch.randn(1, 4, 24), torch.tensor([[7, 9]])
    wanted = original(inputs_embeds=torch.cat([prompt, original.transformer.wte(further)], 1)).logits[:, 3:]
    options = {"inputs_embeds": prompt, "attention_mask": torch.ones(1, 4), "num_beams": 3, "early_stopping": True}
    outputs = original.generate(**options, max_new_tokens=6, do_sample=False, pad_token_id=299)
    words = Dictionary([f"w{number}" for number in range(300)], pad=299, eos=299, unk=299, bos=None)
    cfg = GenerationConfig(semantics="huggingface", beam=3, max_len=6, min_len=0, early_stopping="true")
    with given_embeddings(model.decoder, prompt) as ids:
        got = model(ids, torch.tensor([4]), torch.cat([further[:, :1], further], dim=1)).logits
        batch = Batch(torch.arange(1), Source(ids, torch.tensor([4])))
        ((best, *_),) = SequenceGenerator(build_setup([model], words, cfg)).generate(batch)
    assert_near(got, wanted)
    assert best.tokens.tolist() == outputs[0, : len(best.tokens)].tolist()


@few_models
@torch.no_grad()
def test_embeddings_of_tokens_are_the_tokens(name: str) -> None:
    """In decoding as well; only some of the positions are given as embeddings."""
    model, given = sharp(name), inputs(name, [6, 2, 4], 1)
    generator = make_generator([model], dictionary(19), beam_size=3, max_len_b=7)
    batch = replace(batch_of([[5, 2]] * 3), source=Source(given.src_tokens, given.src_lengths))
    wanted = generator.generate(batch)
    embedding, scale = model.encoder.embed_tokens, getattr(model.encoder, "embed_scale", 1.0)
    with given_embeddings(model.encoder, embedding(given.src_tokens[:, :3]) * scale) as ids:
        tokens = torch.cat([ids, given.src_tokens[:, 3:]], dim=1)
        tokens = torch.where(given.src_tokens == PAD, given.src_tokens, tokens)
        found = generator.generate(replace(batch, source=Source(tokens, given.src_lengths)))
    for mine, theirs in zip(found, wanted, strict=True):
        assert [h.tokens.tolist() for h in mine] == [h.tokens.tolist() for h in theirs]
        assert [h.score for h in mine] == pytest.approx([h.score for h in theirs], abs=1e-10)
    with pytest.raises(IndexError):
        embedding(ids)  # they are unknown outside the block


def test_gradients_flow_to_the_embeddings_alone() -> None:
    """As in prompt tuning, with the weights of the model frozen."""
    model, given = build("t5_tiny").double().requires_grad_(False), inputs("t5_tiny", [3, 2], 3)
    assert model.encoder.embed_tokens is model.decoder.embed_tokens
    prompt = torch.randn(2, 24, dtype=torch.float64, requires_grad=True)
    other = torch.randn(1, 24, dtype=torch.float64, requires_grad=True)
    with given_embeddings(model.encoder, prompt) as ids, given_embeddings(model.decoder, other) as further:
        assert further.tolist() == [int(ids.max()) + 1]
        tokens = torch.cat([ids.expand(2, 2), given.src_tokens], dim=1)
        targets = torch.cat([given.prev_output_tokens[:, :2], further.expand(2, 1)], dim=1)
        out = model(tokens, given.src_lengths + 2, targets).logits
    out[:, -1].log_softmax(-1)[:, 5].sum().backward()
    for tensor in (prompt, other):
        assert tensor.grad is not None
        assert tensor.grad.abs().amin() > 0
    assert "forward" not in vars(model.encoder.embed_tokens)


@pytest.mark.parametrize(
    ("name", "dim", "words"),
    [
        ("t5_tiny", 12, "embeddings of dimension 12 are given to T5Encoder, whose embeddings have dimension 24"),
        ("transformer_lm_tiny", 128, "PromptEncoder cannot be given embeddings"),
    ],
)
def test_wrong_embeddings_are_refused(name: str, dim: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words), ExitStack() as stack:
        stack.enter_context(given_embeddings(build(name).encoder, torch.zeros(2, dim)))
