"""What bounds training on many GPUs (computed), and what several processes cost on this machine (measured).

    python -m benchmarks.scaling table [--gpu h100|a100] [--tokens 8192]
    python -m benchmarks.scaling train [--rounds 3] [--updates 20]
    python -m benchmarks.scaling decode [--rounds 3] [--lines 4000]

``table`` computes from the numbers of parameters and the vendors' figures, which are in ``GPUS``. ``train`` runs the
same updates of the built-in example, and ``decode`` decodes the same lines with random weights, by one process with two
threads, and by two processes with one thread each. The runs alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

import seqgen.models
import seqgen.tasks  # noqa: F401  # declare the built-in components
from seqgen.config import TrainConfig
from seqgen.config.compose import compose
from seqgen.data.iterator import EpochIterator
from seqgen.registry import TASKS
from seqgen.tasks.number_names import number_names

ROOT = Path(__file__).parent.parent
COUNTS = (1, 8, 64, 1024)
UTILIZATION = 0.4
"""Share of the peak that the products of training are assumed to reach."""


@dataclass(frozen=True)
class Gpu:
    """A GPU in its vendor's server of eight.

    Attributes:
        memory: bytes.
        flops: operations per second in bfloat16.
        inside: bytes per second that a GPU sends to others of its server.
        between: bytes per second that a server sends to others, by all of its network adapters together.
    """

    memory: float
    flops: float
    inside: float
    between: float


GPUS = {
    # NVIDIA H100 SXM5 and DGX H100 datasheets: 80 GB; 989 TFLOPS in bfloat16 without sparsity; NVLink 900 GB/s in both
    # directions together; one InfiniBand adapter of 400 Gb/s for each GPU
    "h100": Gpu(80e9, 989e12, 450e9, 8 * 50e9),
    # NVIDIA A100 80 GB SXM and DGX A100 datasheets: 80 GB; 312 TFLOPS; NVLink 600 GB/s; 200 Gb/s
    "a100": Gpu(80e9, 312e12, 300e9, 8 * 25e9),
}


@dataclass(frozen=True)
class Shape:
    """The shape of an encoder-decoder transformer with tied embeddings.

    Attributes:
        dim: hidden size.
        inner: attention heads times their size.
        ffn: hidden size of the feed-forward layers.
        layers: layers of the encoder, and of the decoder.
        vocabulary: tokens.
        t5_heads: heads with relative position bias, for a T5, which has no biases of linear layers; 0 for others.
    """

    dim: int
    inner: int
    ffn: int
    layers: int
    vocabulary: int
    t5_heads: int = 0

    def attention(self) -> int:
        """Parameters of an attention layer."""
        return 4 * self.dim * self.inner + (0 if self.t5_heads else 3 * self.inner + self.dim)

    def layer(self, attentions: int) -> int:
        """Parameters of a layer with one (encoder) or two (decoder) attention layers."""
        norms = (attentions + 1) * self.dim * (1 if self.t5_heads else 2)
        biases = 0 if self.t5_heads else self.ffn + self.dim
        return attentions * self.attention() + 2 * self.dim * self.ffn + biases + norms

    def embeddings(self) -> int:
        """Parameters outside of the layers."""
        last_norms = 2 * self.dim * (1 if self.t5_heads else 2)
        return self.vocabulary * self.dim + last_norms + 2 * 32 * self.t5_heads  # 32 buckets of distances

    def parameters(self) -> int:
        """All parameters."""
        return self.layers * (self.layer(1) + self.layer(2)) + self.embeddings()


MODELS = {
    "T5-base": Shape(768, 768, 3072, 12, 32128, 12),
    "T5-3B": Shape(1024, 4096, 16384, 24, 32128, 32),
    "T5-11B": Shape(1024, 16384, 65536, 24, 32128, 128),
    "NLLB-3.3B": Shape(2048, 2048, 8192, 24, 256206),
}


@dataclass(frozen=True)
class Estimate:
    """What an update needs of each GPU: bytes of memory, and seconds of computation and of communication."""

    memory: float
    compute: float
    communication: float

    def bound(self, gpu: Gpu) -> str:
        """What limits training."""
        if self.memory > gpu.memory:
            return "memory"
        return "communication" if self.communication > self.compute else "computation"


def estimate(shape: Shape, count: int, sharding: str, tokens: int, gpu: Gpu) -> Estimate:
    """Estimate an update with Adam, float32 weights, products in bfloat16 and recomputed activations.

    Args:
        shape: the model.
        count: number of GPUs, eight in each server.
        sharding: ``none``, ``ddp`` or ``fsdp``, with ``param_dtype`` and ``reduce_dtype`` bfloat16.
        tokens: tokens in a batch of a GPU, half of them source and half target.
        gpu: the vendor's figures.
    """
    weights, outside = shape.parameters(), shape.embeddings()
    # weight, gradient and two moments in float32; DDP has a second copy of the gradients
    state = (20 if sharding == "ddp" else 16) * weights
    if sharding == "fsdp":  # two layers and what is outside of layers in bfloat16, and its gradient
        state = state / count + 2 * 2 * shape.layer(2) + 4 * outside
    stored = 2 * shape.dim * shape.layers * tokens  # the input of each layer
    within = 2 * (6 * shape.dim + 8 * shape.inner + 2 * shape.ffn) * tokens / 2  # of the layer that is computed again
    logits = 6 * shape.vocabulary * tokens / 2  # in bfloat16 and float32
    # 2 operations for each weight and token forward, 2 again, 4 backward; the output projection is not computed again
    products = 8 * shape.layers * (shape.layer(1) + shape.layer(2)) + 6 * shape.vocabulary * shape.dim
    compute = products * tokens / 2 / (gpu.flops * UTILIZATION)
    # all-reduce of float32: 2 * 4 bytes; or two all-gathers and one reduce-scatter of bfloat16: 3 * 2 bytes. Each of
    # the parallel rings of NCCL enters and leaves a server by another network adapter.
    volume = {"none": 0, "ddp": 8, "fsdp": 6}[sharding] * weights * (count - 1) / count
    return Estimate(state + stored + within + logits, compute, volume / (gpu.inside if count <= 8 else gpu.between))


def table(gpu: Gpu, tokens: int) -> list[list[str]]:
    """The rows of the table, the header first."""
    header = ["model", "GPUs", "sharding", "memory, GB", "computation, ms", "communication, ms", "bound by", "tokens/s"]
    rows = [header]
    for name, shape in MODELS.items():
        for count in COUNTS:
            for sharding in ("none",) if count == 1 else ("ddp", "fsdp"):
                one = estimate(shape, count, sharding, tokens, gpu)
                bound = one.bound(gpu)
                speed = "" if bound == "memory" else f"{count * tokens / max(one.compute, one.communication):,.0f}"
                times = f"{one.compute * 1e3:,.0f}", f"{one.communication * 1e3:,.0f}"
                rows.append([name, f"{count:,}", sharding, f"{one.memory / 1e9:,.0f}", *times, bound, speed])
    return rows


# -- measured -------------------------------------------------------------------------------------------------------

MODEL = ["model=transformer_tiny", "dataset.max_tokens=1000", "dataset.validate_interval=0"]
MODEL += [f"model.{side}_{key}" for side in ("encoder", "decoder") for key in ("embed_dim=256", "ffn_embed_dim=1024")]
QUIET = ["common.tensorboard=false", "common.log_format=none"]
TRAINING = {
    "one process, 2 threads": ["optimization.update_freq=[2]", "common.threads=2"],
    "DDP, 2 processes": ["distributed_training.sharding=ddp", "common.threads=1"],
    "FSDP, 2 processes": ["distributed_training.sharding=fsdp", "common.threads=1"],
}
DECODING = {
    "one process, 2 threads": ["common.threads=2"],
    "job, 1 worker, 2 threads": ["job.workers=1", "job.part_lines=256", "common.threads=2"],
    "job, 2 workers": ["job.workers=2", "job.part_lines=256", "common.threads=1"],
    "job, 2 Ray actors": ["engine=ray", "ray.actors_per_node=2", "job.part_lines=256", "common.threads=1"],
}


@dataclass(frozen=True)
class Cost:
    """What a run took: tokens or lines per second, and CPU seconds of its processes, without Ray's actors."""

    speed: float
    cpu_seconds: float


