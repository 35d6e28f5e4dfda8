"""What a user is told of a damaged glossary, and of settings that exclude one."""

from pathlib import Path
from typing import Any

import pytest

from seqgen import TextStreamer, Translator
from seqgen.addons.glossary.terms import Glossary
from tests.refusals import Row, refusals
from tests.text_models import text_model


@pytest.fixture
def terms(tmp_path: Path) -> Path:
    (tmp_path / "terms.tsv").write_text("w1\tw9\n")
    return tmp_path / "terms.tsv"


def file(content: bytes, words: str) -> Row:
    def load(terms: Path) -> None:
        terms.write_bytes(content)
        Glossary(terms)

    return load, "terms.tsv", words


def settings(words: str, **values: Any) -> Row:
    return lambda terms: Translator(text_model(), glossary=str(terms)).translate(["w1"], **values), words


GENERATE = "generate path={runs}/fconv input={data}/test.en generation.glossary={terms} "

test_refusals = refusals(
    file(b"dog\tHund\ncat Katze\n", "line 2 is not SOURCE<tab>TARGET"),
    file(b"source\ttarget\n\tHund\n", "line 2 is not SOURCE<tab>TARGET"),
    file(b"dog\t|\n", "line 1 is not SOURCE<tab>TARGET"),
    file(b"dog\tHund\ncat\t\xff\n", "line 2: byte 5 (0xff) is not valid UTF-8"),
    file(b"# nothing\n\n", "has no term"),
    file(b"", "has no term"),
    settings("generation.beam to 2 or more", beam=1),
    settings("cannot be streamed, because it needs several beams", streamer=TextStreamer()),
    settings("or choose a strategy that does", search="contrastive"),
    settings("remove these keys", sampling=True, top_k=5),
    settings("there is no file", glossary="nothere"),
    (GENERATE + "output={terms} format=tsv", "would overwrite the input"),
    (GENERATE + "generation.glossary={data}/test.en", "line 1 is not SOURCE<tab>TARGET"),
)
