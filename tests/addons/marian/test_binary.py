"""Marian's binary format: its weights are those of the ``.npz`` file, and hostile files are refused by one sentence."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.addons.marian.binary import BinaryModel
from seqgen.checkpoints.loading import load_model
from seqgen.core.errors import UserError
from seqgen.text.translator import Translator
from tests.addons.marian.test_files import spm_files
from tests.hostile import YAML, limited, replace_by
from tests.marian_binary import FLOAT32, INT8, INTGEMM8, encoded, is_matrix, quantized, write_binary
from tests.marian_models import LINES, OPTIONS

RECORDED = Path(__file__).parents[2] / "recorded" / "marian"


def arrays(name: str = "ssru") -> dict[str, Any]:
    return dict(np.load(RECORDED / f"{name}.npz"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An int8 model with its vocabulary."""
    shutil.copy(RECORDED / "vocab.yml", tmp_path / "vocab.yml")
    write_binary(tmp_path / "model.intgemm8.bin", arrays(), int8=True)
    return tmp_path / "model.intgemm8.bin"


def parameters(path: Path) -> dict[str, torch.Tensor]:
    return dict(load_model(path).model.named_parameters())


@pytest.mark.parametrize("name", ["transformer", "untied", "ssru"])
@pytest.mark.parametrize("int8", [False, True])
def test_weights_are_those_of_the_npz_file(model: Path, name: str, int8: bool) -> None:
    known = arrays(name)
    scales = {"none_QuantMultA": np.ones((1, 1), np.float32)}
    write_binary(model, {**known, **scales}, int8)
    for array, content in known.items():
        if int8 and is_matrix(array, content):
            integers, factor = quantized(content)
            assert np.abs(integers).max() == 127
            known[array] = integers.astype(np.float32) / factor
    np.savez(model.with_name("model.npz"), **known)
    wanted = parameters(model.with_name("model.npz"))
    found = parameters(model)
    assert found.keys() == wanted.keys()
    for parameter, value in wanted.items():
        assert torch.equal(found[parameter], value), parameter


def test_outputs_of_a_float_model_are_those_of_marian(model: Path) -> None:
    write_binary(model.with_name("model.bin"), arrays())
    made, wanted = (
        Translator(path).translate(LINES, beam=4, nbest=4, length_penalty=1.0, max_len_a=3.0)
        for path in (model.with_name("model.bin"), RECORDED / "ssru.npz")
    )
    for one, other in zip(made, wanted, strict=True):
        assert [(h.text, h.score) for h in one.hypotheses] == [(h.text, h.score) for h in other.hypotheses]


def test_a_folder_of_firefox(model: Path) -> None:
    ids = spm_files(model.parent)
    (model.parent / "vocab.yml").unlink()
    model.with_name("source.spm").rename(model.with_name("srcvocab.deen.spm"))
    model.with_name("target.spm").rename(model.with_name("trgvocab.deen.spm"))
    known, size = arrays(), len(ids) - 1
    known["decoder_ff_logit_out_b"] = np.ones((1, size), np.float32)
    known |= {
        f"{side}_Wemb": np.ones((size, 8), np.float32) for side in ("encoder", "decoder") if f"{side}_Wemb" in known
    }
    write_binary(model, known, int8=True)
    loaded = load_model(model.parent)
    assert (loaded.generation["beam"], loaded.generation["length_penalty"], loaded.generation["max_len_a"]) == (
        1,
        1.0,
        2.0,
    )
    assert loaded.task.source_tokenizer is not loaded.task.target_tokenizer
    settings = f"models: [{model.name}]\nvocabs: [srcvocab.deen.spm, trgvocab.deen.spm]\nbeam-size: 3\n"
    model.with_name("config.intgemm8bitalpha.yml").write_text(settings)
    assert load_model(model.parent).generation["beam"] == load_model(model).generation["beam"] == 3
    model.with_name("config.intgemm8bitalpha.yml").unlink()
    shutil.copy(model, model.with_name("other.intgemm8.bin"))
    with pytest.raises(UserError, match="names 2 models; give the file of one of them"):
        load_model(model.parent)
    shutil.copy(model.with_name("srcvocab.deen.spm"), model.with_name("vocab.enfr.spm"))
    with pytest.raises(UserError, match="has no vocabulary, or several"):
        load_model(model)


def weight(
    name: str | bytes = "x", kind: int = FLOAT32, shape: tuple[int, ...] = (2, 2), data: bytes = bytes(256)
) -> bytes:
    return encoded([(name, kind, shape, data)])


def patched(place: int, value: int) -> Callable[[Path], Any]:
    """Replace the u64 at a place."""

    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        struct.pack_into("<Q", content, place, value)
        path.write_bytes(content)

    return change


def options(text: bytes) -> Callable[[Path], Any]:
    return lambda path: write_binary(path, {**arrays(), OPTIONS: np.frombuffer(text, np.int8)})


