"""The watermark (examples/papers/watermark.py) against its formulas, computed with lists of numbers."""

from __future__ import annotations

import json
import math
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.papers.watermark import DetectConfig, GreenLists, Watermark, detect, report
from seqgen.cli.command import run as run_command
from tests.commands import SMALL_TRANSFORMER, command, corpus, training_arguments
from tests.generators import make_generator
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
WORDS = dictionary(12)
EOS = 2
GAMMA, DELTA, KEY = 0.3, 1.7, 77
SOURCES = [(4, 5, 2), (6, 2), (9, 8, 7, 2)]


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


@pytest.mark.parametrize("search", [{"beam_size": 1}, {"beam_size": 4}])
@pytest.mark.parametrize("models", [1, 2])
def test_scores_are_those_of_the_paper(search: dict[str, Any], models: int) -> None:
    rules = [allowed(random_rule(len(WORDS), seed)) for seed in range(models)]
    processor = Watermark(GreenLists(len(WORDS), GAMMA, KEY), DELTA)
    members = [ScriptedModel(rule) for rule in rules]
    generator = make_generator(members, WORDS, processors=[processor], max_len_b=9, **search)
    for source, hypotheses in zip(SOURCES, generator.generate(batch_of(SOURCES)), strict=True):
        assert len(hypotheses) == search["beam_size"]
        for hypothesis in hypotheses:
            tokens = hypothesis.tokens.tolist()
            for step, token in enumerate(tokens[:9]):  # the last token can be forced
                history = tuple(tokens[:step])
                logits = (sum(rule(source, history).softmax(0) for rule in rules) / models).log().tolist()
                green = green_after(history[-1] if history else EOS)
                weights = [math.exp(logit + DELTA * (word in green)) for word, logit in enumerate(logits)]
                wanted = math.log(weights[token] / sum(weights))
                assert float(hypothesis.positional_scores[step]) == pytest.approx(wanted, abs=1e-9)


def test_detection() -> None:
    tokens = [EOS, 5, 6, 5, 6, 9, 4, 4, 11]
    pairs = list(pairwise(tokens))
    found = sum(token in green_after(previous) for previous, token in pairs)
    z = (found - GAMMA * 8) / math.sqrt(8 * GAMMA * (1 - GAMMA))
    p = 1 - statistics.NormalDist().cdf(z)
    wanted = {"tokens": 8, "green": found, "z": pytest.approx(z), "p": pytest.approx(p)}
    assert detect(pairs, GreenLists(len(WORDS), GAMMA, KEY)) == wanted
    assert detect([], GreenLists(len(WORDS), GAMMA, KEY))["p"] == 0.5


@pytest.mark.slow
def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run, file = corpus(tmp_path / "DATA"), tmp_path / "run", ROOT / "examples" / "papers" / "watermark.py"
    arguments = [*training_arguments(data, run), *SMALL_TRANSFORMER, "optimization.max_update=1"]
    assert command("train", *arguments).code == 0
    decode = (f"common.user_dir={file}", f"path={run}", f"input={data}/test.en", "common.threads=1")
    keys = ("generation.processors=[watermark]", "processor.watermark.delta=8", "generation.max_len_b=30")
    outcome = command("generate", *decode, *keys, "generation.sampling=true", "generation.beam=1")
    assert outcome.code == 0, outcome.err
    text = tmp_path / "out.txt"
    text.write_text(outcome.out, encoding="utf-8")
    results = []
    for own in (["watermark.key=15485863"], ["watermark.key=3"]):
        with pytest.raises(SystemExit) as exit_:
            run_command(DetectConfig, report, "", [f"path={run}", f"text={text}", "common.threads=1", *own])
        assert exit_.value.code == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["line"] for line in lines] == [*range(20), "all"]
        results.append(lines[-1])
    assert results[0]["p"] < 1e-4 < results[1]["p"]
