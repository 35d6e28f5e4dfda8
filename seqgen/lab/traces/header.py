"""The first line of a trace: the settings of the decode."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from seqgen.generation.finished import Ranking
from seqgen.generation.rules import RULES
from seqgen.lab.traces.fields import Fields

FORMAT, VERSION = "seqgen-trace", 1
"""The first two values of a trace."""

_MOST_BEAMS = 100_000


@dataclass(frozen=True)
class TraceHeader:
    """The settings of a traced decode.

    Attributes:
        seqgen: version of the program.
        models: names of the models.
        members: number of members of the ensemble.
        search: class name of the search strategy.
        rules: name of the rules.
        beam: beams of each sentence.
        nbest: length of the n-best lists.
        dtype: dtype of scores.
        ranking: how cumulative scores become scores of hypotheses.
        early_stopping: see ``BestFinished``.
        independent_rows: whether the beams are independent.
        seed: the seed of a random strategy; ``None`` for another one.
        processors: class names of the logits processors.
        recorded: the optional parts that were recorded.
        candidates: number of candidates kept besides those that survive; 0 for all.
        not_replayable: why the n-best lists cannot be computed again; empty if they can.
    """

    seqgen: str
    models: Sequence[str]
    members: int
    search: str
    rules: str
    beam: int
    nbest: int
    dtype: str
    ranking: Ranking
    early_stopping: str
    independent_rows: bool
    seed: int | None
    processors: Sequence[str]
    recorded: Sequence[str]
    candidates: int
    not_replayable: str

    def record(self) -> dict[str, Any]:
        """The header as a JSON object."""
        return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def of(cls, value: Any) -> TraceHeader:
        """Read a JSON object.

        Raises:
            ValueError: a field is missing or wrong.
        """
        fields = Fields(value, "its first line")
        ranking = Fields(value.get("ranking"), "the ranking")
        beam = fields.integer("beam", 1)
        if beam > _MOST_BEAMS:
            raise ValueError(f"its first line has {beam} beams")
        return cls(
            seqgen=fields.text("seqgen"),
            models=fields.texts("models"),
            members=fields.integer("members", 1),
            search=fields.text("search"),
            rules=fields.choice("rules", list(RULES)),
            beam=beam,
            nbest=fields.integer("nbest", 1),
            dtype=fields.choice("dtype", ["float32", "float64"]),
            ranking=Ranking(
                ranking.flag("normalize"),
                ranking.number("len_penalty"),
                ranking.choice("kind", ["power", "wu"]),
                ranking.number("coverage"),
            ),
            early_stopping=fields.choice("early_stopping", ["true", "false", "never"]),
            independent_rows=fields.flag("independent_rows"),
            seed=fields.integer("seed") if value.get("seed") is not None else None,
            processors=fields.texts("processors"),
            recorded=fields.texts("recorded"),
            candidates=fields.integer("candidates"),
            not_replayable=fields.text("not_replayable"),
        )

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of scores."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def digits(self) -> int:
        """Significant digits of scores, which suffice to read the same number again."""
        return 17 if self.dtype == "float64" else 9
