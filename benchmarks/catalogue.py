"""Speed of search among allowed outputs, beside the plain way and transformers.

    python -m benchmarks.catalogue [--sizes 10000 100000] [--beams 10 100] [--queries 1 32] [--vocabulary 32128]
                                   [--threads 1] [--rounds 3] [--original]

The model is a T5-small shape with random weights; the catalogue has random identifiers of 4 tokens. In each round, all
ways decode the same queries one after the other in this process. ``edges`` is the default, ``all scores`` the plain way
(``fast.narrowed_scores=false``), and ``transformers`` is ``prefix_allowed_tokens_fn`` over a trie of Python dicts,
with the same weights (``--original``; it decodes one query, since it takes seconds). The table has medians of the
rounds, the time to build the trie, and its memory. Each way is warmed up once. It also checks that all outputs are
allowed and that the ways agree.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from benchmarks.decoding.models import random_sources, save_random_t5
from seqgen.addons.catalogue.constraint import TrieConstraint
from seqgen.addons.catalogue.prefix_trie import PrefixTrie
from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import load_model
from seqgen.config import FastConfig, GenerationConfig
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import Batch
from seqgen.data.pair_dataset import collate
from seqgen.decoding.options import build_setup

LENGTH = 4
SOURCE = 32
EOS = 1

Ids: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]

Found = list[list[tuple[int, ...]]]
"""For each query its outputs, best first."""


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000], help="identifiers of the catalogue")
    parser.add_argument("--beams", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 32], help="queries of a batch")
    parser.add_argument("--vocabulary", type=int, default=32128, help="tokens of the model's vocabulary")
    parser.add_argument("--tokens", type=int, default=0, help="tokens that identifiers consist of; 0 for all")
    parser.add_argument("--preset", default="t5_small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "int8"))
    parser.add_argument("--original", action="store_true", help="also measure transformers, one query at a time")
    return parser.parse_args(argv)


def identifiers(count: int, tokens: int, seed: int = 1) -> Ids:
    """Random identifiers, ``(count, LENGTH + 1)`` with end-of-sentence."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(3, tokens, (count, LENGTH), dtype=np.int32)
    return np.concatenate([ids, np.full((count, 1), EOS, np.int32)], axis=1)


def trie_of(catalogue: Ids) -> PrefixTrie:
    """The trie of a catalogue."""
    return PrefixTrie.of_arrays(catalogue.ravel(), np.full(len(catalogue), LENGTH + 1, np.int64))


def dicts_of(catalogue: Ids) -> dict[int, Any]:
    """The trie of a catalogue in Python dicts, as it is commonly written for ``prefix_allowed_tokens_fn``."""
    root: dict[int, Any] = {}
    for ids in catalogue.tolist():
        node = root
        for token in ids:
            node = node.setdefault(token, {})
    return root


def original(model: Any, trie: dict[int, Any], sources: Sequence[Sequence[int]], beam: int) -> Found:
    """The outputs of transformers."""

    def allowed(sentence: int, tokens: torch.Tensor) -> list[int]:
        node = trie
        for token in tokens.tolist()[1:]:
            node = node.get(token, {})
        return list(node) or [EOS]

    with torch.inference_mode():
        tokens = model.generate(
            torch.tensor(sources), num_beams=beam, num_return_sequences=beam, max_new_tokens=LENGTH + 1,
            prefix_allowed_tokens_fn=allowed, do_sample=False, length_penalty=1.0,
        )  # fmt: skip
    rows = [tuple(row[1:]) for row in tokens.tolist()]
    return [rows[start : start + beam] for start in range(0, len(rows), beam)]


def ours(generator: SequenceGenerator, batch: Batch) -> Found:
    """The outputs of seqgen."""
    with torch.inference_mode():
        return [[tuple(one.tokens.tolist()) for one in found] for found in generator.generate(batch)]


def batch_of(sources: Sequence[Sequence[int]]) -> Batch:
    """The queries as a batch."""
    rows = [(number, torch.tensor(source), None) for number, source in enumerate(sources)]
    return collate(rows, source_pad=0, target_pad=0, start_token=0, left_pad_source=False)


def timed(ways: dict[str, Callable[[], Found]], rounds: int) -> tuple[dict[str, float], dict[str, Found]]:
    """Median seconds and outputs of each way; the ways take turns."""
    found = {name: way() for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(own) for name, own in seconds.items()}, found


def ways_of(
    options: argparse.Namespace, loaded: LoadedModel, theirs: Any, catalogue: Ids, beam: int, queries: int
) -> dict[str, Callable[[], Found]]:
    """The ways to decode random queries."""
    drawn = random_sources([SOURCE - 1] * queries, options.vocabulary, 2)
    sources = [[*(token if token != 2 else 3 for token in source[: SOURCE - 1]), EOS] for source in drawn]
    cfg = GenerationConfig(semantics="huggingface", beam=beam, nbest=beam, max_len_b=LENGTH)
    trie, batch = trie_of(catalogue), batch_of(sources)
    ways: dict[str, Callable[[], Found]] = {}
    for name, fast in (("edges", FastConfig()), ("all scores", FastConfig(narrowed_scores=False))):
        generator = SequenceGenerator(
            build_setup(
                [loaded.model], loaded.task.target_dictionary, cfg, processors=[TrieConstraint(trie)], fast=fast
            )
        )
        ways[name] = functools.partial(ours, generator, batch)
    if theirs is not None and queries == 1:
        ways["transformers"] = functools.partial(original, theirs, dicts_of(catalogue), sources, beam)
    return ways


def report(
    size: int, beam: int, queries: int, seconds: dict[str, float], found: dict[str, Found], legal: set[Any]
) -> None:
    """Print a line for each way."""
    for name, own in seconds.items():
        illegal = sum(row not in legal for rows in found[name] for row in rows)
        agree = sum(a == b for a, b in zip(found[name], found["edges"], strict=True))
        row = f"{size:>10} {beam:>5} {queries:>7}  {name:<12} {own / queries:>9.4f} {own / seconds['edges']:>6.2f}"
        print(f"{row}  {agree} of {queries}, {illegal} not allowed", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the benchmark."""
    options = arguments(argv)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        save_random_t5(options.preset, options.vocabulary, folder)
        loaded, theirs = load_model(folder, dtype=options.dtype), None
        if options.original:
            from transformers import T5ForConditionalGeneration

            theirs = T5ForConditionalGeneration.from_pretrained(folder).eval()
    print(f"{'catalogue':>10} {'beam':>5} {'queries':>7}  {'way':<12} {'s/query':>9} {'ratio':>6}  agree")
    for size in options.sizes:
        catalogue = identifiers(size, options.tokens or options.vocabulary - 28)
        start = time.perf_counter()
        trie = trie_of(catalogue)
        built, mebibytes = time.perf_counter() - start, (trie.tokens.nbytes + trie.first.nbytes) / 2**20
        print(f"{size:>10} trie of {len(trie.tokens):,} nodes built in {built:.2f} s, {mebibytes:.1f} MiB")
        legal = set(map(tuple, catalogue.tolist()))
        for beam, queries in itertools.product(options.beams, options.queries):
            ways = ways_of(options, loaded, theirs, catalogue, beam, queries)
            report(size, beam, queries, *timed(ways, options.rounds), legal)


if __name__ == "__main__":
    main()
