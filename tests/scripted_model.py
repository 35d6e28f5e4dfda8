"""Models without weights whose next-token probabilities are given, so that tests can compute scores by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from seqgen.core.structures import Batch, DecoderOut, EncoderOut, Source
from seqgen.extend import Dictionary, Encoder, EncoderDecoderModel, IncrementalDecoder, pad_rows

Rule = Callable[[tuple[int, ...], tuple[int, ...]], Tensor]
"""A function from source ids and generated tokens to the logits ``(V,)`` of the next token."""


def dictionary(words: int = 19) -> Dictionary:
    """``<s> <pad> </s> <unk>`` and the words ``w0``, ``w1``, ... with ids from 4."""
    return Dictionary([*Dictionary().symbols, *(f"w{number}" for number in range(words))])


class ScriptedEncoder(Encoder):
    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> EncoderOut:
        mask = torch.arange(src_tokens.size(1)) >= src_lengths.unsqueeze(1)
        return EncoderOut(src_tokens.unsqueeze(-1), mask)

    def max_positions(self) -> int:
        return 1000


class ScriptedDecoder(IncrementalDecoder):
    """Reads earlier tokens only from the state, so that a state that is not reordered changes the output."""

    def __init__(self, rule: Rule, longest: int):
        super().__init__()
        self.rule, self.longest = rule, longest

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: Any, incremental_state: Any = None, need_attention: bool = False
    ) -> DecoderOut:
        module_state = self.get_state(incremental_state)
        past = prev_output_tokens[:, :0] if module_state is None else module_state["past"]
        seen = past.size(1)
        history = torch.cat([past, prev_output_tokens[:, seen:]], dim=1)
        if incremental_state is not None:
            self.set_state(incremental_state, {"past": history})
        rows = []
        for row, tokens in enumerate(history.tolist()):
            length = int((~encoder_out.encoder_padding_mask[row]).sum())
            source = tuple(encoder_out.encoder_out[row, :length, 0].tolist())
            rows.append(torch.stack([self.rule(source, tuple(tokens[1 : t + 1])) for t in range(seen, len(tokens))]))
        logits = torch.stack(rows)
        attention = logits.new_full((*logits.shape[:2], encoder_out.encoder_out.size(1)), 1.0)
        return DecoderOut(logits, attention / attention.sum(-1, keepdim=True) if need_attention else None)

    def max_positions(self) -> int:
        return self.longest


class ScriptedModel(EncoderDecoderModel):
    def __init__(self, rule: Rule, longest: int = 1000):
        super().__init__(ScriptedEncoder(), ScriptedDecoder(rule, longest))

    def max_positions(self) -> tuple[int, int]:
        return 1000, self.decoder.max_positions()


def random_rule(vocab: int, seed: int, sharpness: float = 1.5) -> Rule:
    """Random float64 logits that are a function of seed, source and history."""

    def rule(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        key = hash((seed, source, history)) % (2**63)
        return torch.randn(vocab, generator=torch.Generator().manual_seed(key), dtype=torch.float64) * sharpness

    return rule


def table_rule(table: dict[tuple[int, ...], dict[int, float]], vocab: int) -> Rule:
    """Probabilities by history. Tokens not listed have probability 0; after a history not listed, the output ends."""

    def rule(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        logits = torch.full((vocab,), -torch.inf, dtype=torch.float64)
        for token, probability in table.get(history, {2: 1.0}).items():
            logits[token] = torch.tensor(probability, dtype=torch.float64).log()
        return logits

    return rule


def batch_of(sources: Sequence[Sequence[int]], pad: int = 1, left: bool = False) -> Batch:
    """A batch of sources, padded on the right, or on the left."""
    lengths = torch.tensor([len(source) for source in sources])
    rows = [torch.tensor(source) for source in sources]
    return Batch(torch.arange(len(sources)), Source(pad_rows(rows, pad, left), lengths))
