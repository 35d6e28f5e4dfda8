"""Models of fairseq with random weights: written as checkpoints, which seqgen and fairseq both read. Needs fairseq.

python -m benchmarks.decoding.fairseq_models FOLDER ARCHITECTURE ... [--vocabulary 8000]
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path
from typing import Any

import fairseq.models.fconv
import fairseq.models.transformer  # noqa: F401  # registers its architectures, as fconv does
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

FILE = "model.pt"
LANGUAGES = ("en", "de")


def main() -> None:
    """Write a checkpoint of each architecture, with seeds 1, 2, ..., into folders named ARCHITECTURE.SEED."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("architectures", nargs="+")
    parser.add_argument("--vocabulary", type=int, default=8000)
    given = parser.parse_args()
    for seed, name in enumerate(given.architectures, start=1):
        torch.manual_seed(seed)
        folder = given.folder / f"{name}.{seed}"
        folder.mkdir(parents=True)
        options = Namespace(
            arch=name, task="translation", source_lang=LANGUAGES[0], target_lang=LANGUAGES[1], left_pad_source=True
        )
        options.max_source_positions = options.max_target_positions = 1024
        ARCH_CONFIG_REGISTRY[name](options)
        words = Dictionary()
        for number in range(given.vocabulary - len(words)):
            words.add_symbol(f"w{number}")
        for language in LANGUAGES:
            words.save(str(folder / f"dict.{language}.txt"))
        torch.save({"args": options, "model": _build(options, words).state_dict()}, folder / FILE)


def load(file: Path) -> tuple[Any, Any]:
    """A model that ``main`` has written, ready to decode, and its dictionary."""
    words = Dictionary.load(str(file.with_name(f"dict.{LANGUAGES[0]}.txt")))
    state = torch.load(file, weights_only=False)  # written by this module
    model = _build(state["args"], words)
    model.load_state_dict(state["model"])
    model.eval().make_generation_fast_()
    return model, words


def _build(options: Namespace, words: Any) -> Any:
    task = Namespace(source_dictionary=words, target_dictionary=words)
    return ARCH_MODEL_REGISTRY[options.arch].build_model(options, task)


if __name__ == "__main__":
    main()
