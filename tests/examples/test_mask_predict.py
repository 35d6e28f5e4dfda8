"""Mask-predict (examples/papers/mask_predict*.py) against its algorithm, one sentence and one length at a time."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.papers import mask_predict_model
from examples.papers.mask_predict import MaskPredict
from examples.papers.mask_predict_model import MaskPredictCriterion, MaskPredictModel, choose_hidden
from seqgen.decoding.search.sampling import uniform
from tests.generators import make_generator
from tests.scripted_model import batch_of, dictionary
from tests.text_models import task_of

pytestmark = pytest.mark.slow

SOURCES = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (2,), (7, 8, 9, 2)]
WORDS = 19
SPECIAL = [0, 1, 2]  # begin-of-sentence, which is the mask; padding; end-of-sentence


def small_model(scale: float = 2.0) -> MaskPredictModel:
    """A model with one layer in float64, with scaled weights so that predictions differ."""
    torch.manual_seed(0)
    sides = {"embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2, "layers": 1}
    sizes = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sides.items()}
    cfg = mask_predict_model.MaskPredictModelConfig(max_target_positions=12, share_all_embeddings=True, **sizes)
    model = MaskPredictModel.build_model(cfg, task_of(words=dictionary(WORDS))).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def decode(model: MaskPredictModel, iterations: int = 3, **options: Any) -> Any:
    options = {"min_len": 0, "max_len_b": 9, "search_strategy": MaskPredict(iterations), **options}
    return make_generator([model], dictionary(WORDS), **options).generate(batch_of(SOURCES))


def probabilities(model: MaskPredictModel, source: tuple[int, ...], tokens: list[int]) -> Tensor:
    """``(T, V)`` of one sentence, from the layers of the model, without tokens that are never generated."""
    encoder_out = model.encoder(torch.tensor([source]), torch.tensor([len(source)]))
    logits = model.decoder.output_layer(model.decoder.extract_features(torch.tensor([tokens]), encoder_out)[0])[0]
    distribution = logits.softmax(-1)
    distribution[:, SPECIAL] = 0.0
    return distribution


def lengths_of(model: MaskPredictModel, source: tuple[int, ...], count: int, longest: int) -> list[int]:
    logits = model.encoder(torch.tensor([source]), torch.tensor([len(source)])).length_logits[0]
    return sorted(range(longest + 1), key=lambda length: -float(logits[length]))[:count]


def by_hand(model: MaskPredictModel, source: tuple[int, ...], length: int, iterations: int) -> tuple[list[int], float]:
    """The tokens and the mean log-probability of one sentence with one length, by loops over its positions."""
    tokens, certainty = [0] * length, [0.0] * length
    for iteration in range(iterations if length else 0):
        count = math.floor(length * (iterations - iteration) / iterations + 1e-9)
        masked = sorted(range(length), key=lambda i: certainty[i])[:count]
        distribution = probabilities(model, source, [0 if i in masked else token for i, token in enumerate(tokens)])
        for i in masked:
            tokens[i], certainty[i] = int(distribution[i].argmax()), float(distribution[i].max())
    return tokens, sum(math.log(p) for p in certainty) / max(1, length)


@torch.no_grad()
@pytest.mark.parametrize(("iterations", "beam"), [(1, 1), (1, 3), (2, 2), (4, 3), (10, 1)])
def test_tokens_and_scores_are_those_of_the_algorithm(iterations: int, beam: int) -> None:
    model = small_model()
    found = decode(model, iterations, beam_size=beam)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        lengths = lengths_of(model, source, beam, longest=9)
        wanted = sorted((by_hand(model, source, length, iterations) for length in lengths), key=lambda one: -one[1])
        assert [h.tokens.tolist() for h in hypotheses] == [[*tokens, 2] for tokens, _ in wanted]
        assert [h.score for h in hypotheses] == pytest.approx([score for _, score in wanted], abs=1e-10)
        for h in hypotheses:
            assert float(h.positional_scores.sum()) / max(1, len(h.tokens) - 1) == pytest.approx(h.score, abs=1e-10)


def test_an_ensemble_predicts_from_the_mean_of_its_members() -> None:
    one, other = small_model(1.5), small_model(2.5)
    generator = make_generator([one, other], dictionary(WORDS), search_strategy=MaskPredict(1), max_len=6, min_len=5)
    with torch.no_grad():
        for source, (h,) in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
            each = [probabilities(model, source, [0] * 5) for model in (one, other)]
            assert h.tokens[:-1].tolist() == (each[0] + each[1]).argmax(1).tolist()


def test_limits_and_forbidden_tokens() -> None:
    model = small_model()

    def lengths(**options: Any) -> list[list[int]]:
        return [sorted(len(h.tokens) - 1 for h in hypotheses) for hypotheses in decode(model, **options)]

    assert lengths(match_source_len=True, max_len_b=200) == [[len(source) - 1] for source in SOURCES]
    assert lengths(beam_size=3, max_len_b=2) == [[0, 1, 2]] * 5
    assert lengths(beam_size=4, min_len=3, max_len_b=4) == [[3, 4]] * 5  # there are only two
    generated = {token for ((h, *_),) in zip(decode(model), strict=True) for token in h.tokens.tolist()}
    names = [f"w{token - 4}" for token in generated if token >= 4]
    without = decode(model, tokens_to_suppress=names)
    assert not generated & {token for (h,) in without for token in h.tokens.tolist()} - {2, 3}


@torch.no_grad()
def test_the_loss_is_that_of_hidden_tokens_and_lengths() -> None:
    model, task = small_model(), task_of(words=dictionary(WORDS))
    pairs = [((4, 5, 2), (6, 7, 8, 2)), ((9, 2), (10, 2)), ((5, 2), (2,))]
    batch = task.collate([(i, torch.tensor(s), torch.tensor(t)) for i, (s, t) in enumerate(pairs)], model)
    cfg = mask_predict_model.MaskPredictCriterionConfig(label_smoothing=0.0, length_weight=0.7)
    criterion = MaskPredictCriterion(cfg, task)
    found, again = criterion(model, batch), criterion(model, batch)
    assert found.loss == again.loss  # in evaluation mode
    hidden = choose_hidden(torch.tensor([3, 1, 0]), uniform(1, torch.arange(3).unsqueeze(1), torch.arange(5)))
    wanted = 0.0
    for row, (source, target) in enumerate(pairs):
        tokens, encoder_out = list(target[:-1]), model.encoder(torch.tensor([source]), torch.tensor([len(source)]))
        wanted -= 0.7 * float(encoder_out.length_logits[0].log_softmax(-1)[len(tokens)])
        if tokens:
            read = [0 if hidden[row, i] else token for i, token in enumerate(tokens)]
            features = model.decoder.extract_features(torch.tensor([read]), encoder_out)[0][0]
            lprobs = model.decoder.output_layer(features).log_softmax(-1)
            wanted -= sum(float(lprobs[i, token]) for i, token in enumerate(tokens) if hidden[row, i])
    assert float(found.loss) == pytest.approx(wanted, abs=1e-9)
    assert found.sample_size == int(hidden.sum())
