"""``seqgen-convert format=trie``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_convert import checkpoint, decode  # noqa: F401  # the fixture
from tests.commands import command


def test_a_trie_decodes_as_its_text_does(checkpoint: Path, tmp_path: Path) -> None:  # noqa: F811
    text, trie, allowed = tmp_path / "allowed", tmp_path / "allowed.safetensors", ["w1 w2", "w3", "w1 w4 w5"]
    text.write_text("".join(f"{line}\n" for line in allowed), encoding="utf-8")
    made = command("convert", "format=trie", f"path={checkpoint}", f"input={text}", f"output={trie}")
    assert made.code == 0, made.err
    keys = ("generation.beam=3", "generation.nbest=3", "generation.certificate=true")
    found = [decode(checkpoint, tmp_path, *keys, f"generation.allowed_outputs={file}") for file in (text, trie)]
    assert found[0] == found[1]
    for line in found[0].splitlines():
        record = json.loads(line)
        assert sorted(item["text"] for item in record["hypotheses"]) == sorted(allowed)
        assert (record["exact"], record["bound"]) == (True, None)


def test_a_trie_needs_a_text_and_the_name_of_its_file(checkpoint: Path, tmp_path: Path) -> None:  # noqa: F811
    for output in ("allowed", "a.safetensors"):
        outcome = command("convert", "format=trie", f"path={checkpoint}", f"output={tmp_path}/{output}")
        assert outcome.code == 2
        assert "format=trie needs input=FILE with the allowed outputs, and output=NAME.safetensors" in outcome.err
