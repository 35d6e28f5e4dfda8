"""``python -m tests.fuzzing [READER ...] [cases=N] [first=N]``: exit code 1 if a case fails; see the package."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.fuzzing.readers import READERS, Bench
from tests.fuzzing.sandbox import Failure


def main(arguments: Sequence[str]) -> int:
    """Run cases of the named readers, of all if none is named, and print the failures; return the exit code."""
    torch.set_num_threads(1)
    options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    first, cases, failed = int(options.get("first", 0)), int(options.get("cases", 1000)), 0
    for name in [argument for argument in arguments if "=" not in argument] or READERS:
        refused = 0
        with tempfile.TemporaryDirectory(prefix="fuzzing-") as root:
            bench = Bench(name, Path(root))
            for number in range(first, first + cases):
                try:
                    refused += bench.case(number) is not None
                except Failure as failure:
                    failed += 1
                    print(f"{name} first={number} cases=1: {failure}\n", flush=True)
        print(f"{name}: {cases} cases, {refused} refused", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
