"""Encoder outputs in place of sources: decoded as the sources, and mixed."""

from dataclasses import replace

import pytest
import torch

from examples.papers.align_att import AlignAtt
from examples.papers.mask_predict_model import LengthEncoderOut
from examples.papers.simultaneous import WaitK
from seqgen.addons.speculative.drafters import ModelDrafter
from seqgen.addons.speculative.verification import SpeculativeSearch
from seqgen.extend import Batch, ConfigError, EncoderOut, Search, SequenceScorer, Source, record_passes
from tests.covering import mostly_slow
from tests.generators import make_generator
from tests.huggingface_internals import assert_near, every_kind, pair_of
from tests.hypotheses import assert_same
from tests.model_zoo import EOS, ZOO, sharp
from tests.scripted_model import batch_of, dictionary
from tests.subjects import inputs

FAST = ("fconv_uneven", "transformer_marian", "lstm_tiny", "t5_gated_untied")
ENCODERS = mostly_slow([name for name, specimen in ZOO.items() if not specimen.is_language_model], *FAST)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_the_output_of_the_encoder_is_the_source(name: str) -> None:
    model, given = sharp(name), inputs(name, [6, 2, 4], 1)
    generator = make_generator([model], dictionary(19), beam_size=3, max_len_b=7, need_attention=True)
    batch = replace(batch_of([[5, 2]] * 3), source=Source(given.src_tokens, given.src_lengths))
    wanted = generator.generate(batch)
    encoded = Source.of_encoding(model.encoder(given.src_tokens, given.src_lengths), EOS)
    handle = model.encoder.register_forward_hook(lambda *_: pytest.fail("the encoder was run"))
    assert encoded.src_lengths.tolist() == given.src_lengths.tolist()
    for _ in range(2):  # it is not changed
        assert_same(generator.generate(replace(batch, source=encoded)), wanted)
    handle.remove()


def test_merged_fields_are_padded_to_widths_of_their_own() -> None:
    fields = (torch.ones(1, 3, 2), torch.zeros(1, 2).bool()), (torch.ones(1, 1, 2), torch.zeros(1, 4).bool())
    one, two = (LengthEncoderOut(features, length_logits=mask) for features, mask in fields)
    assert one.merge(two).length_logits.tolist() == [[False, False, True, True], [False] * 4]


@every_kind
@torch.no_grad()
def test_mixed_encodings_are_decoded_as_by_transformers(kind: str) -> None:
    from transformers.modeling_outputs import BaseModelOutput

    pair, beam = pair_of(kind), 3
    encoded = pair.model.encoder(pair.source.src_tokens, pair.source.src_lengths).encoder_out
    features = (encoded[[0, 1], :4] + encoded[[2, 2], :4]) / 2  # the means of sentences 0 and 2, and of 1 and 2
    mask = torch.tensor([[True] * 4, [True] * 2 + [False] * 2])
    source = Source.of_encoding(EncoderOut(features, ~mask), pair.eos)
    two = replace(pair, source=source, prefixes=pair.prefixes[:2])
    theirs = two.original_pass(encoder_outputs=BaseModelOutput(features)).logits
    with record_passes(pair.model) as recording:
        assert_near(pair.model.decoder(two.prefixes, EncoderOut(features, ~mask)).logits, theirs)
    assert (recording.encoder or None, len(recording.decoder)) == (None, 1)
    wanted = two.original_decode(beam, 6, encoder_outputs=BaseModelOutput(features))
    for sentence, hypotheses in enumerate(pair.decode(beam, 6, two.batch)):
        best = hypotheses[0]
        row = wanted.sequences[beam * sentence, 1 : 1 + len(best.tokens)]
        assert best.tokens.tolist() == row.tolist()
        assert best.score == pytest.approx(float(wanted.sequences_scores[beam * sentence]), abs=1e-4)


@torch.no_grad()
def test_members_have_encodings_of_their_own() -> None:
    members = [sharp("transformer_shared", 1), sharp("t5_gated_untied", 2)]
    given = inputs("transformer_shared", [6, 2, 4], 1)
    source = Source(given.src_tokens, given.src_lengths)
    generator = make_generator(members, dictionary(19), beam_size=3, max_len_b=7)
    batch = Batch(torch.arange(3), source)
    encodings = [Source.of_encoding(m.encoder(source.src_tokens, source.src_lengths), 2) for m in members]
    assert_same(generator.generate(replace(batch, member_sources=encodings)), generator.generate(batch))
    with pytest.raises(ConfigError, match="encoder output of one model is given to an ensemble of 2"):
        generator.generate(replace(batch, source=encodings[0]))


@torch.no_grad()
def test_targets_are_scored_under_an_encoding() -> None:
    name = "transformer_prenorm_gelu_learned"
    model, given = sharp(name), inputs(name, [5, 3], 4)
    source = Source(given.src_tokens, given.src_lengths)
    target = torch.cat([given.prev_output_tokens[:, 1:], torch.full((2, 1), 2)], dim=1)
    batch = Batch(torch.arange(2), source, given.prev_output_tokens, target)
    scorer = SequenceScorer([model], pad=1, eos=2, need_attention=True)
    wanted, features = scorer.generate(batch), scorer.features(batch)
    encoded = replace(batch, source=Source.of_encoding(model.encoder(source.src_tokens, source.src_lengths), 2))
    handle = model.encoder.register_forward_hook(lambda *_: pytest.fail("the encoder was run"))
    assert_same(scorer.generate(encoded), wanted)
    torch.testing.assert_close(scorer.features(encoded), features, rtol=0, atol=1e-10)
    handle.remove()


@torch.no_grad()
def test_a_draft_model_encodes_the_source_itself() -> None:
    """The encoding of the model that it drafts for has another size."""
    model, draft = sharp("transformer_shared", 1), sharp("fconv_tiny", 2)
    given = inputs("transformer_shared", [6, 2, 4], 1)
    batch = Batch(torch.arange(3), Source(given.src_tokens, given.src_lengths))
    encoded = replace(batch.source, encoder_out=model.encoder(given.src_tokens, given.src_lengths))
    search = SpeculativeSearch(ModelDrafter(draft), 3)
    generator = make_generator([model], dictionary(19), beam_size=1, max_len_b=7, search_strategy=search)
    assert_same(generator.generate(replace(batch, source=encoded)), generator.generate(batch))


@pytest.mark.parametrize("search", [AlignAtt(), WaitK()])
@torch.no_grad()
def test_strategies_that_encode_the_source_themselves_refuse_an_encoding(search: Search) -> None:
    model, given = sharp("transformer_shared", 1), inputs("transformer_shared", [6], 1)
    source = Source.of_encoding(model.encoder(given.src_tokens, given.src_lengths), EOS)
    generator = make_generator([model], dictionary(19), search_strategy=search)
    with pytest.raises(ConfigError, match="encodes parts of the source, not known encoder outputs; give the text"):
        generator.generate(Batch(torch.arange(1), source))
