"""Marian's binary format: its weights are those of the ``.npz`` file, and hostile files are refused by one sentence."""

import math
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqgen.addons.marian.binary import FLOAT32, INT8, INTGEMM8, BinaryModel, binary_model, quantized
from seqgen.extend import UserError, load_model
from tests.addons.marian.test_files import RECORDED, assert_refused, spm_files
from tests.hostile import replace_by
from tests.marian_binary import write_binary
from tests.marian_models import OPTIONS


def arrays(name: str = "ssru") -> dict[str, Any]:
    return dict(np.load(RECORDED / f"{name}.npz"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An int8 model with its vocabulary."""
    shutil.copy(RECORDED / "vocab.yml", tmp_path / "vocab.yml")
    write_binary(tmp_path / "model.intgemm8.bin", arrays(), int8=True)
    return tmp_path / "model.intgemm8.bin"


@pytest.mark.parametrize("name", ["transformer", "untied", "ssru"])
@pytest.mark.parametrize("int8", [False, True])
def test_weights_are_those_of_the_npz_file(model: Path, name: str, int8: bool) -> None:
    known = arrays(name)
    scales = {"none_QuantMultA": np.ones((1, 1), np.float32)}
    write_binary(model, {**known, **scales}, int8)
    for array, content in known.items():
        if int8 and content.dtype == np.float32 and min(content.shape) > 1:
            integers, factor = quantized(content)
            assert np.abs(integers).max() == 127
            known[array] = integers.astype(np.float32) / factor
    np.savez(model.with_name("model.npz"), **known)
    wanted, found = (load_model(path) for path in (model.with_name("model.npz"), model))
    assert found.model.cfg == wanted.model.cfg
    parameters, others = (dict(loaded.model.named_parameters()) for loaded in (found, wanted))
    assert parameters.keys() == others.keys()
    for parameter, value in others.items():
        assert torch.equal(parameters[parameter], value), parameter


def test_a_folder_of_firefox(model: Path) -> None:
    ids = spm_files(model.parent)
    (model.parent / "vocab.yml").unlink()
    model.with_name("source.spm").rename(model.with_name("srcvocab.deen.spm"))
    model.with_name("target.spm").rename(model.with_name("trgvocab.deen.spm"))
    known, size = arrays(), len(ids) - 1
    known["decoder_ff_logit_out_b"] = np.ones((1, size), np.float32)
    sides = {f"{side}_Wemb" for side in ("encoder", "decoder")} & known.keys()
    known |= dict.fromkeys(sides, np.ones((size, 8), np.float32))
    write_binary(model, known, int8=True)
    loaded = load_model(model.parent)
    assert [loaded.generation[key] for key in ("beam", "length_penalty", "max_len_a")] == [1, 1.0, 2.0]
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


def weight(name: str = "x", kind: int = FLOAT32, shape: Any = (2, 2), data: bytes = bytes(256)) -> bytes:
    return binary_model([(name, kind, shape, data)])


def overwrite(path: Path, place: int, value: bytes) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:place] + value + content[place + len(value) :])


def patched(place: int, value: int) -> Callable[[Path], Any]:
    """Replace the u64 at a place."""
    return lambda path: overwrite(path, place, struct.pack("<Q", value))


def tensor(name: str, array: Any) -> Callable[[Path], Any]:
    return lambda path: write_binary(path, {**arrays(), name: array})


def factor(value: float) -> bytes:
    return weight(kind=INTGEMM8, data=bytes(4) + np.float32(value).tobytes())


HUGE = 2**64 - 1
HOSTILE: dict[str, tuple[bytes | Callable[[Path], Any], str]] = {
    "nothing": (b"", "ends too early"),
    "a pickle": (b"\x80\x02}q\x00." * 9, "not a model in Marian's binary format"),
    "another version": (patched(0, 2), "not a model in Marian's binary format"),
    "no tensors": (binary_model([]), "has no special:model.yml"),
    "many tensors": (patched(8, HUGE), "ends too early"),
    "a long name": (patched(16, HUGE), "ends too early"),
    "an overflow of two names": (lambda path: (patched(16, HUGE)(path), patched(48, 9)(path)), "ends too early"),
    "many dimensions": (patched(32, HUGE), "ends too early"),
    "nine dimensions": (weight(shape=(1,) * 9), "the shape of 'x' is impossible"),
    "no dimensions": (weight(shape=()), "the shape of 'x' is impossible"),
    "long data": (patched(40, HUGE), "ends too early"),
    "short data": (patched(40, 0), "has 0 bytes, fewer than its shape needs"),
    "a negative dimension": (weight(shape=(-2, -2)), "the shape of 'x' is impossible"),
    "a huge shape": (weight(shape=(2**31 - 1,) * 8), "fewer than its shape needs"),
    "an unknown type": (weight(kind=0x4102), "'x' has the type 0x4102, which is not supp"),
    "no UTF-8": (weight("\udcff\udcfe"), "has no special:model.yml"),
    "a name twice": (binary_model([("x", INT8, (1,), b"a")] * 2), "'x' occurs twice"),
    "a name with a line break": (tensor("a\nb", np.ones((2, 2), np.float32)), "unknown to the model: 'a\\nb'"),
    "integers in three dimensions": (weight(kind=INTGEMM8, shape=(2, 3, 4)), "of 'x' have 3 dimensions instead of 2"),
    "a name with commands": (weight("\x1b[2J", 7), "'\\x1b[2J' has the type 0x7"),
    **{f"the factor {value}": (factor(value), "the factor of 'x' is") for value in (math.nan, math.inf, 0.0, -1.0)},
    "a pipe": (lambda path: replace_by(path, "pipe"), "neither a run folder nor a checkpoint"),
    "an integer weight": (tensor("encoder_l1_ffn_b1", np.ones((1, 12), np.int8)), "quantized"),
    "options that are weights": (tensor(OPTIONS, np.ones(3, np.float32)), "has no special:model.yml"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_files(model: Path, fault: str) -> None:
    damage, reason = HOSTILE[fault]
    before = set(model.parent.iterdir())
    model.write_bytes(damage) if isinstance(damage, bytes) else damage(model)
    assert_refused(model, reason)
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
