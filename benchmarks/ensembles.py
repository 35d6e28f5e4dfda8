"""Time of ensembles compared with one model, for models of one shape with random weights.

    python -m benchmarks.ensembles [--members 1 2 4] [--batch 16] [--source 0] [--rounds 5] [--threads 1]

The models have the shape of fairseq's transformer_iwslt_de_en: vocabulary 8,000, outputs of exactly 41 tokens, beam 5.
In each round, all ensembles decode the same batch one after the other in this process. The table has the median of the
rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from benchmarks.decoding.models import Vocabulary, natural_lengths, random_model, random_sources
from seqgen.config import GenerationConfig
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import Batch
from seqgen.data.pair_dataset import collate
from seqgen.decoding.options import build_setup


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 2, 4], help="sizes of the ensembles, 1 first")
    parser.add_argument("--batch", type=int, default=16, help="sentences")
    parser.add_argument("--source", type=int, default=0, help="tokens of each source; 0 for natural lengths")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="small models, to test the benchmark itself")
    options = parser.parse_args(argv)
    if options.members[0] != 1 or min(*options.members, options.batch, options.rounds) < 1 or options.source < 0:
        parser.error("--members must begin with 1, and numbers must be at least 1; --source may be 0")
    return options


def batch_of(sentences: int, length: int, vocabulary: int) -> Batch:
    """Random sources of one length, or of the lengths in the middle of the natural ones if it is 0."""
    natural = natural_lengths(200)
    middle = max(0, (len(natural) - sentences) // 2)
    lengths = [length - 1] * sentences if length else natural[middle : middle + sentences]
    rows = [torch.tensor(source) for source in random_sources(lengths, vocabulary, 2)]
    return collate(
        [(number, row, None) for number, row in enumerate(rows)],
        source_pad=1,
        target_pad=1,
        start_token=2,
        left_pad_source=False,
    )


def measure(options: argparse.Namespace) -> dict[int, list[tuple[float, float]]]:
    """CPU and wall seconds of each round, by the number of members."""
    preset, size, length = ("transformer_tiny", 200, 5) if options.tiny else ("transformer_iwslt_de_en", 8000, 41)
    vocabulary = Vocabulary(size)
    batch = batch_of(options.batch, options.source, size)
    cfg = GenerationConfig(semantics="fairseq", beam=5, min_len=length - 1, max_len_b=length - 1)
    models = [random_model(preset, vocabulary, seed) for seed in range(1, max(options.members) + 1)]
    setups = {count: build_setup(models[:count], vocabulary.target_dictionary, cfg) for count in options.members}
    generators = {count: SequenceGenerator(setup) for count, setup in setups.items()}
    seconds: dict[int, list[tuple[float, float]]] = {count: [] for count in generators}
    for number in range(options.rounds + 1):
        for count, generator in generators.items():
            processor, wall = time.process_time(), time.perf_counter()
            generator.generate(batch)
            if number > 0:  # the first round prepacks weights
                seconds[count].append((time.process_time() - processor, time.perf_counter() - wall))
    return seconds


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    options = arguments(argv)
    torch.set_num_threads(options.threads)
    seconds = measure(options)
    one = seconds[1]
    print("| members | CPU s | CPU time / one model | time / one model |\n|---|---|---|---|")
    for count, rounds in seconds.items():
        processor = statistics.median(cpu for cpu, _ in rounds)
        ratios = [statistics.median(a[i] / b[i] for a, b in zip(rounds, one, strict=True)) for i in (0, 1)]
        print(f"| {count} | {processor:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()
