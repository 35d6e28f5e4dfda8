"""examples/papers/align_att.py against the paper's policy as plain loops, and against greedy search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.papers.align_att import AlignAtt
from seqgen.core.beam_search import Greedy
from seqgen.core.errors import ConfigError
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.structures import DecoderOut, EncoderOut
from seqgen.text.translator import Translator
from tests.generators import make_generator
from tests.hypotheses import Pairs, as_pairs, assert_same_pairs
from tests.reference_search import EOS, Settings, next_scores
from tests.scripted_model import Rule, ScriptedDecoder, ScriptedModel, batch_of, dictionary, random_rule
from tests.text_models import TEXTS, text_model

pytestmark = pytest.mark.slow

SOURCES = [
    (4, 5, 2),
    (6, 2),
    (4, 8, 7, 4, 6, 2),
    (2,),
    (5, 6, 7, 2),
    (8, 8, 5, 4, 7, 6, 4, 5, 2),
    (7, 5, 8, 6, 6, 4, 7, 2),
]
RULES = [random_rule(vocab=9, seed=seed) for seed in (4, 5)]


def weights_of(rule: Rule, source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
    """Attention ``(S,)`` by the source read so far and the generated tokens; larger at the beginning."""
    logits = rule((*source, 0), (*history, 0))[: len(source)]
    return (logits - 0.3 * torch.arange(len(source))).softmax(0)


class AligningDecoder(ScriptedDecoder):
    """A scripted decoder with the attention of ``weights_of`` at the newest position."""

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, *arguments: Any, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        logits, attention = super().forward(prev_output_tokens, encoder_out, *arguments, **options)
        if attention is not None:
            attention = torch.zeros_like(attention)
            mask = encoder_out.encoder_padding_mask
            for row, tokens in enumerate(prev_output_tokens.tolist()):
                size = attention.size(2) if mask is None else int((~mask[row]).sum())
                source = tuple(encoder_out.encoder_out[row, :size, 0].tolist())
                attention[row, -1, :size] = weights_of(self.rule, source, tuple(tokens[1:]))
        return DecoderOut(logits, attention)


def aligning_model(rule: Rule) -> ScriptedModel:
    model = ScriptedModel(rule)
    model.decoder = AligningDecoder(rule, 1000)
    return model


def generator(rules: list[Rule], search: Greedy, **options: Any) -> SequenceGenerator:
    values = {"max_len_b": 5, "min_len": 0, "beam_size": 3, **options}
    return make_generator([aligning_model(rule) for rule in rules], dictionary(5), search_strategy=search, **values)


def plain(source: tuple[int, ...], f: int) -> tuple[Pairs, list[int]]:
    """Read a token, decode to the end, keep the tokens before the first one that must wait; and again."""
    cfg, words, emitted, total = Settings(max_len=5, min_len=0), len(source) - 1, (), 0.0
    delays: list[int] = []
    for g in range(min(1, words), words + 1):
        read = source if g == words else source[:g]
        hypothesis, aligned = [], []
        while not hypothesis or hypothesis[-1][0] != EOS:
            history = (*emitted, *(token for token, _ in hypothesis))
            scores = next_scores(RULES[0], read, history, cfg)
            hypothesis.append((scores.index(max(scores)), max(scores)))
            aligned.append(1 + int(weights_of(RULES[0], read, history).argmax()))
        for (token, score), position in zip(hypothesis, aligned, strict=True):
            if g < words and (position > g - f or token == EOS):
                break
            emitted, total, delays = (*emitted, token), total + score, [*delays, g]
    return [(emitted, total / len(emitted))], delays[:-1]


@pytest.mark.parametrize("f", [1, 2, 3])
def test_search(f: int, tmp_path: Path) -> None:
    file = tmp_path / "latency.jsonl"
    found = generator(RULES[:1], AlignAtt(f, str(file))).generate(batch_of(SOURCES))
    lines = {line["line"]: line for line in map(json.loads, file.read_text().splitlines())}
    assert len(lines) == len(SOURCES)
    early = 0
    for number, (source, hypotheses) in enumerate(zip(SOURCES, found, strict=True)):
        pairs, delays = plain(source, f)
        assert_same_pairs(as_pairs(hypotheses), pairs)
        assert (lines[number]["source"], lines[number]["delays"]) == (len(source) - 1, delays)
        early += sum(delay < len(source) - 1 for delay in delays)
    assert early > 1  # tokens are emitted before the source is complete


def test_by_its_keys() -> None:
    translator = Translator(text_model(), max_len_b=8)
    texts = []
    for arguments in (
        {"search": "align_att", "search.f": 1},
        {"search": AlignAtt(1), "batch_size": 1},
        {"search": "align_att", "search.f": 99},
        {"search": "greedy"},
    ):
        found = translator.translate(TEXTS, **arguments)
        texts.append([[(item.text, pytest.approx(item.score)) for item in line.hypotheses] for line in found])
    assert texts[0] == texts[1] != texts[2] == texts[3]
    with pytest.raises(ConfigError, match="below its minimum"):
        translator.translate(TEXTS, search="align_att", **{"search.f": 0})
