"""``seqgen-generate`` with a glossary: JSON, the summary of a command and of a job, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.commands import command, refused

SOURCES = ["the dog sees a man", "the tree has a ball and the man finds a boat", "", "the man has a dog"]
STDIN = "".join(line + "\n" for line in SOURCES).encode()


def test_a_glossary(runs: Path, tmp_path: Path) -> None:
    terms, source, output = (tmp_path / name for name in ("terms.tsv", "source.en", "out.jsonl"))
    terms.write_text("source\ttarget\ndog\tBall|Boot\nthe tree\tHund\nMan\tFrau\n", encoding="utf-8")
    source.write_bytes(STDIN)
    keys = (f"path={runs}/fconv", f"input={source}", f"generation.glossary={terms}", "generation.max_len_b=12")
    outcome = command("generate", *keys, f"output={output}", "format=json")
    assert outcome.code == 0, outcome.err
    found = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    used = [[term["source"] for term in record.get("terms", [])] for record in found]
    assert used == [["dog"], ["the tree"], [], ["dog"]]
    met = 0
    for record in found:
        for term in record.get("terms", []):
            words = record["hypotheses"][0]["text"].split()
            assert term["met"] == any(target in words for target in term["targets"])
            met += term["met"]
    assert met
    assert f"terms: 3 found in the sources (first column), {met} met in the outputs" in outcome.err
    refused(command("generate", *keys, f"output={terms}", "format=tsv"), "would overwrite the input")
    terms.write_text("dog\tHund\ntree Baum\n")
    refused(command("generate", *keys, f"output={output}", "format=json"), f"{terms}, line 2 is not SOURCE<tab>TARGET")


@pytest.mark.slow
def test_a_job_with_a_glossary_says_the_same(runs: Path, tmp_path: Path) -> None:
    terms, source = tmp_path / "terms.tsv", tmp_path / "source.en"
    terms.write_text("dog\tBall|Boot\n", encoding="utf-8")
    source.write_bytes(STDIN)
    keys = (f"path={runs}/fconv", f"input={source}", f"generation.glossary={terms}", "generation.max_len_b=12")
    texts, said = [], []
    for name, further in (("plain", ()), ("job", ("job.workers=2", "job.part_lines=1"))):
        outcome = command("generate", *keys, f"output={tmp_path / name}", "format=json", *further)
        assert outcome.code == 0, outcome.err
        found = map(json.loads, (tmp_path / name).read_text(encoding="utf-8").splitlines())
        texts.append([(each["hypotheses"][:1] and each["hypotheses"][0]["text"], each.get("terms")) for each in found])
        said += re.findall("terms: .*", outcome.err + outcome.out)
    assert texts[0] == texts[1]
    assert said[0] == said[1]
