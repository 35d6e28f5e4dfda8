"""``seqgen-tune``: find the values of decoding keys that score best on a validation set."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from typing import Any

from seqgen.addons.tuning.trials import Setting, Trial, arguments_of, score_settings
from seqgen.checkpoints.loading import split_path
from seqgen.cli.command import Arguments, log, run, set_up_device
from seqgen.cli.generate import checked_input, prefix_lines
from seqgen.cli.line_decoding import load_noted, settings_of_part
from seqgen.cli.output import write_report
from seqgen.cli.referenced_text import ReferencedTextConfig, check_text, lines_with_references
from seqgen.config.compose import compose_given
from seqgen.config.keys import did_you_mean, known_keys
from seqgen.config.values import split_argument
from seqgen.core.errors import ConfigError, nearest
from seqgen.metrics import Texts, TextScore, corpus_scores
from seqgen.registry import DECODING_COMPONENTS
from seqgen.text.translator import Translator

DESCRIPTION = """decodes a validation set with several values of decoding keys, and prints which ones score best.
tune.KEY=VALUES gives the values of a key; it may be given for several keys, whose combinations are all decoded, and
KEY=VALUE sets any other key for all decodes. VALUES is A,B,C or FIRST:LAST:STEP; for a list (combination.weights)
[A,B],[C,D], or simplex:N for all lists of multiples of 1/N that sum to 1, with an element for each model."""

PREFIX = "tune"
TUNABLE = ("generation", *DECODING_COMPONENTS)
"""The groups whose keys can be tuned."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""

    def work(cfg: ReferencedTextConfig, typed: Arguments) -> None:
        tune(cfg, typed)

    run(ReferencedTextConfig, work, DESCRIPTION, argv, pass_arguments=True, prefixes=[PREFIX])


def tune(cfg: ReferencedTextConfig, typed: Arguments) -> None:
    """Decode the validation set with all combinations of the values, and print the scores and the best setting.

    Args:
        cfg: the configuration that all decodes share.
        typed: its arguments, and those that give the values: ``tune.KEY=VALUES``.

    Raises:
        UserError: a key, model or file cannot be used, or memory runs out.
    """
    shared, pairs = typed.overrides, list(map(split_argument, typed.prefixed[PREFIX]))
    _check_keys(cfg, [key for key, _ in pairs])
    models = sum(len(split_path(path)) for path in cfg.path)
    space = [arguments_of(*pair, models) for pair in pairs]
    # wrong types and ranges are refused before models are loaded
    values = {each: _given(ReferencedTextConfig, shared, each) for each in itertools.chain(*space)}
    references, _ = checked_input(cfg)
    loaded = load_noted(cfg, set_up_device(cfg.common))
    task = loaded[0].task
    lines, references = lines_with_references(cfg, task, references)
    prefixes = prefix_lines(cfg)
    # the last one is the setting to compare the others with
    settings: list[Setting] = [*itertools.product(*space), ()]
    log(f"{len(settings) - 1} settings, and the one without tuned keys")

    def metric(outputs: Sequence[str]) -> TextScore:
        return corpus_scores([cfg.metric], Texts(outputs, references))[cfg.metric]

    translator = Translator(loaded, settings=settings_of_part(cfg.dataset, task), dtype=cfg.generation.dtype)
    merged = ((one, typed.given | dict(values[each] for each in one)) for one in settings)
    trials = score_settings(translator, merged, lines, None if prefixes is None else list(prefixes), metric)
    _report(cfg, shared, trials)


def _given(schema: type, shared: Sequence[str], argument: str) -> tuple[str, Any]:
    """The key and the value of an argument that is given besides others."""
    key, _ = split_argument(argument)
    return key, compose_given(schema, [*shared, argument])[1][key]


def _check_keys(cfg: ReferencedTextConfig, keys: Sequence[str]) -> None:
    """Check before the models are loaded that no key is missing, misspelt or without effect."""
    check_text(cfg)
    if not keys:
        raise ConfigError("there is nothing to tune: set tune.KEY=VALUES, such as tune.generation.lenpen=0.6,1,1.4")
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
    best = trials[0]
    left_out = {"dataset.gen_subset", *(split_argument(argument)[0] for argument in best.setting)}
    given = [(split_argument(item)[0], item) for item in shared]
    kept = [item for key, item in given if "." in key and key not in left_out]  # the keys of groups are about decoding
    models = f"path=[{','.join(cfg.path)}]" if len(cfg.path) > 1 else f"path={cfg.path[0]}"
    text = [f"{cfg.metric:>12}  setting", *(f"{trial.score.value:>12.2f}  {trial.name}" for trial in trials)]
    text.append(f"best:   {best.name}" + (f"  ({best.score.signature})" if best.score.signature else ""))
    text.append(f"decode: {shlex.join(['seqgen-generate', models, 'input=FILE', *kept, *best.setting])}")
    scored = [{"setting": dict(map(split_argument, one.setting)), "score": one.score.value} for one in trials]
    write_report("\n".join(text), {"metric": cfg.metric, "trials": scored}, cfg.json)
