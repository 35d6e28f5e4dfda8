"""Fuzzed inputs are read correctly or refused in one sentence; ``python -m tests.fuzzing`` runs many more cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from seqgen.checkpoints.loading import load_model
from seqgen.core.errors import CheckpointError, DataError
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seqgen.text.translator import Translator
from tests import fairseq_checkpoints
from tests.fuzzing.readers import READERS, Bench
from tests.fuzzing.sandbox import Failure
from tests.pretrained_folders import byte_level, sentencepiece_model, write_model
from tests.text_models import text_model


def run(name: str, cases: int, folder: Path) -> list[bool]:
    """Run cases; returns which of them are refused."""
    bench = Bench(name, folder)
    return [bench.case(number) is not None for number in range(cases)]


@pytest.mark.parametrize("name", READERS)
def test_some_cases(name: str, tmp_path: Path) -> None:
    run(name, READERS[name].fast_cases, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", READERS)
def test_more_cases(name: str, tmp_path: Path) -> None:
    refused = run(name, 150 if name == "generation" else 300, tmp_path)
    assert 15 <= sum(refused) <= len(refused) - 15  # some inputs are intact enough, many are not


def test_a_reader_that_runs_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.load`` with code in place of the reader without, and a run whose recorded files are imported."""
    monkeypatch.setattr(
        "seqgen.checkpoints.torch_file._load", lambda path, _: torch.load(path, map_location="cpu", weights_only=False)
    )
    with pytest.raises(Failure, match="code"):
        run(".pt", 25, tmp_path / "pickles")

    def imports(folder: Path, _: str) -> None:
        for file in sorted(folder.glob("*.py")):
            exec(compile(file.read_bytes(), file, "exec"), {})

    monkeypatch.setattr("tests.fuzzing.readers.decode", imports)
    with pytest.raises(Failure, match="code"):
        run("run", 1, tmp_path / "run")


# -- what fuzzing has found --------------------------------------------------------------------------------------------


def test_a_vocabulary_without_an_id_of_unknown_tokens(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text('{"pad": 0, "eos": 1, "unk": null, "bos": null, "symbols": ["a", "b"], "counts": [1, 1]}')
    with pytest.raises(DataError, match="a count or id is not a whole number"):
        Dictionary.load(path)


def test_a_piece_that_is_not_text() -> None:
    model, piece = sentencepiece_model(), b"\n\x05<unk>"
    assert model.count(piece) == 1
    with pytest.raises(DataError, match="is not a SentencePiece model, or is damaged"):
        SentencePieceTokenizer(model.replace(piece, b"\n\x05<\x91\x91\x91>"))


def test_an_id_that_makes_an_endless_vocabulary(tmp_path: Path) -> None:
    vocabulary, merges = byte_level()
    (tmp_path / "vocab.json").write_text(json.dumps({**json.loads(vocabulary), "*": 1 << 31}))
    (tmp_path / "merges.txt").write_text(merges)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2TokenizerFast"}))
    with pytest.raises(DataError, match="has an id of 2147483648 but only"):
        load_pretrained_tokenizer(tmp_path)


def test_a_table_of_distances_that_nobody_has_memory_for(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "PegasusTokenizer")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "relative_attention_max_distance": 10**9}))
    with pytest.raises(CheckpointError, match="relative_attention_max_distance=1000000000 is above its maximum"):
        load_model(folder)


def test_projections_of_different_shapes(tmp_path: Path) -> None:
    path = fairseq_checkpoints.write_random(tmp_path, fairseq_checkpoints.TRANSFORMER)
    content = torch.load(path, weights_only=False)
    content["model"]["encoder.layers.0.self_attn.k_proj.weight"] = torch.zeros(4)
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="the weights are not those of this model"):
        load_model(path)


def test_minimum_bayes_risk_of_no_outputs() -> None:
    (found,) = Translator(text_model()).translate(["w1"], mbr="chrf", beam=2, suppress=["</s>"], max_len_b=3)
    assert found.hypotheses == []
    assert found.notes
