"""Medusa heads for an encoder-decoder (Cai, Li, Geng, Peng, Lee, Chen and Dao 2024, "Medusa: Simple LLM Inference
Acceleration Framework with Multiple Decoding Heads"), Medusa-1 with one draft instead of a tree of them.

The decoder's features h predict the next token. Head k predicts the k-th token after it, from the same features::

    p_k = softmax(output_layer(h + B_k SiLU(A_k h + a_k) + b_k)),    loss = - sum over k of 0.8^k log p_k(y_{t+1+k})

B_k and b_k are 0 at first. The output layer is the decoder's and is frozen like the rest of the model (in the paper,
each head has a copy of it that is trained).

``python examples/papers/medusa.py path=runs/a source=DATA/train.en target=train.out.de heads=medusa.safetensors
count=3`` trains the heads. The best targets are outputs that the model itself has generated for the sources (the
paper's self-distillation): the heads will draft such outputs. After each epoch, the loss of each head is printed, in
nats per target token and without the weights 0.8^k.

Decoding is greedy: the most probable tokens of the heads are a draft, and the model verifies all of them in one pass.

``seqgen-generate common.user_dir=examples/papers/medusa.py path=runs/a input=test.en generation.search=medusa
generation.beam=1 search.heads=medusa.safetensors``

Expect the output of greedy search, token for token, and a line with the share of accepted tokens at the end; it falls
with k. In an ensemble, the heads are those of the first model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from seqgen import load_model
from seqgen.addons.speculative import Draft, Drafter, Drafts, SpeculativeSearch, SpeculativeSession
from seqgen.extend import (
    HIDDEN_STATES,
    Batch,
    CommonConfig,
    ConfigError,
    EncoderDecoderModel,
    Greedy,
    ReadingConfig,
    Source,
    TextModel,
    check_features,
    log,
    option,
    read_lines,
    register_search,
    run,
    set_up_device,
)


class Heads(nn.Module):
    """Changes features ``(..., C)`` to ``(..., count, C)``, those of each head."""

    def __init__(self, count: int, dim: int):
        super().__init__()
        self.hidden = nn.ModuleList([nn.Linear(dim, dim) for _ in range(count)])
        self.output = nn.ModuleList([nn.Linear(dim, dim) for _ in range(count)])
        for parameter in self.output.parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        """Compute the features of all heads."""
        layers = zip(self.hidden, self.output, strict=True)
        return torch.stack([features + b(functional.silu(a(features))) for a, b in layers], dim=-2)


class MedusaDrafter(Drafter):
    """Drafts with heads; see ``Drafter``."""

    needs = frozenset({HIDDEN_STATES})

    def __init__(self, heads: Heads):
        self.heads = heads

    def begin(self, target: SpeculativeSession, source: Source) -> MedusaDraft:
        """Start a batch, with the heads on the device and in the dtype of the first model."""
        self.heads.to(next(target.setup.ensemble.models[0].parameters()))
        return MedusaDraft(self.heads, target)


class MedusaDraft(Draft):
    """Drafts for one batch; see ``Draft``."""

    def __init__(self, heads: Heads, target: SpeculativeSession):
        self.heads, self.target = heads, target

    def propose(self, step: int, generated: Tensor, count: int) -> Drafts:
        """Draft the most probable token of each head; nothing at the first step, which has no features yet."""
        features = self.target.newest_features  # (rows, C)
        if features is None:
            return Drafts(generated[..., :0], [])
        if features.size(1) != self.heads.hidden[0].in_features:
            raise ConfigError("search.heads has heads for features of another size; train them with this model")
        logits = self.target.setup.ensemble.models[0].decoder.output_layer(self.heads(features))  # (rows, heads, V)
        return Drafts(logits.argmax(-1).view(*generated.shape[:2], -1)[..., :count], [])


@dataclass
class MedusaConfig:
    """Configuration of greedy search with Medusa heads; its fields are the keys ``search.FIELD``."""

    heads: str = option("", "file with the heads, which examples/papers/medusa.py writes", role="input_path")


@register_search("medusa", config=MedusaConfig)
class Medusa(SpeculativeSearch):
    """Greedy search with drafts of the heads in a file."""

    def __init__(self, heads: str):
        try:
            weights = load_file(heads)
            modules = Heads(sum(name.endswith("bias") for name in weights) // 2, len(weights["hidden.0.bias"]))
            modules.load_state_dict(weights)
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise ConfigError(f"search.heads={heads} is not a file with Medusa heads: {error}") from None
        super().__init__(MedusaDrafter(modules), draft_tokens=len(modules.hidden), inner=Greedy())

    def rows(self, beam: int) -> int:
        """One; see ``Search.rows``."""
        if beam > 1:
            raise ConfigError(f"generation.search=medusa is greedy search; set generation.beam=1 instead of {beam}")
        return 1


@dataclass
class TrainHeadsConfig:
    """The keys of the command."""

    path: str = option("", "run folder or checkpoint of the model", role="input_path")
    source: str = option("", "text file with the sources", role="input_path")
    target: str = option("", "text file with the target of each source", role="input_path")
    heads: str = option("", "file to write", role="output_path")
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
        raise ConfigError("set path=RUN source=FILE target=FILE heads=FILE")
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
    check_features([model], "training of heads")
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
