"""What a user is told of a model that cannot be exported, and of the keys of an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.addons.export.ctranslate2 import specification
from seqgen.addons.export.graphs import export_graphs
from tests.addons.export.test_ctranslate2 import of_model, of_zoo
from tests.addons.export.test_export import needs_onnx
from tests.commands import command, refused
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


def of_onnx(name: str, *words: str) -> Row:
    return lambda: export_graphs(build(name, torch.float32), PAD), *words


def other_model(name: str, **changes: Any) -> Row:
    return lambda: specification(of_model(registered(name, **changes)())), "only transformer and t5 can"


test_models = refusals(
    of_onnx("lstm_tiny", "cannot be exported"),
    of_onnx("fconv_tiny", "contains that of a ParametrizedLinearizedConvolution"),
    *(of_onnx(name, "contains that of a MergedAttention") for name in in_zoo("t5gemma2_tiny")),
    other_model("transformer_ssru", encoder_layers=1, decoder_layers=1),
    *map(other_model, in_zoo("transformer_lm_tiny", "llama_tiny", "fconv_tiny", "t5gemma_tiny")),
    (other_start_token, "is not one of the vocabulary's"),
)


def test_a_missing_package_is_named(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form, module, packages in (("export", "onnx", "onnx onnxscript onnxruntime"), ("ctranslate2",) * 3):
        monkeypatch.setattr(f"seqgen.addons.export.{module}.find_spec", lambda name: None)
        refused(command("convert", f"format={form}", "path=model", f"output={there}/out"), f"pip install {packages}")
