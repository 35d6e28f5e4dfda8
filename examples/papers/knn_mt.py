"""kNN-MT (Khandelwal, Fan, Jurafsky, Zettlemoyer and Lewis 2021, "Nearest Neighbor Machine Translation").

A datastore has a pair for each target token of parallel text: the features f of the decoder that predict the token, and
the token v. At every step, the k pairs N nearest to the features of the new position give a second distribution:

    p_kNN(y) ~ sum over (f_j, v_j) in N with v_j = y of exp(-|f_j - f|^2 / T)
    p(y)     = w p_kNN(y) + (1 - w) p_model(y)

``python examples/papers/knn_mt.py path=runs/a source=DATA/train.en target=DATA/train.de datastore=knn`` builds the
datastore. ``seqgen-generate common.user_dir=examples/papers/knn_mt.py path=runs/a input=test.en
generation.combination=knn_mt combination.datastore=knn combination.interpolation=0.3 combination.temperature=10``

Expect better outputs if the datastore has text like the input that the model was not trained on; tune w and T. The
features are those after the last decoder layer (in the paper, the input of its feed-forward network). The search is
exact, by PyTorch or by faiss (``combination.index=faiss``; ``pip install faiss-cpu``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from seqgen import load_model
from seqgen.extend import (
    HIDDEN_STATES,
    CommonConfig,
    ConfigError,
    MeanConfig,
    ProbabilityMean,
    ReadingConfig,
    SequenceScorer,
    StepContext,
    TextModel,
    option,
    read_lines,
    register_combination,
    run,
    set_up_device,
)


@dataclass
class KnnMTConfig(MeanConfig):
    """Configuration of kNN-MT; its fields are the keys ``combination.FIELD``."""

    datastore: str = option("", "folder of the datastore", role="input_path")
    neighbors: int = option(8, "k, the number of neighbors", minimum=1)
    interpolation: float = option(0.3, "w, the weight of the neighbors", minimum=0, maximum=1)
    temperature: float = option(10.0, "T, which divides squared distances", minimum=1e-6)
    index: str = option("torch", "what searches the datastore", choices=("torch", "faiss"))


@register_combination("knn_mt", config=KnnMTConfig)
class KnnMT(ProbabilityMean):
    """Interpolates the mean of the members with the distribution of the nearest neighbors; see ``KnnMTConfig``."""

    needs = frozenset({HIDDEN_STATES})
    chunk = 2**16  # entries that are compared at once

    def __init__(self, weights: Sequence[float] = (), *, datastore: str, neighbors: int = 8, interpolation: float = 0.3,
                 temperature: float = 10.0, index: str = "torch"):  # fmt: skip
        super().__init__(weights)
        self.neighbors, self.interpolation, self.temperature = neighbors, interpolation, temperature
        try:  # float16 features (N, C) and int64 tokens (N,), mapped into memory rather than read
            files = [np.load(Path(datastore) / name, mmap_mode="c") for name in ("features.npy", "tokens.npy")]
        except (OSError, ValueError) as error:
            raise ConfigError(f"combination.datastore={datastore} is not a datastore: {error}") from None
        (self.features, self.tokens), self.index = map(torch.from_numpy, files), None
        if index == "faiss":
            try:
                import faiss  # type: ignore[import-not-found]
            except ImportError:
                raise ConfigError("combination.index=faiss needs a package: pip install faiss-cpu") from None
            self.index = faiss.IndexFlatL2(self.features.size(1))
            self.index.add(self.features.float().numpy())

    def __call__(self, lprobs: Sequence[Tensor], context: StepContext | None) -> Tensor:
        """Combine ``(rows, V)`` log-probabilities of each member, and the neighbors of the first member's features."""
        model = super().__call__(lprobs, context)
        queries = context.outputs.features if context is not None else None
        assert queries is not None  # `needs` has it, and `ignores_context` is false
        if queries.size(1) != self.features.size(1) or self.tokens.max() >= model.size(1):
            raise ConfigError("combination.datastore is that of another model; build it with the first model of path")
        queries = queries.to(torch.promote_types(queries.dtype, torch.float32))
        entries = self.nearest(queries, min(self.neighbors, len(self.tokens))).cpu()
        found, tokens = self.features[entries].to(queries), self.tokens[entries].to(queries.device)  # (rows, k, ...)
        distances = (found - queries.unsqueeze(1)).square().sum(-1)
        shares = (-distances / self.temperature).softmax(-1).to(model)
        neighbors = torch.zeros_like(model).scatter_add(1, tokens, shares)
        weight, rest = model.new_tensor([self.interpolation, 1 - self.interpolation]).log()
        return torch.logaddexp(neighbors.log() + weight, model + rest)

    def nearest(self, queries: Tensor, count: int) -> Tensor:
        """The ``count`` entries nearest to each of the features ``(rows, C)``: ``(rows, count)`` int64."""
        if self.index is not None:
            return torch.from_numpy(self.index.search(queries.float().cpu().numpy(), count)[1])
        best = queries.new_zeros(len(queries), 0)
        entries = best.long()
        for start in range(0, len(self.tokens), self.chunk):
            distances = torch.cdist(queries, self.features[start : start + self.chunk].to(queries))
            numbers = torch.arange(start, start + distances.size(1), device=queries.device).expand_as(distances)
            both = torch.cat([best, distances], dim=1)
            best, places = both.topk(min(count, both.size(1)), dim=1, largest=False)
            entries = torch.cat([entries, numbers], dim=1).gather(1, places)
        return entries


