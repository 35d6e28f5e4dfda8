"""examples/papers/conformal_beams.py against the formulas, computed plainly, and against its guarantee."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.papers.conformal_beams import (
    CalibrationConfig,
    ConformalPruning,
    calibrate,
    cumulative_scores,
    write_thresholds,
)
from seqgen.cli.command import run as run_command
from seqgen.errors import ConfigError
from seqgen.generation.search.base import Search
from seqgen.generation.search.beam import BeamSearch
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.text.translator import Translator
from tests.commands import SMALL_TRANSFORMER, command, corpus, training_arguments
from tests.generators import make_generator
from tests.hypotheses import Pairs, as_pairs, assert_same, assert_same_pairs
from tests.reference_search import EOS, Settings, next_scores
from tests.scripted_model import Rule, ScriptedModel, batch_of, dictionary, random_rule
from tests.step_contexts import step_context
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
RULE = random_rule(vocab=9, seed=4)
THRESHOLDS = [-2.5, -2.0, -1.6, -1.3]


def generator(rules: list[Rule], search: Search, beam: int = 4, **options: Any) -> SequenceGenerator:
    values = {"max_len_b": 5, "min_len": 0, **options}
    return make_generator(
        [ScriptedModel(rule) for rule in rules], dictionary(5), search_strategy=search, beam_size=beam, **values
    )


def plain(source: tuple[int, ...], thresholds: list[float], beam: int) -> Pairs:
    """Beam search by fairseq's rules with the paper's thresholds, as loops over one sentence."""
    cfg, beams, finished = Settings(max_len=5, min_len=0), [(0.0, ())], []
    for step in range(cfg.max_len + 1):
        found = sorted(
            ((total + score, (*past, token)) for total, past in beams
             for token, score in enumerate(next_scores(RULE, source, past, cfg)) if score > -math.inf),
            reverse=True,
        )[: 2 * beam]  # fmt: skip
        kept = [pair for pair in found if pair[0] / len(pair[1]) >= thresholds[min(step, len(thresholds) - 1)]]
        for total, output in found[:beam]:
            if (total, output) in kept and output[-1] == EOS and len(finished) < beam:
                finished.append((output, total / len(output)))
        beams = [pair for pair in kept if pair[1][-1] != EOS][:beam]
        if len(finished) == beam or not beams:
            break
    return sorted(finished, key=lambda pair: -pair[1])


@pytest.mark.parametrize("skip_log_softmax", [True, False])
def test_search(skip_log_softmax: bool) -> None:
    own = generator([RULE], ConformalPruning(THRESHOLDS), skip_log_softmax=skip_log_softmax)
    found = [as_pairs(hypotheses) for hypotheses in own.generate(batch_of(SOURCES))]
    for source, pairs in zip(SOURCES, found, strict=True):
        assert_same_pairs(pairs, plain(source, THRESHOLDS, 4))
    unpruned = generator([RULE], BeamSearch())
    assert found != [as_pairs(line) for line in unpruned.generate(batch_of(SOURCES))]
    assert_same(
        generator([RULE], ConformalPruning([-math.inf])).generate(batch_of(SOURCES)),
        unpruned.generate(batch_of(SOURCES)),
    )


def test_sentences_that_join_a_batch() -> None:
    """Each sentence counts its own tokens: the new token is the fourth of the first one, the second of the other."""
    context = step_context(3, torch.zeros(2, 3, dtype=torch.int64), start_offsets=torch.tensor([0, 2]))
    lprobs = torch.tensor([-1.0, -3.0]).expand(2, 1, 2)
    found = ConformalPruning([-9.0, -1.5, -9.0, -2.0]).step(context, lprobs, torch.tensor([[-6.0], [-1.0]]))
    # means (-6 - 1) / 4, (-6 - 3) / 4, and (-1 - 1) / 2, (-1 - 3) / 2
    assert found.scores.tolist() == [[-7.0, -math.inf], [-2.0, -math.inf]]
    kept = ConformalPruning([-9.0, -2.0, -9.0, -2.25]).step(context, lprobs, torch.tensor([[-6.0], [-1.0]]))
    assert kept.scores.tolist() == [[-7.0, -9.0], [-2.0, -4.0]]


def test_thresholds_by_hand() -> None:
    """Nine references: one may be dropped at each length of ten with alpha 0.1 while nine are left, none of eight."""
    values = [[-1.0 - n, -4.0 + n] for n in range(8)] + [[-0.5]]
    thresholds, coverage = calibrate(values, 0.1)
    assert thresholds == [-8.0, -math.inf]  # the value -1.0 - 7 is the smallest; then floor(0.1 * 9) = 0
    assert coverage == pytest.approx(0.9)
    thresholds, coverage = calibrate(values, 0.25)
    # two of nine at one token (-8, -7), two of the other seven at two: -4 / 2, -3 / 2, ..., 1 / 2 and -0.5 of the short
    assert thresholds == [-7.0, -1.5]
    assert coverage == pytest.approx(0.8 * 0.75)


def test_coverage() -> None:
    """The share of new references above all thresholds is the stated one, on average over calibrations."""
    draws, kept, stated = random.Random(1), 0, 0.0

    def reference() -> list[float]:
        total = 0.0
        return [total := total - draws.expovariate(1.0) for _ in range(draws.randint(1, 4))]

    for _ in range(1500):
        thresholds, coverage = calibrate([reference() for _ in range(19)], 0.1)
        new, stated = reference(), stated + coverage / 1500
        means = [new[min(n, len(new) - 1)] / min(n + 1, len(new)) for n in range(len(thresholds))]
        kept += all(mean >= threshold for mean, threshold in zip(means, thresholds, strict=True))
    assert kept / 1500 == pytest.approx(stated, abs=0.035)


@torch.no_grad()
def test_scores_of_references() -> None:
    """The ensemble's scores of all prefixes are those that the search gives to the same outputs."""
    models = [text_model(seed=0), text_model(seed=1)]
    found = [t.hypotheses[0] for t in Translator(models, beam=3, max_len_b=6).translate(TEXTS)]
    values = cumulative_scores(models, [(s, h.text) for s, h in zip(TEXTS, found, strict=True)])
    for own, hypothesis in zip(values, found, strict=True):
        assert own[-1] / len(own) == pytest.approx(hypothesis.score)


