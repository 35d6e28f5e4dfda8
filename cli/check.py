"""``seqgen-check``: checks of models and of decoding.

``seqgen-check model=NAME`` and ``path=RUN`` check a model's invariants; every other check is a sub-command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from seqgen.cli import check_diff, check_languages, check_model
from seqgen.errors import nearest

CHECKS: dict[str, tuple[Callable[[Sequence[str]], NoReturn], str]] = {
    "diff": (check_diff.main, check_diff.DESCRIPTION),
    "languages": (check_languages.main, check_languages.DESCRIPTION),
}
"""The entry point and the description of each sub-command."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or [""]
    if name in CHECKS:
        CHECKS[name][0](arguments)
    if "=" in name:
        check_model.main([name, *arguments])
    if name in ("-h", "--help"):
        print("Usage: seqgen-check model=NAME [key=value ...]\n       seqgen-check CHECK [key=value ...]")
        print("seqgen-check model=NAME --help lists the keys of a model's check, seqgen-check CHECK --help the others")
        print(f"\n  model=NAME, path=RUN  {check_model.DESCRIPTION}")
        print("".join(f"\n  {check}  {description}" for check, (_, description) in CHECKS.items()))
        sys.exit(0)
    wrong = f"there is no check {name!r}{nearest(name, CHECKS)}" if name else "the check is missing"
    print(f"seqgen-check: {wrong}; give model=NAME, path=RUN or one of: {', '.join(CHECKS)}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
