"""Latency of simultaneous translation: average lagging, in source tokens.

Ma, Huang, Xiong et al. 2019 (see simultaneous.py) and Papi, Gaido, Negri and Turchi 2022, "Over-Generation Cannot Be
Rewarded: Length-Adaptive Average Lagging for Simultaneous Speech Translation". Token ``t`` of an output ``y`` was
generated after ``g(t)`` tokens of the source ``x``:

    AL   = 1/tau * sum over t = 1..tau of (g(t) - (t - 1) |x| / |y|),    tau = first t with g(t) = |x|, else |y|
    LAAL = the same with max(|y|, |y*|) in place of |y|, for a reference y*

An empty output has waited for the whole source: AL and LAAL are ``|x|``. End-of-sentence is not counted.

``python examples/papers/latency.py path=runs/a latency=latency.jsonl reference=test.de`` prints both, as means over the
lines. ``latency`` is what ``search.latency`` of simultaneous.py wrote; if it has a line twice, the last one counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from seqgen import load_model
from seqgen.extend import CommonConfig, ConfigError, ReadingConfig, option, read_lines, run, set_up_device


@dataclass
class LatencyConfig:
    """The keys of the command."""

    path: str = option(
        "", "run folder or checkpoint, whose tokenizer counts the tokens of references", role="input_path"
    )
    latency: str = option("", "JSON lines with the delays of each output's tokens")
    reference: str = option("", "text file with the reference of each line", role="input_path")
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def average_lagging(delays: Sequence[int], source: int, target: int) -> float:
    """AL, or LAAL, of an output.

    Args:
        delays: ``g(t)`` of each token.
        source: ``|x|``.
        target: ``|y|``, or the larger one of ``|y|`` and ``|y*|``.
    """
    tau = next((t for t, delay in enumerate(delays, 1) if delay >= source), len(delays))
    return mean(delays[t] - t * source / target for t in range(tau)) if tau else float(source)


def report(cfg: LatencyConfig) -> None:
    """Print AL and LAAL."""
    if not (cfg.path and cfg.latency and cfg.reference):
        raise ConfigError("set path=RUN latency=FILE reference=FILE")
    task = load_model(cfg.path, set_up_device(cfg.common), reading=cfg.reading).task
    lengths = [len(task.encode_target(line)) - 1 for line in read_lines(Path(cfg.reference))]
    lines = {line["line"]: line for line in map(json.loads, read_lines(Path(cfg.latency)))}
    if not lines or max(lines) >= len(lengths):
        raise ConfigError(f"latency={cfg.latency} has no lines, or more than reference={cfg.reference}")
    plain, adaptive = [], []
    for number, line in lines.items():
        size = len(line["delays"])
        plain.append(average_lagging(line["delays"], line["source"], size))
        adaptive.append(average_lagging(line["delays"], line["source"], max(size, lengths[number])))
    print(f"{len(lines)} lines, AL {mean(plain):.2f}, LAAL {mean(adaptive):.2f} source tokens")


if __name__ == "__main__":
    run(LatencyConfig, report, "prints the average lagging of simultaneous translation.")
