"""Fuzzed inputs are read correctly or refused in one sentence; ``python -m tests.fuzzing`` runs many more cases."""

from pathlib import Path

import pytest
import torch

from seqgen.extend import Dictionary, SentencePieceTokenizer, load_model, load_pretrained_tokenizer
from seqgen.text.translator import Translator
from tests.fuzzing.readers import READERS, Bench
from tests.fuzzing.sandbox import Failure
from tests.huggingface_t5 import change_config
from tests.pretrained_folders import sentencepiece_model, write_folder, write_model
from tests.refusals import refusals
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


def tokenizer_with_a_large_id(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tokenizer", "RobertaTokenizer")
    change_config(folder, "vocab.json", **{"*": 1 << 31})
    load_pretrained_tokenizer(folder)


def model_with_a_large_table(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "PegasusTokenizer")
    change_config(folder, relative_attention_max_distance=10**9)
    load_model(folder)


WITHOUT_UNKNOWN = '{"pad": 0, "eos": 1, "unk": null, "bos": null, "symbols": ["a", "b"], "counts": [1, 1]}'
NOT_TEXT = sentencepiece_model().replace(b"\n\x05<unk>", b"\n\x05<\x91\x91\x91>")
test_what_is_refused = refusals(
    (
        lambda tmp_path: (tmp_path / "v.json").write_text(WITHOUT_UNKNOWN) and Dictionary.load(tmp_path / "v.json"),
        "a count or id is not a whole number",
    ),
    (lambda: SentencePieceTokenizer(NOT_TEXT), "is not a SentencePiece model, or is damaged"),
    (tokenizer_with_a_large_id, "has an id of 2147483648 but only"),
    (model_with_a_large_table, "relative_attention_max_distance=1000000000 is above its maximum"),
)


def test_minimum_bayes_risk_of_no_outputs() -> None:
    (found,) = Translator(text_model()).translate(["w1"], mbr="chrf", beam=2, suppress=["</s>"], max_len_b=3)
    assert found.hypotheses == []
    assert found.notes
