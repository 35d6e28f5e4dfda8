"""Planning ahead in generative retrieval, PAG (Zeng, Luo and Zamani 2024, "Planning Ahead in Generative Retrieval:
Guiding Autoregressive Generation through Simultaneous Decoding").

A beam may prune the beginning of the identifier of a relevant document. So a first pass scores all documents at once,
from the encoder's output ``x_i`` and a set of tokens of each document, and the best ``n`` guide the beam search::

    h       = max over positions i of log(1 + relu(W x_i + b))        a weight of each token
    s(d)    = sum of h over the set of document d
    g(c)    = max of s over those of the best n documents whose identifier begins with c; 0 if there is none
    score   = log p(c) + weight (g(c) - g(beginning))

``g(beginning)`` is subtracted again when a beam continues, so that an identifier has ``log p + weight s``. Models are
encoder-decoders. With the files of examples/retrieval.py, the sets are the words of the documents. The first command
fits the head, ``W`` and ``b``, on queries and their identifiers::

    python examples/papers/planning_ahead.py path=exp/run catalogue=exp/catalogue sets=exp/documents
        source=exp/train.query target=exp/train.id head=head.safetensors
    seqgen-generate common.user_dir=examples/papers/planning_ahead.py path=exp/run input=exp/test.query
        generation.allowed_outputs=exp/catalogue generation.beam=10 generation.length_penalty=0
        generation.processors=[planning_ahead] processor.planning_ahead.head=head.safetensors
        processor.planning_ahead.sets=exp/documents

In the paper, the first pass is one of the decoder, which reads the query; the sets are the tokens with the largest
weights, in a second vocabulary; identifiers are quantized vectors of documents; ``log p`` is a sum of logits; and all
weights are trained together with the scores of a ranking model. Here the head alone is trained, by cross-entropy. For
3,000 pictures (``documents=3000 queries=300 clusters=12``; 12 epochs of transformer_tiny, 4 of the head with
``lr=0.005``) the recall@10 of 300 queries is 6.0 percent without it, and 22.3 with it (27.0 with ``weight=3``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from seqgen import load_model
from seqgen.extend import (
    BatchInfo,
    Candidates,
    CommonConfig,
    ConfigError,
    EncoderOut,
    LogitsProcessor,
    ReadingConfig,
    Resources,
    StepContext,
    Task,
    gather_beams,
    option,
    pad_rows,
    read_ids,
    read_lines,
    register_logits_processor,
    run,
    set_up_device,
)


@dataclass
class PlanningConfig:
    """Configuration of the processor; its fields are the keys ``processor.planning_ahead.FIELD``."""

    head: str = option("", "file with the head", role="input_path")
    sets: str = option("", "text of each document, in the order of generation.allowed_outputs", role="input_path")
    best: int = option(1000, "number of documents that guide the search", minimum=1)
    weight: float = option(1.0, "factor of the scores of the first pass", minimum=0)


@register_logits_processor("planning_ahead", config=PlanningConfig)
class PlanningAhead(LogitsProcessor):
    """Adds the scores of the first pass.

    Args:
        head: from features to a score of each token.
        documents: ``(D, L)`` int64, the tokens of each identifier, with end-of-sentence, padded on the right.
        sets: ``(D, V)`` sparse, 1 for each token of a document's set.
        best: documents that guide the search.
        weight: factor of the scores of the first pass.

    Attributes:
        paths: ``(sentences, best, L)`` int64, the identifiers of the documents that guide the search.
        scores: ``(sentences, best)``, their scores.
        length: ``(sentences,)`` int64, the number of tokens of an output.
        begun: ``(sentences, beam, best)`` bool, which identifiers begin with the tokens of each beam.
    """

    shift_invariant = can_merge = True
    certifiable = True  # after the first token, it only subtracts
    sentence_state = ("paths", "scores", "length")
    beam_state = ("begun",)
    paths: Tensor
    scores: Tensor
    length: Tensor
    begun: Tensor

    def __init__(self, head: nn.Linear, documents: Tensor, sets: Tensor, best: int = 1000, weight: float = 1.0):
        self.head, self.documents, self.sets, self.best, self.weight = head, documents, sets, best, weight

    @classmethod
    def build(cls, cfg: PlanningConfig, resources: Resources) -> Self:
        """Read the head, the catalogue and the sets."""
        catalogue = Path(getattr(resources.settings, "allowed_outputs", ""))
        if not (cfg.head and cfg.sets and catalogue.name) or catalogue.suffix == ".safetensors":
            raise ConfigError(
                "planning_ahead needs generation.allowed_outputs=FILE with text or ids, processor.planning_ahead.head="
                "FILE and processor.planning_ahead.sets=FILE"
            )
        words, lines = resources.dictionary, list(read_lines(catalogue))
        if catalogue.suffix == ".ids":
            ids: list[Any] = [read_ids(line, len(words), f"{catalogue}, line {n}") for n, line in enumerate(lines, 1)]
        else:
            ids = [resources.ids(line) for line in lines]
        sets = token_sets(resources.models[0].task, Path(cfg.sets), len(ids))
        documents = pad_rows([torch.tensor([*one, words.eos()]) for one in ids], words.pad(), False)
        return cls(read_head(cfg.head, sets.size(1)), documents, sets, cfg.best, cfg.weight)

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Component.begin``; this is the first pass."""
        begun, (encoded, *_) = super().begin(batch), batch.encoder_outs
        if self.head.in_features != features_of(encoded).size(-1):
            raise ConfigError("processor.planning_ahead.head is that of another model; fit it with the first of path")
        begun.head = self.head.to(encoded.encoder_out)
        scores = self.weight * first_pass(begun.head, encoded, self.sets)
        begun.scores, chosen = scores.topk(min(self.best, len(self.documents)), dim=1)
        begun.paths = self.documents.to(batch.device)[chosen]
        begun.length = torch.zeros_like(batch.ids)
        begun.begun = torch.ones(*chosen.shape, dtype=torch.bool, device=batch.device)
        begun.begun = begun.begun.unsqueeze(1).repeat(1, batch.beam_size, 1)
        return begun

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """See ``LogitsProcessor.__call__``."""
        scores = self.scores.unsqueeze(1).where(self.begun, 0.0).flatten(0, 1).to(lprobs)
        added = torch.zeros_like(lprobs).scatter_reduce(1, context.by_row(self._at(self.length)), scores, "amax")
        begins = (context.steps > 0).unsqueeze(1)
        return lprobs + added - scores.amax(1, keepdim=True).where(begins, 0.0)

    def advance(self, active: Candidates) -> None:
        """See ``Component.advance``."""
        self.begun = gather_beams(self.begun, active.beams)
        self.begun = self.begun & (self._at(self.length).unsqueeze(1) == active.tokens.unsqueeze(2))
        self.length = self.length + 1

    def _at(self, place: Tensor) -> Tensor:
        """The tokens at a place of the identifiers, ``(sentences, best)``."""
        place = place.clamp(max=self.paths.size(2) - 1).view(-1, 1, 1)
        return self.paths.gather(2, place.expand(-1, self.paths.size(1), -1)).squeeze(2)