@pytest.mark.slow
def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command calibrates the thresholds, and another one decodes with them."""
    data, run, file = corpus(tmp_path / "DATA"), tmp_path / "run", tmp_path / "thresholds.json"
    arguments = [*training_arguments(data, run), *SMALL_TRANSFORMER, "optimization.max_update=1"]
    assert command("train", *arguments).code == 0
    names = [f"source={data}/test.en", f"target={data}/test.de", f"file={file}", f"path=[{run}]", "alpha=0.3"]
    for code in (0, 2):  # the second time, the file exists
        with pytest.raises(SystemExit) as exit_:
            run_command(CalibrationConfig, write_thresholds, "", [*names, "common.threads=1"])
        assert exit_.value.code == code
    assert "must not exist yet" in capsys.readouterr().err
    thresholds = [-math.inf if t is None else t for t in json.loads(file.read_text())["thresholds"]]
    user_file = ROOT / "examples" / "papers" / "conformal_beams.py"
    decode = (f"common.user_dir={user_file}", f"path={run}", f"input={data}/test.en", "format=json", "common.threads=1")
    beams = ("generation.beam=6", "generation.nbest=6")
    outcome = command("generate", *decode, *beams, "generation.search=conformal", f"search.file={file}")
    assert outcome.code == 0, outcome.err
    outputs = [[h["text"] for h in json.loads(line)["hypotheses"]] for line in outcome.out.splitlines()]
    lines = (data / "test.en").read_text(encoding="utf-8").splitlines()
    translator = Translator(str(run), beam=6, nbest=6)
    found = translator.translate(lines, search=ConformalPruning(thresholds))
    assert outputs == [[h.text for h in t.hypotheses] for t in found]
    with pytest.raises(ConfigError, match="is not a file of thresholds"):
        translator.translate(lines, search="conformal", **{"search.file": str(data / "test.en")})
