"""``--completion bash``: a script that lets bash complete a command's keys, values, presets and runs.

The script contains all keys and values, so that a completion does not start Python. The keys of your components
are in it if ``--completion`` is given with ``common.user_dir``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from seqgen.cli.keys import CONFIG_KEY, choosers, every_key, is_switch
from seqgen.errors import ConfigError

RUNS = ("path", "other", "runs", "run_dir", "checkpoint.finetune_from", "generation.draft")
"""Keys whose values are completed as run folders first."""
WORDS = {"seqgen-diff": "runs", "seqgen-show": "path"}
"""By command, the key whose values can also be given as words without ``KEY=``."""


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
    keys = {key.name: key for key in every_key(schema)}
    names = choosers(schema)
    values = {name: found for name, found in _suggestions().items() if name in keys}
    for name, key in keys.items():
        choices = key.field.metadata.get("choices")
        if choices or is_switch(key.annotation):
            values[name] = [choice for choice in choices or ("true", "false") if choice]
    values |= {one.name: one.names() for one in names}
    words = sorted({CONFIG_KEY, *keys, *(one.name for one in names)})
    topics = sorted({"all", *words, *(word.partition(".")[0] for word in words)})
    paths = sorted({CONFIG_KEY, *(key.name for key in keys.values() if key.role)})
    function = "_" + re.sub(r"\W", "_", program)
    cases = "\n".join(f"        {key}) words={shlex.quote(' '.join(items))} ;;" for key, items in values.items())
    files = 'compgen -f -- "$tail")); compopt -o filenames'
    others = f'$({function}_runs "$word"; compgen -f -- "$word")' if program in WORDS else ""
    return f"""# bash completion of {program}; to install it:
#   {program} --completion bash > ~/.local/share/bash-completion/completions/{program}
{function}() {{
    local line=${{COMP_LINE:0:COMP_POINT}} word before key value head tail words
    word=${{line##*[[:space:]]}}
    before=${{line%"$word"}}
    COMPREPLY=()
    case $word in
    -*) COMPREPLY=($(compgen -W '--help --completion --version' -- "$word")); return ;;
    *=*) ;;
    *)
        case $before in
        *--completion[[:space:]]) words="bash" ;;
        *--help[[:space:]]) words={shlex.quote(" ".join(topics))} ;;
        *)
            words={shlex.quote(" ".join(f"{word}=" for word in words))}
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
{_case((key for key in paths if key in RUNS), f'COMPREPLY=($({function}_runs "$tail"; {files}')}
{_case((key for key in paths if key not in RUNS), f"COMPREPLY=($({files}")}
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
{function}_runs() {{
    local config
    for config in "$1"*/config.yaml "$1"*/*/config.yaml runs/*/config.yaml; do
        config=${{config%/config.yaml}}
        [[ -f $config/config.yaml && $config == "$1"* ]] && printf '%s\\n' "$config"
    done
}}
complete -F {function} {program}
"""


def _suggestions() -> dict[str, list[str]]:
    """Values of keys that also have others."""
    from seqgen.lab.compare.table import sort_names
    from seqgen.metrics import CORPUS_METRICS

    return {"metrics": list(CORPUS_METRICS), "sort": sort_names()}


def _case(keys: Iterable[str], action: str) -> str:
    pattern = "|".join(keys)
    return f"    {pattern}) {action} ;;" if pattern else ""
