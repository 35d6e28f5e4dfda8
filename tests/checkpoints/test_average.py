"""``seqgen-convert format=average`` of several runs: the plain mean of their weights, as a run that decodes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.commands import SMALL_FCONV, SMALL_TRANSFORMER, Outcome, command, corpus, training_arguments


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs ``a``, ``b`` and ``c`` of one architecture, and others."""
    folder = tmp_path_factory.mktemp("average")
    corpus(folder / "data")
    dropout = "model.dropout=0.3"
    train(folder, "a", *SMALL_TRANSFORMER, "common.seed=1", "generation.beam=2")
    train(folder, "b", *SMALL_TRANSFORMER, "common.seed=2")
    train(folder, "c", *SMALL_TRANSFORMER, "common.seed=3", dropout)
    return folder


def train(place: Path, name: str, *arguments: str) -> Path:
    limits = ("optimization.max_update=3", "dataset.validate_interval=0")
    outcome = command("train", *training_arguments(place / "data", place / name), *limits, *arguments)
    assert outcome.code == 0, outcome.err
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
    outcome = command("generate", f"path={run}", f"input={place}/data/test.en", "generation.max_len_b=9")
    assert outcome.code == 0, outcome.err
    return outcome.out


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2, (outcome.code, outcome.err)
    assert "Traceback" not in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    for word in words:
        assert word in outcome.err, outcome.err


def test_the_mean_of_the_weights(place: Path, tmp_path: Path) -> None:
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


def test_a_run_that_is_moved_and_decodes(place: Path, tmp_path: Path) -> None:
    assert average(place, "a,b", f"output={tmp_path}/new").code == 0
    content = {path.name for path in (tmp_path / "new").iterdir()}
    assert content == {"config.yaml", "provenance.json", "checksums.json", "tokenizer", "checkpoints"}, (
        "no log of training"
    )
    (tmp_path / "new").rename(tmp_path / "moved")
    assert average(place, "a,b", f"output={tmp_path}/stays").code == 0
    assert outputs(place, tmp_path / "moved") == outputs(place, tmp_path / "stays")
    again = average(tmp_path, "moved,moved", f"output={tmp_path}/again")
    assert again.code == 0, again.err


def test_of_a_run_with_itself_is_the_run(place: Path, tmp_path: Path) -> None:
    assert average(place, "a,a,a", f"output={tmp_path}/same").code == 0
    found, member = weights(tmp_path / "same"), weights(place / "a")
    assert all(torch.equal(found[name], tensor) for name, tensor in member.items())
    assert outputs(place, tmp_path / "same") == outputs(place, place / "a")


def test_the_last_checkpoints_of_a_run_as_a_run(place: Path, tmp_path: Path) -> None:
    kept = ("checkpoint.save_interval_updates=1", "checkpoint.keep_interval_updates=2")
    train(place, "kept", *SMALL_TRANSFORMER, *kept)
    outcome = average(place, "kept", "last=2", f"output={tmp_path}/two")
    assert outcome.code == 0, outcome.err
    files = [place / "kept" / "checkpoints" / name / "model.safetensors" for name in ("update_2", "update_3")]
    one, two = (load_file(file)["encoder.embed_tokens.weight"].double() for file in files)
    torch.testing.assert_close(weights(tmp_path / "two")["encoder.embed_tokens.weight"].double(), (one + two) / 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (SMALL_FCONV, ["its model is fconv, but transformer in"]),
        ((*SMALL_TRANSFORMER, "model.decoder_attention_heads=4"), ["model.decoder_attention_heads is 4, but 2 in"]),
        ((*SMALL_TRANSFORMER, "model.encoder_ffn_embed_dim=8"), ["model.encoder_ffn_embed_dim is 8, but 32 in"]),
        ((*SMALL_TRANSFORMER, "task.vocab_size=40"), ["tokenizer differs"]),
        ((*SMALL_TRANSFORMER, "task.spm_type=bpe"), ["tokenizer differs"]),
    ],
)
def test_runs_that_differ_are_refused(
    place: Path, tmp_path: Path, arguments: tuple[str, ...], words: list[str]
) -> None:
    shutil.rmtree(place / "other", ignore_errors=True)
    train(place, "other", *arguments)
    refused(average(place, "a,other", f"output={tmp_path}/soup"), f"{place}/other: ", *words)
    assert not (tmp_path / "soup").exists()


def test_keys_that_cannot_be_used(place: Path, tmp_path: Path) -> None:
    refused(average(place, "a,b", f"output={place}/c"), f"output={place}/c already exists")
    refused(average(place, "a,none", f"output={tmp_path}/new"), f"{place}/none", "no such")
    assert not list(tmp_path.iterdir())
