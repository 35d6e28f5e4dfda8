"""What a user is told of a model that cannot be exported, and of the keys of an export."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.addons.export.ctranslate2 import specification
from seqgen.addons.export.onnx import export_graphs
from tests.addons.export.test_ctranslate2 import of_model, of_zoo
from tests.addons.export.test_export import needs_onnx
from tests.commands import command
from tests.model_zoo import PAD, build, in_zoo, registered
from tests.refusals import Row, refusals


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


EXPORT = "convert format=export path={there}/none output={there}/out "

test_keys = needs_onnx(
    refusals(
        ("convert format=export path=none", "output=FOLDER"),
        ("convert format=export output=out", "path=MODEL"),
        (EXPORT + "output={there}", "already exists"),
        (EXPORT + "output={there}/no/out", "does not exist"),
        (EXPORT + "path=org/name", "is written hf:org/name"),
        (EXPORT + "path=[a,b]", "path names 2 models", "give one, such as path=a"),
        (EXPORT + "opset=7", "opset=7"),
        (EXPORT, "there/none"),
        ("generate path=https://hf.co/org/name", "is an address; a model of the Hugging Face Hub"),
    )
)


def other_start_token() -> None:
    loaded = of_zoo("t5_tiny")
    loaded.model.cfg.decoder_start_token_id = len(loaded.task.target_dictionary)
    specification(loaded)


def onnx(name: str, *words: str) -> Row:
    return lambda: export_graphs(build(name, torch.float32), PAD), *words


def other_model(name: str, **changes: Any) -> Row:
    return lambda: specification(of_model(registered(name, **changes)())), "only transformer and t5 can"


test_models = refusals(
    onnx("transformer_lm_tiny", "only encoder-decoder"),
    onnx("lstm_tiny", "cannot be exported"),
    onnx("fconv_tiny", "contains that of a ParametrizedLinearizedConvolution"),
    *(onnx(name, "contains that of a MergedAttention") for name in in_zoo("t5gemma2_tiny")),
    other_model("transformer_ssru", encoder_layers=1, decoder_layers=1),
    *map(other_model, in_zoo("transformer_lm_tiny", "fconv_tiny", "t5gemma_tiny")),
    (other_start_token, "is not one of the vocabulary's"),
)


@pytest.mark.parametrize(
    ("format_", "module", "packages"),
    [("export", "onnx", "onnx onnxscript onnxruntime"), ("ctranslate2", "ctranslate2", "ctranslate2")],
)
def test_a_missing_package_is_named(
    format_: str, module: str, packages: str, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module_ = importlib.import_module(f"seqgen.addons.export.{module}")
    monkeypatch.setattr(module_, "find_spec", lambda name: None)
    outcome = command("convert", f"format={format_}", "path=model", f"output={there}/out")
    assert (outcome.code, f"pip install {packages}\n" in outcome.err) == (2, True), outcome.err
