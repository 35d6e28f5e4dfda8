"""Generative retrieval: a model decodes the identifier of the picture that a description belongs to.

The first command makes the identifiers, and the files to train and decode with; the last one computes the recall::

    python examples/retrieval.py data=CAPTIONS output=exp
    seqgen-train run_dir=exp/run task=translation task.source_lang=query task.target_lang=id
        task.tokenizer=whitespace task.joined_dictionary=false task.train=exp/train task.valid=exp/valid
        model=transformer_tiny model.dropout=0.1 dataset.max_tokens=8192 optimization.lr=[3e-3]
        lr_scheduler.warmup_updates=1000 optimization.max_epoch=20 checkpoint.keep_last_epochs=1 common.seed=1
    seqgen-generate path=exp/run input=exp/test.query output=exp/found.json format=json generation.beam=100
        generation.nbest=100 generation.allowed_outputs=exp/catalogue generation.certificate=true
    python examples/retrieval.py output=exp found=exp/found.json

Each picture has five descriptions. One of them, chosen at random, is held out as a query; the other four are the
document. The identifier is a path of clusters (Tay et al. 2022, "semantically structured identifiers"): documents are
clustered by k-means, each cluster again, and the last token numbers the documents of a cluster.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqgen.extend import ConfigError, DataError, log, option, read_lines, run

DESCRIPTION = """makes the files of an experiment in generative retrieval from descriptions of pictures, or computes the
recall of what seqgen-generate has found, beside BM25."""

DESCRIPTIONS = 5
CUTS = (1, 10, 100)
"""Recall is computed at these ranks."""


@dataclass
class RetrievalConfig:
    """The configuration of the command."""

    data: str = option(
        "", "folder with train.1.en.gz to train.5.en.gz: line n of each describes picture n", role="input_path"
    )
    output: str = option("", "folder of the experiment", role="output_path")
    found: str = option("", "output of seqgen-generate for output/test.query with format=json; computes the recall")
    clusters: int = option(32, "number of clusters of each level", minimum=2)
    queries: int = option(1000, "number of queries each for validation and for the test", minimum=1)
    documents: int = option(0, "number of pictures; 0 for all", minimum=0)
    seed: int = option(1, "seed of what is held out and of k-means")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the command."""
    run(RetrievalConfig, retrieval, DESCRIPTION, argv)


def retrieval(cfg: RetrievalConfig) -> int:
    """Make the files of the experiment, or compute the recall.

    Raises:
        ConfigError: a key is missing.
        DataError: a file cannot be read, or files do not fit each other.
    """
    if not cfg.output or bool(cfg.data) == bool(cfg.found):
        raise ConfigError("set output=FOLDER, and either data=FOLDER to make the files or found=FILE for the recall")
    if cfg.data:
        prepare(cfg, Path(cfg.output))
    else:
        evaluate(Path(cfg.output), Path(cfg.found), cfg.seed)
    return 0


