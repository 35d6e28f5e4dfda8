"""Stopping rules against transformers' and by hand."""

import io
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from seqgen.decoding.stopping import StopStrings, TimeLimit, stopping_from_config
from seqgen.extend import GenerationConfig, Resources, load_pretrained_tokenizer
from tests.generators import make_generator
from tests.scripted_model import ScriptedModel, batch_of, dictionary, table_rule
from tests.step_contexts import batch_info, step_context

EOS = 2
TEXT = """stop the stopper and stoop to the top of the step
a pot of tea, or two pots; do not stop now
st op las topper pped opera he stopped at the hospital
abcdef is what the original puts before a token, to see how it is written
""".splitlines()


@pytest.fixture(scope="module")
def pieces() -> Any:
    """A tiny SentencePiece model with T5's special ids, and the file that it came from."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 4), model_writer=model, vocab_size=60, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


STOPS = [["stop"], ["op"], [" t"], ["the top", "a"], ["o"], ["stopped at the hos"], ["t ", " stop"]]
STOPS += [["<extra_id_1>"], ["o<extra_id_0>", "</s> t"]]


@pytest.mark.parametrize("stops", STOPS, ids=str)
def test_stop_strings_equal_transformers(stops: list[str], pieces: bytes, tmp_path: Any) -> None:
    """The same verdict as the original's on every history of three tokens, and on long random ones."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "spiece.model").write_bytes(pieces)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5TokenizerFast", "extra_ids": 2}')
    tokenizer = load_pretrained_tokenizer(tmp_path)
    original = transformers.T5TokenizerFast(str(tmp_path / "spiece.model"), extra_ids=2)
    theirs = transformers.generation.StopStringCriteria(original, stops)
    (ours,) = stopping_from_config(GenerationConfig(stop_strings=stops), Resources(tokenizer.dictionary), tokenizer)
    size = len(tokenizer.dictionary)
    some = [*range(0, size - 2, size // 14), size - 2, size - 1]
    generator = torch.Generator().manual_seed(0)
    every = torch.tensor(list(itertools.product(some, repeat=3)))
    drawn = torch.randint(size, (1500, 9), generator=generator)
    for tokens in (every, drawn):
        wanted = theirs(tokens, torch.zeros(0))
        assert torch.equal(ours(tokens, step_context(0)), wanted)
    assert 0 < int(wanted.sum()) < len(wanted) or stops in (["stopped at the hos"], STOPS[-1])


def decode_bytes(ids: Sequence[int]) -> str:
    """ByT5's way: an id is a byte plus 3, and bytes that are no character are left out."""
    return bytes(i - 3 for i in ids if 3 <= i < 259).decode(errors="ignore")


def encode_bytes(text: str) -> list[int]:
    return [byte + 3 for byte in text.encode()]


def test_stop_strings_of_characters_that_are_several_tokens() -> None:
    rule = StopStrings(["é!", "日"], decode_bytes, encode_bytes("abc"))
    ids = encode_bytes("caf é! 日本")
    fired = [end for end in range(1, len(ids) + 1) if bool(rule(torch.tensor([ids[:end]]), step_context(0)))]
    assert fired == [len(encode_bytes("caf é!")), len(encode_bytes("caf é! 日"))]


def test_time_limit_counts_from_the_batch() -> None:
    now = 100.0
    limit = TimeLimit(2.0, lambda: now)
    now = 500.0
    rule, tokens = limit.begin(batch_info(3, 1)), torch.zeros(3, 1, dtype=torch.int64)
    for now, over in ((502.0, False), (502.1, True)):  # noqa: B007  # the clock reads it
        assert rule(tokens, step_context(0)).tolist() == [over] * 3


TABLE = {(): {4: 0.6, 5: 0.4}, (4,): {5: 0.9, EOS: 0.1}, (4, 5): {5: 1.0}, (4, 5, 5): {EOS: 1.0}, (5,): {5: 1.0}}


@pytest.mark.parametrize("semantics", ["fairseq", "huggingface"])
def test_each_end_token_ends_an_output(semantics: str) -> None:
    def generate(end_tokens: list[int]) -> list[int]:
        options = {"max_len_b": 6, "end_tokens": end_tokens, "semantics": semantics}
        generator = make_generator([ScriptedModel(table_rule(TABLE, 6))], dictionary(2), **options)
        return generator.generate(batch_of([(4, EOS)]))[0][0].tokens.tolist()

    assert generate([EOS]) == [4, 5, 5, EOS]
    assert generate([EOS, 5]) == generate([EOS, 0, 5]) == generate([EOS, 5, 0]) == [4, 5]