HUGE = 2**64 - 1
HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (lambda path: path.write_bytes(b""), "ends too early"),
    "a pickle": (lambda path: path.write_bytes(b"\x80\x02}q\x00." * 9), "not a model in Marian's binary format"),
    "another version": (lambda path: path.write_bytes(encoded([], 2)), "not a model in Marian's binary format"),
    "no tensors": (lambda path: path.write_bytes(encoded([])), "has no special:model.yml"),
    "many tensors": (patched(8, HUGE), "ends too early"),
    "more tensors": (patched(8, 99_999), "ends too early"),
    "a long name": (patched(16, HUGE), "ends too early"),
    "an overflow of two names": (lambda path: (patched(16, HUGE)(path), patched(48, 9)(path)), "ends too early"),
    "many dimensions": (patched(32, HUGE), "ends too early"),
    "nine dimensions": (lambda path: path.write_bytes(weight(shape=(1,) * 9)), "the shape of 'x' is impossible"),
    "no dimensions": (lambda path: path.write_bytes(weight(shape=())), "the shape of 'x' is impossible"),
    "long data": (patched(40, HUGE), "ends too early"),
    "short data": (patched(40, 0), "has 0 bytes, fewer than its shape needs"),
    "a negative dimension": (lambda path: path.write_bytes(weight(shape=(-2, -2))), "the shape of 'x' is impossible"),
    "a huge shape": (lambda path: path.write_bytes(weight(shape=(2**31 - 1,) * 8)), "fewer than its shape needs"),
    "an unknown type": (
        lambda path: path.write_bytes(weight(kind=0x4102)),
        "'x' has the type 0x4102, which is not supp",
    ),
    "a huge type": (patched(24, HUGE), "has the type 0xffffffffffffffff"),
    "no UTF-8": (lambda path: path.write_bytes(weight(b"\xff\xfe")), "has no special:model.yml"),
    "a name twice": (
        lambda path: path.write_bytes(encoded([("x", INT8, (1,), b"a"), ("x", INT8, (1,), b"a")])),
        "'x' occurs twice",
    ),
    "a name with a line break": (
        lambda path: write_binary(path, {**arrays(), "a\nb": np.ones((2, 2), np.float32)}),
        r"unknown to the model: 'a\\nb'",
    ),
    "integers in three dimensions": (
        lambda path: path.write_bytes(weight(kind=INTGEMM8, shape=(2, 3, 4))),
        "the 8-bit integers of 'x' have 3 dimensions instead of 2",
    ),
    "a name with commands": (lambda path: path.write_bytes(weight("\x1b[2J", 7)), r"'\\x1b\[2J' has the type 0x7"),
    **{
        f"the factor {factor}": (
            lambda path, factor=factor: path.write_bytes(
                weight(kind=INTGEMM8, data=bytes(4) + np.float32(factor).tobytes())
            ),
            "the factor of 'x' is .*, not a positive number",
        )
        for factor in (float("nan"), float("inf"), 0.0, -1.0)
    },
    "a pipe": (lambda path: replace_by(path, "pipe"), ""),
    "a missing weight": (
        lambda path: write_binary(path, {k: v for k, v in arrays().items() if k != "encoder_l1_ffn_W1"}),
        "missing: encoder_l1_ffn_W1",
    ),
    "an integer weight": (
        lambda path: write_binary(path, {**arrays(), "encoder_l1_ffn_b1": np.ones((1, 12), np.int8)}),
        "quantized",
    ),
    "options that are weights": (
        lambda path: write_binary(path, {**arrays(), OPTIONS: np.ones(3, np.float32)}),
        "has no special:model.yml",
    ),
    "many layers": (options(b"enc-depth: 1000000\ntype: transformer\n"), ""),
    "a large dimension": (options(b"dim-emb: 1073741824\n"), ""),
    **{
        f"options: {name}": (options(YAML[name].encode("utf-8", "surrogateescape")), "special:model.yml is damaged")
        for name in ("aliases of aliases", "deep brackets", "an object of Python", "a list that contains itself")
    },
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_files(model: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    damage, reason = HOSTILE[fault]
    before = set(model.parent.iterdir())
    damage(model)
    outcome = limited("generate", f"path={model}", "input=-", "output=-", stdin=b"no\n")
    assert outcome.code == 2, outcome
    assert len(outcome.err.strip().splitlines()) == 1, outcome.err
    assert re.search(reason, outcome.err), outcome.err
    assert set(model.parent.iterdir()) <= before


def test_a_file_that_ends_too_early(model: Path) -> None:
    content = model.read_bytes()
    count = struct.unpack_from("<Q", content, 8)[0]
    headers = [struct.unpack_from("<4Q", content, 16 + 32 * index) for index in range(count)]
    ends = [0, 8, 16, 16 + 32 * count]
    ends += [ends[-1] + sum(header[0] for header in headers)]
    ends += [ends[-1] + 4 * sum(header[2] for header in headers)]
    ends += [len(content) - sum(header[3] for header in headers[index:]) for index in range(count)]
    for end in {place + shift for place in ends for shift in (-1, 0, 1)} - {-1}:
        model.write_bytes(content[:end])
        with pytest.raises(UserError, match="it ends too early"):
            BinaryModel(model)
