"""What decoding needs of a loaded model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from seqgen.generation.component import Resources
from seqgen.model import EncoderDecoderModel
from seqgen.task import Task


class TextModel(Protocol):
    """A model and its task, as ``load_model`` returns them."""

    @property
    def task(self) -> Task:
        """Encodes and decodes text."""

    @property
    def model(self) -> EncoderDecoderModel:
        """The model."""

    @property
    def generation(self) -> Mapping[str, Any]:
        """The model's own decoding settings, by the names of ``GenerationConfig``'s fields."""


def own_first_token(model: TextModel) -> int | None:
    """The id of the token that a model's own settings force at the beginning of outputs; ``None`` if there is none.

    Args:
        model: the model, with its settings.
    """
    token = str(model.generation.get("forced_first") or "")
    return Resources(model.task.target_dictionary).token(token) if token else None
