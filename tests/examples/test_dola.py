"""DoLa against its formula, with early layers computed by decoders that end there."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.papers.dola import Dola
from seqgen.core.model import EncoderDecoderModel
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

NAMES = ["transformer_tiny", "t5_tiny", "transformer_lm_tiny"]
OPTIONS = {"beam": 3, "max_len_b": 6}


def ending_at(model: EncoderDecoderModel, layer: int) -> EncoderDecoderModel:
    """The model whose decoder has its first layers only."""
    shorter = copy.deepcopy(model)
    del shorter.decoder.layers[layer:]
    return shorter


def contrast(distributions: dict[int, Tensor], last: int, alpha: float) -> Tensor:
    """The formula in plain loops over positions and tokens; ``(T, V)`` probabilities of each layer.

    Padding, and end-of-sentence at the first position, are forbidden before.
    """
    distributions[last][:, 1] = 0
    distributions[last][0, 2] = 0
    distributions[last] /= distributions[last].sum(-1, keepdim=True)
    result = torch.full_like(distributions[last], -math.inf)
    for position, q in enumerate(distributions[last].tolist()):
        divergence = {}
        for layer in distributions.keys() - {last}:
            p = distributions[layer][position].tolist()
            middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
            divergence[layer] = sum(
                a * math.log(a / m) / 2 + (b * math.log(b / m) / 2 if b else 0)
                for a, b, m in zip(p, q, middle, strict=True)
            )
        early = distributions[max(divergence, key=lambda layer: divergence[layer])][position].tolist()
        for token, probability in enumerate(q):
            if probability >= alpha * max(q):
                result[position, token] = math.log(probability / early[token])
    return result.log_softmax(-1)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_is_the_formula(name: str) -> None:
    depth = {"num_decoder_layers" if name == "t5_tiny" else "decoder_layers": 4}
    loaded = text_model(name, sharpness=1.2, **depth)
    model: Any = loaded.model
    layers = len(model.decoder.layers)
    keys = {"processor.dola.layers": list(range(1, layers)), "processor.dola.alpha": 0.3}
    translator = Translator(loaded, processors=["dola"], **OPTIONS, **keys)
    for text, line in zip(TEXTS, translator.translate(TEXTS), strict=True):
        best = line.hypotheses[0]
        source = loaded.task.encode_source(text).unsqueeze(0)
        prefix = torch.cat([torch.tensor([model.start_token(2)]), best.tokens[:-1]]).unsqueeze(0)
        found = {}
        for layer in range(1, layers + 1):
            with torch.no_grad():
                out = ending_at(model, layer)(source, torch.tensor([source.size(1)]), prefix)
            found[layer] = out.logits[0].softmax(-1)
        expected = contrast(found, layers, 0.3).gather(1, best.tokens.unsqueeze(1)).squeeze(1)
        forced = len(best.tokens) > OPTIONS["max_len_b"]  # end-of-sentence at the longest length has probability 1
        count = len(best.tokens) - forced
        assert best.positional_scores[:count].tolist() == pytest.approx(expected[:count].tolist(), abs=1e-4)
        (alone,) = translator.translate([text], batch_size=1)
        assert alone.text == line.text
        assert alone.score == pytest.approx(line.score, abs=1e-5)
    assert [one.text for one in translator.translate(TEXTS)] == [
        one.text for one in translator.translate(TEXTS, **{"fast.use_cache": False})
    ]


def test_it_changes_outputs_and_its_layers_matter() -> None:
    loaded = text_model(sharpness=1.2, decoder_layers=4)
    plain = Translator(loaded, **OPTIONS).translate(TEXTS)
    one, three = (Translator(loaded, processors=[Dola([layer])], **OPTIONS).translate(TEXTS) for layer in (1, 3))
    scores = [[line.score for line in lines] for lines in (plain, one, three)]
    assert scores[0] != scores[1] != scores[2] != scores[0]
