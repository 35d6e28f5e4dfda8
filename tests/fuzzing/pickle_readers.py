"""Files of ``torch.save``: checkpoints of fairseq and ``pytorch_model.bin``."""

from __future__ import annotations

import io
import pickle
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from seqgen.checkpoints.loading import load_model
from seqgen.checkpoints.torch_file import plain, read_torch_file
from seqgen.errors import CheckpointError
from seqgen.models.huggingface.weights import tensors_of
from tests import fairseq_checkpoints
from tests.fuzzing.folder_readers import check_decoding
from tests.fuzzing.mutation import change_bytes
from tests.fuzzing.reader import Reader, link, replace
from tests.fuzzing.sandbox import Wrong
from tests.hostile import PICKLES, compressed, old_file
from tests.pretrained_folders import write_model


class Payload:
    """Runs code when it is unpickled by Python itself."""

    def __init__(self, function: Any, *arguments: Any):
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def payload(canary: Path, rng: random.Random) -> Any:
    """An object whose unpickling creates the canary."""
    import builtins
    import os
    import subprocess

    code = f"open({str(canary)!r}, 'w')"
    return rng.choice(
        [
            Payload(os.system, f"touch {canary}"),
            Payload(builtins.exec, code),
            Payload(builtins.eval, code),
            Payload(builtins.open, str(canary), "w"),
            Payload(subprocess.check_call, ["touch", str(canary)]),
            Payload(builtins.getattr, Payload(builtins.__import__, "os"), "system"),
            Payload(torch.hub.load, str(canary.parent), "evil"),
            Payload(torch.load, str(canary)),
            Payload(torch.save, {}, str(canary)),
        ]
    )


_GLOBALS = [
    *(
        b"cos\nsystem\n",
        b"c__builtin__\neval\n",
        b"cbuiltins\nexec\n",
        b"cposix\nsystem\n",
        b"ctorch._utils\n_rebuild_tensor_v2\n",
    ),
    *(
        b"ccollections\nOrderedDict\n",
        b"ctorch\nFloatStorage\n",
        b"cargparse\nNamespace\n",
        b"cnumpy\nload\n",
        b"ctorch\nSize\n",
    ),
    *(
        b"cseqgen.user_files\nimport_modules\n",
        b"ctorch.serialization\nload\n",
        b"ccollections\ndefaultdict\n",
        b"ctorch\nload\n",
    ),
    *(
        b"c__builtin__\ngetattr\n",
        b"c__builtin__\nset\n",
        b"cfairseq.tasks\nFairseqTask\n",
        b"comegaconf\nDictConfig\n",
    ),
]
_OPCODES = [
    bytes([code]) for code in b"()]}0124NtaesdubRQ\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x93\x94.lK\x01J\0\0\0\x01"
]


def random_pickle(rng: random.Random) -> bytes:
    """Instructions in random order."""
    parts = [b"\x80\x02"]
    for _ in range(rng.choice([3, 10, 40])):
        word = rng.choice([b"system", b"os", b"touch x", b"a", b"model", b"args"])
        text = b"X" + struct.pack("<I", len(word)) + word
        number = bytes([rng.randrange(4)])
        parts.append(rng.choice([*_GLOBALS, text, b"q" + number, b"h" + number, *_OPCODES]))
    return b"".join([*parts, b"."])


def save(content: Any, rng: random.Random) -> bytes:
    """The bytes of ``torch.save``, in its present or its old form."""
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=rng.random() < 0.5)
    return buffer.getvalue()


def hostile_file(path: Path, content: dict[str, Any], canary: Path, rng: random.Random) -> None:
    """Write a damaged or malicious file of ``torch.save``, or an intact one.

    Args:
        path: the file.
        content: its intact content.
        canary: a file that code in it would create.
        rng: all choices come from it.
    """
    deed = rng.random()
    if deed < 0.15:
        content = {**content, rng.choice(["model", "args", "x", "extra_state"]): payload(canary, rng)}
    elif deed < 0.25:
        odd: list[Any] = [
            torch.zeros(1).expand(10**6, 10**6),
            torch.zeros(2, 2).to_sparse(),
            torch.zeros(3, dtype=torch.int64),
            torch.full((4,), float("nan")),
            *(torch.zeros(0), None, "x", 10**400, [1], {"a": 1}, torch.float32, torch.Size([1]), torch.nn.Linear(1, 1)),
        ]
        key = rng.choice(sorted(content))
        inner = content[key]
        content = {
            **content,
            key: {**inner, rng.choice(sorted(inner)): rng.choice(odd)} if isinstance(inner, dict) else rng.choice(odd),
        }
    elif deed < 0.35:
        old_file(path, random_pickle(rng) if rng.random() < 0.9 else rng.choice(list(PICKLES.values())))
        return
    elif deed < 0.37:
        compressed(path)
        return
    elif deed < 0.4:
        path.write_bytes(rng.choice([pickle.dumps(content), pickle.dumps(payload(canary, rng)), b"", b"PK", b"\x80"]))
        return
    data = save(content, rng)
    if deed > 0.5:
        data = _change_inside(data, rng) if data.startswith(b"PK") and deed > 0.6 else change_bytes(data, rng)
    path.write_bytes(data)


def _change_inside(data: bytes, rng: random.Random) -> bytes:
    """Change a file in an archive, whose checksum is then that of the changed file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        chosen = "archive/data.pkl" if rng.random() < 0.8 else rng.choice(old.namelist())
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change_bytes(content, rng) if name == chosen else content)
    return buffer.getvalue()


class FairseqCheckpoint(Reader):
    name = ".pt"
    fast_cases = 12

    def __init__(self, scratch: Path):
        super().__init__(scratch)
        path = fairseq_checkpoints.write_random(scratch / "fairseq", fairseq_checkpoints.TRANSFORMER)
        check_decoding(load_model(path), "w1 w2")
        self.content: dict[str, Any] = torch.load(path, weights_only=False)

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        link(self.scratch / "fairseq", folder)
        (folder / "model.pt").unlink()
        hostile_file(folder / "model.pt", self.content, canary, rng)

    def read(self, folder: Path) -> None:
        path = folder / "model.pt"
        content = read_torch_file(path, ("omegaconf.", "fairseq."))
        if isinstance(content, dict):
            for key in ("args", "cfg"):
                try:
                    plain(content.get(key))
                except ValueError as error:
                    raise CheckpointError(f"its options {error}") from None
        check_decoding(load_model(path), "w1 w2")


class PytorchModelBin(Reader):
    name = ".bin"
    fast_cases = 25

    def __init__(self, scratch: Path):
        super().__init__(scratch)
        self.original = write_model(scratch / "model", "PegasusTokenizer")
        weights = self.original / "model.safetensors"
        self.content = safetensors.torch.load_file(weights)
        weights.unlink()
        torch.save(self.content, self.original / "pytorch_model.bin")
        check_decoding(load_model(self.original))

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        link(self.original, folder)
        replace(folder / "pytorch_model.bin", b"")
        hostile_file(folder / "pytorch_model.bin", self.content, canary, rng)

    def read(self, folder: Path) -> None:
        path = folder / "pytorch_model.bin"
        found = dict(tensors_of(path))
        wanted = torch.load(path, weights_only=True)
        if set(found) != set(wanted) or not all(_same(found[name], tensor) for name, tensor in wanted.items()):
            raise Wrong("other tensors than PyTorch reads")
        check_decoding(load_model(folder))


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())


READERS: list[type[Reader]] = [FairseqCheckpoint, PytorchModelBin]
