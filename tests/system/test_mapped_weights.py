"""Weights that stay in their file: equal outputs, less memory, and no file that changes under a model unnoticed."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.decoding.models import numbered_words
from seqgen.addons.huggingface.checkpoint import save_pretrained
from seqgen.checkpoints.model_weights import load_weights
from seqgen.checkpoints.serialization import write_checksums, write_tensors
from seqgen.extend import CheckpointError, Ensemble, T5Config, T5Model, load_model
from seqgen.models.llama import LlamaConfig, LlamaModel
from seqgen.modules.kernels import PREPACKED, kernels_for
from seqgen.system.mapped_weights import is_mapped, release_pages
from seqgen.system.switches import MAPPED_WEIGHTS
from seqgen.text.translator import Translator
from tests.commands import done

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="memory is mapped everywhere, but counted on Linux only")
VOCABULARY = 200


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same T5, whose feed-forward layers have most of its 17 MB, in Hugging Face's layout and as a run."""
    parent = tmp_path_factory.mktemp("mapped")
    torch.manual_seed(1)
    shape = T5Config(vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=8192, num_layers=2, num_heads=4)
    save_pretrained(T5Model(shape, padding_idx=0), parent / "huggingface", numbered_words(VOCABULARY))
    done("convert", f"path={parent / 'huggingface'}", f"output={parent / 'run'}")
    return {"huggingface": parent / "huggingface", "run": parent / "run"}


