"""``seqgen-calibrate``: fit or examine the probability that an output is good enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy

from seqgen.addons.confidence.calibration import (
    Calibration,
    Measured,
    calibrated_settings,
    fit_calibration,
    measure_quality,
    split_into_halves,
    weights_fingerprint,
)
from seqgen.addons.confidence.report import PICTURES, ConfidenceReport
from seqgen.config import INPUT, keys_tagged, option
from seqgen.extend import (
    Arguments,
    ConfigError,
    DataError,
    Matrix,
    ReferencedTextConfig,
    Resources,
    check_output,
    log,
    read_referenced_text,
    run,
    utility_from_config,
    write_report,
)

DESCRIPTION = """decodes a text that has references, and fits the probability that an output is good enough, for
seqgen-generate generation.confidence=FILE. With generation.confidence=FILE, it reports how good this calibration is for
the text."""

FEATURES = ["mean_lprob", "min_lprob", "sum_lprob", "nbest_entropy", "nbest_similarity", "source_length"]
FEATURES += ["length_ratio", "unknown_tokens", "copied_words"]

HARDLY = 1.5
"""References that belong to the outputs are more similar to them than to outputs of other lines by this factor."""


@dataclass
class CalibrateConfig(ReferencedTextConfig):
    """The configuration of ``seqgen-calibrate``."""

    output: str = option("", "calibration to write (.json)", role="output_path")
    metric: str = option("chrf", "name of the utility that measures the quality of an output")
    quality: float | None = option(
        None, "lowest quality that is good enough; null for the one that all but the worst quarter of the lines reach"
    )
    picture: str = option("", "file for the curve of the risk of unread lines (.svg, .png, .pdf)", role="output_path")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""

    def work(cfg: CalibrateConfig, typed: Arguments) -> None:
        calibrate(cfg, typed.given)

    run(CalibrateConfig, work, DESCRIPTION, argv, pass_arguments=True)


def calibrate(cfg: CalibrateConfig, given: Mapping[str, Any]) -> None:
    """Decode the text, write the calibration, and print the figures for the lines that were held out.

    Args:
        cfg: the whole configuration.
        given: the settings that the user gave, by whole key.

    Raises:
        UserError: a key, model or file cannot be used, or memory runs out.
    """
    _check_keys(cfg)
    text = read_referenced_text(cfg)
    translator = text.translator(given)
    names = list(dict.fromkeys(cfg.generation.quality_features)) or FEATURES
    decoding = translator.prepare(quality_features=list(dict.fromkeys([*names, "mean_lprob", "source_length"])))
    for note in decoding.notes:
        log(note)
    target = translator.task.target_tokenizer
    resources = Resources(target.dictionary, target.encode, target.decode)
    utility = utility_from_config(replace(decoding.cfg, mbr=cfg.metric), resources)
    log(f"decoding {len(text.lines)} lines ...")
    found = measure_quality(decoding.translate(text.lines, text.prefixes), text.references, utility)
    if not found.translations:
        raise DataError("no line of the text has an output; give another text")
    mean, of_inputs, of_others = numpy.column_stack([found.qualities, found.unrelated]).mean(0).tolist()
    if mean <= max(of_inputs, HARDLY * of_others):
        log(
            "the references look wrong (another language, or other lines), or the outputs are poor: the references' "
            f"mean {cfg.metric} is {mean:.1f} with the outputs, {of_inputs:.1f} with the inputs, and {of_others:.1f} "
            "with outputs of other lines"
        )
    if not cfg.generation.confidence:
        values = numpy.array([[one.features[name] for name in names] for one in found.translations])
        facts = {"model": weights_fingerprint(translator.models), "settings": calibrated_settings(decoding.cfg)}
        made = fit_calibration(values, found.qualities, cfg.quality, metric=cfg.metric, features=names, **facts)
        made.save(Path(cfg.output))
        rows = split_into_halves(len(values))[1]
        rest = Measured([found.translations[row] for row in rows], found.qualities[rows], found.unrelated[rows])
        return _report(cfg, rest, made.probabilities(values[rows]), made.quality)
    made = Calibration.load(Path(cfg.generation.confidence))
    if made.metric != cfg.metric:
        raise ConfigError(f"the calibration was made with metric={made.metric}, not {cfg.metric}; set the same metric")
    _report(cfg, found, numpy.array([one.confidence for one in found.translations]), made.quality)


def _check_keys(cfg: CalibrateConfig) -> None:
    """Check before the models are loaded that no key is missing or without effect."""
    cfg.check()
    for package in ("sklearn", "matplotlib"):
        if find_spec(package) is None:
            raise ConfigError("seqgen-calibrate needs two packages: pip install scikit-learn matplotlib")
    if bool(cfg.output) == bool(cfg.generation.confidence):
        raise ConfigError(
            "set either output=FILE.json, to make a calibration, or generation.confidence=FILE, to examine one"
        )
    if cfg.generation.confidence and cfg.quality is not None:
        raise ConfigError("quality has no effect with generation.confidence, whose file contains it; remove the key")
    if cfg.generation.confidence and cfg.generation.quality_features:
        raise ConfigError(
            "generation.quality_features has no effect with generation.confidence, whose file contains it; remove it"
        )
    for key in keys_tagged(INPUT):
        if getattr(cfg.generation, key):
            raise ConfigError(
                f"a calibration is made from whole lines, without generation.{key}; remove the key (the calibration "
                "also applies to the sentences of lines that are split later)"
            )
    files = (cfg.input, cfg.reference, cfg.prefix, cfg.generation.confidence)
    if cfg.output:
        check_output("output", cfg.output, *files, other_outputs=[cfg.json])
    if cfg.picture:
        if Path(cfg.picture).suffix not in PICTURES:
            raise ConfigError(f"picture={cfg.picture} must end in {', '.join(PICTURES)}; give another name")
        check_output("picture", cfg.picture, *files, other_outputs=[cfg.json, cfg.output])


def _report(cfg: CalibrateConfig, found: Measured, confidences: Matrix, quality: float) -> None:
    """Print the figures for some lines, and draw the curve."""
    scores = {"confidence": confidences}
    for name, feature in (("mean_lprob", "mean_lprob"), ("length", "source_length")):
        scores[name] = numpy.array([one.features[feature] for one in found.translations])
    marks = [one.review for one in found.translations]
    marked = None if None in marks or not marks else numpy.array(marks, dtype=float)
    report = ConfidenceReport(scores, found.qualities, quality, marked)
    write_report(report.text(), report.figures(), cfg.json)
    if cfg.picture:
        report.draw(Path(cfg.picture))


if __name__ == "__main__":
    main()