def features_of(encoded: EncoderOut) -> Tensor:
    """The features ``(sentences, S, C)``.

    Raises:
        ConfigError: there are none.
    """
    if not encoded.encoder_out.is_floating_point():
        raise ConfigError("planning_ahead reads features of an encoder; a decoder-only model has none")
    return encoded.encoder_out


def first_pass(head: nn.Linear, encoded: EncoderOut, sets: Tensor) -> Tensor:
    """The score of each document, ``(sentences, D)``."""
    scores = head(encoded.encoder_out)
    if encoded.encoder_padding_mask is not None:
        scores = scores.masked_fill(encoded.encoder_padding_mask.unsqueeze(2), -torch.inf)
    weights = scores.amax(1).relu().log1p()  # the maximum first, since both functions increase
    found: Tensor = torch.sparse.mm(sets.to(weights), weights.t())
    return found.t()


def token_sets(task: Task, path: Path, count: int) -> Tensor:
    """The sets of tokens of documents, ``(D, V)`` sparse.

    Args:
        task: encodes the texts.
        path: file with the text of each document.
        count: the number of documents.

    Raises:
        ConfigError: the file has another number of lines, or none.
    """
    rows, words = [task.encode_source(line).unique() for line in read_lines(path)], task.source_dictionary
    if len(rows) != count or not count:
        raise ConfigError(f"{path} has {len(rows)} documents, and the catalogue {count}; give a line for each")
    numbers = torch.arange(count).repeat_interleave(torch.tensor([len(row) for row in rows]))
    tokens = torch.cat(rows)
    numbers, tokens = (each[(tokens != words.eos()) & (tokens != words.unk())] for each in (numbers, tokens))
    places, ones = torch.stack([numbers, tokens]), torch.ones(len(tokens))
    return torch.sparse_coo_tensor(places, ones, (count, len(words)), check_invariants=True).coalesce()