@pytest.fixture(params=["huggingface", "run"])
def folder(request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(folders[request.param], tmp_path / request.param)


def weights_file(folder: Path) -> Path:
    return next(path for path in sorted(folder.rglob("model.safetensors")) if not path.is_symlink())


def resident(folder: Path) -> int:
    """Bytes of the folder's weight files that are in this process's memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = str(folder) in line and line.endswith(".safetensors")
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


def decoded(translator: Translator) -> list[tuple[str, float]]:
    outputs = translator.translate(["w7 w8 w9", "w5"], beam=3, nbest=3, min_len=8, max_len=8)
    return [(one.text, one.score) for output in outputs for one in output.hypotheses]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_are_those_of_weights_that_were_read(folder: Path, dtype: torch.dtype) -> None:
    mapped = load_model(folder, dtype=dtype)
    with MAPPED_WEIGHTS.off():
        read = load_model(folder, dtype=dtype)
    for name, value in mapped.model.state_dict().items():
        assert torch.equal(value, read.model.state_dict()[name]), name
    assert len(list(mapped.model.parameters())) == len(list(read.model.parameters()))  # tied ones are still tied
    found, expected = decoded(Translator([mapped])), decoded(Translator([read]))
    assert [text for text, _ in found] == [text for text, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], rel=1e-5)


@ON_LINUX
def test_a_prepacked_weight_is_not_in_memory_twice(folder: Path) -> None:
    size = weights_file(folder).stat().st_size
    translator = Translator([load_model(folder)], **{"fast.kernel_choice": "fixed"})  # prepacked on any processor
    decoded(translator)
    assert resident(folder) < size / 3
    decoded(translator)  # looks whether the weights have changed
    assert resident(folder) < size / 3
    unpacked = Translator([load_model(folder)], **{"fast.prepacked_weights": False})
    decoded(unpacked)
    assert resident(folder) > size / 2


@ON_LINUX
def test_a_language_model_in_bfloat16_is_in_memory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also its gates, which the file has beside what they gate; of its stacked weights, only q, k and v are copied."""
    shape = LlamaConfig(64, 4096, 2, 4, 2, attention_bias=True, tie_word_embeddings=True)
    wanted = LlamaModel(shape, 4000).bfloat16().eval()
    save_pretrained(wanted, tmp_path / "model")
    models: list[LlamaModel] = []
    prepare = Translator.prepare
    monkeypatch.setattr(Translator, "prepare", lambda self, *_: (models.append(self.models[0]), prepare(self, *_))[1])
    (tmp_path / "in").write_text("7 8 9\n7\n")
    keys = ["generation.max_len=5", "generation.beam=2", "generation.dtype=bfloat16", "fast.kernel_choice=fixed"]
    files = [f"path={tmp_path / 'model'}", f"input={tmp_path / 'in'}", f"output={tmp_path / 'out'}"]
    done("generate", *files, "reading.tokenizer=ids", *keys)
    assert resident(tmp_path) < weights_file(tmp_path).stat().st_size / 3 or PREPACKED not in kernels_for(
        torch.bfloat16
    )
    found = dict(models[0].named_parameters())
    assert {name.split(".")[-2] for name in found if not is_mapped(found[name])} == {"in_proj"}
    assert all(torch.equal(parameter, found[name]) for name, parameter in wanted.named_parameters())


@ON_LINUX
def test_the_key_of_the_commands(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    translate = Translator.prepare
    monkeypatch.setattr(Translator, "prepare", lambda *given: (found.append(resident(folder)), translate(*given))[1])
    (tmp_path / "in").write_text("w7 w8\n")
    files = [f"path={folder}", f"input={tmp_path / 'in'}", f"output={tmp_path / 'out'}", "generation.max_len=5"]
    for value in ("true", "false"):
        done("generate", *files, f"common.map_weights={value}")
    assert found[0] > 0
    assert found[1] == 0


@ON_LINUX
def test_values_that_were_changed_survive(folder: Path) -> None:
    """A change in memory is of this process alone, and is not lost when pages are given back."""
    before = weights_file(folder).read_bytes()
    loaded = load_model(folder)
    outputs = decoded(Translator([loaded]))
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(1.5)
            expected = parameter.clone()
            release_pages(parameter)
            assert torch.equal(parameter, expected)
    assert decoded(Translator([loaded])) != outputs
    assert weights_file(folder).read_bytes() == before


def damage(file: Path) -> None:
    """Change the last number of a file in place."""
    with file.open("r+b") as handle:
        handle.seek(-4, os.SEEK_END)
        handle.write(b"\x00\x00\x80\x3f")
    os.utime(file, ns=(1, 1))


def test_a_file_that_was_changed_in_place_is_noticed(folder: Path) -> None:
    file, translator = weights_file(folder), Translator([load_model(folder)])
    decoded(translator)
    damage(file)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"the content of .* was changed .* load the model again"):
            decoded(translator)


def test_outputs_of_weights_that_change_meanwhile_are_not_returned(folder: Path) -> None:
    file, ensemble = weights_file(folder), Ensemble([load_model(folder).model])

    def decode() -> None:
        with ensemble.evaluating():
            damage(file)
            raise ValueError("scores of these weights are NaN")

    with pytest.raises(CheckpointError, match="was changed"):
        decode()


@pytest.mark.parametrize("new", [b"damaged", None])
def test_a_file_that_was_replaced_or_deleted_is_still_used(folder: Path, new: bytes | None) -> None:
    file, translator = weights_file(folder), Translator([load_model(folder)])
    outputs = decoded(translator)
    file.rename(file.with_suffix(".old"))
    if new is not None:
        file.write_bytes(new)
    file.with_suffix(".old").unlink()
    assert decoded(translator) == outputs


def test_parameters_do_not_begin_to_share_memory(tmp_path: Path) -> None:
    """Two tensors that a file has once, because they were equal, are two parameters again."""
    weight = torch.rand(3, 4)
    folder = tmp_path / "checkpoints" / "last"
    folder.mkdir(parents=True)
    write_tensors(folder / "model.safetensors", {"0.weight": weight, "1.weight": weight})
    write_checksums(folder)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.Linear(4, 3, bias=False))
    load_weights(model, folder)
    with torch.no_grad():
        model[0].weight.zero_()
    assert torch.equal(model[1].weight, weight)
