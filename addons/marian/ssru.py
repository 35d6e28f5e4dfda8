"""A transformer whose decoder has recurrent units instead of self-attention: SSRU (Kim et al. 2019, "From Research to
Production and Back: Ludicrously Fast Neural Machine Translation"), the decoder of Marian's fast student models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seqgen.extend import (
    Linear,
    StateDict,
    StatefulModule,
    TransformerConfig,
    TransformerDecoder,
    TransformerModel,
    register_model,
)


class SSRU(StatefulModule):
    """The simpler simple recurrent unit, in the place of self-attention.

    The cell is a mean of the last cell and the input, weighted by a forget gate in each dimension; the output is the
    positive part of the cell. One vector for each row is all that the next step needs, however long the output is.

    Args:
        embed_dim: dimension of input and output.
    """

    def __init__(self, embed_dim: int):
        super().__init__()
        self.state_sizes = {"cell": (embed_dim,)}
        self.input = Linear(embed_dim, embed_dim, bias=False)
        self.forget = Linear(embed_dim, embed_dim)
        for linear in (self.input, self.forget):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.forget.bias)

    def forward(
        self, x: Tensor, *, incremental_state: StateDict | None = None, **of_attention: Any
    ) -> tuple[Tensor, None]:
        """Transform each new position.

        Args:
            x: ``(N, T, C)``.
            incremental_state: the decoding state; ``None`` for the parallel pass.
            of_attention: arguments of self-attention, without effect: a position depends on all before it.

        Returns:
            ``(N, T, C)``, and ``None`` because there are no weights.
        """
        forget = torch.sigmoid(self.forget(x))
        new = (1 - forget) * self.input(x)
        before = self.get_state(incremental_state)
        cell = torch.zeros_like(x[:, 0]) if before is None else before["cell"]
        cells = []
        for step in range(x.size(1)):
            cell = torch.addcmul(new[:, step], forget[:, step], cell)
            cells.append(cell)
        self.set_state(incremental_state, {"cell": cell})
        return torch.relu(torch.stack(cells, dim=1)), None


class SSRUDecoder(TransformerDecoder):
    """A transformer's decoder with SSRU in each layer instead of self-attention; see ``TransformerDecoder``."""

    can_roll_back = False
    can_merge = False

    def __init__(self, cfg: TransformerConfig, embed_tokens: nn.Embedding, encoder_dim: int):
        super().__init__(cfg, embed_tokens, encoder_dim)
        for layer in self.layers:
            layer.self_attn = SSRU(cfg.decoder_embed_dim)  # type: ignore[assignment]


@dataclass
class SSRUConfig(TransformerConfig):
    """Configuration of the transformer with SSRU; the heads of the decoder are those of its attention to the source."""


@register_model("transformer_ssru", config=SSRUConfig)
class SSRUModel(TransformerModel):
    """A transformer with a recurrent decoder."""

    supports_packing = False
    decoder_class = SSRUDecoder
