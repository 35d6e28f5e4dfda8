"""The uncertainty of ensembles (examples/papers/uncertainty.py) against its definitions, token by token."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.papers.uncertainty import MEASURES, UncertaintyObserver
from seqgen.core.errors import ConfigError
from seqgen.core.structures import Hypothesis
from seqgen.text.translator import Translator
from tests.commands import command
from tests.generators import make_generator
from tests.model_zoo import VOCAB as TINY, sharp
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model
from tests.waiting_sentences import assert_continuous_equals_alone, sources

pytestmark = pytest.mark.slow

WORDS = dictionary(3)
VOCAB, EOS, WORD_IDS = len(WORDS), 2, (4, 5, 6)
LENGTH = 3
SOURCES = [(4, 5, 2), (6, 2)]


def rule_of(seed: int) -> Rule:
    """Random words; the output has at most ``LENGTH`` tokens, and padding and special tokens are impossible."""
    plain = random_rule(VOCAB, seed)

    def rule(source: tuple[int, ...], history: tuple[int, ...]) -> torch.Tensor:
        logits = plain(source, history)
        allowed = [EOS] if len(history) == LENGTH - 1 else [*WORD_IDS] if not history else [EOS, *WORD_IDS]
        forbidden = [token for token in range(VOCAB) if token not in allowed]
        logits[forbidden] = -torch.inf
        return logits

    return rule


def decode(file: Path, rules: list[Rule], beam: int) -> tuple[list[dict[str, Any]], list[list[Hypothesis]]]:
    observer = UncertaintyObserver(str(file), 2.0)
    models = [ScriptedModel(rule) for rule in rules]
    generator = make_generator(models, WORDS, beam_size=beam, max_len_b=LENGTH, observers=[observer])
    hypotheses = generator.generate(batch_of(SOURCES))
    lines = sorted(read(file), key=lambda line: line["sentence"])
    return lines, hypotheses


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


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
    for source, line, hypotheses in zip(SOURCES, lines, results, strict=True):
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
            each = [
                [float(rule(source, tuple(tokens[:t])).log_softmax(0)[token]) for t, token in enumerate(tokens)]
                for rule in rules
            ]
            assert hypothesis.fields["member_lprobs"].T.tolist() == [pytest.approx(lprobs, abs=1e-9) for lprobs in each]
            means = [sum(lprobs) / len(tokens) for lprobs in each]
            assert output["d_tp"] == pytest.approx(statistics.fmean(means), abs=1e-9)
            assert output["d_var"] == pytest.approx(statistics.pvariance(means), abs=1e-9)
            assert output["sequence_reverse"] == pytest.approx(
                log_probabilities[-1] / len(tokens) - output["d_tp"], abs=1e-9
            )
        weights = [math.exp(value / 2.0) for value in log_probabilities]
        for name in line["hypotheses"][0]:
            wanted_mean = sum(w * output[name] for w, output in zip(weights, line["hypotheses"], strict=True))
            assert line[name] == pytest.approx(wanted_mean / sum(weights), abs=1e-9)


def test_continuous_batching_gives_the_same_fields() -> None:
    models = [sharp("transformer_tiny", seed) for seed in (1, 2)]
    generator = make_generator(
        models, dictionary(TINY - 4), beam_size=3, max_len_a=1.0, max_len_b=3, observers=[UncertaintyObserver()]
    )
    assert generator.can_merge
    asked = assert_continuous_equals_alone(generator, sources(13, seed=2), 4)
    assert len([running for running in asked if 0 < running < 4]) > 2
    assert generator.generate(batch_of(sources(2, seed=2)))[0][0].fields["knowledge"].max() > 0.01


def test_keys_and_refusals(tmp_path: Path) -> None:
    keys = {"observers": ["uncertainty"], "observer.uncertainty.file": str(tmp_path / "out.jsonl")}
    with pytest.raises(ConfigError, match="compares the members of an ensemble"):
        Translator(text_model()).translate(TEXTS, **keys)
    with pytest.raises(ConfigError, match="below its minimum"):
        Translator(text_model()).translate(TEXTS, **keys, **{"observer.uncertainty.temperature": 0.0})
    file = Path(__file__).parent.parent.parent / "examples" / "papers" / "uncertainty.py"
    arguments = (f"common.user_dir={file}", f"path={tmp_path}", "generation.observers=[uncertainty]")
    outcome = command("generate", *arguments, "observer.uncertainty.fil=x")
    assert outcome.code == 2
    assert "observer.uncertainty.file" in outcome.err