def command(module: str, keys: list[str], processes: int = 1) -> tuple[float, float]:
    """Run a command, several processes by torchrun; return its seconds, and the CPU seconds of its processes."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    program = [sys.executable, "-m", *(torchrun if processes > 1 else []), module]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*program, *keys], cwd=ROOT, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, cpu


def train(keys: list[str], updates: int, examples: int, folder: Path) -> Cost:
    """Train; return target tokens per second, without the start, and CPU seconds, with it."""
    run = folder / "run"
    common = [*MODEL, *QUIET, *keys, f"task.train_size={examples}", f"task.cache_dir={folder / 'cache'}"]
    common += [f"common.log_interval={min(5, updates)}", f"optimization.max_update={updates}"]
    processes = 2 if any("sharding" in key for key in keys) else 1
    _, cpu = command("seqgen.cli.train", [f"run_dir={run}", *common], processes)
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    speeds = [row["tokens_per_second"] for row in rows if row["event"] == "train"]
    run.rename(folder / f"run-{len(list(folder.iterdir()))}")
    return Cost(statistics.median(speeds), cpu)


def untrained_run(lines: int, folder: Path) -> tuple[Path, Path]:
    """Write a run of one update and a file of sources; return both paths."""
    train([], 1, 100, folder)
    (run,) = folder.glob("run-*")
    text = folder / "lines"
    text.write_text("".join(name + "\n" for name in number_names(list(range(10_000, 10_000 + lines)), "en")))
    return run, text


def decode(keys: list[str], run: Path, text: Path) -> Cost:
    """Decode by the whole command; return lines per second and CPU seconds, both with the start."""
    with tempfile.TemporaryDirectory() as folder:
        common = [f"path={run}", f"input={text}", f"output={folder}/output", "generation.max_len_a=0"]
        common += ["generation.max_len_b=32", "generation.min_len=32", *keys]
        seconds, cpu = command("seqgen.cli.generate", common)
        lines = len(Path(folder, "output").read_text().splitlines())
    return Cost(lines / seconds, cpu)


def batches_per_second(examples: int, folder: Path) -> float:
    """Target tokens per second that one thread makes batches of, from the tokens on the disk."""
    torch.set_num_threads(1)
    cfg = compose(TrainConfig, [*MODEL, f"task.train_size={examples}", f"task.cache_dir={folder / 'cache'}"])
    task = TASKS.of(cfg.task).component.setup_task(cfg.task, folder)
    model = task.build_model(cfg.model)
    iterator = EpochIterator(task.dataset("train"), lambda e: task.collate(e, model), max_tokens=8192, num_workers=0)
    start = time.perf_counter()
    tokens = sum(batch.ntokens for batch in iterator)
    return tokens / (time.perf_counter() - start)


def alternate(runs: dict[str, Callable[[], Cost]], rounds: int, unit: str) -> None:
    """Print the costs of runs that take turns, and a table of their medians."""
    found: dict[str, list[Cost]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
            print(f"round {number + 1}, {name}: {found[name][-1].speed:,.0f} {unit}", flush=True)
    print(f"| | {unit}, median of {rounds} | lowest | highest | CPU s |\n|---|---|---|---|---|")
    for name, costs in found.items():
        speeds, cpu = [cost.speed for cost in costs], statistics.median(cost.cpu_seconds for cost in costs)
        print(f"| {name} | {statistics.median(speeds):,.0f} | {min(speeds):,.0f} | {max(speeds):,.0f} | {cpu:.1f} |")


def main(arguments: list[str] | None = None) -> None:
    """Print the table or the measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("table", "train", "decode"))
    parser.add_argument("--gpu", choices=sorted(GPUS), default="h100")
    parser.add_argument("--tokens", type=int, default=8192, help="table: tokens in a batch of each GPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=20, help="train: updates of each run")
    parser.add_argument("--examples", type=int, default=20_000, help="train: examples of the training set")
    parser.add_argument("--lines", type=int, default=4_000, help="decode: lines of the text")
    given = parser.parse_args(arguments)
    if given.what == "table":
        rows = table(GPUS[given.gpu], given.tokens)
        for number, row in enumerate(rows):
            print(f"| {' | '.join(row)} |" + ("\n|" + "---|" * len(row) if not number else ""))
        return
    os.environ.pop("OMP_NUM_THREADS", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.what == "train":
            sizes = given.updates, given.examples, folder
            runs = {name: partial(train, keys, *sizes) for name, keys in TRAINING.items()}
            alternate(runs, given.rounds, "tokens/s")
            print(f"one thread makes batches of {batches_per_second(given.examples, folder):,.0f} tokens/s")
        else:
            work = untrained_run(given.lines, folder)
            runs = {name: partial(decode, keys, *work) for name, keys in DECODING.items()}
            if find_spec("ray") is None:
                runs = {name: run for name, run in runs.items() if "Ray" not in name}
                print("Ray is left out, since it is not installed")
            alternate(runs, given.rounds, "lines/s")


if __name__ == "__main__":
    main()
