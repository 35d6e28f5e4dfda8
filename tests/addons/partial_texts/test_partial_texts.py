"""The texts of partial outputs are what the tokenizer decodes of all tokens, for every tokenizer."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Pipeline, decoders, models

from seqgen.addons.partial_texts import WINDOW, PartialTexts
from seqgen.core.component import BatchInfo
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import WhitespaceTokenizer
from seqgen.decoding.building import Resources
from tests.data.test_tokenizers import ZOO
from tests.scripted_model import dictionary
from tests.tokenizer_texts import HARD, TEXT


class ByteRuns(WhitespaceTokenizer):
    """Pieces and bytes, as Gemma has them: one wrong byte changes the text of the whole run of bytes."""

    def __init__(self) -> None:
        tokens = ["<unk>", "<pad>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁do", "▁no", "t"]
        super().__init__(Dictionary(tokens, pad=1, eos=2, unk=0))
        self.pipeline = Pipeline(models.BPE({token: i for i, token in enumerate(tokens)}, [], byte_fallback=True))
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        self.pipeline.decoder = decoders.Sequence(steps)

    def encode(self, text: str) -> list[int]:
        return [3 + byte for byte in text.encode()] if "é" in text else [260] * len(text.split())

    def decode(self, ids: Sequence[int]) -> str:
        return self.pipeline.decode([one for one in ids if one != 1]).replace(" do not", " don't")


@pytest.mark.parametrize("name", [*ZOO, "runs of bytes"])
def test_texts_are_those_of_all_tokens(name: str, tmp_path: Path) -> None:
    tokenizer = ZOO[name](tmp_path / "folder").target_side if name in ZOO else ByteRuns()
    decoded, size, generator = list[int](), len(tokenizer.dictionary), random.Random(3)

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return tokenizer.decode(ids)

    texts, few = PartialTexts(decode, tokenizer.dictionary), generator.choices(range(size), k=8)
    lines = [tokenizer.encode(" ".join(generator.choices(words, k=20))) for words in (HARD, TEXT) * 3]
    for some in (range(size), few, [*few[:4], *range(3), size - 1]):
        lines += [generator.choices(some, k=90) for _ in range(9)]
    runs = tokenizer.encode("a" * 40 + "é")
    lines += [runs, [one for byte in runs for one in (1, byte)]]  # and with padding inside
    lines += [[size - 3] * 16 + [size - 2] + [1] * 15 + [size - 1]]
    for ids in lines:
        for end in range(len(ids) + 1):
            assert texts.decode(ids[:end]) == tokenizer.decode(ids[:end])
    ids = tokenizer.encode(TEXT[0]) * 20
    texts.decode(ids)
    decoded.clear()
    assert texts.decode([*ids, ids[0]]) == texts.decode([*ids, ids[0]]) == tokenizer.decode([*ids, ids[0]])
    assert max(decoded, default=0) <= 2 * WINDOW, "only the last tokens are decoded"
    assert len(decoded) <= 4, "a text is decoded once"


def context_of(tokens: list[list[int]], beam: int, **sentences: Any) -> StepContext:
    size = len(tokens) // beam
    batch = BatchInfo(torch.arange(size), beam, 2, 1, [2], torch.full((size,), 9), torch.zeros(size, dtype=torch.bool))
    step, read = len(tokens[0]), torch.tensor([[2, *row] for row in tokens])
    return StepContext(step, replace(batch, **sentences), beam, 9, lambda: read)


def test_rows_of_sentences_that_join_and_of_prompts() -> None:
    words = WhitespaceTokenizer(dictionary(9))
    resources = Resources(words.dictionary, decode=words.decode)
    texts = PartialTexts.of(resources)
    assert PartialTexts.of(Resources(words.dictionary, decode=words.decode)) is texts
    rows = [[4, 5, 6], [7, 8, 2], [1, 1, 9], [5, 1, 4]]
    joined = context_of(rows, 2, start_offsets=torch.tensor([0, 2]))
    assert texts.texts(joined) == ["w0 w1 w2", "w3 w4", "w5", "w0"]
    assert texts.peek(joined, torch.tensor([[2, 4]] * 4))[2:] == [["w5", "w5 w0"], ["w0", "w0 w0"]]
    prompts = context_of(rows[:2], 1, src_tokens=torch.tensor([[1, 4], [5, 4]]), continues_source=True)
    assert texts.texts(prompts) == [" w0 w1 w2", " w3 w4"]
    with pytest.raises(ConfigError, match="need a tokenizer, which this decode does not have"):
        PartialTexts.of(Resources(words.dictionary))
