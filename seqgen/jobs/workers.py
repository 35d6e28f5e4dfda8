"""What workers of all engines have in common: they are given pieces, and report what happened."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from seqgen.errors import ResourceError, UserError
from seqgen.jobs.line_decoder import Piece
from seqgen.jobs.part import Answers
from seqgen.system.devices import out_of_memory


@dataclass(frozen=True)
class Ready:
    """A worker has loaded its models.

    Attributes:
        fingerprint: see ``LineDecoder``.
        notes: see ``LineDecoder``.
    """

    fingerprint: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Answered:
    """A worker has decoded a piece.

    Attributes:
        piece: the piece.
        answers: the outputs of its lines.
        worker: name of the worker.
    """

    piece: Piece
    answers: Answers
    worker: str


@dataclass(frozen=True)
class Died:
    """A worker has died; another one is started in its place.

    Attributes:
        piece: what it was decoding; ``None`` if it had nothing to do.
        how: how it ended, such as "was ended by SIGKILL".
    """

    piece: Piece | None
    how: str


Event: TypeAlias = Ready | Answered | Died

STARTS = 5
"""Number of times in a row that a worker may die while it loads the models; then the job stops."""


def start_error(error: Exception) -> Exception:
    """Why a worker cannot load its models, as an error that can be pickled.

    Args:
        error: what was raised.
    """
    if isinstance(error, UserError):
        return UserError(str(error))
    if out_of_memory(error):
        return ResourceError(
            "memory ran out while a worker loaded the models; choose fewer workers (generation.workers, "
            "ray.actors_per_node), or a machine with more memory"
        )
    return RuntimeError(f"a worker failed to load the models: {error!r}\n{traceback.format_exc()}")


class Workers(Protocol):
    """The workers of a job."""

    def free(self) -> bool:
        """Whether a worker waits for a piece."""
        ...

    def give(self, piece: Piece) -> None:
        """Let a worker that waits decode a piece."""
        ...

    def wait(self, seconds: float) -> list[Event]:
        """Wait until something happens, at most some seconds.

        Args:
            seconds: the longest time.

        Returns:
            What has happened.

        Raises:
            UserError: the models cannot be loaded.
            ResourceError: workers die while they load the models.
        """
        ...

    def close(self) -> None:
        """End all workers immediately."""
        ...
