"""``--completion bash``: a script that lets bash complete a command's keys, values, presets and runs.

The script contains all keys and values, so that a completion does not start Python. The keys of your own components
are in it if ``--completion`` is given with ``common.user_dir``.
"""

from __future__ import annotations

import re
import shlex
from importlib import resources
from string import Template

from seqgen.cli.keys import CONFIG_KEY, choosers, every_key, is_switch
from seqgen.core.errors import ConfigError
from seqgen.registry import import_declared

RUNS = ("path", "other", "runs", "run_dir", "checkpoint.finetune_from", "generation.draft")
"""Keys whose values are completed as run folders first."""
WITH_WORDS = ("seqgen-diff", "seqgen-show")
"""The commands that take run folders without ``KEY=``."""


class _Script(Template):
    delimiter = "@"


def completion_script(schema: type, program: str, shell: str) -> str:
    """Write the script that completes a command.

    Args:
        schema: the root dataclass of the command's configuration.
        program: the command's name.
        shell: ``bash``.

    Returns:
        The script.

    Raises:
        ConfigError: there is no script for this shell.
    """
    if shell != "bash":
        raise ConfigError(f"--completion {shell}: there is a script for bash only; use --completion bash")
    from seqgen.metrics import CORPUS_METRICS

    every, keys = choosers(schema), {key.name: key for key in every_key(schema)}
    values = {"metrics": list(CORPUS_METRICS)} if "metrics" in keys else {}  # the key has other values, too
    if "sort" in keys:  # likewise
        values["sort"] = import_declared("seqgen.addons.compare.runs", "the table of runs").sort_names()
    for name, key in keys.items():
        choices = key.field.metadata.get("choices")
        if choices or is_switch(key.annotation):
            values[name] = [choice for choice in choices or ("true", "false") if choice]
    values |= {one.name: one.names() for one in every}
    names = sorted({CONFIG_KEY, *keys, *(one.name for one in every)})
    groups = {name.partition(".")[0] for name in names if "." in name}
    paths = sorted({CONFIG_KEY, *(key.name for key in keys.values() if key.role)})
    function = "_" + re.sub(r"\W", "_", program)
    script = _Script((resources.files(__package__) / "completion.bash").read_text(encoding="utf-8"))
    return script.substitute(
        program=program,
        function=function,
        topics=shlex.quote(" ".join(sorted({"all", *groups, *names}))),
        keys=shlex.quote(" ".join(f"{name}=" for name in names)),
        others=f'$({function}_runs "$word"; compgen -f -- "$word")' if program in WITH_WORDS else "",
        runs="|".join(name for name in paths if name in RUNS) or "''",
        files="|".join(name for name in paths if name not in RUNS),
        values="\n".join(f"        {key}) words={shlex.quote(' '.join(items))} ;;" for key, items in values.items()),
    )
