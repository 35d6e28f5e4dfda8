"""``seqgen-score``: score text with sacreBLEU, or score references by their log-probability under a model."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqgen.cli.command import log, run, set_up_device
from seqgen.cli.line_decoding import check_plain_text, load_with_notes, read_input
from seqgen.cli.output import check_output, format_scores, open_output, write_report
from seqgen.config import DecodingCommonConfig, GenerationConfig, ReadingConfig, like, option
from seqgen.config.values import changed, text_list
from seqgen.core.errors import ConfigError, DataError
from seqgen.data.text import read_lines
from seqgen.metrics import CORPUS_METRICS, METRICS, SETTINGS, Texts, corpus_metric, corpus_scores
from seqgen.modules.language_model import LanguageModel
from seqgen.registry import import_declared
from seqgen.system.files import write_atomically
from seqgen.text.output_formats import json_text
from seqgen.text.translator import Translator

DESCRIPTION = """scores hypothesis=FILE against reference=FILE with sacreBLEU. With hypothesis=[A,B,C] it compares
systems: scores with confidence intervals, and paired tests against the first one. With path=RUN, source=FILE and
reference=FILE it writes the log-probability of each reference line under the model or ensemble; a language model
needs no source."""

OF_TEXT = ("lowercase", "tokenize", "metrics", "json", "page", "compare")
"""Keys that have an effect only when text is scored."""

OF_COMPARISONS = ["bleu", "chrf", "ter"]
"""The metrics of comparisons, if none are given."""

OF_MODELS = ("output", "tokens_per_sample", "context_window", "reading", "generation")
"""Keys that have an effect only when models score the references."""


@dataclass
class ScoringConfig:
    """Keys of scoring by models."""

    normalize_scores: bool = option(True, "report means of log-probabilities; false for sums")
    combination: str = like(GenerationConfig, "combination")
    components: dict[str, Any] = like(GenerationConfig, "components")
    batch_size: int = option(64, "sentences per batch", minimum=1)
    source_lang: str = like(GenerationConfig, "source_lang")
    target_lang: str = option(
        "", "multilingual models: language of the references, or fieldN for the code in field N of a source line"
    )


@dataclass
class CompareConfig:
    """Keys of comparisons of systems."""

    names: list[str] = option(
        [], "names of the systems, in the order of hypothesis; empty to use the values of hypothesis"
    )
    tests: str = option(
        "both",
        "sacreBLEU's paired tests against the first system; confidence intervals come from the bootstrap",
        choices=("both", "bootstrap", "none"),
    )
    seed: int = option(0, "seed of the tests; 0 for that of SACREBLEU_SEED, or else 12345", minimum=0)
    examples: int = option(10, "number of sentences to show that changed most", minimum=0)


@dataclass
class ScoreConfig:
    """The configuration of ``seqgen-score``."""

    hypothesis: list[str] = option(
        [], "text file to score, one sentence per line; [A,B,C] compares B and C with A", role="input_path"
    )
    reference: list[str] = option(
        [], "text file with the references, one per line; [A,B] for several references", role="input_path"
    )
    lowercase: bool = option(False, "ignore case")
    tokenize: str = option("13a", "sacreBLEU's tokenizer", choices=("13a", "intl", "char", "none", "zh"))
    metrics: list[str] = option(
        [],
        f"metrics of text: {', '.join(CORPUS_METRICS)}; ter is an error rate; empty for "
        f"{', '.join(METRICS)}, and for {', '.join(OF_COMPARISONS)} in comparisons",
    )
    path: list[str] = option(
        [],
        "run folder or checkpoint of the model that scores the references; several for an ensemble",
        role="input_path",
    )
    source: str = option(
        "",
        "text file with the sources of the references, for models that score them, for metrics that read them, and to "
        "show with the sentences that changed most; empty for the text of a language model",
        role="input_path",
    )
    tokens_per_sample: int = option(
        0,
        "language models: score the lines as one text, in blocks of this many tokens; 0 scores each line alone",
        minimum=0,
    )
    context_window: int = option(
        0, "language models: first tokens of a block that are only context; the block before scored them", minimum=0
    )
    output: str = option(
        "-",
        "output file for the log-probabilities, one JSON object per line; - for standard output",
        role="output_path",
    )
    json: str = option(
        "", "file for the comparison as JSON; - for standard output, in place of the table", role="output_path"
    )
    page: str = option("", "HTML file for the comparison, with the scores of all lines", role="output_path")
    compare: CompareConfig = dataclasses.field(default_factory=CompareConfig)
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
        raise ConfigError("reference is missing: set reference=FILE")
    if bool(cfg.hypothesis) == bool(cfg.path):
        raise ConfigError(
            "set either hypothesis=FILE (to score text) or path=RUN and source=FILE (to score by a model; a language "
            "model needs no source)"
        )
    _check_keys(cfg)
    check_plain_text(hypothesis=cfg.hypothesis, reference=cfg.reference, source=[] if cfg.path else [cfg.source])
    if cfg.path:
        return _score_by_model(cfg)
    if compares(cfg):
        return compare_systems(cfg)
    texts, _ = read_texts(cfg)
    if texts.hypotheses:
        for line in format_scores(corpus_scores(cfg.metrics or METRICS, texts), texts.hypotheses):
            print(line)
    return 0


def compares(cfg: ScoreConfig) -> bool:
    """True if systems are compared; a single one that is written as JSON or a page gets intervals too."""
    return bool(len(cfg.hypothesis) > 1 or cfg.json or cfg.page)


def read_texts(cfg: ScoreConfig) -> tuple[Texts, list[list[str]]]:
    """Read all files: the texts of the first system, with references and sources, and the outputs of the others."""
    files = [*cfg.hypothesis, *cfg.reference, *filter(None, [cfg.source])]
    read = parallel_lines(files)
    systems, others = read[: len(cfg.hypothesis)], read[len(cfg.hypothesis) :]
    sources = others.pop() if cfg.source else []
    references, *more = others
    texts = Texts(systems[0], references, sources, cfg.lowercase, cfg.tokenize, more)
    return texts, systems[1:]


def parallel_lines(files: Sequence[str]) -> list[list[str]]:
    """Read text files whose lines belong together.

    Args:
        files: the files.

    Returns:
        The lines of each file.

    Raises:
        DataError: a file cannot be read, or the numbers of lines differ.
    """
    texts = [list(read_lines(Path(file), pipes=True)) for file in files]
    for file, text in zip(files, texts, strict=True):
        if len(text) != len(texts[0]):
            raise DataError(
                f"{files[0]} has {len(texts[0])} lines but {file} has {len(text)}; line n of one must belong to line n "
                "of the other"
            )
    if not texts[0]:
        log(f"{' and '.join(files)} have no lines; there is nothing to score")
    return texts


def system_names(files: Sequence[str], given: Sequence[str] = ()) -> list[str]:
    """Names of systems for reports: those of their files, without folders and endings if they then differ.

    Args:
        files: the files with their outputs.
        given: the names that the user gives, if any.

    Raises:
        ConfigError: a file is given twice, or the names do not fit.
    """
    for number, file in enumerate(files):
        if file in files[:number]:
            raise ConfigError(f"hypothesis names {file} twice; give each system once")
    if given and not len(set(given)) == len(given) == len(files):
        raise ConfigError(f"compare.names={text_list(given)} must be {len(files)} different names, one for each system")
    if given:
        return list(given)
    for names in ([Path(file).stem for file in files], [Path(file).name for file in files]):
        if len(set(names)) == len(names):
            return names
    return list(files)


def compare_systems(cfg: ScoreConfig) -> int:
    """Compare the outputs of systems, and print and write the comparison.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.

    Raises:
        UserError: a key or file cannot be used.
    """
    keys = cfg.compare
    tools = import_declared("seqgen.addons.compare.comparison", "the comparison of several systems")
    files = (*cfg.hypothesis, *cfg.reference, cfg.source)
    if cfg.json:
        check_output("json", cfg.json, *files)
    if cfg.page:
        check_output("page", cfg.page, *files, other_outputs=[cfg.json])
    names = system_names(cfg.hypothesis, keys.names)
    metrics = cfg.metrics or OF_COMPARISONS
    for name in metrics:
        if corpus_metric(name).needs_sources and not cfg.source:
            raise ConfigError(f"metric {name} reads the sources; set source=FILE")
    texts, others = read_texts(cfg)
    if not texts.references:
        return 2  # the user was told that there is nothing to score, so that nothing is written
    tests, outputs = keys.tests, [list(texts.hypotheses), *others]
    systems = [tools.System(*pair) for pair in zip(names, outputs, strict=True)]
    options = tools.Options(metrics, tests != "none", tests == "both", keys.seed, keys.examples)
    comparison = tools.compare(systems, texts, options)
    if cfg.page:
        write_atomically(Path(cfg.page), tools.page_of_systems(comparison))
    write_report(tools.text_report(comparison), comparison.as_dict(), cfg.json)
    return 0


def _score_by_model(cfg: ScoreConfig) -> int:
    if len(cfg.reference) > 1:
        raise ConfigError("a model scores one text of references; set reference=FILE")
    (reference,) = cfg.reference
    check_output("output", cfg.output, cfg.source, reference, in_place=True)
    if cfg.source and (cfg.tokens_per_sample or cfg.context_window):
        raise ConfigError("tokens_per_sample and context_window are for text without sources; remove them, or source")
    _, references = parallel_lines([cfg.source or reference, reference])
    loaded = load_with_notes(cfg, set_up_device(cfg.common))
    settings = dataclasses.asdict(cfg.generation)
    if not cfg.generation.combination:
        del settings["combination"]  # the first model may have one
    translator = Translator(loaded, **settings)
    if cfg.source:
        scored = translator.score([*read_input(cfg.source, translator.task)], references)
    elif all(isinstance(item.model, LanguageModel) for item in loaded):
        keys = {"tokens_per_sample": cfg.tokens_per_sample, "context_window": cfg.context_window}
        scored = translator.score_text(references, **keys)
    else:
        raise ConfigError("source is missing: set source=FILE, the text with the sources of the references")
    total, tokens = 0.0, 0
    with open_output(cfg.output) as file:
        for number, hypothesis in enumerate(scored):
            nats = -float(hypothesis.positional_scores.sum())
            total, tokens = total + nats, tokens + len(hypothesis.tokens)
            record = {
                "id": number,
                "score": hypothesis.score,
                "perplexity": _perplexity(nats, len(hypothesis.tokens)),
                "tokens": hypothesis.tokens.tolist(),
                "positional_scores": hypothesis.positional_scores.tolist(),
            }
            file.write(json_text(record) + "\n")
    words = sum(len(line.split()) + 1 for line in references)  # the end of a line is a word too, as with fairseq
    summary = _summary(total, len(references), tokens, words)
    print(summary, file=sys.stderr if cfg.output == "-" else sys.stdout)
    return 0


def _summary(nats: float, sentences: int, tokens: int, words: int) -> str:
    """The line that the command ends with."""
    counts = f"{sentences} sentences, {tokens} tokens"
    if not tokens:
        return counts
    mean = nats / tokens
    return (
        f"{counts}: {-mean:.4f} nats per token (cross-entropy {mean / math.log(2):.4f} bits), perplexity "
        f"{_perplexity(nats, tokens):.2f} per token and {_perplexity(nats, words):.2f} per word"
    )


def _perplexity(nats: float, count: int) -> float:
    return math.exp(min(nats / count, 700.0))  # above, a float overflows


def _check_keys(cfg: ScoreConfig) -> None:
    """Refuse keys that have no effect on the chosen way of scoring."""
    given = changed(cfg)
    unused = [key for key in given if key in (OF_TEXT if cfg.path else OF_MODELS)]
    if unused:
        this, other = ("path", "hypothesis") if cfg.path else ("hypothesis", "path")
        raise ConfigError(f"{unused[0]} is for scoring with {other}= and has no effect with {this}=; remove it")
    if cfg.path:
        return
    if "compare" in given and not compares(cfg):
        raise ConfigError("keys of compare need several systems, hypothesis=[A,B], json=FILE or page=FILE; remove them")
    if cfg.compare.seed and cfg.compare.tests == "none":
        raise ConfigError("compare.seed has no effect with compare.tests=none; remove one of them")
    if cfg.compare.examples != CompareConfig().examples and len(cfg.hypothesis) < 2:
        raise ConfigError("compare.examples needs several systems, hypothesis=[A,B]; remove it")
    names = cfg.metrics or (OF_COMPARISONS if compares(cfg) else METRICS)
    metrics = [corpus_metric(name) for name in names]
    shows_examples = bool(cfg.page or (len(cfg.hypothesis) > 1 and cfg.compare.examples))
    if cfg.source and not shows_examples and not any(metric.needs_sources for metric in metrics):
        raise ConfigError(
            "source has no effect: it is for metrics that read it, for the sentences that changed most "
            "(hypothesis=[A,B]), for page=FILE and for path=RUN; remove it"
        )
    used = {setting for metric in metrics for setting in metric.settings}
    if shows_examples:
        used.add("lowercase")  # of the chrF that chooses examples
    for key in SETTINGS:
        if key in given and key not in used:
            raise ConfigError(f"{key} has no effect on {', '.join(names)}; remove it, or choose other metrics")


if __name__ == "__main__":
    main()
