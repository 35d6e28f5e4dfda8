"""Programs in other processes: the values of the same function in this one, through crashes, and refusals."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import execnet
import pytest

from seqgen.addons.programs import Program, register_program
from seqgen.config import GenerationConfig
from seqgen.decoding.building import Resources
from seqgen.metrics import CORPUS_METRICS, Texts, corpus_scores
from seqgen.registry import RERANKERS, UTILITIES
from seqgen.text.reranking import Ranker
from seqgen.text.translator import Translator
from tests.commands import command, done, refused
from tests.refusals import Row, refusals
from tests.text_models import TEXTS, text_model
from tests.training.test_sequence_criterion import WORDS, criterion, new_model, pairs, small

pytestmark = pytest.mark.slow

FUNCTION = """
def f(source, text, reference=""):
    common = sum(min(text.count(letter), reference.count(letter)) for letter in set(text))
    return 100 * (3 * common + min(len(source), len(text))) / (1 + 3 * len(text) + len(reference) + len(source))
"""
PROGRAM = """
import os, sys, time
print("loading")
mode, log, served = sys.argv[1], sys.argv[2], []
if mode == "exits":
    sys.exit("no such weights")
def score(rows):
    served.append(rows)
    with open(log, "a") as file:
        print(os.getpid(), len(rows), file=file)
    print("noise", sys.stdin.read())
    os.system("echo noise")
    if mode == "third" and len(served) == 3 or mode == "large" and len(rows) > 2:
        os.kill(os.getpid(), 9)
    if mode == "hangs" or mode == "hangs once" and len(served) == 2 and not os.path.exists(log + "hung"):
        open(log + "hung", "w").close()
        time.sleep(1000)
    if mode == "dies":
        sys.stderr.write("out of luck\\n\\n")
        os._exit(3)
    values = [f(**row) for row in rows]
    wrong = {"few": values[1:], "many": [*values, 1], "nan": [float("nan"), *values[1:]], "text": ["good"] * len(rows)}
    return wrong.get(mode, values)
