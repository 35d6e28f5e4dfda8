"""Contrastive search against transformers, a plain loop, and itself."""

import pytest
import torch
from torch import Tensor

from seqgen.addons.contrastive.search import ContrastiveSearch
from seqgen.core.structures import Batch, Hypothesis, Source
from seqgen.extend import EncoderDecoderModel, GenerationConfig, IncrementalDecoder, SequenceGenerator, build_setup
from tests.generators import make_generator
from tests.huggingface_decoding import dictionary as t5_dictionary, sharp_model
from tests.huggingface_t5 import seqgen_model
from tests.model_zoo import ARCHITECTURES, VOCAB, build, registered, sharp
from tests.scripted_model import batch_of, dictionary

SOURCES = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (2,), (7, 8, 9, 2)]


PLAIN = IncrementalDecoder.extract_features
READABLE = [name for name in ARCHITECTURES if type(build(name).decoder).extract_features is not PLAIN]


def decode(model: EncoderDecoderModel, batch: Batch, **options: object) -> list[Hypothesis]:
    search = ContrastiveSearch(**{k: options.pop(k) for k in ("penalty_alpha", "contrastive_topk") if k in options})
    options = {"max_len_b": 12, "min_len": 0, **options}
    generator = make_generator([model], dictionary(VOCAB - 4), search_strategy=search, **options)
    results = generator.generate(batch)
    assert all(len(hypotheses) == 1 for hypotheses in results)
    return [hypotheses[0] for hypotheses in results]


@pytest.mark.parametrize(("variant", "alpha", "topk"), [("t5", 0.6, 4), ("t5_v1_1", 0.2, 6), ("umt5", 0.9, 3)])
def test_equals_transformers(variant: str, alpha: float, topk: int) -> None:
    """Batches with padding, token for token; several lengths, so that some are done before others."""
    sources = [(5, 9, 7, 3, 1), (6, 1), (4, 4, 8, 4, 6, 3, 8, 1), (1,), (7, 7, 1)]
    batch = batch_of(sources, pad=0)
    mask = (torch.arange(8) < batch.source.src_lengths.unsqueeze(1)).long()
    keys = {"search.penalty_alpha": alpha, "search.contrastive_topk": topk}
    limits = {"max_len": 15, "repetition_penalty": 1.1}
    cfg = GenerationConfig(semantics="huggingface", search="contrastive", components=keys, **limits)
    lengths = set()
    for seed in range(3):
        original = sharp_model(variant, seed)
        options = {"penalty_alpha": alpha, "top_k": topk, "repetition_penalty": 1.1}
        options |= {"max_length": 16, "min_new_tokens": 1}
        wanted = original.generate(batch.source.src_tokens, attention_mask=mask, do_sample=False, **options)
        generator = SequenceGenerator(build_setup([seqgen_model(original)], t5_dictionary(), cfg))
        for row, [hypothesis] in zip(wanted[:, 1:].tolist(), generator.generate(batch), strict=True):
            length = row.index(1) + 1 if 1 in row else 15
            assert hypothesis.tokens.tolist() == row[:length]
            lengths.add(length)
    assert len(lengths) > 2


def prompt_features(model: EncoderDecoderModel, source: Source, sentence: int) -> Tensor:
    """For a language model, the features ``(P - 1, C)`` of all prompt tokens but the last, each as a prompt's last."""
    tokens = source.src_tokens[sentence, -int(source.src_lengths[sentence]) :]
    start = torch.tensor([[model.start_token(2)]])
    ends = range(1, len(tokens) + 1)
    encoded = [model.encoder(tokens[:end].unsqueeze(0), torch.tensor([end])) for end in ends]
    features = torch.cat([model.decoder.extract_features(start, one)[0][0] for one in encoded])
    return features[:-1] if model.continues_source else features[:0]


@torch.no_grad()
def plain(model: EncoderDecoderModel, batch: Batch, alpha: float, topk: int, longest: int) -> list[list[int]]:
    """Equation 5 of the paper, word by word, without a state."""
    outputs = []
    encoder_out = model.encoder(batch.source.src_tokens, batch.source.src_lengths)
    for sentence in range(batch.num_sentences):
        row = encoder_out.index_select(torch.tensor([sentence]))
        prompt = prompt_features(model, batch.source, sentence)
        tokens = [model.start_token(2)]
        while tokens[-1] != 2 or len(tokens) == 1:
            if len(tokens) == longest + 1:
                tokens.append(2)
                break
            probabilities = model.decoder(torch.tensor([tokens]), row).logits[0, -1].log_softmax(-1)
            probabilities[1] = -torch.inf
            probabilities = probabilities.softmax(-1)
            gains = {}
            for token in probabilities.topk(topk).indices.tolist():
                features, _ = model.decoder.extract_features(torch.tensor([[*tokens, token]]), row)
                earlier = torch.cat([prompt, features[0, :-1]])
                like = torch.nn.functional.cosine_similarity(earlier, features[0, -1:], dim=-1).max()
                gains[token] = ((1 - alpha) * probabilities[token] - alpha * like).item()
            tokens.append(max(gains, key=gains.__getitem__))
        outputs.append(tokens[1:])
    return outputs


@pytest.mark.parametrize("name", READABLE)
def test_equals_the_formula(name: str) -> None:
    model = sharp(name)
    batch = batch_of(SOURCES[:3], left=model.left_pad_source)
    found = decode(model, batch, penalty_alpha=0.5, contrastive_topk=3, max_len_b=6)
    assert [h.tokens.tolist() for h in found] == plain(model, batch, 0.5, 3, 6)


def test_up_to_the_last_position_of_a_table() -> None:
    """A table of learned positions has no place for a token after the last."""
    torch.manual_seed(0)
    model = registered("transformer_tiny", max_target_positions=6, decoder_learned_pos=True)().double().eval()
    for semantics in ("fairseq", "huggingface"):
        results = decode(model, batch_of(SOURCES), min_len=50, semantics=semantics, max_len_b=50)
        assert all(len(hypothesis.tokens) == 6 for hypothesis in results)
