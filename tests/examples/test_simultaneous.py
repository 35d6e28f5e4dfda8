"""examples/papers/simultaneous.py and latency.py against plain loops over one sentence, and against beam search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import Tensor

from examples.papers.latency import LatencyConfig, average_lagging, report
from examples.papers.simultaneous import WaitK
from seqgen.cli.command import run as run_command
from seqgen.text.translator import Translator
from tests.commands import SMALL_TRANSFORMER, command, corpus, training_arguments
from tests.generators import scripted_generator
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import EOS, Beam, Settings, beam_search
from tests.scripted_model import batch_of, random_rule

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
SOURCES = [(4, 5, 2), (6, 2), (4, 4, 4, 4, 6, 2), (2,), (5, 6, 7, 2)]
RULE = random_rule(vocab=9, seed=4)


def plain(source: tuple[int, ...], k: int, beam: int) -> Pairs:
    """Beam search over prefixes, as loops over one sentence; a hypothesis ends when the source is read."""
    words, longest = len(source) - 1, 5

    def reading(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        return RULE(source if k + len(history) >= words else source[: k + len(history)], history)

    def choose(found: list[Beam]) -> list[Beam | None]:
        may_end = min(words - k, longest)
        return [one for one in found if one[1][-1] != EOS or len(one[1]) > may_end][: 2 * beam]

    return beam_search(reading, source, Settings(beam, max_len=longest, min_len=0), choose)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_search(k: int, beam: int) -> None:
    found = scripted_generator([RULE], WaitK(k), beam).generate(batch_of(SOURCES))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert_same_pairs(as_pairs(hypotheses), plain(source, k, beam))


def lagging(delays: list[int], source: int, target: int) -> float:
    """Equations 6 to 8 of Ma et al., with t from 1."""
    total, t = 0.0, 0
    while t < len(delays):
        t += 1
        total += delays[t - 1] - (t - 1) / (target / source)
        if delays[t - 1] == source:
            break
    return total / t


def test_average_lagging() -> None:
    for source in range(1, 7):
        for size in range(1, 8):
            for k in range(1, 8):
                delays = [min(k + t, source) for t in range(size)]
                assert average_lagging(delays, source, size) == pytest.approx(lagging(delays, source, size))
                assert average_lagging(delays, source, 9) == pytest.approx(lagging(delays, source, 9))
    assert average_lagging([3, 4, 5, 6, 6, 6], 6, 6) == 3  # equally long: wait-k lags k tokens behind
    assert average_lagging([6] * 4, 6, 4) == 6
    assert average_lagging([], 6, 0) == 6


@pytest.mark.slow
def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command decodes and writes the delays, and another one prints the average lagging."""
    data, run, file = corpus(tmp_path / "DATA"), tmp_path / "run", tmp_path / "latency.jsonl"
    arguments = [*training_arguments(data, run), *SMALL_TRANSFORMER, "optimization.max_update=1"]
    assert command("train", *arguments).code == 0
    user_file = ROOT / "examples" / "papers" / "simultaneous.py"
    decode = (
        f"common.user_dir={user_file}",
        f"path={run}",
        f"input={data}/test.en",
        "common.threads=1",
        "generation.max_len_b=9",
    )
    outcome = command("generate", *decode, "generation.search=wait_k", "search.k=2", f"search.latency={file}")
    assert outcome.code == 0, outcome.err
    lines = {line["line"]: line for line in map(json.loads, file.read_text().splitlines())}
    tokenizer = Translator(str(run)).task
    sources = (data / "test.en").read_text(encoding="utf-8").splitlines()
    references = (data / "test.de").read_text(encoding="utf-8").splitlines()
    assert sorted(lines) == list(range(len(sources)))
    plain_, adaptive = [], []
    for number, (source, reference) in enumerate(zip(sources, references, strict=True)):
        size, delays = len(tokenizer.encode_source(source)) - 1, lines[number]["delays"]
        assert (lines[number]["source"], delays) == (size, [min(2 + t, size) for t in range(len(delays))])
        plain_.append(lagging(delays, size, len(delays)))
        adaptive.append(lagging(delays, size, max(len(delays), len(tokenizer.encode_target(reference)) - 1)))
    with pytest.raises(SystemExit) as exit_:
        run_command(LatencyConfig, report, "", [f"path={run}", f"latency={file}", f"reference={data}/test.de"])
    assert exit_.value.code == 0
    count = len(sources)
    wanted = f"{count} lines, AL {sum(plain_) / count:.2f}, LAAL {sum(adaptive) / count:.2f} source tokens"
    assert wanted in capsys.readouterr().out
