"""seqgen as a worker."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Set
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.decoding.memory import CudaMemory
from benchmarks.decoding.models import MAP_FILE, Vocabulary, random_model
from benchmarks.decoding.step_times import StepTimes
from benchmarks.decoding.worker import Answer, Request, Worker, serve
from seqgen.addons.catalogue.shortlist import Shortlist, restricted
from seqgen.addons.catalogue.vocabulary_map import VocabularyMap
from seqgen.checkpoints.loading import load_models
from seqgen.config import FastConfig, GenerationConfig
from seqgen.config.generate import ReadingConfig
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import Batch
from seqgen.data.dictionary import Dictionary
from seqgen.data.pair_dataset import collate
from seqgen.data.tokenizers.files import CONFIG_FILE
from seqgen.decoding.options import build_setup
from seqgen.decoding.scorer import SequenceScorer
from seqgen.modules.dtypes import to_dtype
from seqgen.system.devices import keep_freed_memory

SCORED_AT_ONCE = 8
"""Number of outputs that are scored in one batch: the logits of each token take memory."""


class Seqgen(Worker):
    """seqgen with a model from a folder, or a preset with random weights; several models are an ensemble.

    Args:
        arguments: those of ``worker.parser``.
    """

    version = f"torch {torch.__version__}"
    notes: Set[str] = frozenset()
    """Why some steps were not captured."""

    def __init__(self, arguments: argparse.Namespace):
        torch.set_num_threads(arguments.threads)
        keep_freed_memory()  # as the commands do
        self.device = arguments.device
        if self.device.startswith("cuda"):
            self.memory = CudaMemory(torch)
        self.folder = Path(arguments.models[0])
        self.models, self.dictionary = _models(arguments)
        self.models = [to_dtype(model, arguments.format).to(self.device) for model in self.models]

    def answer(self, request: Request) -> Answer:
        """Decode the sources, or score the ``outputs`` of the request; with ``shares``, measure the parts of a step."""
        if "outputs" in request:
            return {"scores": list(self.scores(request))}
        if not request.get("shares"):
            return super().answer(request)
        with StepTimes(self.models, self.device).measuring() as times:
            return {**super().answer(request), "shares": times.shares}

    def decode(self, sources: list[list[int]], request: Request) -> list[list[int]]:
        """See ``Worker.decode``.

        ``switches`` of a request are fields of ``FastConfig``; ``shortlist`` decodes with the folder's vocabulary map.
        """
        generator = self.generator(request)
        hypotheses = generator.generate(self.batch(sources))
        self.notes = generator.setup.notes
        return [best.tokens.tolist() for best, *_ in hypotheses]

    def generator(self, request: Request) -> SequenceGenerator:
        """A generator of outputs of exactly the requested length; with fairseq's rules, including end-of-sentence."""
        keys: dict[str, Any] = {"min_len": request["length"], "max_len": request["length"]}
        if request["semantics"] == "fairseq":
            keys = {"min_len": request["length"] - 1, "max_len_b": request["length"] - 1}
        cfg = GenerationConfig(semantics=request["semantics"], beam=request["beam"], **keys)
        setup = build_setup(self.models, self.dictionary, cfg, fast=FastConfig(**request.get("switches", {})))
        return SequenceGenerator(restricted(setup, self.shortlist) if request.get("shortlist") else setup)

    @cached_property
    def shortlist(self) -> Shortlist:
        """The shortlists of the folder's vocabulary map, which is read once."""
        return Shortlist(VocabularyMap.read(self.folder / MAP_FILE, self.dictionary, self.dictionary), self.dictionary)

    def batch(self, sources: list[list[int]], targets: list[list[int]] | None = None) -> Batch:
        """Collate sources, and targets if given, into a batch."""
        rows = [torch.tensor(source) for source in sources]
        outputs = [None] * len(rows) if targets is None else [torch.tensor(target) for target in targets]
        pad, eos = self.dictionary.pad(), self.dictionary.eos()
        first = self.models[0]
        return collate(
            list(zip(range(len(rows)), rows, outputs, strict=True)),
            source_pad=pad,
            target_pad=pad,
            start_token=first.start_token(eos),
            left_pad_source=first.left_pad_source,
        ).to(self.device)

    def scores(self, request: Request) -> Iterator[float]:
        """The mean log-probability per token of each given output."""
        scorer = SequenceScorer(self.models, self.dictionary.pad(), self.dictionary.eos())
        pairs = iter(zip(request["sources"], request["outputs"], strict=True))
        while rows := list(islice(pairs, SCORED_AT_ONCE)):
            sources, outputs = map(list, zip(*rows, strict=True))
            scored = scorer.score(self.batch(sources, outputs), [len(output) for output in outputs])
            yield from (one.hypothesis.score for one in scored)


def _models(arguments: argparse.Namespace) -> tuple[list[EncoderDecoderModel], Dictionary]:
    if Path(arguments.models[0]).exists():
        has_tokenizer = (Path(arguments.models[0]) / CONFIG_FILE).exists()
        loaded = load_models(arguments.models, reading=None if has_tokenizer else ReadingConfig(tokenizer="ids"))
        return [one.model for one in loaded], loaded[0].task.target_dictionary
    vocabulary = Vocabulary(arguments.vocabulary)
    named = enumerate(arguments.models, start=1)
    return [random_model(name, vocabulary, seed) for seed, name in named], vocabulary.target_dictionary


if __name__ == "__main__":
    serve(Seqgen)