"""
REGISTERING = """
import os
from seqgen.addons.programs import Program, register_program
register_program("ours", Program({!r}, arguments=[os.environ.get("MODE", "usual"), {!r}], batch=5))
"""
exec(FUNCTION)
function: Callable[..., float] = globals()["f"]
Make = Callable[..., Program]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes the program in a mode, and registers it under the name ``mine``."""
    for registry in (UTILITIES, RERANKERS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr("seqgen.metrics.CORPUS_METRICS", dict(CORPUS_METRICS))
    (tmp_path / "program.py").write_text(FUNCTION + PROGRAM)
    (tmp_path / "log").touch()

    def make(mode: str, file: str = "program.py", **settings: object) -> Program:
        program = Program(tmp_path / file, arguments=[mode, str(tmp_path / "log")], **settings)  # type: ignore[arg-type]
        register_program("mine", program)
        return program

    return make


def calls(folder: Path) -> list[list[int]]:
    """Process and rows of each call so far."""
    return [list(map(int, line.split())) for line in (folder / "log").read_text().splitlines()]


@pytest.mark.parametrize("mode", ["usual", "third", "large", "hangs once"])
def test_the_same_in_and_out_of_process(mode: str, made: Make, tmp_path: Path) -> None:
    """Rankings, scores, and the utilities of training; also if the process is killed or hangs now and then."""
    made(mode, batch=7, timeout=2 if mode == "hangs once" else 60)
    translator, changed = Translator(text_model(sharpness=1.2), sampling=True, beam=6, nbest=6, max_len_b=8), 0
    for setting, field in (("mbr", "utility"), ("rerank", "rerank_score")):
        found = translator.translate([*TEXTS, ""], **{setting: "mine"})
        for before, after in zip(translator.translate([*TEXTS, ""]), found, strict=True):
            texts = [item.text for item in before.hypotheses]
            wanted = {text: function(before.source, text) for text in texts}
            if setting == "mbr":
                wanted = {one: sum(function(before.source, one, two) for two in texts) / len(texts) for one in texts}
            order = sorted(texts, key=lambda text: -round(wanted[text], 9))
            assert [item.text for item in after.hypotheses] == order
            assert [getattr(item, field) for item in after.hypotheses] == pytest.approx(
                [wanted[text] for text in order]
            )
            changed += order != texts
    assert changed > len(TEXTS)
    texts = Texts(["ab", "ö", "c d"], ["a", "bcd", "d"], ["xyz", "x", "c"], more_references=[["abcde", "b", ""]])
    rows = zip(texts.sources, texts.hypotheses, texts.references_of_sentences(), strict=True)
    means = [(function(x, y, one) + function(x, y, two)) / 2 for x, y, (one, two) in rows]
    assert corpus_scores(["mine"], texts)["mine"].sentences == pytest.approx(means)
    batch, risk = pairs(model := new_model(small("transformer"), WORDS)), criterion(mbr="mine")
    hypotheses, decode = risk.decode(model, batch), risk.task.decode
    sources = [decode(row[row != WORDS.pad()]) for row in batch.source.src_tokens]
    assert [len(source.split()) + 1 for source in sources] == batch.source.src_lengths.tolist()
    lines = zip(
        risk.utilities(batch, hypotheses), sources, hypotheses, map(decode, risk.references(batch)), strict=True
    )
    for values, source, items, reference in lines:
        expected = [function(source, decode(item.tokens), reference) for item in items]
        assert values[: len(items)].tolist() == pytest.approx(expected)
    assert (len({process for process, _ in calls(tmp_path)}) > 1) == (mode != "usual")


def test_rows_of_many_lines_share_batches(made: Make, tmp_path: Path) -> None:
    assert len(made("usual", batch=4).values([("a", "b")] * 9)) == 9
    found = Translator(text_model(), beam=3, nbest=3, max_len_b=8).translate(TEXTS[:3])
    ranker = Ranker(GenerationConfig(rerank="mine"), {}, 3, Resources(WORDS))
    together = ranker.ranked([(line, line.hypotheses) for line in found])
    assert [count for _, count in calls(tmp_path)] == [4, 4, 1] * 2
    alone = [ranker.ranked([(line, line.hypotheses)])[0] for line in found]
    assert [[h.rerank_score for h in line] for line in together] == [[h.rerank_score for h in line] for line in alone]


def test_forks_and_interruptions(made: Make, tmp_path: Path) -> None:
    """A fork has a process of its own, and the next rows do not get the answer that an interruption has missed."""
    program, rows = made("usual"), [("ab", "b"), ("c", "dd")]
    wanted = [function(*row) for row in rows]
    assert program.values(rows) == wanted
    if not (child := os.fork()):
        os._exit(program.values(rows) != wanted)
    assert (os.waitpid(child, 0)[1], program.values(rows)) == (0, wanted)
    interrupted = mock.patch.object(execnet.gateway_base.Channel, "receive", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        program.values(rows[1:])
    assert program.values(rows) == wanted
    one, two, again, _, last = (process for process, _ in calls(tmp_path))
    assert (one == again, len({one, two, last})) == (True, 3)
    assert not is_running(one)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("mode", ["usual", "hangs"])
def test_the_process_ends_with_its_parent(mode: str, made: Make, tmp_path: Path) -> None:
    """Which ends, or is killed while the program hangs."""
    program, deadline = made(mode), time.monotonic() + 60
    given = str(program.file), sys.executable, program.arguments
    code = f"from seqgen.addons.programs import Program\nProgram(*{given}).values([('a', 'b')])"
    parent = subprocess.Popen([sys.executable, "-c", code])
    for done_with in (lambda: calls(tmp_path), lambda: not is_running(calls(tmp_path)[0][0])):
        while not done_with() and time.monotonic() < deadline:
            time.sleep(0.1)
        if mode == "hangs":
            parent.kill()
        parent.wait()
    assert not is_running(calls(tmp_path)[0][0])


KEPT = ("program.py, run by", "fails 4 times in a row: ", "what is written so far is kept")


def test_a_job_loses_no_line(runs: Path, data: Path, made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose programs end whenever they are called, so that the job stops, and are then killed now and then."""
    tmp_path = Path(made("usual").file).parent
    (tmp_path / "ours.py").write_text(REGISTERING.format(str(tmp_path / "program.py"), str(tmp_path / "log")))
    decode = [f"common.user_dir={tmp_path}/ours.py", f"path={runs}/fconv", f"input={data}/test.en"]
    decode += ["generation.mbr=ours", "generation.sampling=true", "generation.beam=4", "generation.bit_exact=true"]
    job = [*decode, f"output={tmp_path}/out", "job.part_lines=6", "job.workers=2", "common.threads=1"]
    monkeypatch.setenv("MODE", "usual")
    wanted = done("generate", *decode).out
    monkeypatch.setenv("MODE", "dies")
    refused(command("generate", *job), *KEPT, "out of luck", "run the same command again to continue")
    monkeypatch.setenv("MODE", "third")
    done("generate", *job)
    assert (tmp_path / "out").read_text() == wanted
    assert len({process for process, _ in calls(tmp_path)}) > 4


def fails(words: str, mode: str = "usual", **settings: object) -> Row:
    kept = () if settings.keys() & {"file", "batch"} else KEPT
    return lambda made: made(mode, **settings).values([("a", "b"), ("c", "d")]), words, *kept


test_failures = refusals(
    fails("no such weights", "exits"),
    fails("no answer after 0.8 seconds", "hangs", timeout=0.8),
    fails("in a row: out of luck; correct it,", "dies"),
    fails("a finite number for each of 1 rows, not []", "few"),
    fails("a finite number for each of 1 rows, not [", "many"),
    fails("a finite number for each of 1 rows, not [nan]", "nan"),
    fails("could not convert string to float: 'good'", "text"),
    fails("run by /no/python, fails 4 times in a row: [Errno 2] No such file", python="/no/python"),
    fails("No such file or directory", file="nowhere.py"),
    fails("it has no function score", file="log"),
    fails("batch=0 and timeout=600 must be positive", batch=0),
    fails("batch=64 and timeout=nan must be positive", batch=64, timeout=float("nan")),
    (lambda monkeypatch: [monkeypatch.setitem(sys.modules, "execnet", None), Program("a.py")], "pip install execnet"),
    (lambda made: [made("usual"), corpus_scores(["mine"], Texts(["a"], ["b"]))], "metric mine reads the sources; set"),
    (lambda made: [made("usual"), made("usual")], "utility 'mine' is registered twice"),
)
