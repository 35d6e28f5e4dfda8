"""Fuzzed inputs are read correctly or refused in one sentence; ``python -m tests.fuzzing`` runs many more cases."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from seqgen.checkpoints.loading import load_model
from seqgen.config import GenerationConfig, TrainConfig
from seqgen.config.compose import compose
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer
from seqgen.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seqgen.errors import CheckpointError, ConfigError, DataError
from seqgen.text.translator import Translator
from tests.fuzzing.generation import KEYS, Generation
from tests.fuzzing.pickle_readers import FairseqCheckpoint
from tests.fuzzing.reader import Bench, Reader
from tests.fuzzing.readers import READERS
from tests.pretrained_folders import sentencepiece_model, write_model
from tests.text_models import text_model

CASES = 300
"""Cases of each reader in all tests together."""
BOTH = {name: kind for name, kind in READERS.items() if name != Generation.name}


def run(kind: type[Reader], numbers: range, folder: Path) -> tuple[int, int]:
    """Run cases and count those that are read and those that are refused."""
    bench = Bench(kind, folder)
    refused = [bench.case(number) is not None for number in numbers]
    return len(refused) - sum(refused), sum(refused)


@pytest.mark.parametrize("name", [name for name, kind in READERS.items() if kind.fast_cases])
def test_some_cases(name: str, tmp_path: Path) -> None:
    run(READERS[name], range(READERS[name].fast_cases), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", BOTH)
def test_more_cases(name: str, tmp_path: Path) -> None:
    right, refused = run(READERS[name], range(CASES), tmp_path)
    assert min(right, refused) >= CASES // 20, (right, refused)  # some inputs are intact enough, many are not


@pytest.mark.nightly
def test_decoding_with_random_settings(tmp_path: Path) -> None:
    right, refused = run(Generation, range(150), tmp_path)
    assert right >= 60, (right, refused)
    assert refused >= 20, (right, refused)


def test_no_key_of_decoding_is_forgotten() -> None:
    assert {field.name for field in dataclasses.fields(GenerationConfig)} - set(KEYS) == {"components"}


# -- what fuzzing has found --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["generation.typical_p=" + "9" * 400], ["common.seed=inf"]])
def test_numbers_that_no_key_can_have(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        compose(TrainConfig, arguments)


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
    reader = READERS["tokenizer.json"](tmp_path)
    content = json.loads(reader.gpt2)  # type: ignore[attr-defined]
    content["model"]["vocab"]["*"] = 1 << 31
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
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
    path = FairseqCheckpoint(tmp_path).scratch / "fairseq" / "model.pt"
    content = torch.load(path, weights_only=False)
    content["model"]["encoder.layers.0.self_attn.k_proj.weight"] = torch.zeros(4)
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="the weights are not those of this model"):
        load_model(path)


def test_minimum_bayes_risk_of_no_outputs() -> None:
    (found,) = Translator(text_model()).translate(["w1"], mbr="chrf", beam=2, suppress=["</s>"], max_len_b=3)
    assert found.hypotheses == []
    assert found.notes
