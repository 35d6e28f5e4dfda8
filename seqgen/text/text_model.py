"""What decoding needs of a loaded model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

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
