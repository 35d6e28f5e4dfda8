"""``seqgen-generate`` with lines of several sentences."""

import json
from pathlib import Path

import pytest

from tests.commands import command, done, refused

TEXT = "The dog sees a man.  The tree has a ball.\n\nThe man has a dog\n  The dog! A man? \n"
SPLIT = ("generation.max_len_b=12", "generation.input_split=sentences", "generation.input_split_lang=en")


def test_paragraphs(runs: Path) -> None:
    pytest.importorskip("sentencex")
    keys = (f"path={runs}/fconv", "input=-", *SPLIT)
    plain, described = (
        command("generate", *keys, more, stdin=TEXT.encode()) for more in ("format=text", "format=json")
    )
    found = [json.loads(line) for line in described.out.splitlines()]
    assert plain.out.splitlines() == [line["hypotheses"][0]["text"] if line["hypotheses"] else "" for line in found]
    assert [line["source"] for line in found] == TEXT.splitlines()
    sentences = [[part["source"] for part in line.get("sentences", [])] for line in found]
    assert sentences == [["The dog sees a man.", "The tree has a ball."], [], [], ["The dog!", "A man?"]]


def test_lines_that_are_inserted_into_a_template_are_not_split(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentencex")
    monkeypatch.setattr("seqgen.tasks.translation.TranslationTask.reads_plain_lines", False)
    refused(command("generate", f"path={runs}/fconv", *SPLIT), "this task inserts lines into a template; give complete")
    done("generate", f"path={runs}/fconv", "input=-", *SPLIT, stdin=TEXT.encode())
