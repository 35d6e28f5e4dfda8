"""The common part of all ways to decode with ``seqgen-generate``: checks, loading, the end of each translation.

At its end, tokenized output, such as that of older checkpoints, can become text: without BPE marks, and detokenized.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import load_models
from seqgen.cli.command import log
from seqgen.config import GenerateConfig, GenerateDatasetConfig
from seqgen.config.generation import keys_tagged
from seqgen.config.options import FILES
from seqgen.config.settings import USER, Layer, Settings
from seqgen.config.values import DEFAULTS, value_text
from seqgen.core.errors import ConfigError, nearest
from seqgen.data.records import is_json, is_table
from seqgen.data.tokenizers.base import SPACE
from seqgen.modules.dtypes import dtype_to_load
from seqgen.system.switches import MAPPED_WEIGHTS, apply_switches
from seqgen.task import Task
from seqgen.text.line_stages import stages_of
from seqgen.text.output_formats import BUILT_IN, wanted_details
from seqgen.text.results import Translation
from seqgen.text.text_decoding import TextDecoding
from seqgen.text.translator import Translator
from seqgen.text.word_streaming import TextStreamer


def check_path_and_split(path: Sequence[str], lines: str, dataset: GenerateDatasetConfig) -> None:
    """Check that there are models to decode with, and only one text to decode.

    Args:
        path: the models.
        lines: the text file to decode; empty for a split of the task.
        dataset: which split.

    Raises:
        ConfigError: there is no model, or both a file and a split are given.
    """
    if not path:
        raise ConfigError("path is missing: set path=RUN_FOLDER, or path=[A,B] for an ensemble")
    if lines and dataset.gen_subset != type(dataset)().gen_subset:
        raise ConfigError(
            f"dataset.gen_subset={dataset.gen_subset} has no effect, because input={lines} is decoded instead; "
            "remove one of the two keys"
        )


FORMAT_OF = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".tsv": "tsv"}
"""The format of an output, by the ending of its file name."""


def check_outputs(cfg: GenerateConfig) -> None:
    """Check, as ``check_path_and_split`` does, what is decoded, and that the format of the outputs can be written.

    Raises:
        ConfigError: it cannot, or a package is not installed.
    """
    check_path_and_split(cfg.path, cfg.input, cfg.dataset)
    if (named := FORMAT_OF.get(Path(cfg.output).suffix, cfg.format)) != cfg.format:
        raise ConfigError(
            f"output={cfg.output} would have format={cfg.format}; set format={named}, or choose another name"
        )
    if cfg.print_alignment and cfg.format != "fairseq":
        raise ConfigError(f"print_alignment=true needs format=fairseq, not format={cfg.format}; remove one of them")
    make_text_cleaner(cfg.remove_bpe, cfg.detokenize)
    of_tokens = {"stream": cfg.stream, "trace": cfg.trace, "format=fairseq": cfg.format == "fairseq"}
    of_tokens |= {"remove_bpe": cfg.remove_bpe, "detokenize": cfg.detokenize}
    for stage in stages_of(cfg.generation).values():
        stage.check(cfg)
        for key in (key for key, given in of_tokens.items() if given and not stage.streams):
            chosen = f"generation.{stage.key}={value_text(getattr(cfg.generation, stage.key))}"
            raise ConfigError(f"{key} cannot be used with {chosen}; remove one of them")


def check_plain_text(**files: Sequence[str]) -> None:
    """Check that files are not tables, whose rows would be taken for sentences.

    Args:
        files: the files by key; lines of ``input`` and ``source`` can have fields with tabs between them.

    Raises:
        ConfigError: a file is a table or JSON by its name.
    """
    for key, name in ((key, name) for key, names in files.items() for name in names):
        plain = name.removesuffix(".gz")
        has_fields = key in ("input", "source") and plain.endswith(".tsv")
        if plain.endswith(".csv") or (is_table(name) and not has_fields):
            raise ConfigError(
                f"{key}={name} has the name of a table; give plain text (a job reads .jsonl and .parquet, with "
                "job.column=FIELD)"
            )


def read_input(file: str, task: Task) -> Iterator[str]:
    """The lines of a file, see ``Task.read_input``; JSON lines only for a task with columns."""
    if not (task.columns and is_json(Path(file))):
        check_plain_text(input=[file])
    return task.read_input(file)


def decoding_files(cfg: GenerateConfig) -> list[str]:
    """The input files that the decoding keys name; empty texts for keys without a file."""
    return [getattr(cfg.generation, key) for key in keys_tagged(FILES)]


def part_of(dataset: GenerateDatasetConfig, task: Task) -> Task:
    """The task, or the part of it that ``dataset.gen_source`` names."""
    return task.part(dataset.gen_source) if dataset.gen_source else task


def settings_of_part(dataset: GenerateDatasetConfig, task: Task) -> Settings:
    """The decoding settings of the part of a task that ``dataset.gen_source`` names, such as the languages of a pair.

    Args:
        dataset: names the part, or none.
        task: the task of the first model.
    """
    found = task.part(dataset.gen_source).decoding_settings() if dataset.gen_source else {}
    return Settings().with_layer("part", found)


def load_with_notes(cfg: Any, device: torch.device, note: Callable[[str], None] = log) -> list[LoadedModel]:
    """Load the models of a command.

    Args:
        cfg: its configuration, with ``path``, ``reading``, ``generation`` and the ``common`` group of commands that
            decode.
        device: where to put them.
        note: called with each note for the user.

    Raises:
        UserError: one cannot be loaded.
    """
    with apply_switches({MAPPED_WEIGHTS: cfg.common.map_weights}):
        return load_models(cfg.path, device, cfg.reading, dtype_to_load(getattr(cfg.generation, "dtype", "")), note)


def prepare_decoding(
    cfg: GenerateConfig,
    given: Mapping[str, Any],
    device: torch.device,
    note: Callable[[str], None],
    streamer: TextStreamer | None = None,
) -> tuple[list[LoadedModel], TextDecoding]:
    """Load the models, and prepare decoding with the details that the output format needs.

    Args:
        cfg: the whole configuration.
        given: the settings that the user gave, by whole key.
        device: where to decode.
        note: called with each note for the user.
        streamer: receives words as they are generated.

    Returns:
        The models, and the prepared decoding.

    Raises:
        UserError: a model or key cannot be used.
    """
    loaded = load_with_notes(cfg, device, note)
    with apply_switches({MAPPED_WEIGHTS: cfg.common.map_weights}):
        translator = Translator(loaded, settings=settings_of_part(cfg.dataset, loaded[0].task).plus(Layer(USER, given)))
        decoding = translator.prepare(wanted_details(cfg, translator), streamer)
    own_lines = cfg.dataset.gen_source or not cfg.input
    splitter = decoding.stages.splitter
    if splitter is not None and own_lines and not decoding.task.reads_plain_lines:
        raise ConfigError(
            f"generation.{splitter.key} splits whole lines, and this task inserts lines into a template; give complete "
            "lines with input=FILE and without dataset.gen_source"
        )
    for text in decoding.notes:
        note(text)
    target = decoding.task.target_tokenizer
    mark = "@@" if cfg.remove_bpe == "subword_nmt" else SPACE
    if cfg.remove_bpe and mark not in target.decode([i for i, piece in enumerate(target.dictionary) if mark in piece]):
        raise ConfigError(f"remove_bpe={cfg.remove_bpe} has no effect: no output of the model has a {mark}; remove it")
    used = {"nbest": cfg.trace}
    for key, written in (WRITTEN | decoding.stages.written).items():
        value = getattr(decoding.cfg, key)
        if written is None or value == DEFAULTS[key] or cfg.format not in BUILT_IN or used.get(key):
            continue
        what, formats = written
        if cfg.format not in formats:
            note(f"generation.{key}={value_text(value)}: format={cfg.format} writes {what}; choose {formats}")
    return loaded, decoding


def complete(translation: Translation, cfg: GenerateConfig, clean: Callable[[str], str]) -> Translation:
    """Clean the texts of a translation, and add the notes of the output format.

    Args:
        translation: the translation.
        cfg: the whole configuration.
        clean: what ``make_text_cleaner`` returned.

    Returns:
        The translation as it is written.
    """
    hypotheses, notes = translation.hypotheses, translation.notes
    if cfg.remove_bpe or cfg.detokenize:
        hypotheses = [replace(item, text=clean(item.text)) for item in hypotheses]
    if cfg.print_alignment and any(item.alignment is None for item in hypotheses):
        notes = [*notes, "no alignment is written: the model returns no attention weights"]
    return replace(translation, hypotheses=hypotheses, notes=notes)


WRITTEN: dict[str, tuple[str, str] | None] = {
    "nbest": ("only the best hypothesis of each line", "format=json or format=fairseq"),
    "top_tokens": ("no probable tokens", "format=json"),
}
"""By key of the ``generation`` group: what other formats write of it, and the formats that write all."""

BPE_MARKS: dict[str, Callable[[str], str]] = {
    # subword-nmt's format: "lo@@ w@@ er" is "lower"; a mark at the end, as of an output that is cut off, goes too
    "subword_nmt": lambda text: re.sub(r"@@( |$)", "", text),
    "sentencepiece": lambda text: text.replace(" ", "").replace("▁", " ").strip(),
}
"""Functions that join subwords, by the name of the format."""

_WITHOUT_PREFIXES = ("ja", "ko", "zh")
"""Languages of sacremoses for which it has no list of abbreviations."""


def make_text_cleaner(remove_bpe: str, detokenize: str) -> Callable[[str], str]:
    """Make the function that turns a tokenized output into text.

    Args:
        remove_bpe: a name of ``BPE_MARKS``; empty to leave marks.
        detokenize: language of the Moses detokenizer, such as ``de``; empty to leave tokens.

    Returns:
        The function, from an output to its text.

    Raises:
        ConfigError: the detokenizer is not installed, or does not know the language.
    """
    join = BPE_MARKS.get(remove_bpe, str)
    if not detokenize:
        return join
    try:
        from sacremoses import MosesDetokenizer
        from sacremoses.corpus import NonbreakingPrefixes
    except ImportError:
        raise ConfigError(f"detokenize={detokenize} needs a package: pip install sacremoses") from None
    known = sorted({*NonbreakingPrefixes().available_langs.values(), *_WITHOUT_PREFIXES})
    if detokenize not in known:
        raise ConfigError(
            f"detokenize={detokenize}: sacremoses does not know this language{nearest(detokenize, known)}; the "
            f"languages are {', '.join(known)}, and en suits most others"
        )
    moses = MosesDetokenizer(lang=detokenize)
    return lambda text: str(moses.detokenize(join(text).split()))
