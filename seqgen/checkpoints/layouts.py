"""The weights of other toolkits' layouts: their names in the model, streaming them into it, and writing them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from seqgen.checkpoints.model_weights import materialize
from seqgen.checkpoints.serialization import read_tensors
from seqgen.checkpoints.torch_file import read_torch_file
from seqgen.core.errors import CheckpointError, ConfigError, listing
from seqgen.system.mapped_weights import MappedFile, release_pages
from seqgen.system.switches import MAPPED_WEIGHTS


@dataclass(frozen=True)
class Piece:
    """The place of a tensor of a folder in the model: some rows of a parameter, or all of it.

    Attributes:
        parameter: name of the model's parameter.
        rows: first row and row after the last; ``None`` for all.
        transposed: whether the folder has the transposed matrix, ``(in, out)`` instead of ``(out, in)``.
        is_row: whether the folder has a vector as a matrix of one row.
    """

    parameter: str
    rows: tuple[int, int] | None = None
    transposed: bool = False
    is_row: bool = False

    def of(self, parameter: Tensor) -> Tensor:
        """The part of the parameter in the folder's shape, as a view; the parameter itself if it is all of it."""
        part = parameter if self.rows is None else parameter[self.rows[0] : self.rows[1]]
        if self.is_row:
            return part.unsqueeze(0)
        return part.t() if self.transposed else part


def stacked_pieces(names: Sequence[str], parameter: str, *sizes: int) -> dict[str, Piece]:
    """The pieces of tensors that are stacked in one parameter of the model, such as those of queries, keys and values.

    Args:
        names: the names in the folder, in the order of the rows.
        parameter: the name of the model's parameter.
        sizes: rows of each tensor, or one number for all of them.
    """
    ends = [0, *accumulate(sizes if len(sizes) > 1 else sizes * len(names))]
    return {name: Piece(parameter, rows) for name, rows in zip(names, pairwise(ends), strict=True)}


