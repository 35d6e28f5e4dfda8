"""``seqgen-generate input=FILE.po``: the texts of the units are decoded as lines, and the file is written with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from seqgen.addons.translation_files.po import PoFile
from seqgen.addons.translation_files.units import UnitFile
from seqgen.addons.translation_files.xliff import XliffFile
from seqgen.config import GenerateConfig, JobConfig
from seqgen.extend import ConfigError, check_output, log, parse_json, write_atomically

KINDS = {".po": "PO", ".pot": "PO", ".xlf": "XLIFF", ".xliff": "XLIFF"}
"""The format of a file, by the ending of its name."""


def open_units(path: Path, every: bool) -> UnitFile:
    """Read a file of units; see ``UnitFile``."""
    return (PoFile if KINDS[path.suffix.lower()] == "PO" else XliffFile)(path, every)


def decode(cfg: GenerateConfig, run: Callable[[], int]) -> int:
    """Decode the units of the input, and write it with the outputs, after an interruption with those until then.

    Args:
        cfg: the configuration; it then names the lines and their outputs, so that a job continues as with any text.
        run: decodes the lines.

    Returns:
        What ``run`` returned.

    Raises:
        UserError: a key or file cannot be used.
    """
    source, target = Path(cfg.input), Path(cfg.output)
    kinds = {KINDS.get(path.suffix.lower()) for path in (source, target)}
    if None in kinds or len(kinds) > 1 or cfg.format != "text" or cfg.stream:
        raise ConfigError(
            f"input={source} and output={target} must both be PO (.po, .pot) or both XLIFF (.xlf, .xliff) where units "
            "are decoded; correct them, and remove format and stream"
        )
    if cfg.generation.nbest > 1 or (cfg.job.column, cfg.job.format) != (JobConfig.column, JobConfig.format):
        raise ConfigError(
            "units have one output each, and no columns; remove generation.nbest, job.column and job.format"
        )
    check_output("output", cfg.output, cfg.input)
    units = open_units(source, cfg.units == "all")
    if not units.texts:
        log(f"{source} has no unit that is untranslated or fuzzy; units=all decodes all")
        write_atomically(target.resolve(), units.content)
        return 0
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        lines, outputs = Path(folder) / "lines.txt", Path(folder) / "outputs.jsonl"
        write_atomically(lines, "".join(f"{text}\n" for text in units.texts))
        cfg.input, cfg.output, cfg.format = str(lines), str(outputs), "json"
        cfg.job.folder = cfg.job.folder or f"{target}.parts"
        try:
            return run()
        finally:
            if outputs.exists():
                with open(outputs, encoding="utf-8") as file:
                    content = units.filled(parse_json(line) for line in file if line.endswith("\n"))
                write_atomically(target.resolve(), content)
