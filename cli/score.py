"""``seqgen-score``: score text with sacreBLEU, or score references by their log-probability under a model."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqgen.checkpoints.loading import load_models
from seqgen.cli.command import log, run, set_up_device
from seqgen.cli.output import check_output, open_output
from seqgen.config import CommonConfig, ReadingConfig, option
from seqgen.data.text import read_lines
from seqgen.errors import ConfigError, DataError
from seqgen.metrics import text_scores
from seqgen.text.translator import Translator

DESCRIPTION = """scores hypothesis=FILE against reference=FILE with sacreBLEU. With path=RUN, source=FILE and
reference=FILE it writes the log-probability of each reference line under the model or ensemble."""

OF_TEXT = ("lowercase", "tokenize")
"""Keys that have an effect only when text is scored."""

OF_MODELS = ("source", "output", "reading", "generation")
"""Keys that have an effect only when models score the references."""


@dataclass
class ScoringConfig:
    """How models score the references."""

    unnormalized: bool = option(False, "report sums of log-probabilities instead of means")
    ensemble_average: str = option(
        "probability", "average the members' probabilities or log-probabilities", choices=("probability", "log")
    )
    ensemble_weights: list[float] = option([], "weight of each ensemble member; empty for equal weights", minimum=0)
    batch_size: int = option(64, "sentences per batch", minimum=1)


@dataclass
class ScoreConfig:
    """The configuration of ``seqgen-score``."""

    hypothesis: str = option("", "text file to score, one sentence per line")
    reference: str = option("", "text file with the references, one per line")
    lowercase: bool = option(False, "ignore case")
    tokenize: str = option("13a", "sacreBLEU's tokenizer", choices=("13a", "intl", "char", "none", "zh"))
    path: list[str] = option(
        [], "run folder or checkpoint of the model that scores the references; several for an ensemble"
    )
    source: str = option("", "text file with the sources of the references")
    output: str = option("-", "output file for the log-probabilities, one JSON object per line; - for standard output")
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: CommonConfig = dataclasses.field(default_factory=CommonConfig)
    generation: ScoringConfig = dataclasses.field(default_factory=ScoringConfig)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(ScoreConfig, score, DESCRIPTION, argv)


def score(cfg: ScoreConfig) -> int:
    """Score text or references, and print the result.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.

    Raises:
        UserError: a key, model or file cannot be used.
    """
    if not cfg.reference:
        raise ConfigError("reference is missing: give reference=FILE")
    if bool(cfg.hypothesis) == bool(cfg.path):
        raise ConfigError(
            "give either hypothesis=FILE (to score text) or path=RUN and source=FILE (to score by a model)"
        )
    _check_keys(cfg)
    if cfg.path:
        return _score_by_model(cfg)
    hypotheses, references = _parallel(cfg.hypothesis, cfg.reference)
    if not hypotheses:
        return 0
    for name, value in text_scores(hypotheses, references, cfg.lowercase, cfg.tokenize).items():
        print(f"{name} = {value.value:.2f}{f'  ({value.signature})' if value.signature else ''}")
    return 0


def _score_by_model(cfg: ScoreConfig) -> int:
    if not cfg.source:
        raise ConfigError("source is missing: give source=FILE, the text with the sources of the references")
    check_output("output", cfg.output, cfg.source, cfg.reference)
    sources, references = _parallel(cfg.source, cfg.reference)
    device = set_up_device(cfg.common)
    loaded = load_models(cfg.path, device, cfg.reading)
    for note in (note for item in loaded for note in item.notes):
        log(note)
    translator = Translator(loaded, **dataclasses.asdict(cfg.generation))
    total, tokens = 0.0, 0
    with open_output(cfg.output) as file:
        for number, hypothesis in enumerate(translator.score(sources, references)):
            record = {
                "id": number,
                "score": hypothesis.score,
                "tokens": hypothesis.tokens.tolist(),
                "positional_scores": hypothesis.positional_scores.tolist(),
            }
            file.write(json.dumps(record) + "\n")
            total += float(hypothesis.positional_scores.sum())
            tokens += len(hypothesis.tokens)
    stream = sys.stderr if cfg.output == "-" else sys.stdout
    mean = f": {total / tokens:.4f} nats per token" if tokens else ""
    print(f"{len(sources)} sentences, {tokens} tokens{mean}", file=stream)
    return 0


def _check_keys(cfg: ScoreConfig) -> None:
    """Refuse keys that have no effect on the chosen way of scoring."""
    neutral = ScoreConfig()
    for key in OF_TEXT if cfg.path else OF_MODELS:
        if getattr(cfg, key) != getattr(neutral, key):
            given, other = ("path", "hypothesis") if cfg.path else ("hypothesis", "path")
            raise ConfigError(f"{key} is for scoring with {other}= and has no effect with {given}=; remove it")


def _parallel(first: str, second: str) -> tuple[list[str], list[str]]:
    left, right = (list(read_lines(Path(path), pipes=True)) for path in (first, second))
    if len(left) != len(right):
        raise DataError(
            f"{first} has {len(left)} lines but {second} has {len(right)}; line n of one must belong to line n of the "
            "other"
        )
    if not left:
        log(f"{first} and {second} have no lines; there is nothing to score")
    return left, right


if __name__ == "__main__":
    main()
