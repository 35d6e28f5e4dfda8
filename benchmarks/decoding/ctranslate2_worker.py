"""CTranslate2 as a worker; needs ctranslate2, and torch and transformers to convert the model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ctranslate2
import transformers
from ctranslate2.converters import TransformersConverter

from benchmarks.decoding.worker import Request, Worker, serve


class Converter(TransformersConverter):
    """The converter, adapted to versions of transformers in which ``dtype`` is named ``torch_dtype``."""

    def load_model(self, model_class: Any, name: str, **arguments: Any) -> Any:
        """Load the model to convert."""
        if tuple(map(int, transformers.__version__.split(".")[:2])) < (4, 56):
            arguments["torch_dtype"] = arguments.pop("dtype")
        return super().load_model(model_class, name, **arguments)


class CTranslate2(Worker):
    """CTranslate2 with a model from a Hugging Face folder, which is converted to a folder next to it.

    Args:
        arguments: the parsed arguments of ``worker.parser``.
    """

    version = f"ctranslate2 {ctranslate2.__version__}"

    def __init__(self, arguments: argparse.Namespace):
        folder = Path(arguments.models[0])
        converted = folder.with_name(f"{folder.name}-ctranslate2")
        if not converted.exists():
            has_map = (folder / "vmap.txt").exists()
            Converter(str(folder)).convert(str(converted), vmap=str(folder / "vmap.txt") if has_map else None)
        supported = ctranslate2.get_supported_compute_types(arguments.device)
        if arguments.format not in supported:
            raise ValueError(f"CTranslate2 does not support {arguments.format} on this machine")
        self.translator = ctranslate2.Translator(
            str(converted),
            device=arguments.device,
            compute_type=arguments.format,
            inter_threads=1,
            intra_threads=arguments.threads,
        )
        self.tokens: list[str] = json.loads((converted / "shared_vocabulary.json").read_text())
        self.ids = {token: index for index, token in enumerate(self.tokens)}

    def decode(self, sources: list[list[int]], request: Request) -> list[list[int]]:
        """See ``Worker.decode``."""
        results = self.translator.translate_batch(
            [[self.tokens[index] for index in source] for source in sources],
            beam_size=request["beam"],
            min_decoding_length=request["length"],
            max_decoding_length=request["length"],
            max_input_length=0,
            use_vmap=request.get("shortlist", False),
        )
        return [[self.ids[token] for token in result.hypotheses[0]] for result in results]


if __name__ == "__main__":
    serve(CTranslate2)
