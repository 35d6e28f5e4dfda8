"""Trains Medusa heads (Cai et al. 2024, section 2.2.1, Medusa-1); medusa.py has the equations and decodes with them.

``python -m examples.papers.medusa_training path=runs/a source=train.en target=train.de heads=medusa.safetensors``

The model is frozen; only the heads are trained, on its features over the targets. The best targets are outputs that
the model itself has generated for the sources (the paper's self-distillation): the heads will draft such outputs. After
each epoch, the loss of each head is printed, in nats per target token and without the weights 0.8^k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from examples.papers.medusa import Heads
from seqgen.checkpoints.loading import load_model
from seqgen.cli.command import log, run, set_up_device
from seqgen.config import CommonConfig, ReadingConfig, option
from seqgen.data.text import read_lines
from seqgen.errors import ConfigError
from seqgen.generation.ensemble.member import check_features
from seqgen.model import EncoderDecoderModel
from seqgen.structures import Batch
from seqgen.text.text_decoding import TextModel


@dataclass
class TrainHeadsConfig:
    """The keys of the command."""

    path: str = option("", "run folder or checkpoint of the model")
    source: str = option("", "text file with the sources")
    target: str = option("", "text file with the target of each source")
    heads: str = option("", "file to write", names="output")
    count: int = option(4, "number of heads", minimum=1)
    epochs: int = option(1, "passes over the text", minimum=1)
    batch_size: int = option(32, "sentences of an update", minimum=1)
    lr: float = option(0.001, "learning rate of Adam", minimum=0)
    seed: int = option(1, "seed of the initial weights and of the order of the sentences", minimum=0)
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def main(cfg: TrainHeadsConfig) -> None:
    """Train the heads that a configuration describes, and write them."""
    if not (cfg.path and cfg.source and cfg.target and cfg.heads):
        raise ConfigError("give path=RUN source=FILE target=FILE heads=FILE")
    sources, targets = (list(read_lines(Path(file))) for file in (cfg.source, cfg.target))
    if len(sources) != len(targets) or not sources:
        raise ConfigError(f"source has {len(sources)} lines and target {len(targets)}; give one target for each source")
    loaded = load_model(cfg.path, set_up_device(cfg.common), torch.float32, cfg.reading)
    heads = train_heads(loaded, list(zip(sources, targets, strict=True)), cfg)
    save_file(heads.state_dict(), cfg.heads)


def train_heads(loaded: TextModel, pairs: Sequence[tuple[str, str]], cfg: TrainHeadsConfig) -> Heads:
    """Train heads on pairs of source and target text.

    Args:
        loaded: the model, in evaluation mode; it does not change.
        pairs: the text.
        cfg: has the number of heads, and how they are trained.

    Raises:
        ConfigError: the decoder does not return its features.
    """
    task, model = loaded.task, loaded.model.requires_grad_(False)
    check_features([model], "medusa_training")
    reads, writes = model.max_positions()  # longer texts are cut
    lines = [(task.encode_source(source)[:reads], task.encode_target(target)[:writes]) for source, target in pairs]
    torch.manual_seed(cfg.seed)
    first = next(model.parameters())
    dim = _features(task.collate([(0, *lines[0])], model).to(first.device), model).size(-1)
    heads = Heads(cfg.count, dim).to(first)
    optimizer = torch.optim.Adam(heads.parameters(), cfg.lr)
    for epoch in range(1, cfg.epochs + 1):
        total, tokens = torch.zeros(cfg.count), 0
        for numbers in torch.randperm(len(lines)).split(cfg.batch_size):
            batch = task.collate([(number, *lines[number]) for number in numbers.tolist()], model).to(first.device)
            losses = head_losses(heads, batch, model, task.target_dictionary.pad())
            weights = 0.8 ** torch.arange(1, cfg.count + 1, device=losses.device)
            optimizer.zero_grad()
            ((weights * losses).sum() / batch.ntokens).backward()
            optimizer.step()
            total, tokens = total + losses.detach().cpu(), tokens + batch.ntokens
        log(f"epoch {epoch} | loss of each head {' '.join(f'{loss:.3f}' for loss in (total / tokens).tolist())}")
    return heads


def head_losses(heads: Heads, batch: Batch, model: EncoderDecoderModel, pad: int) -> Tensor:
    """The cross-entropy of each head, summed over a batch.

    Head k (from 0) at position t predicts the target at position t + 1 + k, if the target is so long.

    Args:
        heads: the heads.
        batch: a batch with targets ``(N, T)``.
        model: the model whose features ``(N, T, C)`` the heads read.
        pad: id of padding in the targets.

    Returns:
        ``(count,)`` in nats.
    """
    assert batch.target is not None
    logits = model.decoder.output_layer(heads(_features(batch, model)))  # (N, T, count, V)
    target = functional.pad(batch.target, (0, logits.size(2)), value=pad)
    return torch.stack(
        [
            functional.cross_entropy(
                logits[:, :, head].flatten(0, 1),
                target[:, 1 + head :][:, : logits.size(1)].flatten(),
                ignore_index=pad,
                reduction="sum",
            )
            for head in range(logits.size(2))
        ]
    )


def _features(batch: Batch, model: EncoderDecoderModel) -> Tensor:
    """The features over the targets of a batch, ``(N, T, C)``; those of position t predict target t."""
    assert batch.prev_output_tokens is not None
    encoder_out = model.encoder(batch.source.src_tokens, batch.source.src_lengths)
    return model.decoder.extract_features(batch.prev_output_tokens, encoder_out)[0]


if __name__ == "__main__":
    run(TrainHeadsConfig, main, "trains heads for generation.search=medusa.")
