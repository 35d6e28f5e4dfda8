"""examples/papers/conformal_beams.py against the formulas, computed plainly, and against its guarantee."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from examples.papers.conformal_beams import (
    CalibrationConfig,
    ConformalPruning,
    calibrate,
    write_thresholds,
)
from seqgen.cli.command import run as run_command
from seqgen.core.beam_search import BeamSearch
from seqgen.core.errors import ConfigError
from seqgen.text.translator import Translator
from tests.commands import SMALL_TRANSFORMER, command, corpus, training_arguments
from tests.generators import scripted_generator
from tests.hypotheses import Pairs, as_pairs, assert_same, assert_same_pairs
from tests.reference_search import Beam, Settings, beam_search
from tests.scripted_model import batch_of, random_rule

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,)]
RULE = random_rule(vocab=9, seed=4)
THRESHOLDS = [-2.5, -2.0, -1.6, -1.3]


def plain(source: tuple[int, ...], thresholds: list[float], beam: int) -> Pairs:
    """Beam search with the paper's thresholds, as loops over one sentence."""

    def choose(found: list[Beam]) -> list[Beam | None]:
        limits = [thresholds[min(len(tokens), len(thresholds)) - 1] * len(tokens) for _, tokens in found]
        return [one if one[0] >= limit else None for one, limit in zip(found, limits, strict=True)][: 2 * beam]

    return beam_search(RULE, source, Settings(beam, max_len=5, min_len=0), choose)


@pytest.mark.parametrize("skip_log_softmax", [True, False])
def test_search(skip_log_softmax: bool) -> None:
    own = scripted_generator([RULE], ConformalPruning(THRESHOLDS), skip_log_softmax=skip_log_softmax)
    found = [as_pairs(hypotheses) for hypotheses in own.generate(batch_of(SOURCES))]
    for source, pairs in zip(SOURCES, found, strict=True):
        assert_same_pairs(pairs, plain(source, THRESHOLDS, 4))
    unpruned = scripted_generator([RULE], BeamSearch())
    assert found != [as_pairs(line) for line in unpruned.generate(batch_of(SOURCES))]
    assert_same(
        scripted_generator([RULE], ConformalPruning([-math.inf])).generate(batch_of(SOURCES)),
        unpruned.generate(batch_of(SOURCES)),
    )


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
    differing = sum(one != [h.text for h in t.hypotheses] for one, t in zip(outputs, found, strict=True))
    assert differing <= 1, "near ties of a model that is hardly trained may be decided either way"
    with pytest.raises(ConfigError, match="is not a file of thresholds"):
        translator.translate(lines, search="conformal", **{"search.file": str(data / "test.en")})
