"""Matrix products in which each row of the result depends only on its own row of the input, bit by bit.

A matrix library chooses a kernel by the shapes of the matrices, and kernels add in different orders: the product of
five rows can differ in its last bits from the first five rows of a product of eighty. Here a product is defined by
tiles of fixed shape, and computed in one call where that gives the same bits. Whether it does is found out once for
each shape, by computing both; where they differ, the tiles are used.

A tile has 16 rows of the left matrix, 16 columns of the right one, and 128 inner elements. Fewer are filled up with
zeros, which changes no sum. Parts of 128 inner elements are added from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 16
"""Rows, or columns, of a tile; a multiple of the number of float32 values in a processor's vector."""

INNER = 128
"""Inner elements of a tile; the libraries add so many one after the other."""

_ROWS = 512
"""Rows of a weight's product that are computed in one call, so that there are few shapes."""

_FEWEST, _WIDE = 4, 12
"""With fewer rows, or fewer columns, libraries add the elements of an inner product in several sums."""

Product: TypeAlias = Callable[[Tensor], Tensor]

_agree: dict[object, bool] = {}
"""For each shape, whether one call gives the bits of the tiles."""


def rounded_up(length: int, step: int) -> int:
    """The smallest multiple of ``step`` that is at least ``length``."""
    return -(-length // step) * step


def weight_product(product: Product, kind: object, x: Tensor) -> Tensor:
    """The product with a weight, with the bits of tiles of 16 rows.

    Args:
        product: maps ``(N, in)`` to ``(N, out)``.
        kind: identifies the kernel that computes it, such as its function and the shape of the weight.
        x: ``(..., in)``.

    Returns:
        ``(..., out)``.
    """
    rows = x.reshape(-1, x.size(-1))
    count = rows.size(0)
    if count % TILE:
        rows = F.pad(rows, (0, 0, 0, rounded_up(count, TILE) - count))
    parts = [_rows_product(product, kind, part) for part in rows.split(_ROWS)] if len(rows) else [product(rows)]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out[:count].view(*x.shape[:-1], out.size(-1))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` with the bits of tiles."""
    kind = ("linear", weight.shape, weight.stride(-1) == 1, bias is None)
    return weight_product(lambda rows: F.linear(rows, weight, bias), kind, x)


def _rows_product(product: Product, kind: object, rows: Tensor) -> Tensor:
    def tiled(rows: Tensor) -> Tensor:
        return torch.cat([product(tile) for tile in rows.split(TILE)])

    shape = (kind, rows.shape, rows.dtype, rows.device, torch.get_num_threads())
    return product(rows) if _agrees(shape, product, tiled, rows) else tiled(rows)


def _agrees(shape: object, product: Product, tiled: Product, like: Tensor) -> bool:
    """Whether a product of this shape has the bits of the tiles.

    It is tried with random numbers: where most of the input is zero, different orders of summation give equal sums.
    """
    found = _agree.get(shape)
    if found is None:
        generator = torch.Generator(like.device).manual_seed(1)
        tried = torch.empty_like(like).uniform_(-1, 1, generator=generator)
        found = _agree[shape] = torch.equal(product(tried), tiled(tried))
    return found


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul`` of batches of matrices, with the bits of the tiles.

    Up to 16 rows of ``a`` are not divided: queries of one step, whose number is the same in every batch.

    Args:
        a: ``(..., M, K)``.
        b: ``(..., K, N)``.

    Returns:
        ``(..., M, N)``.
    """
    total: Tensor | None = None
    for begin in range(0, a.size(-1), INNER):
        part = _all_rows(a[..., begin : begin + INNER], b[..., begin : begin + INNER, :])
        total = part if total is None else total.add_(part)
    return torch.matmul(a, b) if total is None else total


def _all_rows(a: Tensor, b: Tensor) -> Tensor:
    rows = a.size(-2)
    wanted = max(rows, _FEWEST) if rows <= TILE else rounded_up(rows, TILE)
    if wanted == rows:
        return _all_columns(a, b)
    return _all_columns(F.pad(a, (0, 0, 0, wanted - rows)), b)[..., :rows, :]


def _all_columns(a: Tensor, b: Tensor) -> Tensor:
    """Columns after the last whole tile are computed in a tile with those before them, or filled up to a tile."""
    columns, rest = b.size(-1), b.size(-1) % TILE
    if rest == 0 or rest >= _WIDE:
        return _whole_tiles(a, b)
    last = b[..., columns - TILE :] if columns >= TILE else F.pad(b, (0, TILE - columns))
    if columns < TILE:
        return _whole_tiles(a, last)[..., :columns]
    return torch.cat([_whole_tiles(a, b[..., : columns - rest]), _whole_tiles(a, last)[..., TILE - rest :]], dim=-1)


def _whole_tiles(a: Tensor, b: Tensor) -> Tensor:
    few = _matrices(b) < 2 * torch.get_num_threads()
    shape = (a.shape[-2:], b.shape[-2:], b.stride(-1) == 1, few, a.dtype, a.device, torch.get_num_threads())
    if _agrees(shape, lambda tried: _many(tried, b), lambda tried: _tiles(tried, b), a):
        return _many(a, b)
    return _tiles(a, b)


def _matrices(b: Tensor) -> int:
    return b.numel() // max(b.size(-1) * b.size(-2), 1)


def _many(a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul``; few matrices are repeated, since with fewer than threads, threads divide each of them."""
    repeats = rounded_up(2 * torch.get_num_threads(), max(_matrices(b), 1)) // max(_matrices(b), 1)
    if repeats <= 1:
        return torch.matmul(a, b)
    dims = max(a.dim(), b.dim())
    copies = [one.expand(repeats, *[1] * (dims - one.dim()), *one.shape).contiguous() for one in (a, b)]
    return torch.matmul(*copies)[0]


def _tiles(a: Tensor, b: Tensor) -> Tensor:
    missing = INNER - a.size(-1)
    a, b = F.pad(a, (0, missing)), F.pad(b, (0, 0, 0, missing))
    return torch.cat([torch.cat(list(_tiles_of(rows, b)), dim=-1) for rows in a.split(TILE, dim=-2)], dim=-2)


def _tiles_of(rows: Tensor, b: Tensor) -> Iterator[Tensor]:
    for columns in b.split(TILE, dim=-1):  # the last one may have 12 to 15 columns
        yield _many(rows.contiguous(), columns.contiguous())
