"""examples/papers/simultaneous.py, align_att.py and latency.py against plain loops over one sentence."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.papers.align_att import AlignAtt
from examples.papers.latency import average_lagging
from examples.papers.simultaneous import WaitK
from seqgen.core.structures import DecoderOut, EncoderOut
from tests.generators import make_generator, scripted_generator
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import EOS, Beam, Settings, beam_search, next_scores
from tests.scripted_model import Rule, ScriptedDecoder, ScriptedModel, batch_of, dictionary, random_rule

pytestmark = pytest.mark.slow

SOURCES = [(4, 5, 2), (6, 2), (4, 8, 7, 4, 6, 2), (2,), (5, 6, 7, 2)]
SOURCES += [(8, 8, 5, 4, 7, 6, 4, 5, 2), (7, 5, 8, 6, 6, 4, 7, 2)]
RULE = random_rule(vocab=9, seed=4)


def wait_k(source: tuple[int, ...], k: int, beam: int) -> Pairs:
    """Beam search over prefixes, as loops over one sentence; a hypothesis ends when the source is read."""
    words, longest = len(source) - 1, 5

    def reading(source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        return RULE(source if k + len(history) >= words else source[: k + len(history)], history)

    def choose(found: list[Beam]) -> list[Beam | None]:
        may_end = min(words - k, longest)
        return [one for one in found if one[1][-1] != EOS or len(one[1]) > may_end][: 2 * beam]

    return beam_search(reading, source, Settings(beam, max_len=longest, min_len=0), choose)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_wait_k(k: int, beam: int) -> None:
    found = scripted_generator([RULE], WaitK(k), beam).generate(batch_of(SOURCES))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert_same_pairs(as_pairs(hypotheses), wait_k(source, k, beam))


def weights_of(rule: Rule, source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
    """Attention ``(S,)`` by the source read so far and the generated tokens; larger at the beginning."""
    logits = rule((*source, 0), (*history, 0))[: len(source)]
    return (logits - 0.3 * torch.arange(len(source))).softmax(0)


class AligningDecoder(ScriptedDecoder):
    """A scripted decoder with the attention of ``weights_of`` at the newest position."""

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, *arguments: Any, **options: Any
    ) -> DecoderOut:
        logits, attention = super().forward(prev_output_tokens, encoder_out, *arguments, **options)
        if attention is not None:
            attention = torch.zeros_like(attention)
            mask = encoder_out.encoder_padding_mask
            for row, tokens in enumerate(prev_output_tokens.tolist()):
                size = attention.size(2) if mask is None else int((~mask[row]).sum())
                source = tuple(encoder_out.encoder_out[row, :size, 0].tolist())
                attention[row, -1, :size] = weights_of(self.rule, source, tuple(tokens[1:]))
        return DecoderOut(logits, attention)


def align_att(source: tuple[int, ...], f: int) -> tuple[Pairs, list[int]]:
    """Read a token, decode to the end, keep the tokens before the first one that must wait; and again."""
    cfg, words, emitted, total = Settings(max_len=5, min_len=0), len(source) - 1, (), 0.0
    delays: list[int] = []
    for g in range(min(1, words), words + 1):
        read = source if g == words else source[:g]
        hypothesis, aligned = [], []
        while not hypothesis or hypothesis[-1][0] != EOS:
            history = (*emitted, *(token for token, _ in hypothesis))
            scores = next_scores(RULE, read, history, cfg)
            hypothesis.append((scores.index(max(scores)), max(scores)))
            aligned.append(1 + int(weights_of(RULE, read, history).argmax()))
        for (token, score), position in zip(hypothesis, aligned, strict=True):
            if g < words and (position > g - f or token == EOS):
                break
            emitted, total, delays = (*emitted, token), total + score, [*delays, g]
    return [(emitted, total / len(emitted))], delays[:-1]


@pytest.mark.parametrize("f", [1, 2, 3])
def test_align_att(f: int, tmp_path: Path) -> None:
    file, model = tmp_path / "latency.jsonl", ScriptedModel(RULE)
    model.decoder = AligningDecoder(RULE, 1000)
    search = AlignAtt(f, str(file))
    options = {"max_len_b": 5, "min_len": 0, "beam_size": 3}
    found = make_generator([model], dictionary(5), search_strategy=search, **options).generate(batch_of(SOURCES))
    lines = {line["line"]: line for line in map(json.loads, file.read_text().splitlines())}
    assert len(lines) == len(SOURCES)
    early = 0
    for number, (source, hypotheses) in enumerate(zip(SOURCES, found, strict=True)):
        pairs, delays = align_att(source, f)
        assert_same_pairs(as_pairs(hypotheses), pairs)
        assert (lines[number]["source"], lines[number]["delays"]) == (len(source) - 1, delays)
        early += sum(delay < len(source) - 1 for delay in delays)
    assert early > 1  # tokens are emitted before the source is complete


def lagging(delays: list[int], source: int, target: int) -> float:
    """Equations 6 to 8 of Ma et al., with t from 1."""
    count = next((t for t, delay in enumerate(delays, 1) if delay == source), len(delays))
    return sum(delays[t - 1] - (t - 1) / (target / source) for t in range(1, count + 1)) / count


def test_average_lagging() -> None:
    for source, size, k in itertools.product(range(1, 7), range(1, 8), range(1, 8)):
        delays = [min(k + t, source) for t in range(size)]
        for target in (size, 9):
            assert average_lagging(delays, source, target) == pytest.approx(lagging(delays, source, target))
    assert average_lagging([3, 4, 5, 6, 6, 6], 6, 6) == 3  # equally long: wait-k lags k tokens behind
    assert average_lagging([], 6, 0) == 6
