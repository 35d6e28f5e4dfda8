"""Medusa heads for an encoder-decoder (Cai, Li, Geng, Peng, Lee, Chen and Dao 2024, "Medusa: Simple LLM Inference
Acceleration Framework with Multiple Decoding Heads"), Medusa-1 with one draft instead of a tree of them.

The decoder's features h predict the next token. Head k predicts the k-th token after it, from the same features::

    p_k = softmax(output_layer(h + B_k SiLU(A_k h + a_k) + b_k)),    loss = - sum over k of 0.8^k log p_k(y_{t+1+k})

B_k and b_k are 0 at first. The output layer is the decoder's and is frozen like the rest of the model (in the paper,
each head has a copy of it that is trained). ``python -m examples.papers.medusa_training`` trains the heads.

Decoding is greedy: the most probable tokens of the heads are a draft, and the model verifies all of them in one pass.

``seqgen-generate common.user_dir=examples/papers/medusa.py path=runs/a input=test.en generation.search=medusa
generation.beam=1 search.heads=medusa.safetensors``

Expect the output of greedy search, token for token, and a line with the share of accepted tokens at the end; it falls
with k. In an ensemble, the heads are those of the first model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from seqgen.config import option
from seqgen.errors import ConfigError
from seqgen.generation.component import FEATURES
from seqgen.generation.search.beam import Greedy
from seqgen.generation.speculative.drafters import Drafts, DraftTarget
from seqgen.generation.speculative.verification import SpeculativeSearch
from seqgen.registry import register_search
from seqgen.structures import Source


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
        return torch.stack([features + b(nn.functional.silu(a(features))) for a, b in layers], dim=-2)


class MedusaDrafter:
    """Drafts with heads; see ``Drafter``."""

    needs = frozenset({FEATURES})

    def __init__(self, heads: Heads):
        self.heads = heads

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Heads have no evaluation mode."""
        yield

    def begin(self, target: DraftTarget, source: Source) -> MedusaDraft:
        """Start a batch, with the heads on the device and in the dtype of the first model."""
        self.heads.to(next(target.setup.ensemble.models[0].parameters()))
        return MedusaDraft(self.heads, target)


class MedusaDraft:
    """Drafts for one batch; see ``Draft``."""

    def __init__(self, heads: Heads, target: DraftTarget):
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

    def select_sentences(self, keep: Tensor) -> None:
        """Nothing to do, because the session has the features."""


@dataclass
class MedusaConfig:
    """Configuration of greedy search with Medusa heads; its fields are the keys ``search.FIELD``."""

    heads: str = option("", "file with the heads, which examples/papers/medusa_training.py writes")


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
            raise ConfigError(f"generation.search=medusa is greedy search; give generation.beam=1 instead of {beam}")
        return 1
