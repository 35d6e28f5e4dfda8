"""``python -m tests.addons.jobs.soak [kills=100] [lines=200000] [seed=0] [engine=local]``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.addons.jobs.soak.kills import Soak

ENGINES = {"local": ("job.workers=2",), "ray": ("engine=ray", "ray.actors_per_node=2")}


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
