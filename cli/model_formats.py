"""The forms in which ``seqgen-convert`` writes models."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from seqgen.checkpoints.loaders import LoadedModel
from seqgen.registry import add_format, import_declared

KEYS: dict[str, tuple[str, ...]] = {
    "run": ("source_lang", "target_lang", "reading"),
    "huggingface": ("reading",),
    "export": ("opset", "reading"),
    "ctranslate2": ("reading",),
    "marian": ("base", "input", "int8", "reference"),
    "average": ("last",),
    "trie": ("input", "reading"),
}
"""By the value of ``format``, the keys that have an effect, besides ``path``, ``output`` and ``common``;
of a format that a package adds, ``reading`` has one."""

MODEL_FORMATS = list(KEYS)
"""The values of ``format``; ``register_model_format`` adds one."""

WRITERS: dict[str, Any] = {
    "huggingface": "seqgen.addons.huggingface.convert",
    "export": "seqgen.addons.export.onnx",
    "ctranslate2": "seqgen.addons.export.ctranslate2",
    "trie": "seqgen.addons.catalogue.convert",
    "marian": "seqgen.addons.marian.convert",
}
"""By the value of ``format`` what writes it, or the name of its module: ``check(cfg)`` raises if a package or a key is
missing, and ``write(cfg, loaded)`` writes what belongs to a model and prints what it wrote. ``DTYPE`` is that of the
model, by default that of its file."""


F = TypeVar("F", bound=Callable[[Any, LoadedModel], None])


def register_model_format(name: str) -> Callable[[F], F]:
    """Add a form in which ``seqgen-convert`` writes models: the value ``name`` of ``format``.

    The decorated function takes the configuration of the command, of which ``cfg.output`` names a folder that does not
    exist, and the model in float32 on the CPU; it writes the folder and prints what it wrote.

    Args:
        name: its name.

    Returns:
        The decorator; it returns the function unchanged.

    Raises:
        ConfigError: the name is taken.
    """

    def decorator(function: F) -> F:
        writer = SimpleNamespace(write=function, check=lambda _: None, DTYPE=torch.float32)
        add_format(name, writer, WRITERS, MODEL_FORMATS)
        return function

    return decorator


def writer_of(form: str) -> Any:
    """What writes a format; see ``WRITERS``.

    Raises:
        ConfigError: it belongs to an add-on that is not installed.
    """
    writer = WRITERS[form]
    return import_declared(writer, f"format={form}") if isinstance(writer, str) else writer
