"""Given outputs of lines, scored by teacher forcing: references, and outputs whose attention is wanted."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqgen.generation.finished import Ranking
from seqgen.text.input_line import InputLine
from seqgen.text.languages import encode_target
from seqgen.text.results import attend_to_source
from seqgen.text.text_decoding import RESCORED_TOKENS, TextDecoding

Wanted = tuple[InputLine, Tensor]
"""An encoded line, and the ids ``(T,)`` of an output."""


@dataclass(frozen=True)
class ForcedOutput:
    """An output of a line, scored by teacher forcing.

    Attributes:
        tokens: ``(T,)`` int64 ids, end-of-sentence included.
        score: the score by which it would rank as a hypothesis, without processors.
        scores: ``(T,)`` log-probability of each token in nats.
        members: for each model that reads the input ``(T,)`` its log-probabilities.
        attention: ``(T, S)`` weights over the source; ``None`` if not requested, or if the models have none.
    """

    tokens: Tensor
    score: float
    scores: Tensor
    members: list[Tensor]
    attention: Tensor | None = None


def reference_tokens(decoding: TextDecoding, text: str, line: InputLine) -> Tensor:
    """The ids of the reference of a line: ``(T,)`` int64."""
    return encode_target(decoding.task, text, line.languages)


def can_score(decoding: TextDecoding, wanted: Wanted) -> bool:
    """Whether the models have enough positions for an output."""
    line, tokens = wanted
    limits = [member.model.max_positions()[1] for member in decoding.members]
    for member, source in zip(decoding.members, line.sources, strict=False):
        if (room := member.model.max_target_lengths(torch.tensor([len(source)]))) is not None:
            limits.append(int(room[0]))
    return 0 < len(tokens) <= min(limits)


@torch.inference_mode()
def score_outputs(decoding: TextDecoding, outputs: Sequence[Wanted], attention: bool = False) -> list[ForcedOutput]:
    """Score given outputs, without temperature, processors and penalties.

    Args:
        decoding: the prepared decoding.
        outputs: pairs of an encoded line and an output.
        attention: whether attention is computed.

    Returns:
        The scores of each output.
    """
    scorer = copy.copy(decoding.scorer)
    scorer.need_attention = attention
    cfg, first = decoding.cfg, decoding.models[0]
    ranking = Ranking(not cfg.unnormalized, cfg.lenpen, cfg.length_penalty)
    order = sorted(range(len(outputs)), key=lambda index: len(outputs[index][1]))
    found: dict[int, ForcedOutput] = {}
    while order:
        longest = len(outputs[order[-1]][1])
        rows = order[-max(1, RESCORED_TOKENS // longest) :]
        del order[-len(rows) :]
        batch = decoding.collate(decoding.members, [outputs[row] for row in rows])
        lengths = [len(outputs[row][1]) for row in rows]
        for row, length, scored in zip(rows, lengths, scorer.score(batch, lengths), strict=True):
            width, read = batch.source.src_tokens.size(1), len(outputs[row][0].sources[0])
            own = attend_to_source(scored.hypothesis, width, read, first.left_pad_source)
            score = float(ranking.score(own.positional_scores.sum(), length))
            found[row] = ForcedOutput(own.tokens, score, own.positional_scores, scored.member_scores, own.attention)
    return [found[row] for row in range(len(outputs))]
