"""examples/papers/mc_dropout.py against passes over whole outputs with the masks of the formula, line by line."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples.papers.mc_dropout import McDropout
from examples.papers.uncertainty import UncertaintyObserver
from seqgen.core.errors import ConfigError
from seqgen.decoding.search.sampling import uniform
from seqgen.modules.dropout import Dropout
from seqgen.text.translator import Translator
from tests.generators import make_generator
from tests.hypotheses import assert_same
from tests.model_zoo import VOCAB, sharp
from tests.scripted_model import batch_of, dictionary
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

RATE, SEED, MEMBERS, EOS = 0.3, 9, 3, 2
SOURCES = [(4, 9, 12, 5, 2), (6, 2), (4, 4, 21, 4, 6, 13, 8, 2), (7, 8, 2)]
IDS = [5, 2, 11, 0]


@contextmanager
def masked(model: torch.nn.Module, member: int, line: int, part: int) -> Iterator[None]:
    """All calls of dropout multiply by the mask of the line: its n-th call in a pass has the n-th mask."""
    calls = itertools.count()

    def multiply(module: torch.nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        (x,) = arguments
        numbers = uniform(SEED, member, part, next(calls), line, torch.arange(x.size(-1))).tolist()
        return x * torch.tensor([0.0 if number < RATE else 1 / (1 - RATE) for number in numbers], dtype=x.dtype)

    found = [module for name, module in model.named_modules() if isinstance(module, Dropout) and "attn" not in name]
    handles = []
    for module in found:
        module.training, module.p = True, 0.0  # its own dropout changes nothing
        handles.append(module.register_forward_hook(multiply))
    try:
        yield
    finally:
        for module, handle in zip(found, handles, strict=True):
            module.training = False
            handle.remove()


@pytest.mark.parametrize("name", ["transformer_tiny", "t5_tiny", "fconv_tiny"])
def test_members_are_the_models_with_the_masks_of_the_formula(name: str) -> None:
    """Beams cross and sentences leave the batch; a pass over the whole output has no cache."""
    model = sharp(name, seed=3)
    observer = UncertaintyObserver()
    generator = make_generator(
        [model] * MEMBERS, dictionary(VOCAB - 4), search_strategy=McDropout(SEED, RATE), observers=[observer],
        beam_size=3, max_len_a=1.0, max_len_b=2, min_len=0,
    )  # fmt: skip
    batch = replace(batch_of(SOURCES), ids=torch.tensor(IDS))
    results = generator.generate(batch)
    assert len({len(one.tokens) for found in results for one in found}) > 2
    assert not any(module.training for module in model.modules())
    start = model.start_token(EOS)
    for source, line, hypotheses in zip(SOURCES, IDS, results, strict=True):
        for hypothesis in hypotheses:
            previous = torch.tensor([[start, *hypothesis.tokens.tolist()[:-1]]])
            each = []
            with torch.no_grad():
                for member in range(MEMBERS):
                    with masked(model, member, line, 0):
                        encoder_out = model.encoder(torch.tensor([source]), torch.tensor([len(source)]))
                    with masked(model, member, line, 1):
                        logits = model.decoder(previous, encoder_out)[0]
                    each.append(logits[0].double().log_softmax(-1))
            places = torch.arange(len(hypothesis.tokens))
            wanted = torch.stack([lprobs[places, hypothesis.tokens] for lprobs in each], dim=1)
            torch.testing.assert_close(hypothesis.fields["member_lprobs"].double(), wanted, atol=1e-6, rtol=0)
            mean = torch.stack(each).exp().mean(0)
            total = -(mean * mean.log()).sum(-1)
            data = -torch.stack([(lprobs.exp() * lprobs).sum(-1) for lprobs in each]).mean(0)
            torch.testing.assert_close(hypothesis.fields["knowledge"].double(), total - data, atol=1e-6, rtol=0)
            assert hypothesis.fields["knowledge"].max() > 1e-4
    for row in range(len(SOURCES)):
        alone = generator.generate(replace(batch_of(SOURCES[row : row + 1]), ids=batch.ids[row : row + 1]))
        assert_same(alone, results[row : row + 1], tolerance=1e-6)


def test_masks_have_the_rate_and_depend_on_seed_line_and_member() -> None:
    """The mean over many members is near the model, and one mask is not that of another seed, line or member."""
    model = sharp("transformer_tiny", seed=3)

    def lprobs(seed: int, line: int, members: int, rate: float = RATE) -> Tensor:
        generator = make_generator(
            [model] * members, dictionary(VOCAB - 4), search_strategy=McDropout(seed, rate), beam_size=1,
            observers=[UncertaintyObserver()], max_len_b=3,
        )  # fmt: skip
        found = generator.generate(replace(batch_of([SOURCES[0]]), ids=torch.tensor([line])))
        return found[0][0].fields["member_lprobs"][0]

    one = lprobs(1, 0, 2)
    assert torch.equal(one, lprobs(1, 0, 2))
    others = [lprobs(2, 0, 2)[0], lprobs(1, 1, 2)[0], one[1]]
    assert len({float(value) for value in [one[0], *others]}) == 4
    small = lprobs(1, 0, 60, rate=0.01)
    assert float(small.std()) < 0.5 * float(lprobs(1, 0, 60).std())


def test_keys_and_refusals(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    keys = {"search": "mc_dropout", "observers": ["uncertainty"], "observer.uncertainty.file": str(file)}
    model = text_model(seed=3, sharpness=1.0)
    found = Translator([model, model], beam=2, nbest=2).translate(TEXTS, **keys, **{"search.rate": 0.2})
    lines = {line["sentence"]: line for line in map(json.loads, file.read_text(encoding="utf-8").splitlines())}
    assert len(lines) == len([line for line in found if line.hypotheses])
    for number, line in lines.items():
        for item, output in zip(found[number].hypotheses, line["hypotheses"], strict=True):
            means = item.fields["member_lprobs"].mean(0).tolist()
            assert output["d_tp"] == pytest.approx(statistics.fmean(means), abs=1e-6)
    plain = sharp("transformer_tiny")
    for module in plain.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    none = make_generator([plain], dictionary(VOCAB - 4), search_strategy=McDropout())
    with pytest.raises(ConfigError, match=r"trained without dropout of features; set search\.rate"):
        none.generate(batch_of(SOURCES))