def prepare(cfg: RetrievalConfig, folder: Path) -> None:
    """Write the files of the experiment.

    ``train.query`` and ``train.id`` have four lines for each picture, ``valid`` and ``test`` one for each of some
    held-out descriptions. ``catalogue`` has all identifiers, and ``documents`` the texts in the same order.
    """
    files = [Path(cfg.data, f"train.{number}.en.gz") for number in range(1, DESCRIPTIONS + 1)]
    rows = [[words_of(line) for line in five] for five in zip(*(read_lines(file) for file in files), strict=True)]
    rows = rows[: cfg.documents or None]
    if len(rows) < 2 * cfg.queries:
        raise DataError(f"{cfg.data} has {len(rows)} pictures, fewer than the {2 * cfg.queries} queries; lower queries")
    draw = random.Random(cfg.seed)
    held_out = [row.pop(draw.randrange(DESCRIPTIONS)) for row in rows]
    documents = [" ".join(row) for row in rows]
    identifiers = cluster_paths(documents, cfg.clusters, cfg.seed)
    asked = draw.sample(range(len(rows)), 2 * cfg.queries)
    splits = {
        "train": [(text, identifier) for row, identifier in zip(rows, identifiers, strict=True) for text in row],
        "valid": [(held_out[picture], identifiers[picture]) for picture in asked[: cfg.queries]],
        "test": [(held_out[picture], identifiers[picture]) for picture in asked[cfg.queries :]],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        write(folder / f"{split}.query", [text for text, _ in pairs])
        write(folder / f"{split}.id", [identifier for _, identifier in pairs])
    write(folder / "catalogue", identifiers)
    write(folder / "documents", documents)
    log(f"{folder}: {len(rows)} pictures, {len(splits['train'])} training pairs, {cfg.queries} queries each")


def words_of(text: str) -> str:
    """The words of a text in lower case, separated by spaces."""
    return " ".join(re.findall(r"\w+", text.lower()))


def write(path: Path, lines: Sequence[str]) -> None:
    """Write lines."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def cluster_paths(documents: Sequence[str], clusters: int, seed: int) -> list[str]:
    """The identifiers of documents, such as ``a3 b17 c5``: cluster, cluster inside of it, number inside of that.

    Args:
        documents: their texts.
        clusters: number of clusters of each level.
        seed: of k-means.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    counts = TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(documents)
    dimensions = min(128, *(size - 1 for size in counts.shape))
    vectors = normalize(TruncatedSVD(dimensions, random_state=seed).fit_transform(counts))
    first = nearest_clusters(vectors, clusters, seed)
    second = np.zeros(len(documents), np.int64)
    for cluster in range(clusters):
        inside = np.flatnonzero(first == cluster)
        second[inside] = nearest_clusters(vectors[inside], clusters, seed)
    sizes: dict[tuple[int, int], int] = {}
    names = []
    for path in zip(first.tolist(), second.tolist(), strict=True):
        number = sizes[path] = sizes.get(path, -1) + 1
        names.append(f"a{path[0]} b{path[1]} c{number}")
    return names


def nearest_clusters(vectors: NDArray[np.float64], clusters: int, seed: int) -> NDArray[np.int64]:
    """The cluster of each vector, by k-means."""
    from sklearn.cluster import KMeans

    if len(vectors) <= clusters:
        return np.arange(len(vectors))
    found: NDArray[np.int64] = KMeans(clusters, n_init=1, random_state=seed).fit_predict(vectors)
    return found


def evaluate(folder: Path, found: Path, seed: int) -> None:
    """Print the recall of the model and of BM25, with intervals.

    Raises:
        DataError: the files have different numbers of lines.
    """
    wanted, queries = list(read_lines(folder / "test.id")), list(read_lines(folder / "test.query"))
    records = [json.loads(line) for line in read_lines(found)]
    if len(records) != len(wanted):
        raise DataError(f"{found} has {len(records)} lines, and {folder / 'test.id'} {len(wanted)}; decode test.query")
    lists = {
        "seqgen": [[item["text"] for item in record["hypotheses"]] for record in records],
        "BM25": bm25(list(read_lines(folder / "documents")), list(read_lines(folder / "catalogue")), queries),
    }
    for name, ranked in lists.items():
        cells = []
        for cut in CUTS:
            hits = np.array([one in row[:cut] for one, row in zip(wanted, ranked, strict=True)], np.float64)
            low, high = interval(hits, seed)
            cells.append(f"recall@{cut} {100 * hits.mean():.1f} ({100 * low:.1f} to {100 * high:.1f})")
        print(f"{name:<7} {'   '.join(cells)}")
    if all("exact" in record for record in records):
        print(f"certified exact: {sum(record['exact'] for record in records)} of {len(records)} lists")


def bm25(documents: Sequence[str], identifiers: Sequence[str], queries: Sequence[str]) -> list[list[str]]:
    """The identifiers of the best documents of each query by BM25 (Robertson et al. 1994), best first."""
    import bm25s

    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(documents), stopwords=None, show_progress=False), show_progress=False)
    tokens = bm25s.tokenize(list(queries), stopwords=None, show_progress=False)
    places, _ = index.retrieve(tokens, k=min(max(CUTS), len(documents)), show_progress=False)
    return [[identifiers[place] for place in row] for row in places.tolist()]


def interval(hits: NDArray[np.float64], seed: int, samples: int = 1000) -> tuple[float, float]:
    """The 95% interval of a mean, by bootstrap over queries (Koehn 2004)."""
    draw = np.random.default_rng(seed)
    means = hits[draw.integers(len(hits), size=(samples, len(hits)))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
