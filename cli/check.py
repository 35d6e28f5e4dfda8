"""``seqgen-check``: checks of models, of other components and of decoding.

``seqgen-check KIND=NAME`` checks the invariants of a component, ``path=RUN`` those of a trained model; every other
check is a sub-command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from seqgen.cli import check_criterion, check_decoding, check_diff, check_languages, check_model, check_task
from seqgen.cli.command import INFORMING
from seqgen.cli.config_file import KEY as CONFIG_KEY
from seqgen.errors import nearest

CHECKS: dict[str, tuple[Callable[[Sequence[str]], NoReturn], str]] = {
    "diff": (check_diff.main, check_diff.DESCRIPTION),
    "languages": (check_languages.main, check_languages.DESCRIPTION),
}
"""The entry point and the description of each sub-command."""

SUBJECTS: dict[str, tuple[Callable[[Sequence[str]], NoReturn], str]] = {
    **{
        group: (partial(check_decoding.main, group), check_decoding.description(group))
        for group in check_decoding.KINDS
    },
    "task": (check_task.main, check_task.DESCRIPTION),
    "criterion": (check_criterion.main, check_criterion.DESCRIPTION),
    "path": (check_model.main, check_model.DESCRIPTION),
    "model": (check_model.main, check_model.DESCRIPTION),
}
"""The entry point and the description of each check of a component, by the key that names the component. The check
of another component can also get a model."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or [""]
    if name in CHECKS:
        CHECKS[name][0](arguments)
    if name == "--completion":
        check_model.main([name, *arguments])
    if name in ("-h", "--help"):
        print("Usage: seqgen-check KIND=NAME [key=value ...]\n       seqgen-check CHECK [key=value ...]")
        print(
            "seqgen-check KIND=NAME --help lists the keys of a component's check, seqgen-check CHECK --help the others"
        )
        shown = {f"{kind}=NAME": text for kind, (_, text) in SUBJECTS.items() if kind not in ("path", "model")}
        shown["model=NAME, path=RUN"] = check_model.DESCRIPTION
        print("".join(f"\n  {kind}  {text}" for kind, text in shown.items()))
        print("".join(f"\n  {check}  {text}" for check, (_, text) in CHECKS.items()))
        sys.exit(0)
    if "=" in name:
        given = [argument.partition("=")[0] for argument in (name, *arguments)]
        found = [kind for kind in SUBJECTS if kind in given]
        others = [kind for kind in found if kind not in ("path", "model")]
        if len(others) > 1:
            _fail(f"{others[0]} and {others[1]} are two components; check them one at a time")
        if found or CONFIG_KEY in given or {*INFORMING} & {*arguments}:
            SUBJECTS[found[0] if found else "model"][0]([name, *arguments])
    meant = nearest(name.partition("=")[0], [*CHECKS, *(SUBJECTS if "=" in name else ())])
    wrong = f"there is no check {name!r}{meant}" if name else "the check is missing"
    _fail(f"{wrong}; give {_choices()} or one of: {', '.join(CHECKS)}")


def _choices() -> str:
    return ", ".join(f"{kind}={'RUN' if kind == 'path' else 'NAME'}" for kind in reversed(SUBJECTS))


def _fail(message: str) -> NoReturn:
    print(f"seqgen-check: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
