"""The files with the weights of a Hugging Face folder.

::

    model.safetensors                                      all of them, or
    model-00001-of-00002.safetensors ... and an index      in shards: model.safetensors.index.json, or
    pytorch_model.bin                                      as torch.save wrote them, whole or in shards
"""

from __future__ import annotations

from pathlib import Path

from seqgen.extend import CheckpointError, Piece, listing, read_json

SAFETENSORS, BIN = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"


def with_bias(foreign: str, local: str, transposed: bool = False) -> dict[str, Piece]:
    """The pieces of a weight and its bias.

    Args:
        foreign: the module's name in the folder.
        local: its name in the model.
        transposed: see ``Piece``; of the weight.
    """
    weight = Piece(f"{local}.weight", transposed=transposed)
    return {f"{foreign}.weight": weight, f"{foreign}.bias": Piece(f"{local}.bias")}


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights of a folder.

    Args:
        folder: the folder.

    Returns:
        One file, or all shards.

    Raises:
        CheckpointError: there are none, or shards are missing.
    """
    for name in (SAFETENSORS, BIN):
        if (folder / name).is_file():
            return [folder / name]
        if (folder / f"{name}{INDEX}").is_file():
            return _shards(folder / f"{name}{INDEX}")
    others = [name for name in ("tf_model.h5", "flax_model.msgpack") if (folder / name).is_file()]
    hint = f"; {others[0]} is of another framework: convert it with transformers" if others else "; download it whole"
    raise CheckpointError(f"{folder} has no weights: there is no {SAFETENSORS} and no {BIN}, whole or in shards{hint}")


def _shards(index: Path) -> list[Path]:
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointError(f"{index} is damaged: it does not map weights to files")
    names = sorted(set(places.values()))
    if any(Path(name).name != name or not name for name in names):
        raise CheckpointError(f"{index} names files outside its folder, which is not allowed")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{index.parent} is incomplete: {len(missing)} of {len(names)} files with weights are missing, "
            f"{listing(missing, 10)}; download them as well"
        )
    return [index.parent / name for name in names]
