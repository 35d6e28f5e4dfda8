"""``seqgen-score``: score text with sacreBLEU, or score references by their log-probability under a model."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqgen.checkpoints.loading import load_models
from seqgen.cli.command import log, run, set_up_device
from seqgen.cli.output import check_output, open_output
from seqgen.config import DecodingCommonConfig, ReadingConfig, option
from seqgen.data.text import read_lines
from seqgen.errors import ConfigError, DataError
from seqgen.language_model import LanguageModel
from seqgen.metrics import text_scores
from seqgen.structures import Hypothesis
from seqgen.text.translator import Translator

DESCRIPTION = """scores hypothesis=FILE against reference=FILE with sacreBLEU. With path=RUN, source=FILE and
reference=FILE it writes the log-probability of each reference line under the model or ensemble; a language model
needs no source."""

OF_TEXT = ("lowercase", "tokenize")
"""Keys that have an effect only when text is scored."""

OF_MODELS = ("source", "output", "tokens_per_sample", "context_window", "reading", "generation")
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
    source_lang: str = option(
        "", "multilingual models: language of the sources, or fieldN for the code in field N of a line with tabs"
    )
    target_lang: str = option(
        "", "multilingual models: language of the references, or fieldN for the code in field N of a source line"
    )


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
    source: str = option("", "text file with the sources of the references; empty for the text of a language model")
    tokens_per_sample: int = option(
        0,
        "language models: score the lines as one text, in blocks of so many tokens; 0 scores each line alone",
        minimum=0,
    )
    context_window: int = option(
        0, "language models: tokens of each block that are context, seen but scored in the block before", minimum=0
    )
    output: str = option("-", "output file for the log-probabilities, one JSON object per line; - for standard output")
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: DecodingCommonConfig = dataclasses.field(default_factory=DecodingCommonConfig)
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
            "give either hypothesis=FILE (to score text) or path=RUN and source=FILE (to score by a model; a language "
            "model needs no source)"
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
    check_output("output", cfg.output, cfg.source, cfg.reference)
    if cfg.source and (cfg.tokens_per_sample or cfg.context_window):
        raise ConfigError("tokens_per_sample and context_window are for text without sources; remove them, or source")
    sources, references = _parallel(cfg.source or cfg.reference, cfg.reference)
    device = set_up_device(cfg.common)
    loaded = load_models(cfg.path, device, cfg.reading, device_map=cfg.common.device_map)
    for note in (note for item in loaded for note in item.notes):
        log(note)
    settings = dataclasses.asdict(cfg.generation)
    if cfg.generation.ensemble_average == ScoringConfig().ensemble_average:
        del settings["ensemble_average"]  # the default must not be refused as the user's choice
    translator = Translator(loaded, **settings)
    if cfg.source:
        scored = translator.score(sources, references)
    elif all(isinstance(item.model, LanguageModel) for item in loaded):
        keys = {"tokens_per_sample": cfg.tokens_per_sample, "context_window": cfg.context_window}
        scored = translator.score_text(references, **keys)
    else:
        raise ConfigError("source is missing: give source=FILE, the text with the sources of the references")
    totals = Totals()
    with open_output(cfg.output) as file:
        for number, hypothesis in enumerate(scored):
            record = {
                "id": number,
                "score": hypothesis.score,
                "perplexity": totals.add(hypothesis, references[number]),
                "tokens": hypothesis.tokens.tolist(),
                "positional_scores": hypothesis.positional_scores.tolist(),
            }
            file.write(json.dumps(record) + "\n")
    print(totals.summary(), file=sys.stderr if cfg.output == "-" else sys.stdout)
    return 0


@dataclass
class Totals:
    """Sums over lines; a word ends at white space, and the end of a line is a word too, as with fairseq."""

    sentences: int = 0
    tokens: int = 0
    words: int = 0
    nats: float = 0.0

    def add(self, hypothesis: Hypothesis, text: str) -> float:
        """Add a line, and return its perplexity per token."""
        nats = -float(hypothesis.positional_scores.sum())
        self.sentences += 1
        self.tokens += len(hypothesis.tokens)
        self.words += len(text.split()) + 1
        self.nats += nats
        return _perplexity(nats, len(hypothesis.tokens))

    def summary(self) -> str:
        """The line that the command ends with."""
        counts = f"{self.sentences} sentences, {self.tokens} tokens"
        if not self.tokens:
            return counts
        mean = self.nats / self.tokens
        return (
            f"{counts}: {-mean:.4f} nats per token (cross-entropy {mean / math.log(2):.4f} bits), perplexity "
            f"{_perplexity(self.nats, self.tokens):.2f} per token and {_perplexity(self.nats, self.words):.2f} per word"
        )


def _perplexity(nats: float, count: int) -> float:
    return math.exp(min(nats / count, 700.0))  # above, a float overflows


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
