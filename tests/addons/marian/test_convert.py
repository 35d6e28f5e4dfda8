"""Models that were fine-tuned are written in Marian's formats, and read back as they were, up to 8 bits."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqgen.addons.marian.binary import BinaryModel, quantized
from seqgen.addons.marian.convert import write
from seqgen.cli.convert import ConvertConfig
from seqgen.extend import LoadedModel, load_model
from tests.addons.marian.test_files import RECORDED
from tests.commands import done
from tests.marian_binary import model_files
from tests.marian_models import MODELS
from tests.refusals import refusals


@pytest.fixture
def firefox(tmp_path: Path) -> Path:
    """A small model of Firefox."""
    folder = tmp_path / "firefox"
    folder.mkdir()
    for name, content in model_files(tmp_path).items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def opus(tmp_path: Path) -> Path:
    """A model with a vocabulary that is not SentencePiece's."""
    (tmp_path / "opus").mkdir()
    for name in ("ssru.npz", "vocab.yml"):
        shutil.copy(RECORDED / name, tmp_path / "opus" / name)
    return tmp_path / "opus" / "ssru.npz"


@pytest.fixture
def run(firefox: Path, tmp_path: Path) -> Path:
    """The model of Firefox as a run."""
    outcome = done("convert", f"path={firefox}", f"output={tmp_path / 'run'}")
    assert "fine-tune: seqgen-train" in outcome.out
    assert "task=translation task.source_lang=en task.target_lang=pt" in outcome.out
    return tmp_path / "run"


def tuned(base: Path) -> LoadedModel:
    """The model with other weights, except those of padding."""
    loaded = load_model(base)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            rows = parameter[: len(loaded.task.target_dictionary) - 1]
            rows += 0.1 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    return loaded


def parameters(loaded: LoadedModel) -> dict[str, Any]:
    return {name: value.detach() for name, value in loaded.model.named_parameters()}


@pytest.mark.parametrize("name", [*MODELS, "firefox"])
def test_float32_weights_are_those_of_the_model(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    base = RECORDED / f"{name}.npz" if name in MODELS else request.getfixturevalue("firefox")
    loaded, output = tuned(base), tmp_path / "written"
    write(ConvertConfig(path=["run"], base=str(base), output=str(output)), loaded)
    written = load_model(output)
    for key, value in parameters(written).items():
        assert torch.equal(value, parameters(loaded)[key]), key
    assert written.generation == load_model(base).generation
    if name in MODELS:
        assert dict(np.load(output / "model.npz")).keys() == dict(np.load(base)).keys()


def test_int8_weights_are_the_nearest_integers(
    firefox: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after they were quantized before; biases and norms are those of the model."""
    loaded, text = tuned(firefox), tmp_path / "text"
    text.write_text("der Hund sieht den Baum\nein Ball\n")
    keys: dict[str, Any] = {"int8": True, "base": str(firefox), "input": str(text), "reference": str(text)}
    write(ConvertConfig(path=["run"], output=str(tmp_path / "one"), **keys), loaded)
    assert "0.00 before, 0.00 written; 2 of 2 outputs are equal" in capsys.readouterr().out
    one = load_model(tmp_path / "one")
    for key, value in parameters(one).items():
        wanted = parameters(loaded)[key]
        if value.dim() == 1:
            assert torch.equal(value, wanted), key
        else:
            error = torch.from_numpy(wanted.numpy() - np.divide(*quantized(wanted.numpy()))).square().sum()
            plain = (wanted * 127 / wanted.abs().max()).round() * wanted.abs().max() / 127 - wanted
            assert 0 < error <= plain.square().sum() * (1 + 1e-5), key
    write(ConvertConfig(path=["one"], output=str(tmp_path / "two"), **{**keys, "base": str(tmp_path / "one")}), one)
    first, second = (BinaryModel(tmp_path / run / "model.enpt.intgemm.alphas.bin") for run in ("one", "two"))
    assert [first.encoded(tensor) for tensor in first] == [second.encoded(tensor) for tensor in second]
    made = [path.name for path in sorted((tmp_path / "two").iterdir())]
    assert made == ["config.intgemm8bitalpha.yml", *sorted(path.name for path in firefox.iterdir())]


TO_MARIAN = "convert format=marian path={firefox} output={tmp_path}/out "


def other_base(firefox: Path, opus: Path) -> None:
    write(ConvertConfig(path=["run"], base=str(opus)), load_model(firefox))


test_refusals = refusals(
    (TO_MARIAN + "output=/proc/out", "cannot write output=/proc/out"),
    (TO_MARIAN + "output={firefox}", "already exists"),
    (TO_MARIAN + "input=a", "set both input=FILE and reference=FILE"),
    (TO_MARIAN + "input={firefox}/none reference={opus}", "there is no file", "/none"),
    (f"{TO_MARIAN}input={{run}}/config.yaml reference={__file__}", " lines, but reference="),
    (TO_MARIAN + "base=nowhere", "nowhere"),
    (TO_MARIAN + "base={run}", "is not a model in Marian's format", "such as base=firefox:en-pt"),
    ("convert format=marian path={run} output={tmp_path}/out", "is not a model in Marian's format", "set base=MODEL"),
    ("convert format=marian path={opus} output={tmp_path}/out int8=true", "vocabularies (.spm) only, not vocab.yml"),
    ("convert path={firefox} output={tmp_path}/out int8=true", "int8 has no effect with format=run"),
    (other_base, "run was not fine-tuned from", "it has another architecture or vocabulary"),
)
