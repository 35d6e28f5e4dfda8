"""DoLa and the watermark (examples/papers) against their formulas, computed with lists of numbers."""

import copy
import math
import statistics
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import examples.papers.dola  # noqa: F401  # registers the processor
from examples.papers.watermark import GreenLists, Watermark, detect
from seqgen.text.translator import Translator
from tests.generators import make_generator
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

WORDS = dictionary(12)
EOS = 2
GAMMA, DELTA, KEY = 0.3, 1.7, 77
SOURCES = [(4, 5, 2), (6, 2), (9, 8, 7, 2)]
LONGEST = 6


def contrast(distributions: dict[int, Tensor], last: int, alpha: float) -> Tensor:
    """The formula in a plain loop over positions; ``(T, V)`` probabilities of each layer.

    Padding, and end-of-sentence at the first position, are forbidden before.
    """
    distributions[last][:, 1] = 0
    distributions[last][0, 2] = 0
    distributions[last] /= distributions[last].sum(-1, keepdim=True)
    result = torch.full_like(distributions[last], -math.inf)
    for position, q in enumerate(distributions[last]):

        def divergence(p: Tensor, q: Tensor = q) -> float:
            middle = (p + q) / 2
            return float((torch.xlogy(p, p / middle) + torch.xlogy(q, q / middle)).sum())

        early = max((distributions[layer][position] for layer in distributions.keys() - {last}), key=divergence)
        kept = q >= alpha * q.max()
        result[position, kept] = (q / early)[kept].log()
    return result.log_softmax(-1)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["transformer_tiny", "t5_tiny", "transformer_lm_tiny", "llama_tiny"])
def test_dola_is_the_formula(name: str) -> None:
    depth = {{"t5_tiny": "num_decoder_layers", "llama_tiny": "num_hidden_layers"}.get(name, "decoder_layers"): 4}
    loaded = text_model(name, sharpness=1.2, **depth)
    model: Any = loaded.model
    layers = len(model.decoder.layers)
    keys = {"processor.dola.layers": list(range(1, layers)), "processor.dola.alpha": 0.3}
    translator = Translator(loaded, processors=["dola"], beam=3, max_len_b=LONGEST, **keys)
    for text, line in zip(TEXTS, translator.translate(TEXTS), strict=True):
        best = line.hypotheses[0]
        source = loaded.task.encode_source(text).unsqueeze(0)
        prefix = torch.cat([torch.tensor([model.start_token(2)]), best.tokens[:-1]]).unsqueeze(0)
        found = {}
        for layer in range(1, layers + 1):
            shorter = copy.deepcopy(model)
            del shorter.decoder.layers[layer:]
            with torch.no_grad():
                found[layer] = shorter(source, torch.tensor([source.size(1)]), prefix).logits[0].softmax(-1)
        expected = contrast(found, layers, 0.3).gather(1, best.tokens.unsqueeze(1)).squeeze(1)
        forced = len(best.tokens) > LONGEST  # end-of-sentence at the longest length has probability 1
        count = len(best.tokens) - forced
        assert best.positional_scores[:count].tolist() == pytest.approx(expected[:count].tolist(), abs=1e-4)


def green_after(previous: int) -> list[int]:
    order = torch.randperm(len(WORDS), generator=torch.Generator().manual_seed(KEY * previous)).tolist()
    return order[: int(GAMMA * len(WORDS))]


def allowed(rule: Rule) -> Rule:
    """The model generates neither padding nor the empty output, which would be forbidden before the watermark."""

    def other(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
        logits = rule(source, history)
        logits[[1] if history else [1, EOS]] = -torch.inf
        return logits

    return other


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("models", [1, 2])
def test_watermark_is_the_formula(beam: int, models: int) -> None:
    rules = [allowed(random_rule(len(WORDS), seed)) for seed in range(models)]
    processor = Watermark(GreenLists(len(WORDS), GAMMA, KEY), DELTA)
    members = [ScriptedModel(rule) for rule in rules]
    generator = make_generator(members, WORDS, processors=[processor], max_len_b=9, beam_size=beam)
    for source, hypotheses in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
        assert len(hypotheses) == beam
        for hypothesis in hypotheses:
            tokens = hypothesis.tokens.tolist()
            for step, token in enumerate(tokens[:9]):  # the last token can be forced
                history = tuple(tokens[:step])
                logits = (sum(rule(source, history).softmax(0) for rule in rules) / models).log()
                logits[green_after(history[-1] if history else EOS)] += DELTA
                wanted = float(logits.log_softmax(0)[token])
                assert float(hypothesis.positional_scores[step]) == pytest.approx(wanted, abs=1e-9)


def test_detection_of_a_watermark() -> None:
    tokens = [EOS, 5, 6, 5, 6, 9, 4, 4, 11]
    pairs = list(pairwise(tokens))
    found = sum(token in green_after(previous) for previous, token in pairs)
    z = (found - GAMMA * 8) / math.sqrt(8 * GAMMA * (1 - GAMMA))
    p = 1 - statistics.NormalDist().cdf(z)
    wanted = {"tokens": 8, "green": found, "z": pytest.approx(z), "p": pytest.approx(p)}
    assert detect(pairs, GreenLists(len(WORDS), GAMMA, KEY)) == wanted
    assert detect([], GreenLists(len(WORDS), GAMMA, KEY))["p"] == 0.5
