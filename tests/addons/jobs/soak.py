"""Kills the processes of a job at random moments until it has happened often enough, and compares the output.

``make soak``, or ``python -m tests.addons.jobs.soak [kills=100] [lines=200000] [seed=0] [engine=local]``.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.addons.jobs.models import FAST, texts, train, write_lines

ROOT = Path(__file__).parents[3]
PARTS = 8
KINDS = {"driver": 4, "worker": 4, "writing": 2, "merging": 1}
"""What is killed or going on, and how often it is chosen."""
ENGINES = {"local": ("job.workers=2",), "ray": ("engine=ray", "ray.actors_per_node=2")}
PATIENCE = 300.0
"""Seconds after which a process that does nothing is a fault."""


def generate(*arguments: str) -> subprocess.Popen[bytes]:
    """Start ``seqgen-generate``, as a process group of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "seqgen.cli.generate", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )


@dataclass
class Soak:
    """A job that is killed, and what an undisturbed process without parts writes.

    Attributes:
        root: an empty folder.
        lines: number of lines of the input.
        seed: seed of the moments and processes.
        window: the longest time in seconds until a process is killed.
        engine: further arguments of the job.
        kills: number of kills, by what was killed or was going on.
        outcomes: number of finished jobs.
    """

    root: Path
    lines: int
    seed: int = 0
    window: float = 12.0
    engine: Sequence[str] = ENGINES["local"]
    kills: Counter[str] = field(default_factory=Counter)
    outcomes: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.output, self.folder = self.root / "out.txt", self.root / "out.txt.parts"
        self.common = (f"path={train(self.root)}", f"input={self.root}/in.txt", "generation.bit_exact=true", *FAST)
        write_lines(self.root / "in.txt", texts(self.lines))
        assert generate(*self.common, f"output={self.root}/expected.txt").wait() == 0
        self.expected = (self.root / "expected.txt").read_bytes()
        assert self.expected.count(b"\n") == self.lines

    def run(self, kills: int, say: Callable[[str], None] = lambda _: None) -> None:
        """Run jobs, one after the other, until so many kills of all kinds have happened; the last one ends undisturbed.

        The first job begins with nothing; later ones begin with what is left when some of the parts are taken away.
        """
        while self._choices(kills) or not self.outcomes:
            if self.outcomes:
                self._take_away(self.rng.randint(0, PARTS // 2))
            while self._attempt(kills) != 0:
                pass
            self._compare()
            self.outcomes += 1
            say(f"{self.kills.total()} kills: {dict(self.kills)}, {self.outcomes} jobs finished")

    def _choices(self, kills: int) -> list[str]:
        """The kinds of the next kill: all until so many have happened, then those that have not; each by its share."""
        missing = [kind for kind in KINDS if self.kills.total() < kills or kind not in self.kills]
        return [kind for kind in missing for _ in range(KINDS[kind])]

    def _attempt(self, kills: int) -> int:
        """Run the command once, and perhaps kill it; its exit code."""
        part_lines = -(-self.lines // PARTS)
        sizes = (f"job.part_lines={part_lines}", f"generation.buffer_size={max(1, part_lines // 6)}")
        process = generate(*self.common, f"output={self.output}", *sizes, *self.engine)
        try:
            while (choices := self._choices(kills)) and process.poll() is None:
                what = self.rng.choice(choices)
                if self._waited(process, what):
                    victim = process.pid if what != "worker" else self.rng.choice(children(process.pid) or [0])
                    if victim:
                        os.kill(victim, signal.SIGKILL)
                        self.kills[what] += 1
                if what != "worker":
                    break
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert process.returncode in (0, -signal.SIGKILL), errors.decode()
        return process.returncode

    def _waited(self, process: subprocess.Popen[bytes], what: str) -> bool:
        """Wait for the moment of a kill; whether it has come before the process has ended."""
        if what in ("driver", "worker"):
            with suppress(subprocess.TimeoutExpired):
                process.wait(self.rng.uniform(0, self.window))
            return process.poll() is None
        while process.poll() is None:
            temporary, begin = (self.folder / "parts", ".part") if what == "writing" else (self.root, ".out.txt")
            if temporary.is_dir() and any(name.startswith(begin) for name in os.listdir(temporary)):
                time.sleep(self.rng.uniform(0, 0.01))
                return True
            time.sleep(0.0005)
        return False

    def _take_away(self, count: int) -> None:
        """Remove the merged output, and some parts with their lines of the journal."""
        self.output.unlink()
        gone = self.rng.sample(range(PARTS), count)
        for index in gone:
            (self.folder / "parts" / f"part-{index:08d}.txt").unlink()
        kept = [record for record in self._journal() if record["part"] not in gone]
        write_lines(self.folder / "done.jsonl", list(map(json.dumps, kept)))

    def _journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "done.jsonl").read_bytes().splitlines()]

    def _compare(self) -> None:
        assert self.output.read_bytes() == self.expected
        records = self._journal()
        assert sorted(record["part"] for record in records) == list(range(PARTS)), "a part was finished twice"
        assert sum(record["lines"] for record in records) == self.lines
        assert not (self.folder / "errors.jsonl").exists()


def children(parent: int) -> list[int]:
    """The worker processes of a job: children that are not the tracker of ``multiprocessing``."""
    try:
        found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(child) for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except OSError:
        return []


def main(arguments: list[str]) -> None:
    given = {"kills": "100", "lines": "200000", "seed": "0", "engine": "local"}
    given |= dict(argument.split("=", 1) for argument in arguments)
    with tempfile.TemporaryDirectory(prefix="seqgen-soak-") as folder:
        start = time.monotonic()
        soak = Soak(Path(folder), int(given["lines"]), int(given["seed"]), engine=ENGINES[given["engine"]])
        soak.run(int(given["kills"]), lambda text: print(f"{time.monotonic() - start:.0f} s: {text}", flush=True))
    print("every output was that of an undisturbed process, byte for byte")


if __name__ == "__main__":
    main(sys.argv[1:])
