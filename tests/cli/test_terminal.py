"""``seqgen-generate`` and messages at a terminal, in a pseudo-terminal."""

import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import SMALL_FCONV, corpus, done, training_arguments

pty = pytest.importorskip("pty")
ROOT = Path(__file__).parent.parent.parent


class Terminal:
    """A command that runs in a pseudo-terminal."""

    def __init__(self, *arguments: str):
        self.shown = ""
        self.process, self.descriptor = pty.fork()
        if self.process == 0:
            os.environ |= {"TERM": "xterm", "OMP_NUM_THREADS": "1"}
            os.chdir(ROOT)
            os.execv(sys.executable, [sys.executable, "-m", *arguments])

    def wait_for(self, text: str, seconds: float = 60.0) -> str:
        """Read until a text is shown; return what was shown since the last call."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.descriptor, 1 << 16).decode()
                except OSError:  # the process has ended
                    assert text in self.shown, self.shown
        before, found, self.shown = self.shown.partition(text)
        return before + found

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def close(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.descriptor)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terminal")
    arguments = training_arguments(corpus(folder / "data"), folder / "run")
    outcome = done("train", *arguments, *SMALL_FCONV, "optimization.max_update=1")
    assert re.search(
        r"training a SentencePiece model \(unigram\) of 44 pieces\ntrained it on \d+ lines in", outcome.err
    )
    return folder / "run"


@pytest.fixture
def terminal(run: Path) -> Iterator[Terminal]:
    one = Terminal("seqgen.cli.generate", f"path={run}", "input=-", "generation.max_len_b=5", "generation.beam=2")
    yield one
    one.close()


@pytest.mark.slow
def test_typed_lines(terminal: Terminal) -> None:
    start = time.monotonic()
    terminal.wait_for("loading ")
    assert "ready; type a line" in terminal.wait_for("> ")
    terminal.type("the dog sees a ball\n")
    time.sleep(1.0)  # the prompt comes back after the output
    echo, *notes, output, _ = terminal.wait_for("> ").splitlines()
    assert echo == "the dog sees a ball"
    assert output
    assert [note.partition(":")[0] for note in notes] == ["line 1"]
    terminal.type("§ a man\n")
    assert "line 2: " in terminal.wait_for("> ")  # the note on a line comes with its output
    time.sleep(1.0)
    terminal.type("\x04")
    seconds = re.search(r"2 sentences, \d+ tokens in (\d+\.\d) s", terminal.wait_for("tokens/s"))
    assert float(seconds.group(1)) < time.monotonic() - start - 2.0


@pytest.mark.slow
def test_an_error_is_red_and_a_file_has_a_bar(run: Path, tmp_path: Path) -> None:
    wrong = Terminal("seqgen.cli.generate", "beam=4", f"path={run}")
    assert "\x1b[1;31mseqgen-generate:\x1b[0m unknown key" in wrong.wait_for("--help lists the keys")
    wrong.close()
    (tmp_path / "in").write_text("the dog sees a ball\n" * 200)
    keys = (f"input={tmp_path}/in", f"output={tmp_path}/out", "generation.max_len_b=20")
    decoding = Terminal("seqgen.cli.generate", f"path={run}", *keys)
    shown = decoding.wait_for("sentences/s")
    assert "of 200 lines" in shown
    assert len((tmp_path / "out").read_text().splitlines()) == 200
    decoding.close()
