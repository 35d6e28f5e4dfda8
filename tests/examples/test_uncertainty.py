"""Uncertainty of ensembles and of dropout (examples/papers) against its definitions, token by token."""

import itertools
import json
import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.papers.mc_dropout import McDropout
from examples.papers.uncertainty import MEASURES, UncertaintyObserver
from seqgen.extend import Dropout, Hypothesis, uniform
from tests.generators import make_generator
from tests.model_zoo import VOCAB, sharp
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule
from tests.waiting_sentences import assert_continuous_equals_alone, sources

pytestmark = pytest.mark.slow


WORDS = dictionary(3)
EOS, WORD_IDS = 2, (4, 5, 6)
LENGTH = 3
SCRIPTED_SOURCES = [(4, 5, 2), (6, 2)]


def rule_of(seed: int) -> Rule:
    """Random words; the output has at most ``LENGTH`` tokens, and padding and special tokens are impossible."""
    plain = random_rule(len(WORDS), seed)

    def rule(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
        allowed = [EOS] if len(history) == LENGTH - 1 else [*WORD_IDS] if not history else [EOS, *WORD_IDS]
        forbidden = {*range(len(WORDS))} - {*allowed}
        return plain(source, history).index_fill(0, torch.tensor([*forbidden]), -torch.inf)

    return rule


def decode(file: Path, rules: list[Rule], beam: int) -> tuple[list[dict[str, Any]], list[list[Hypothesis]]]:
    observer = UncertaintyObserver(str(file), 2.0)
    models = [ScriptedModel(rule) for rule in rules]
    generator = make_generator(models, WORDS, beam_size=beam, max_len_b=LENGTH, observers=[observer])
    hypotheses = generator.generate(batch_of(SCRIPTED_SOURCES))
    lines = sorted(map(json.loads, file.read_text().splitlines()), key=lambda line: line["sentence"])
    return lines, hypotheses


def entropy(probabilities: list[float]) -> float:
    return -sum(p * math.log(p) for p in probabilities if p > 0)


def measures_after(rules: list[Rule], source: tuple[int, ...], history: tuple[int, ...]) -> list[float]:
    """The four measures, computed token by token."""
    each = [rule(source, history).softmax(0).tolist() for rule in rules]
    mean = [sum(p) / len(rules) for p in zip(*each, strict=True)]
    total, data = entropy(mean), sum(map(entropy, each)) / len(rules)
    divergences = [sum(p * math.log(p / q) for p, q in zip(mean, own, strict=True) if p > 0) for own in each]
    return [total, data, total - data, sum(divergences) / len(rules)]


def test_the_measures_of_each_token_are_the_definitions(tmp_path: Path) -> None:
    """Beams are reordered, and sentences leave the batch at different steps: each token has those of its own prefix."""
    rules = [rule_of(seed) for seed in (1, 2, 3)]
    lines, results = decode(tmp_path / "out.jsonl", rules, beam=4)
    for source, line, hypotheses in zip(SCRIPTED_SOURCES, lines, results, strict=True):
        assert len(line["hypotheses"]) == len(hypotheses) == 4
        log_probabilities = []
        for output, hypothesis in zip(line["hypotheses"], hypotheses, strict=True):
            tokens = hypothesis.tokens.tolist()
            wanted = [measures_after(rules, source, tuple(tokens[:length])) for length in range(len(tokens))]
            for name, values in zip(MEASURES, zip(*wanted, strict=True), strict=True):
                assert hypothesis.fields[name].tolist() == pytest.approx(values, abs=1e-9)
                assert output[name] == pytest.approx(sum(values) / len(tokens), abs=1e-9)
            log_probabilities.append(float(hypothesis.positional_scores.sum()))
            assert output["sequence_total"] == pytest.approx(-log_probabilities[-1] / len(tokens), abs=1e-9)
            pasts = [(tuple(tokens[:t]), token) for t, token in enumerate(tokens)]
            each = [[float(rule(source, past).log_softmax(0)[token]) for past, token in pasts] for rule in rules]
            assert hypothesis.fields["member_lprobs"].T.tolist() == [pytest.approx(lprobs, abs=1e-9) for lprobs in each]
            means = [sum(lprobs) / len(tokens) for lprobs in each]
            assert output["d_tp"] == pytest.approx(statistics.fmean(means), abs=1e-9)
            assert output["d_var"] == pytest.approx(statistics.pvariance(means), abs=1e-9)
            reverse = log_probabilities[-1] / len(tokens) - output["d_tp"]
            assert output["sequence_reverse"] == pytest.approx(reverse, abs=1e-9)
        weights = [math.exp(value / 2.0) for value in log_probabilities]
        for name in line["hypotheses"][0]:
            wanted_mean = sum(w * output[name] for w, output in zip(weights, line["hypotheses"], strict=True))
            assert line[name] == pytest.approx(wanted_mean / sum(weights), abs=1e-9)


def test_continuous_batching_gives_the_same_fields() -> None:
    models = [sharp("transformer_tiny", seed) for seed in (1, 2)]
    options = {"beam_size": 3, "max_len_a": 1.0, "max_len_b": 3, "observers": [UncertaintyObserver()]}
    generator = make_generator(models, dictionary(VOCAB - 4), **options)
    assert generator.can_merge
    asked = assert_continuous_equals_alone(generator, sources(13, seed=2), 4)
    assert len([running for running in asked if 0 < running < 4]) > 2
    assert generator.generate(batch_of(sources(2, seed=2)))[0][0].fields["knowledge"].max() > 0.01


RATE, SEED, MEMBERS = 0.3, 9, 3
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
    options = {"observers": [UncertaintyObserver()], "beam_size": 3, "max_len_a": 1.0, "max_len_b": 2, "min_len": 0}
    search = McDropout(SEED, RATE)
    generator = make_generator([model] * MEMBERS, dictionary(VOCAB - 4), search_strategy=search, **options)
    results = generator.generate(replace(batch_of(SOURCES), ids=torch.tensor(IDS)))
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
