"""Training speed: target tokens per second for fairseq's iwslt_de_en shapes, including data loading, and for T5-small.

    python -m benchmarks.train [--models fconv_iwslt_de_en ...] [--seconds 40] [--threads 2] [--bf16] [--profile]
    python -m benchmarks.train --models t5_small      # float32 and bfloat16, alternating with transformers

Trains on Multi30k en-de if it is found (``$SEQGEN_SHARED/data/multi30k`` or ``../shared/data/multi30k``), with a joint
SentencePiece vocabulary of 8,000, otherwise on random words with similar lengths; float32, batches of 4,096 tokens.
For comparison, the speed of matrix products on this machine is printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import seqgen.models
import seqgen.tasks  # noqa: F401  # declare the built-in components
from benchmarks import t5_training
from seqgen.config import TrainConfig
from seqgen.config.compose import compose
from seqgen.core.structures import Batch
from seqgen.registry import TASKS
from seqgen.training.distributed import ProcessGroup
from seqgen.training.train import StopSignals
from seqgen.training.training_loop import TrainingLoop

T5 = "t5_small"
OPTIONS = {"fconv_iwslt_de_en": ["optimizer=nag"], "transformer_iwslt_de_en": ["model.share_all_embeddings=true"]}
KINDS = {
    "matrix products": ("mm", "addmm", "bmm", "baddbmm", "mkldnn", "convolution"),
    "random numbers": ("random_", "bernoulli", "rand", "native_dropout"),
    "optimizer and clipping": ("_fused_adam", "_fused_sgd", "_foreach", "linalg_vector_norm", "Optimizer"),
    "weight normalization": ("weight_norm",),
}


def data_options(folder: Path) -> list[str]:
    """The keys of the task and its data: Multi30k, or random words."""
    shared = os.environ.get("SEQGEN_SHARED", str(Path(__file__).parents[2] / "shared"))
    multi30k = Path(shared) / "data" / "multi30k"
    languages = ["task=translation", "task.source_lang=en", "task.target_lang=de"]
    if (multi30k / "train.en.gz").exists():
        return [*languages, f"task.train={multi30k / 'train'}", f"task.valid={multi30k / 'val'}"]
    rng = random.Random(0)
    for split, lines in (("train", 20_000), ("valid", 100)):
        lengths = [max(3, round(rng.gauss(15, 5))) for _ in range(lines)]
        for language in ("en", "de"):
            text = "".join(" ".join(f"w{rng.randrange(7990)}" for _ in range(length)) + "\n" for length in lengths)
            (folder / f"{split}.{language}").write_text(text)
    return [*languages, f"task.train={folder / 'train'}", f"task.valid={folder / 'valid'}", "task.tokenizer=whitespace"]


def prepare(model: str, folder: Path, cache: Path, bf16: bool) -> TrainingLoop:
    """Make a run whose trainer can be called update by update."""
    cfg = compose(
        TrainConfig,
        [
            *data_options(cache),
            f"task.cache_dir={cache}",
            f"model={model}",
            *OPTIONS.get(model, []),
            "dataset.max_tokens=4096",
            "common.log_format=none",
            "common.tensorboard=false",
            f"common.bf16={str(bf16).lower()}",
        ],
    )
    folder.mkdir()
    task = TASKS.of(cfg.task).component.setup_task(cfg.task, folder)
    return TrainingLoop(cfg, task, folder, torch.device("cpu"), ProcessGroup(), StopSignals())


def batches(run: TrainingLoop) -> Iterator[Batch]:
    """The batches of all epochs, without end."""
    while True:
        yield from run.iterator


def measure(run: TrainingLoop, seconds: float) -> dict[str, float]:
    """Train for some seconds; return speeds by name."""
    source = batches(run)
    for batch in itertools.islice(source, 2):
        run.trainer.train_update([batch], 1)
    tokens = positions = updates = 0
    start = time.perf_counter()
    cpu = time.process_time()
    while time.perf_counter() - start < seconds:
        batch = next(source)
        assert batch.target is not None
        run.trainer.train_update([batch], 1)
        tokens, positions, updates = tokens + batch.ntokens, positions + batch.target.numel(), updates + 1
    elapsed = time.perf_counter() - start
    return {
        "tokens_per_second": tokens / elapsed,
        "tokens_per_cpu_second": tokens / (time.process_time() - cpu),
        "updates": updates,
        "padding": 1 - tokens / positions,
        "seconds_per_update": elapsed / updates,
    }


def matrix_speed(bf16: bool, size: int = 2048, repeats: int = 8) -> float:
    """GFLOP/s of large matrix products; the best of several measurements."""
    a, b = (torch.randn(size, size, dtype=torch.bfloat16 if bf16 else torch.float32) for _ in range(2))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times) / 1e9


def shares(run: TrainingLoop, updates: int = 3) -> dict[str, float]:
    """Profile some updates; return the share of CPU time of each kind of operation, largest first."""
    source = batches(run)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for batch in itertools.islice(source, updates):
            run.trainer.train_update([batch], 1)
    total: dict[str, float] = {}
    for event in recorded.key_averages():
        name = event.key.removeprefix("aten::")
        kind = next((k for k, parts in KINDS.items() if any(name.startswith(p) or p in event.key for p in parts)), name)
        total[kind] = total.get(kind, 0.0) + event.self_cpu_time_total
    every = sum(total.values())
    return {name: value / every for name, value in sorted(total.items(), key=lambda item: -item[1])[:14]}


def main() -> None:
    """Measure, print a table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*OPTIONS, T5])
    parser.add_argument("--seconds", type=float, default=40.0, help="how long to measure each model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16 autocast")
    parser.add_argument("--profile", action="store_true", help="also print a profile")
    parser.add_argument("--output", default="train_speed.json", help="JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    gflops = matrix_speed(arguments.bf16)
    results: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "threads": arguments.threads}
    results |= {"torch": torch.__version__, "matrix_gflops": gflops, "bf16": arguments.bf16, "models": {}}
    print(f"matrix products: {gflops:.0f} GFLOP/s on {arguments.threads} threads")
    models = [model for model in arguments.models if model != T5]
    if models:
        print(f"\n{'model':26} {'tokens/s':>9} {'padding':>8}")
    with tempfile.TemporaryDirectory() as root:
        cache = Path(root) / "cache"
        cache.mkdir()
        for model in models:
            run = prepare(model, Path(root) / model, cache, arguments.bf16)
            row = measure(run, arguments.seconds)
            speed = row["tokens_per_second"]
            print(f"{model:26} {speed:9,.0f} {row['padding']:8.1%}")
            if arguments.profile:
                row["shares"] = shares(run)
                print("".join(f"    {share:6.1%}  {name}\n" for name, share in row["shares"].items()))
            results["models"][model] = row
    if T5 in arguments.models:
        results["models"][T5] = t5_training.compare(arguments.seconds, arguments.profile)
    Path(arguments.output).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
