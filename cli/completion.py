"""``--completion SHELL``: a script that lets bash, zsh or fish complete a command's keys, values, presets and runs.

The script contains all keys and values, so that a completion does not start Python. The keys of your own components
are in it if ``--completion`` is given with ``common.user_dir``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seqgen.cli.keys import CONFIG_KEY, Key, choosers, every_key, is_switch
from seqgen.errors import ConfigError, nearest

RUNS = ("path", "other", "runs", "run_dir", "checkpoint.finetune_from", "generation.draft")
"""Keys whose values are completed as run folders first."""
WORDS = {"seqgen-diff": "runs", "seqgen-show": "path"}
"""By command, the key whose values can also be given as words without ``KEY=``."""
OPTIONS = {
    "--help": "show the common keys, all of them, or explain a group or key",
    "--completion": "print a script for completion: bash, zsh or fish",
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
        shell: ``bash``, ``zsh`` or ``fish``.

    Returns:
        The script.

    Raises:
        ConfigError: there is no script for this shell.
    """
    if shell not in SHELLS:
        raise ConfigError(f"--completion {shell}: give one of: {', '.join(SHELLS)}{nearest(shell, SHELLS)}")
    return SHELLS[shell](_words(schema, program))


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
        *--completion[[:space:]]) words="bash zsh fish" ;;
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


def _zsh(words: Words) -> str:
    files = "\n        _files" if words.program in WORDS else ""
    options = "\n".join(f"        {shlex.quote(f'{name}:{text}')}" for name, text in OPTIONS.items())
    keys = "\n".join(f"        {shlex.quote(f'{key}=:{_colons(text)}')}" for key, text in words.keys.items())
    cases = "\n".join(
        f"        {key}) compadd -- {' '.join(map(shlex.quote, items))} ;;" for key, items in words.values.items()
    )
    paths = _case(words.paths, "_files").replace("    ", "        ", 1)
    return f"""#compdef {words.program}
# zsh completion of {words.program}; to install it, write it to a folder of $fpath:
#   {words.program} --completion zsh > FOLDER/_{words.program}
{words.function}() {{
    local -a keys options
    keys=(
{keys}
    )
    options=(
{options}
    )
    if [[ $words[CURRENT] == *=* ]]; then
        local key=${{words[CURRENT]%%=*}}
        compset -P '*[=\\[,]'
        case $key in
{paths}
{cases}
        esac
    elif [[ $words[CURRENT-1] == --completion ]]; then
        compadd bash zsh fish
    elif [[ $words[CURRENT-1] == --help ]]; then
        compadd -- {" ".join(map(shlex.quote, words.topics))}
    elif [[ $words[CURRENT] == -* ]]; then
        _describe option options
    else
        _describe key keys -S ''{files}
    fi
}}
if [[ $funcstack[1] == {words.function} ]]; then
    {words.function} "$@"
else
    compdef {words.function} {words.program}
fi
"""


def _fish(words: Words) -> str:
    others = "\n        __fish_complete_path $word" if words.program in WORDS else ""
    cases = "\n".join(
        f"        case {key}\n            printf '%s\\n' {key}={{{','.join(map(_fish_quoted, items))}}}"
        for key, items in words.values.items()
        if len(items) > 1
    )
    keys = " \\\n".join(f"            {_fish_quoted(f'{k}=')} {_fish_quoted(text)}" for k, text in words.keys.items())
    options = "\n".join(
        f"complete -c {words.program} -l {name.removeprefix('--')} -d {_fish_quoted(text)}"
        for name, text in OPTIONS.items()
        if name != "--completion"
    )
    return f"""# fish completion of {words.program}; to install it:
#   {words.program} --completion fish > ~/.config/fish/completions/{words.program}.fish
function {words.function}
    set -l word (commandline -ct)
    if not string match -q '*=*' -- $word
        printf '%s\\t%s\\n' \\
{keys}{others}
        return
    end
    set -l key (string split -m 1 = -- $word)[1]
    set -l value (string split -m 1 = -- $word)[2]
    switch $key
        case {" ".join(words.paths)}
            set -l head (string match -r '^.*[\\[,]' -- $value)
            set -l tail (string replace -r '^.*[\\[,]' '' -- $value)
            for file in (__fish_complete_path $tail)
                echo "$key=$head$file"
            end
{cases}
    end
end
complete -c {words.program} -f -a '({words.function})'
complete -c {words.program} -l completion -x -a 'bash zsh fish' -d {_fish_quoted(OPTIONS["--completion"])}
{options}
"""


def _colons(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:")


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: dict[str, Callable[[Words], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
"""The function that writes the script, by shell."""
