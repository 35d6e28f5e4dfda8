"""Faults in ``seqgen/config``."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "seqgen/config/values.py",
        "if maximum is not None and not value <= maximum:",
        "if maximum is not None and not value < maximum:",
        "the largest allowed value is refused",
        ("tests/config/test_compose.py",),
    ),
    Fault(
        "seqgen/config/values.py",
        'if value == "null" and annotation is not str:',
        'if value == "null":',
        "the text null cannot be given",
        ("tests/config/test_compose.py",),
    ),
    Fault(
        "seqgen/config/values.py",
        'item.replace("\\\\", "\\\\\\\\").replace(\'"\', \'\\\\"\')',
        "item.replace('\"', '\\\\\"')",
        "backslashes in lists of text are lost when they are written",
        ("tests/config/test_compose.py",),
    ),
    Fault(
        "seqgen/config/values.py",
        "if equals and given.get(key, value) != value:",
        "if equals and key in given:",
        "a key that is given twice with the same value is said to be unused",
        ("tests/config/test_compose.py",),
    ),
    Fault(
        "seqgen/config/compose.py",
        "if steps >= MAX_VALUES:",
        "if steps > MAX_VALUES:",
        "a range of one value more than the maximum is accepted",
        ("tests/config/test_compose.py",),
    ),
    Fault(
        "seqgen/config/compose.py",
        'name = wanted if wanted in chosen else ""',
        "name = wanted",
        "keys of a processor that is not used are accepted",
        ("tests/config/test_compose.py",),
    ),
    Fault(
        "seqgen/config/compose.py",
        "{**to_dict(config), **generation.component_values(group or registry.group, name)}",
        "{**generation.component_values(group or registry.group, name), **to_dict(config)}",
        "a component's defaults override its keys",
        ("tests/config/test_compose.py",),
    ),
    Fault(
        "seqgen/config/user_files.py",
        "while name in self.files or name in sys.modules:",
        "while name in sys.modules:",
        "two files of one name that are found together are one module",
        ("tests/config/test_user_files.py",),
    ),
    Fault(
        "seqgen/config/user_files.py",
        'return path if (path / "__init__.py").is_file() else path / file.relative_to(whole)',
        "return path / file.relative_to(whole)",
        "a run records a file inside a package, which cannot be imported alone",
        ("tests/config/test_user_files.py",),
    ),
    Fault(
        "seqgen/config/user_files.py",
        "files = reversed(self.files.items())",
        "files = iter(self.files.items())",
        "of files with one name, the first one that was imported is meant",
        ("tests/config/test_user_files.py",),
    ),
    Fault(
        "seqgen/config/keys.py",
        "n=1, cutoff=0.6))[:3]",
        "n=1, cutoff=0.6))[:1]",
        "of several keys that may be meant only the first one is named",
        ("tests/config/test_compose.py",),
    ),
]
