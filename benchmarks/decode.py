"""Decoding speed: tokens a second for fairseq's iwslt_de_en shapes with random weights, beam 5.

    python -m benchmarks.decode [--models ...] [--batches 1 16 64] [--sentences 200] [--threads 2] [--json FILE]

The work is the one that fairseq was measured on: 200 sentences (of Multi30k where it is found, otherwise random words
of like lengths), vocabulary 8,000, float32, exactly 41 steps. Tokens are those of the best hypothesis. fairseq's
figures were measured on another machine (2 cores of a Xeon with AVX-512, 315 GFLOP/s), so above the table stands this
machine's speed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import statistics
import time
from pathlib import Path

import torch

import seqgen.models  # noqa: F401  # declares the built-in models
from seqgen.data.collate import collate
from seqgen.data.dictionary import Dictionary
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.model import EncoderDecoderModel
from seqgen.registry import MODELS
from seqgen.structures import Batch

VOCABULARY = 8000
STEPS = 41
FAIRSEQ = {
    ("transformer_iwslt_de_en", 1): 106,
    ("transformer_iwslt_de_en", 16): 420,
    ("transformer_iwslt_de_en", 64): 459,
    ("fconv_iwslt_de_en", 1): 289,
    ("fconv_iwslt_de_en", 16): 1628,
    ("fconv_iwslt_de_en", 64): 2336,
}


class Vocabulary:
    """A task as far as a model asks: its dictionaries."""

    def __init__(self) -> None:
        self.source_dictionary = Dictionary()
        for number in range(VOCABULARY - len(self.source_dictionary)):
            self.source_dictionary.add_symbol(f"w{number}")
        self.target_dictionary = self.source_dictionary


def lengths(count: int) -> list[int]:
    """Source lengths: one and a third tokens for each word of Multi30k, or like it."""
    shared = os.environ.get("SEQGEN_SHARED", str(Path(__file__).parents[2] / "shared"))
    path = Path(shared) / "data" / "multi30k" / "test_2016_flickr.en.gz"
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [round(len(line.split()) * 4 / 3) for _, line in zip(range(count), file, strict=False)]
    rng = random.Random(0)
    return [max(4, round(rng.gauss(16, 5))) for _ in range(count)]


def make_batches(vocabulary: Vocabulary, count: int, size: int) -> list[Batch]:
    """Batches of random words, similar lengths together."""
    torch.manual_seed(0)
    sources = [torch.cat([torch.randint(4, VOCABULARY, (n,)), torch.tensor([2])]) for n in sorted(lengths(count))]
    dictionary = vocabulary.source_dictionary
    return [
        collate(
            [(i, sources[i], None) for i in range(start, min(start + size, len(sources)))],
            source_pad=dictionary.pad(),
            target_pad=dictionary.pad(),
            start_symbol=dictionary.eos(),
        )
        for start in range(0, len(sources), size)
    ]


def measure(models: list[EncoderDecoderModel], vocabulary: Vocabulary, batches: list[Batch]) -> float:
    """Decode everything once; return tokens a second."""
    generator = SequenceGenerator(
        models, vocabulary.target_dictionary, beam_size=5, min_len=STEPS - 1, max_len_b=STEPS - 1
    )
    start = time.perf_counter()
    tokens = sum(len(hypotheses[0].tokens) for batch in batches for hypotheses in generator.generate(batch))
    seconds = time.perf_counter() - start
    assert tokens == STEPS * sum(batch.num_sentences for batch in batches)
    return tokens / seconds


def matrix_speed(size: int = 2048, repeats: int = 5) -> float:
    """GFLOP/s of large float32 matrix products, the best of several."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times) / 1e9


def main() -> None:
    """Measure, print a table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["transformer_iwslt_de_en", "fconv_iwslt_de_en"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", default="", help="file to write the figures to")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    vocabulary = Vocabulary()
    torch.manual_seed(1)
    built = {
        name: MODELS.entry(name).component.build_model(MODELS.config(name), vocabulary).eval()
        for name in options.models
    }
    work = [([name], size) for size in options.batches for name in options.models]
    if len(built) > 1:
        work.append((options.models, 16))
    prepared = {size: make_batches(vocabulary, options.sentences, size) for _, size in work}
    speeds: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):  # alternating, so that a slow moment of the machine meets all alike
        for names, size in work:
            speed = measure([built[name] for name in names], vocabulary, prepared[size])
            speeds.setdefault((" + ".join(names), size), []).append(speed)
    peers = {**FAIRSEQ, (" + ".join(options.models), 16): 189} if len(built) > 1 else FAIRSEQ
    matrix = matrix_speed()
    print(f"{platform.processor() or platform.machine()}, {options.threads} threads, {matrix:.0f} GFLOP/s float32")
    print(f"{'model':<46} {'batch':>5} {'tokens/s':>9} {'fairseq':>8} {'ratio':>6}")
    rows = []
    for (name, size), values in speeds.items():
        speed, peer = statistics.median(values), peers.get((name, size))
        ratio = f"{speed / peer:6.2f}" if peer else ""
        print(f"{name:<46} {size:>5} {speed:>9.0f} {peer or '':>8} {ratio}")
        rows.append({"model": name, "batch": size, "tokens_per_second": values, "fairseq": peer})
    if options.json:
        Path(options.json).write_text(
            json.dumps({"gflops": matrix, "threads": options.threads, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
