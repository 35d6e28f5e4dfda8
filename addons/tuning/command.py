"""``seqgen-tune``: find the values of decoding keys that score best on a validation set."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Sequence
from decimal import Decimal
from typing import TypeAlias

from seqgen.config import ResolvedSettings, did_you_mean, known_keys
from seqgen.extend import (
    DECODING_COMPONENTS,
    Arguments,
    ConfigError,
    ReferencedTextConfig,
    Texts,
    TextScore,
    compose_given,
    corpus_scores,
    log,
    nearest,
    read_referenced_text,
    run,
    split_argument,
    split_path,
    write_report,
)

DESCRIPTION = """decodes a validation set with several values of decoding keys, and prints which ones score best.
tune.KEY=VALUES gives the values of a key; it may be given for several keys, whose combinations are all decoded, and
KEY=VALUE sets any other key for all decodes. VALUES is A,B,C or FIRST:LAST:STEP; for a list (combination.weights)
[A,B],[C,D], or simplex:N for all lists of multiples of 1/N that sum to 1, with an element for each model."""

PREFIX = "tune"
Trial: TypeAlias = tuple[tuple[str, ...], TextScore]
"""A setting, the ``key=value`` arguments of the tuned keys or none, and the score of its outputs."""
TUNABLE = ("generation", *DECODING_COMPONENTS)
"""The groups whose keys can be tuned."""

NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
"""A number in a range."""

MAX_VALUES = 10_000
"""Maximum number of values of one key."""

MAX_LISTS = 10_000
"""Maximum number of lists that ``simplex:N`` stands for."""


def _name(setting: Sequence[str]) -> str:
    return " ".join(setting) or "(no tuned key)"


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(ReferencedTextConfig, tune, DESCRIPTION, argv, pass_arguments=True, prefixes=[PREFIX])


def tune(cfg: ReferencedTextConfig, arguments: Arguments) -> None:
    """Decode the validation set with all combinations of the values, and print the scores and the best setting.

    Settings with the same effect are decoded once. Those whose values exclude each other are left out.

    Args:
        cfg: the configuration that all decodes share.
        arguments: its arguments, and ``tune.KEY=VALUES``.

    Raises:
        UserError: a key, model or file cannot be used, a line cannot be decoded, or memory runs out.
    """
    shared, pairs = arguments.overrides, list(map(split_argument, arguments.prefixed[PREFIX]))
    _check_keys(cfg, [key for key, _ in pairs])
    models = sum(len(split_path(path)) for path in cfg.path)
    space = [arguments_of(*pair, models) for pair in pairs]
    # wrong types and ranges are refused before models are loaded
    values = {each: compose_given(ReferencedTextConfig, [*shared, each])[1] for each in itertools.chain(*space)}
    text = read_referenced_text(cfg)
    # the last one is the setting to compare the others with
    settings: list[tuple[str, ...]] = [*itertools.product(*space), ()]
    log(f"{len(settings) - 1} settings, and the one without tuned keys")
    translator = text.translator({"generation.dtype": cfg.generation.dtype})
    trials, refusal = dict[ResolvedSettings, Trial](), ""
    for setting in settings:
        tuned = [split_argument(each)[0] for each in setting]
        keys = arguments.given | {key: values[each][key] for key, each in zip(tuned, setting, strict=True)}
        try:
            resolved = translator.resolve(keys)
            if resolved in trials:
                continue
            outputs = [found.text for found in translator.prepare(**keys).translate(text.lines, text.prefixes)]
        except ConfigError as error:
            refusal = str(error)
            log(f"left out: {_name(setting)}: {refusal}")
            continue
        score = corpus_scores([cfg.metric], Texts(outputs, text.references))[cfg.metric]
        trials[resolved] = setting, score
        log(f"[{len(trials)}] {_name(setting)}: {score.value:.2f}")
    if refusal and not any(setting for setting, _ in trials.values()):
        raise ConfigError(f"none of the settings can be decoded: {refusal}")
    _report(cfg, shared, sorted(trials.values(), key=lambda trial: -trial[1].value))


def arguments_of(key: str, text: str, models: int) -> list[str]:
    """The ``key=value`` arguments of a tuned key.

    Args:
        key: the key, such as ``generation.length_penalty``.
        text: its values: ``A,B,C``, ``FIRST:LAST:STEP`` (both included), ``[A,B],[C,D]`` or ``simplex:N``.
        models: number of models, and of the elements of each list of ``simplex:N``.

    Raises:
        ConfigError: the values cannot be read, or there are too many.
    """
    if text.startswith("simplex"):
        values = _simplex(key, text, models)
    else:
        values = [value.replace(" ", "") for value in _values(f"tune.{key}", text)]
    return [f"{key}={value}" for value in dict.fromkeys(values)]


def _values(key: str, text: str) -> list[str]:
    """The values that ``A,B,C``, ``FIRST:LAST:STEP`` (both included) or ``[A,B],[C,D]`` stand for, as they are typed.

    Args:
        key: the key, for messages.
        text: what the user typed.

    Raises:
        ConfigError: a range cannot be read, or has more than ``MAX_VALUES`` values.
    """
    if text.startswith("["):
        lists = re.findall(r"\[[^\[\]]*\]", text)
        return lists if ",".join(lists) == text else [text]
    parts = ([part.strip()] if ":" not in part else _range(key, part) for part in text.split(","))
    return list(itertools.chain.from_iterable(parts))


def _range(key: str, text: str) -> list[str]:
    """The numbers of ``FIRST:LAST:STEP``: ``0:1:0.5`` gives 0, 0.5 and 1."""
    parts = [part.strip() for part in text.split(":")]
    numbers = [Decimal(part) for part in parts if NUMBER.fullmatch(part)]
    if not len(numbers) == len(parts) == 3 or numbers[2] <= 0 or numbers[1] < numbers[0]:
        raise ConfigError(f"{key}={text}: a range is FIRST:LAST:STEP with a step above 0 and FIRST below LAST")
    first, last, step = numbers
    if (count := int((last - first) / step) + 1) > MAX_VALUES:
        raise ConfigError(f"{key}={text} has {count} values, but the maximum is {MAX_VALUES}; choose larger steps")
    return [f"{(first + index * step).normalize():f}" for index in range(count)]


def _simplex(key: str, text: str, size: int) -> list[str]:
    """All lists of multiples of 1/N that sum to 1; ``simplex:2`` of two elements: [0,1], [0.5,0.5], [1,0]."""
    found = re.fullmatch(r"simplex:([1-9]\d{0,3})", text)
    steps = int(found[1]) if found else 0
    if not steps or math.comb(steps + size - 1, size - 1) > MAX_LISTS:
        raise ConfigError(
            f"tune.{key}={text}: give simplex:N, for the lists of multiples of 1/N that sum to 1, with an N above 0 "
            f"and at most {MAX_LISTS} lists"
        )
    shares = itertools.product(range(steps + 1), repeat=size - 1)
    lists = [(*each, steps - sum(each)) for each in shares if sum(each) <= steps]
    return [f"[{','.join(f'{share / steps:.12g}' for share in each)}]" for each in lists]


def _check_keys(cfg: ReferencedTextConfig, keys: Sequence[str]) -> None:
    """Check before the models are loaded that no key is missing, misspelt or without effect."""
    cfg.check()
    if not keys:
        raise ConfigError(
            "there is nothing to tune: set tune.KEY=VALUES, such as tune.generation.length_penalty=0.6,1,1.4"
        )
    for index, key in enumerate(keys):
        group = key.partition(".")[0]
        if key in keys[:index]:
            raise ConfigError(f"tune.{key} is given twice; give all its values at once")
        if group not in TUNABLE or "." not in key:
            known = {f"{PREFIX}.{name}": () for name, _, _ in known_keys(cfg) if name.startswith("generation.")}
            raise ConfigError(
                f"tune.{key}: only keys of these groups can be tuned: {', '.join(TUNABLE)}"
                f"{nearest(group, TUNABLE) or did_you_mean(f'{PREFIX}.{key}', known)}"
            )


def _report(cfg: ReferencedTextConfig, shared: Sequence[str], trials: Sequence[Trial]) -> None:
    """Print the table and the best setting, and write the JSON form."""
    best, score = trials[0]
    left_out = {"dataset.gen_subset", *(split_argument(argument)[0] for argument in best)}
    given = [(split_argument(item)[0], item) for item in shared]
    kept = [item for key, item in given if "." in key and key not in left_out]  # the keys of groups are about decoding
    models = f"path=[{','.join(cfg.path)}]" if len(cfg.path) > 1 else f"path={cfg.path[0]}"
    text = [f"{cfg.metric:>12}  setting", *(f"{found.value:>12.2f}  {_name(setting)}" for setting, found in trials)]
    text.append(f"best:   {_name(best)}" + (f"  ({score.signature})" if score.signature else ""))
    text.append(f"decode: {shlex.join(['seqgen-generate', models, 'input=FILE', *kept, *best])}")
    scored = [{"setting": dict(map(split_argument, setting)), "score": found.value} for setting, found in trials]
    write_report("\n".join(text), {"metric": cfg.metric, "trials": scored}, cfg.json)
