"""``--completion bash``: a script that lets bash complete a command's keys, values, presets and runs.

The script contains all keys and values, so that a completion does not start Python. The keys of your own components
are in it if ``--completion`` is given with ``common.user_dir``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from seqgen.cli.keys import CONFIG_KEY, Key, choosers, every_key, is_switch
from seqgen.errors import ConfigError

RUNS = ("path", "other", "runs", "run_dir", "checkpoint.finetune_from", "generation.draft")
"""Keys whose values are completed as run folders first."""
WORDS = {"seqgen-diff": "runs", "seqgen-show": "path"}
"""By command, the key whose values can also be given as words without ``KEY=``."""
OPTIONS = {
    "--help": "show the common keys, all of them, or explain a group or key",
    "--completion": "print a script for completion; give the shell: bash",
    "--version": "print the version",
}


@dataclass(frozen=True)
class Words:
    """What can be completed.

    Attributes:
        program: the name of the command.
        keys: the keys, each with one line of help.
        values: the values of keys that have a fixed set of them.
        topics: what can follow ``--help``.
        paths: the keys whose values are files or folders.
    """

    program: str
    keys: dict[str, str]
    values: dict[str, list[str]]
    topics: list[str]
    paths: list[str]

    @property
    def function(self) -> str:
        """The name of the shell function."""
        return "_" + re.sub(r"\W", "_", self.program)

    @property
    def runs(self) -> list[str]:
        """Those of ``paths`` that are completed as run folders first."""
        return [key for key in self.paths if key in RUNS]


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
        raise ConfigError(f"--completion {shell}: there is a script for bash only; give --completion bash")
    return _bash(_words(schema, program))


def _words(schema: type, program: str) -> Words:
    every = choosers(schema)
    keys: dict[str, Key] = {key.name: key for key in every_key(schema)}
    values = {name: found for name, found in _suggestions().items() if name in keys}
    for name, key in keys.items():
        choices = key.field.metadata.get("choices")
        if choices or is_switch(key.annotation):
            values[name] = [choice for choice in choices or ("true", "false") if choice]
    values |= {one.name: one.names() for one in every}
    texts = {name: key.field.metadata.get("help", "") for name, key in keys.items()} | {
        CONFIG_KEY: "YAML file with keys"
    }
    texts |= {one.name: f"name of the {one.registry.kind}" for one in every}
    groups = {name.partition(".")[0] for name in texts if "." in name}
    paths = sorted({CONFIG_KEY, *(key.name for key in keys.values() if key.is_path)})
    return Words(program, dict(sorted(texts.items())), values, sorted({"all", *groups, *texts}), paths)


def _suggestions() -> dict[str, list[str]]:
    """Values of keys that also have others."""
    from seqgen.lab.compare.table import sort_names
    from seqgen.metrics import CORPUS_METRICS

    return {"metrics": list(CORPUS_METRICS), "sort": sort_names()}


def _bash(words: Words) -> str:
    cases = "\n".join(f"        {key}) words={shlex.quote(' '.join(items))} ;;" for key, items in words.values.items())
    files = 'compgen -f -- "$tail")); compopt -o filenames'
    runs = f'"$tail"; {files}'
    others = f'$({words.function}_runs "$word"; compgen -f -- "$word")' if words.program in WORDS else ""
    return f"""# bash completion of {words.program}; to install it:
#   {words.program} --completion bash > ~/.local/share/bash-completion/completions/{words.program}
{words.function}() {{
    local line=${{COMP_LINE:0:COMP_POINT}} word before key value head tail words
    word=${{line##*[[:space:]]}}
    before=${{line%"$word"}}
    COMPREPLY=()
    case $word in
    -*) COMPREPLY=($(compgen -W {shlex.quote(" ".join(OPTIONS))} -- "$word")); return ;;
    *=*) ;;
    *)
        case $before in
        *--completion[[:space:]]) words="bash" ;;
        *--help[[:space:]]) words={shlex.quote(" ".join(words.topics))} ;;
        *)
            words={shlex.quote(" ".join(f"{key}=" for key in words.keys))}
            compopt -o nospace
            COMPREPLY=($(compgen -W "$words" -- "$word"))
            local IFS=$'\\n'
            COMPREPLY+=({others}); return ;;
        esac
        COMPREPLY=($(compgen -W "$words" -- "$word")); return ;;
    esac
    key=${{word%%=*}} value=${{word#*=}}
    tail=${{value##*[\\[,]}} head=${{value%"${{value##*[\\[,]}}"}}
    local IFS=$'\\n'
    case $key in
{_case(words.runs, f"COMPREPLY=($({words.function}_runs {runs}")}
{_case([key for key in words.paths if key not in RUNS], f"COMPREPLY=($({files}")}
    *)
        words=
        case $key in
{cases}
        esac
        IFS=$' \\t\\n'
        COMPREPLY=($(compgen -W "$words" -- "$tail")) ;;
    esac
    # readline replaces the text after "=" only, unless the user has changed COMP_WORDBREAKS
    [[ $COMP_WORDBREAKS == *=* ]] || head="$key=$head"
    [[ -z $head ]] || COMPREPLY=("${{COMPREPLY[@]/#/$head}}")
}}
{words.function}_runs() {{
    local config
    for config in "$1"*/config.yaml "$1"*/*/config.yaml runs/*/config.yaml; do
        config=${{config%/config.yaml}}
        [[ -f $config/config.yaml && $config == "$1"* ]] && printf '%s\\n' "$config"
    done
}}
complete -F {words.function} {words.program}
"""


def _case(keys: Sequence[str], action: str) -> str:
    return f"    {'|'.join(keys)}) {action} ;;" if keys else ""
