"""``seqgen-generate`` with lines of several sentences, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.commands import Outcome, command, refused

STDIN = b"the dog sees a man\nthe tree has a ball and the man finds a boat\n\nthe man has a dog\n"


def generate(path: object, *arguments: str, stdin: bytes = STDIN) -> Outcome:
    return command("generate", f"path={path}", "input=-", "generation.max_len_b=12", *arguments, stdin=stdin)


PARAGRAPHS = "The dog sees a man.  The tree has a ball.\n\nThe man has a dog\n  The dog! A man? \n"


def test_paragraphs(runs: Path) -> None:
    pytest.importorskip("sentencex")
    arguments = ("generation.input_split=sentences", "generation.input_split_lang=en")
    outcome = generate(runs / "fconv", *arguments, stdin=PARAGRAPHS.encode())
    described = generate(runs / "fconv", *arguments, "format=json", stdin=PARAGRAPHS.encode())
    found = [json.loads(line) for line in described.out.splitlines()]
    assert outcome.out.splitlines() == [line["hypotheses"][0]["text"] if line["hypotheses"] else "" for line in found]
    assert [line["source"] for line in found] == PARAGRAPHS.splitlines()
    assert [len(line.get("sentences", [])) for line in found] == [2, 0, 0, 2]
    first, last = found[0], found[3]
    assert [part["source"] for part in last["sentences"]] == ["The dog!", "A man?"]
    parts = [part["hypotheses"][0] for part in first["sentences"]]
    assert first["hypotheses"][0]["text"] == "  ".join(part["text"] for part in parts)
    assert first["hypotheses"][0]["tokens"] == [token for part in parts for token in part["tokens"]]
    assert last["hypotheses"][0]["text"].startswith("  ")
    assert last["hypotheses"][0]["text"].endswith(" ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["format=fairseq"], "format=fairseq cannot be used with generation.input_split=sentences"),
        (["stream=true"], "stream cannot be used with generation.input_split=sentences"),
        (["generation.beam=5", "generation.nbest=2"], "generation.input_split=sentences gives one output"),
        (["generation.input_split_lang=xx"], "generation.input_split=sentences has no rules for the language 'xx'"),
    ],
)
def test_what_needs_whole_lines_is_refused(runs: Path, arguments: list[str], words: str) -> None:
    pytest.importorskip("sentencex")
    refused(generate(runs / "fconv", "generation.input_split=sentences", *arguments), words)


def test_lines_that_are_inserted_into_a_template_are_not_split(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentencex")
    split = "generation.input_split=sentences"
    monkeypatch.setattr("seqgen.tasks.translation.TranslationTask.reads_plain_lines", False)
    refused(generate(runs / "fconv", "input=", split), "this task inserts lines into a template; give complete lines")
    assert generate(runs / "fconv", split).code == 0, "the lines are finished"


def test_paragraphs_without_the_package(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencex", None)
    outcome = generate(runs / "fconv", "generation.input_split=sentences")
    refused(outcome, "generation.input_split=sentences needs a package: pip install sentencex")