@dataclass(frozen=True)
class Layout:
    """The names of the weights of an architecture in a folder.

    Attributes:
        pieces: the place in the model of each name in a folder.
        aliases: further names of the same tensors, by the name in ``pieces``; the first of these in the folder is used
            if that name is missing.
        ignored: names in some folders whose tensors are not used.
        tied: names in some folders for tensors that the model's configuration ties to a name in ``pieces``; see
            ``load_weights``.
        optional: names in ``pieces`` that a folder may lack: a parameter is then zero, and a buffer has the values that
            the model computes.
        left_out: how names begin whose tensors are not used, because the model lacks a part.
        prefix: what all names of some folders lack at their beginning.
        source: the file that describes the weights, for messages.
    """

    pieces: Mapping[str, Piece]
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    tied: Mapping[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()
    prefix: str = ""
    source: str = "its config.json"


def tensors_of(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one file by name, one after another.

    Args:
        path: a ``safetensors`` file, which is mapped into memory, or a file of ``torch.save``. What has been yielded is
            freed, unless it is still used.

    Raises:
        CheckpointError: the file is damaged, holds code or something else than tensors.
    """
    if path.suffix == ".safetensors":
        try:
            tensors = read_tensors(path)
        except CheckpointError as error:
            raise CheckpointError(f"{error}: download it again") from None
        for name, tensor in tensors.items():
            yield name, tensor
            release_pages(tensor)
        return
    content = read_torch_file(path)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} contains no named weights")
    content = dict(content)
    while content:
        name = next(iter(content))
        tensor = content.pop(name)
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{path} is damaged: its weight {name} is not a tensor")
        yield name, tensor


def load_weights(
    model: nn.Module,
    layout: Layout,
    folder: Path,
    device: torch.device,
    tensors: Mapping[str, Tensor] | None = None,
    files: Sequence[Path] = (),
) -> dict[str, Tensor]:
    """Allocate a model's parameters and stream weights into them.

    Parameters of the device and dtype of a ``safetensors`` file use its memory, see
    ``seqgen.system.mapped_weights``. Of what is copied, a small part is in memory besides the model, or one file of
    ``torch.save``.

    Args:
        model: a model on the ``meta`` device, in the wanted dtype.
        layout: the names of the weights.
        folder: the folder or file, for messages.
        device: where to put the model.
        tensors: weights by name.
        files: files with further weights, see ``tensors_of``.

    Returns:
        The tensors of ``layout.tied`` that differ from those to which they should be tied, by name.

    Raises:
        CheckpointError: weights are missing, unknown, of another shape or damaged, or differ although the model ties
            them; all names are listed.
    """
    materialize(model, device)
    filling = _Filling(model, layout)
    for name, tensor in (tensors or {}).items():
        filling.add(name, tensor, folder, None)
    for path in files:
        mapped = MappedFile(model, path) if path.suffix == ".safetensors" and MAPPED_WEIGHTS.is_on() else None
        for name, tensor in tensors_of(path):
            filling.add(name, tensor, path, mapped)
    return filling.finish(folder)


class _Filling:
    """Puts the tensors of a folder into a model's parameters, one after another.

    A tensor may be in the folder under several names. The one in ``layout.pieces`` is used; those of other names wait
    until the end, since the file may have them first.

    Args:
        model: the model.
        layout: the names of the weights.
    """

    def __init__(self, model: nn.Module, layout: Layout):
        self.layout = layout
        self.parameters = _tensors(model)
        self.targets = {name: name for name in layout.pieces} | dict(layout.tied)
        self.targets |= {alias: name for name, aliases in layout.aliases.items() for alias in aliases}
        self.found: set[str] = set()  # names in layout.pieces whose tensor the folder has, under any name
        self.filled: set[str] = set()  # names in layout.pieces whose tensor has been used
        self.mapped: dict[str, dict[tuple[int, int], Tensor]] = {}  # by parameter, and then by rows
        self.further: dict[str, tuple[Tensor, MappedFile | None]] = {}
        self.unknown: list[str] = []
        self.misshapen: list[str] = []

    def add(self, name: str, tensor: Tensor, path: Path, mapped: MappedFile | None) -> None:
        """Use a tensor, or note why it cannot be used.

        Args:
            name: its name.
            tensor: the tensor.
            path: its file.
            mapped: the file if parameters may use its memory.

        Raises:
            CheckpointError: the tensor is quantized.
        """
        full = self._full(name)
        if full not in self.targets:
            self.unknown += [name] * (full not in self.layout.ignored and not full.startswith(self.layout.left_out))
            return
        target = self.targets[full]
        self.found.add(target)
        place = self._place(target)
        if tensor.shape != place.shape:
            self.misshapen.append(f"{name} ({tuple(tensor.shape)}, expected {tuple(place.shape)})")
        elif not tensor.is_floating_point():
            raise CheckpointError(f"{path}: {name} is quantized ({tensor.dtype}), which cannot be read")
        elif full == target and target not in self.filled:
            self._put(target, tensor, mapped)
        else:
            self.further[name] = tensor, mapped

    def _full(self, name: str) -> str:
        """A name with the prefix that it may lack."""
        full = self.layout.prefix + name
        return full if full in self.targets or full in self.layout.ignored else name

    def _place(self, target: str) -> Tensor:
        piece = self.layout.pieces[target]
        return piece.of(self.parameters[piece.parameter])

    def _put(self, target: str, tensor: Tensor, mapped: MappedFile | None) -> None:
        """Use the memory of a mapped tensor, or of all pieces of a parameter, if possible; otherwise copy values."""
        piece = self.layout.pieces[target]
        rows = self.mapped.setdefault(piece.parameter, {})
        if mapped and not (piece.transposed or piece.is_row):
            rows[piece.rows or (0, 0)] = tensor
        parts = [rows[key] for key in sorted(rows)]
        if not (mapped and parts and mapped.share_mapped_memory(self.parameters[piece.parameter], *parts)):
            self._place(target).detach().copy_(tensor)
        self.filled.add(target)

    def finish(self, folder: Path) -> dict[str, Tensor]:
        """Use tensors of other names, check that all weights were found, and set optional ones that are missing.

        Args:
            folder: the folder, for messages.

        Returns:
            See ``load_weights``.

        Raises:
            CheckpointError: see ``load_weights``.
        """
        layout, different = self.layout, {}
        for name, (tensor, mapped) in self.further.items():
            target = self.targets[self._full(name)]
            if target not in self.filled:
                self._put(target, tensor, mapped)
            elif not ((place := self._place(target)).is_meta or torch.equal(tensor.to(place), place)):
                different[name] = tensor.to(place)
        faults = {
            "missing": sorted(set(layout.pieces) - self.found - layout.optional),
            "unknown to the model": sorted(self.unknown),
            "of another shape": self.misshapen,
            "different from the tensors to which they should be tied": sorted(
                name for name in different if self._full(name) not in layout.tied
            ),
        }
        if any(faults.values()):
            listed = "; ".join(f"{what}: {listing(names, 10)}" for what, names in faults.items() if names)
            raise CheckpointError(f"{folder}: the weights do not match {layout.source}: {listed}")
        for name in layout.optional - self.found:
            if isinstance(self.parameters[layout.pieces[name].parameter], nn.Parameter):
                self._place(name).detach().zero_()
        return different


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a model by name; tied ones have several names."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}


def weights_of(model: nn.Module, layout: Layout) -> dict[str, Tensor]:
    """A model's weights by their names in a folder.

    Args:
        model: the model.
        layout: the names of the weights.

    Raises:
        ConfigError: the layout has no names for some of them.
    """
    parameters = _tensors(model)
    named = {id(parameters[piece.parameter]) for piece in layout.pieces.values()}
    if further := [name for name, parameter in model.named_parameters() if id(parameter) not in named]:
        raise ConfigError(f"Hugging Face's layout has no names for the weights {listing(further, 10)}")
    return {name: piece.of(parameters[piece.parameter]).detach().contiguous() for name, piece in layout.pieces.items()}