def read_head(file: str, size: int) -> nn.Linear:
    """Read the head that ``fit`` wrote, for a vocabulary of a size.

    Raises:
        ConfigError: the file is another one.
    """
    try:
        weights = load_file(file)
        head = nn.Linear(weights["weight"].size(1), size, dtype=weights["weight"].dtype)
        head.load_state_dict(weights)
    except (OSError, ValueError, KeyError, RuntimeError, IndexError, SafetensorError) as error:
        what = "a head for this vocabulary that this file's command wrote"
        reason = str(error).rpartition("\n")[2].strip()
        raise ConfigError(f"processor.planning_ahead.head={file} is not {what}: {reason}") from None
    return head.requires_grad_(False)


@dataclass
class FitConfig:
    """The keys of the command that fits a head."""

    path: str = option("", "run folder or checkpoint of the model", role="input_path")
    catalogue: str = option("", "text file with the identifier of each document", role="input_path")
    sets: str = option("", "text of each document, in the order of the catalogue", role="input_path")
    source: str = option("", "text file with queries", role="input_path")
    target: str = option("", "text file with the identifier for each query", role="input_path")
    head: str = option("", "file to write", role="output_path")
    epochs: int = option(3, "passes over the queries", minimum=1)
    lr: float = option(1e-3, "learning rate", minimum=0)
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def fit(cfg: FitConfig) -> None:
    """Fit the head that a configuration describes."""
    if not all((cfg.path, cfg.catalogue, cfg.sets, cfg.source, cfg.target, cfg.head)):
        raise ConfigError("set path=RUN catalogue=FILE sets=FILE source=FILE target=FILE head=FILE")
    loaded = load_model(cfg.path, set_up_device(cfg.common), torch.float32, cfg.reading)
    catalogue, queries, targets = (list(read_lines(Path(file))) for file in (cfg.catalogue, cfg.source, cfg.target))
    numbers = {line: number for number, line in enumerate(catalogue)}
    unknown = [line for line in targets if line not in numbers]
    if len(queries) != len(targets) or unknown or not queries:
        lines = f"{len(queries)} lines, and target={cfg.target} {len(targets)}, of which {len(unknown)} are not"
        raise ConfigError(f"source={cfg.source} has {lines} in the catalogue; each query needs an identifier")
    sets = token_sets(loaded.task, Path(cfg.sets), len(catalogue))
    Path(cfg.head).parent.mkdir(parents=True, exist_ok=True)
    try:
        head = fit_head(loaded, queries, [numbers[line] for line in targets], sets, cfg.epochs, cfg.lr)
    except ValueError as error:  # a query is too long
        raise ConfigError(f"source={cfg.source}: {error}") from None
    save_file({name: value.detach().cpu() for name, value in head.state_dict().items()}, cfg.head)


def fit_head(
    loaded: Any, queries: Sequence[str], wanted: Sequence[int], sets: Tensor, epochs: int, lr: float, size: int = 64
) -> nn.Linear:
    """Minimize the cross-entropy of the scores of all documents, by Adam; the other weights stay as they are."""

    def encode(batch: Sequence[int]) -> EncoderOut:
        examples: Any = [(number, loaded.task.encode_source(queries[number]), None) for number in batch]
        source = loaded.task.collate(examples, loaded.model).to(device).source
        with torch.no_grad():
            encoded: EncoderOut = loaded.model.encoder(source.src_tokens, source.src_lengths)
        return encoded

    torch.manual_seed(1)
    device = next(loaded.model.parameters()).device
    like = features_of(encode([0]))
    head, sets = nn.Linear(like.size(-1), sets.size(1)).to(like), sets.to(like)
    optimizer = torch.optim.Adam(head.parameters(), lr=lr)
    for _ in range(epochs):
        for batch in torch.randperm(len(queries)).split(size):
            targets = torch.tensor([wanted[number] for number in batch.tolist()], device=device)
            loss = cross_entropy(first_pass(head, encode(batch.tolist()), sets), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return head.requires_grad_(False)


if __name__ == "__main__":
    run(FitConfig, fit, "fits the head of generation.processors=[planning_ahead].")
