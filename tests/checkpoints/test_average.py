"""``seqgen-convert format=average`` of several runs: the plain mean of their weights, as a run that decodes."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.commands import SMALL_TRANSFORMER, Outcome, command, corpus, done, refused, training_arguments


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs ``a``, ``b`` and ``c`` of one architecture."""
    folder = tmp_path_factory.mktemp("average")
    corpus(folder / "data")
    train(folder, "a", *SMALL_TRANSFORMER, "common.seed=1", "generation.beam=2")
    train(folder, "b", *SMALL_TRANSFORMER, "common.seed=2")
    train(folder, "c", *SMALL_TRANSFORMER, "common.seed=3", "model.dropout=0.3")
    return folder


def train(place: Path, name: str, *arguments: str) -> Path:
    limits = ("optimization.max_update=3", "dataset.validate_interval=0")
    done("train", *training_arguments(place / "data", place / name), *limits, *arguments)
    return place / name


def average(place: Path, names: str, *arguments: str) -> Outcome:
    return command(
        "convert", "format=average", f"path=[{','.join(str(place / name) for name in names.split(','))}]", *arguments
    )


def weights(run: Path) -> dict[str, torch.Tensor]:
    """The weights to decode with, as the file has them."""
    best = run / "checkpoints" / "best"
    return load_file((best if best.is_dir() else run / "checkpoints" / "last") / "model.safetensors")


def outputs(place: Path, run: Path) -> str:
    return done("generate", f"path={run}", f"input={place}/data/test.en", "generation.max_len_b=9").out


def test_the_mean_of_the_weights(place: Path, tmp_path: Path) -> None:
    """It is a run, which decodes wherever it is, and is averaged itself."""
    outcome = average(place, "a,b,c", f"output={tmp_path}/soup")
    assert outcome.code == 0, outcome.err
    assert outcome.err == f"{place}/c: model.dropout is 0.3; the average uses 0.1\n"
    assert outcome.out.startswith(f"{tmp_path}/soup: the average of {place}/a/checkpoints/")
    found, members = weights(tmp_path / "soup"), [weights(place / name) for name in "abc"]
    assert found.keys() == members[0].keys()
    assert not torch.equal(members[0]["encoder.embed_tokens.weight"], members[1]["encoder.embed_tokens.weight"])
    for name, tensor in found.items():
        mean = torch.stack([member[name].double() for member in members]).mean(0)
        torch.testing.assert_close(tensor.double(), mean, atol=1e-7, rtol=1e-6)
    assert not (tmp_path / "soup" / "log.jsonl").exists(), "it was not trained"
    decoded = outputs(place, tmp_path / "soup")
    (tmp_path / "soup").rename(tmp_path / "moved")
    assert outputs(place, tmp_path / "moved") == decoded
    again = average(tmp_path, "moved,moved", f"output={tmp_path}/again")
    assert again.code == 0, again.err


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("model.decoder_attention_heads=4", "model.decoder_attention_heads is 4, but 2 in"),
        ("task.spm_type=bpe", "tokenizer differs"),
    ],
)
def test_runs_that_differ_are_refused(place: Path, tmp_path: Path, key: str, word: str) -> None:
    other = train(place, key, *SMALL_TRANSFORMER, key)
    refused(average(place, f"a,{key}", f"output={tmp_path}/soup"), f"{other}: ", word)
    assert not (tmp_path / "soup").exists()