@dataclass
class BuildConfig:
    """The keys of the command that builds a datastore."""

    path: str = option("", "run folder or checkpoint of the model", role="input_path")
    source: str = option("", "text file with the sources", role="input_path")
    target: str = option("", "text file with the target of each source", role="input_path")
    datastore: str = option("", "folder to write; it must not exist", role="output_path")
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def build(cfg: BuildConfig) -> None:
    """Build the datastore that a configuration describes."""
    if not (cfg.path and cfg.source and cfg.target and cfg.datastore) or Path(cfg.datastore).exists():
        raise ConfigError("set path=RUN source=FILE target=FILE datastore=FOLDER, where FOLDER does not exist yet")
    loaded = load_model(cfg.path, set_up_device(cfg.common), torch.float32, cfg.reading)
    sources, targets = (list(read_lines(Path(file))) for file in (cfg.source, cfg.target))
    if len(sources) != len(targets) or not sources:
        raise ConfigError(f"source has {len(sources)} lines and target {len(targets)}; give one target for each source")
    write_datastore(loaded, list(zip(sources, targets, strict=True)), Path(cfg.datastore))


def write_datastore(loaded: TextModel, pairs: Sequence[tuple[str, str]], folder: Path, batch_size: int = 64) -> None:
    """Write the features and tokens of pairs of source and target text."""
    task, model, words = loaded.task, loaded.model, loaded.task.target_dictionary
    reads, writes = model.max_positions()  # longer texts are cut
    examples = [(n, task.encode_source(s)[:reads], task.encode_target(t)[:writes]) for n, (s, t) in enumerate(pairs)]
    tokens = torch.cat([target for _, _, target in examples])
    scorer, written = SequenceScorer([model], words.pad(), words.eos()), 0
    folder.mkdir(parents=True)
    for first in range(0, len(examples), batch_size):
        batch = task.collate(examples[first : first + batch_size], model).to(next(model.parameters()).device)
        (features,) = scorer.features(batch)
        if first == 0:
            file = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float16, (len(tokens), features.size(2)))
        assert batch.target is not None
        rows = features[batch.target.cpu() != words.pad()]  # in the order of `tokens`
        file[written : (written := written + len(rows))] = rows
    np.save(folder / "tokens.npy", tokens.numpy())  # last: a folder without it is not a datastore


if __name__ == "__main__":
    run(BuildConfig, build, "writes a datastore for generation.combination=knn_mt.")
