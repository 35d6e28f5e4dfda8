"""The configuration of ``seqgen-generate`` and its groups."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from seqgen.config.common import MOST_WORKERS, DecodingCommonConfig
from seqgen.config.generation import FastConfig, GenerationConfig
from seqgen.config.options import option

OUTPUT_FORMATS = ["text", "json", "fairseq", "tsv"]
"""The values of ``format``; ``register_output_format`` adds one."""


@dataclass
class GenerateDatasetConfig:
    """The split of the task that is decoded."""

    gen_subset: str = option("test", "split of the task to decode if input is empty", other_names=("valid_subset",))
    gen_source: str = option(
        "",
        "task=text_to_text: source of the mixture; its template is applied to the input lines, or its split is "
        "decoded; task=multilingual_translation: pair, such as en-de, whose languages are used and whose split is "
        "decoded",
    )


@dataclass
class ReadingConfig:
    """Files and settings that another toolkit's checkpoint needs, if they are not found with the checkpoint."""

    dictionary: str = option(
        "", "dict.txt shared by both languages; empty for the files in the checkpoint's folder", role="input_path"
    )
    source_dictionary: str = option("", "dict.txt of the source language", role="input_path", other_names=("srcdict",))
    target_dictionary: str = option("", "dict.txt of the target language", role="input_path", other_names=("tgtdict",))
    sentencepiece: str = option(
        "",
        "SentencePiece model of both languages; empty for one in the checkpoint's folder; none if text is tokenized",
        role="input_path",
    )
    source_sentencepiece: str = option("", "SentencePiece model of the source language", role="input_path")
    target_sentencepiece: str = option("", "SentencePiece model of the target language", role="input_path")
    tokenizer: str = option(
        "", "ids: lines consist of ids of tokens, for a Hugging Face folder without a tokenizer", choices=("", "ids")
    )
    lang_dict: str = option(
        "",
        "file with the languages of a multilingual checkpoint, one on each line, in the order of their tokens",
        role="input_path",
    )
    architecture: str = option(
        "", "architecture to use if the checkpoint names one that seqgen does not know, such as transformer"
    )
    ignore: list[str] = option(
        [], "options of the checkpoint to ignore: those that seqgen does not know and that do not change the model"
    )


@dataclass
class TraceConfig:
    """The ``trace_options`` group of ``seqgen-generate``."""

    sentences: int = option(
        1000, "with trace: number of lines that are traced, from the first one; 0 for all", minimum=0
    )
    candidates: int = option(
        0, "with trace: number of candidates of each step, besides those that survive; 0 for all", minimum=0
    )
    max_megabytes: float = option(
        200.0,
        "with trace: stop tracing lines after this many megabytes, before compression; 0 for no limit",
        minimum=0,
    )
    members: bool = option(True, "with trace: the members' scores of each candidate")
    forbidden: bool = option(True, "with trace: which processor forbids a token that would otherwise survive")
    reference_scores: bool = option(
        False, "with trace and reference: the models' scores of the whole references, by another pass of the models"
    )


@dataclass
class JobConfig:
    """The ``job`` group of ``seqgen-generate``: decoding in parts, which can be killed and continued."""

    workers: int = option(
        0,
        "processes that decode the parts of a job, each with a copy of the models; 0 for one; with engine=ray "
        "the largest number of actors, 0 for no limit",
        minimum=0,
        maximum=MOST_WORKERS,
    )
    part_lines: int = option(4096, "lines of each part of a job", minimum=1)
    folder: str = option(
        "", "folder for the parts of a job; empty for the output file's name with .parts", role="output_path"
    )
    format: str = option(
        "auto",
        "format of the input of a job; auto chooses by the file name: .jsonl, .ndjson, .parquet, else text; .gz is "
        "decompressed",
        choices=("auto", "text", "jsonl", "parquet"),
    )
    column: str = option("text", "field of JSON lines, or column of Parquet files, with the text to decode")
    progress: float = option(
        30.0, "seconds between two lines of progress where no bar is shown; 0 for no lines", minimum=0
    )


@dataclass
class RayConfig:
    """The ``ray`` group of ``seqgen-generate``."""

    address: str = option(
        "",
        "address of the Ray cluster, such as HOST:6379, or auto to find it; empty to start Ray on this machine",
        role="code",
    )
    actors_per_node: int = option(
        1, "actors on each node, or as many as it has cores and GPUs for; each holds a copy of the models", minimum=1
    )
    gpus: float = option(0.0, "GPUs of each actor, such as 0.5; actors with fractions share a GPU", minimum=0)
    cpus: float = option(1.0, "CPU cores of each actor", minimum=0)


@dataclass
class GenerateConfig:
    """The configuration of ``seqgen-generate``."""

    path: list[str] = option(
        [],
        "run folder, checkpoint in one, fairseq model.pt, Marian folder or file, Hugging Face folder, "
        "hf:ORGANIZATION/NAME[@REVISION] for a model of the Hugging Face Hub, or firefox:FROM-TO for one of Firefox "
        "Translations; [A,B] or A:B for an ensemble",
        role="input_path",
    )
    lines: list[str] = option(
        [], 'lines to decode, in place of an input; words without KEY= are such lines; lines=["x=1"] is the line x=1'
    )
    input: str = option(
        "",
        "text file to decode; - for standard input; empty for the split dataset.gen_subset; a job also reads folders, "
        "wildcards, JSON lines and Parquet",
        role="input_path",
    )
    output: str = option("-", "output file; - for standard output", role="output_path")
    reference: str = option("", "text file with reference outputs; outputs are then scored", role="input_path")
    prefix: str = option("", "text file whose line n is the forced beginning of output n", role="input_path")
    format: str = option(
        "text",
        "output format; tsv has a header and the columns source, output, score and those of line stages",
        choices=OUTPUT_FORMATS,
    )
    print_alignment: bool = option(False, "with format=fairseq: write alignment lines (A-)")
    remove_bpe: str = option(
        "",
        "join the subwords of outputs, for checkpoints whose text was split by another program: subword_nmt's marks "
        "@@, or sentencepiece's",
        choices=("", "subword_nmt", "sentencepiece"),
    )
    detokenize: str = option(
        "", "language of the Moses detokenizer to apply to outputs, such as de; empty for none; needs sacremoses"
    )
    units: str = option(
        "unfinished",
        "with input=FILE.po, .pot, .xlf or .xliff: units to decode; unfinished for untranslated and fuzzy ones",
        choices=("unfinished", "all"),
    )
    stream: bool = option(False, "write words as soon as they are decoded; needs format=text and nbest=1")
    trace: str = option(
        "",
        "file for a trace of every step (.jsonl or .jsonl.gz), which seqgen-show shows as a page",
        role="output_path",
    )
    record: str = option(
        "", "file (.json) for a record of the decode, which config=FILE.json repeats", role="output_path"
    )
    trace_options: TraceConfig = dataclasses.field(default_factory=TraceConfig)
    dataset: GenerateDatasetConfig = dataclasses.field(default_factory=GenerateDatasetConfig)
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: DecodingCommonConfig = dataclasses.field(default_factory=DecodingCommonConfig)
    generation: GenerationConfig = dataclasses.field(default_factory=GenerationConfig)
    fast: FastConfig = dataclasses.field(default_factory=FastConfig)
    engine: str = option(
        "local", "where the workers of a job run: in processes of this machine, or on Ray", choices=("local", "ray")
    )
    job: JobConfig = dataclasses.field(default_factory=JobConfig)
    ray: RayConfig = dataclasses.field(default_factory=RayConfig)
