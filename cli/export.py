"""``seqgen-export``: write a model's encoder and one decoder step as graphs, for ONNX and for ``torch.export``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from seqgen.checkpoints.loading import load_model
from seqgen.cli.command import log, run
from seqgen.cli.convert import UserCodeConfig, tokenizers_of
from seqgen.cli.output import check_output
from seqgen.config import ReadingConfig, option
from seqgen.errors import ConfigError
from seqgen.export.folder import FORMATS, check_installed, write_export

DESCRIPTION = """exports a model, so that it can be run without seqgen: path=RUN output=DIR. The folder has the encoder
and one step of the decoder, whose decoding state is an input and an output, as ONNX files and as files of torch.export;
export.json with the names and shapes of inputs and outputs; and the tokenizer."""


@dataclass
class ExportConfig:
    """The configuration of ``seqgen-export``."""

    path: str = option("", "run folder, checkpoint in one, fairseq model.pt, or Hugging Face folder")
    output: str = option("", "folder to write; it must not exist yet", names="output")
    formats: list[str] = option(list(FORMATS), "formats of the graphs: onnx, torch (files of torch.export), or both")
    opset: int = option(20, "version of ONNX's operator set", minimum=18, maximum=23)
    reading: ReadingConfig = dataclasses.field(default_factory=ReadingConfig)
    common: UserCodeConfig = dataclasses.field(default_factory=UserCodeConfig)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(ExportConfig, export, DESCRIPTION, argv)


def export(cfg: ExportConfig) -> int:
    """Export a model, and print what was written.

    Args:
        cfg: the whole configuration.

    Returns:
        The exit code.

    Raises:
        ConfigError: a key is missing, the folder already exists, or the model cannot be exported.
        CheckpointError: the model cannot be read.
    """
    for key, wanted in (("path", "path=RUN, the model to export"), ("output", "output=DIR, the folder to write")):
        if not getattr(cfg, key):
            raise ConfigError(f"{key} is missing: give {wanted}")
    if not cfg.formats or not set(cfg.formats) <= set(FORMATS):
        raise ConfigError(f"formats=[{','.join(cfg.formats)}] must be one or more of: {', '.join(FORMATS)}")
    folder = Path(cfg.output)
    if folder.exists():
        raise ConfigError(f"output={folder} already exists; give the name of a new folder")
    check_output("output", cfg.output)
    if "onnx" in cfg.formats:
        check_installed()
    loaded = load_model(cfg.path, dtype=torch.float32, reading=cfg.reading)
    for note in loaded.notes:
        log(note)
    difference = write_export(loaded, tokenizers_of(loaded), folder, cfg.formats, cfg.opset)
    print(f"{folder}: {type(loaded.model).__name__}, from {cfg.path}")
    for file in sorted(folder.iterdir()):
        if file.is_file():
            print(f"  {file.name:<13} {file.stat().st_size:>13,} bytes")
    print(f"logits differ by at most {difference:.1e} from those of the model")
    return 0


if __name__ == "__main__":
    main()
