"""What a user is told of lines that cannot be split into sentences."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from seqgen.text.results import Details
from seqgen.text.translator import Translator
from seqgen.text.word_streaming import TextStreamer
from tests.addons.paragraphs.test_sentences import SPLIT, TEXT
from tests.language_models import language_model
from tests.refusals import Row, refusals
from tests.text_models import text_model


def split(values: dict[str, Any], *words: str) -> Row:
    return lambda: Translator(text_model()).translate([TEXT], **{**SPLIT, **values}), *words


def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencex", None)
    Translator(text_model()).translate([TEXT], **SPLIT)


GENERATE = "generate path={runs}/fconv input=- generation.input_split=sentences "

test_keys = refusals(
    split({"input_split": ""}, "has no effect without generation.input_split; set both or neither"),
    split({"input_split_lang": ""}, "needs the language of the source; set generation.input_split_lang, one of am, "),
    split({"input_split_lang": "tlh"}, "has no rules for the language 'tlh'; set generation.input_split_lang, one of"),
    split({"nbest": 2}, "gives one output of the whole line"),
    split({"constraints": "ordered"}, "generation.constraints"),
    split({"certificate": True}, "generation.certificate"),
    (without_the_package, "generation.input_split=sentences needs a package: pip install sentencex"),
    (lambda: Translator(text_model()).prepare(Details(), TextStreamer(), **SPLIT), "cannot be streamed"),
    (lambda: Translator(language_model()).translate([TEXT], **SPLIT), "continues the line"),
    (GENERATE + "format=fairseq", "format=fairseq cannot be used with generation.input_split=sentences"),
    (GENERATE + "stream=true", "stream cannot be used with generation.input_split=sentences"),
    (GENERATE + "generation.beam=5 generation.nbest=2", "generation.input_split=sentences gives one output"),
)
