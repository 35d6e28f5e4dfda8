"""Layer specifications such as ``"[(512, 3)] * 20 + [(1024, 1)]"``, parsed without executing them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from seqgen.errors import ConfigError

_MAX_LAYERS = 1000


@dataclass(frozen=True)
class ConvolutionSpec:
    """One convolutional layer.

    Attributes:
        channels: dimension of its output.
        kernel_width: number of positions in the receptive field of one output.
        residual: whose input is added to the output (residual connection): 1 for the layer's own, 2 for that of the
            layer before, and so on; 0 for none.
    """

    channels: int
    kernel_width: int
    residual: int = 1


def parse_convolutions(key: str, text: str) -> list[ConvolutionSpec]:
    """Parse the layers of a convolutional encoder or decoder.

    Args:
        key: configuration key, for messages.
        text: a Python list of ``(dimension, kernel_width)`` or ``(dimension, kernel_width, residual)``; lists may be
            joined by ``+`` and repeated by ``*``.

    Returns:
        The layers.

    Raises:
        ConfigError: the text is not such a list.
    """
    layers = []
    for i, item in enumerate(_parse_list(key, text)):
        if not isinstance(item, tuple) or len(item) not in (2, 3) or any(type(number) is not int for number in item):
            raise ConfigError(
                f"{key}: layer {i} is {item!r}, but a layer is (dimension, kernel_width) or "
                "(dimension, kernel_width, residual), all of them integers"
            )
        layer = ConvolutionSpec(*item)
        if layer.channels < 1 or layer.kernel_width < 1:
            raise ConfigError(f"{key}: layer {i} is {item!r}, but dimension and kernel_width must be at least 1")
        if not 0 <= layer.residual <= i + 1:
            raise ConfigError(f"{key}: layer {i} has residual {layer.residual}, which must be between 0 and {i + 1}")
        layers.append(layer)
    return layers


def parse_choices(key: str, text: str, num_layers: int) -> list[bool]:
    """Parse a boolean for each layer.

    Args:
        key: configuration key, for messages.
        text: ``"True"`` or ``"False"`` for all layers, or a list such as ``"[True, False] * 3"`` with one for each.
        num_layers: number of layers.

    Returns:
        The boolean of each layer.

    Raises:
        ConfigError: the text cannot be parsed, or has a wrong number of entries.
    """
    if text.strip() in ("True", "False"):
        return [text.strip() == "True"] * num_layers
    choices = _parse_list(key, text)
    if any(type(choice) is not bool for choice in choices):
        raise ConfigError(f"{key}: {text!r} must be True, False, or a list of these, one for each layer")
    if len(choices) != num_layers:
        raise ConfigError(f"{key}: {text!r} has {len(choices)} entries for {num_layers} layers")
    return choices


def _parse_list(key: str, text: str) -> list[Any]:
    try:
        value = _evaluate(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{key}: cannot read {text!r}, expected something like '[(512, 3)] * 20': {error}") from None
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{key}: {text!r} must be a list with at least one layer, like '[(512, 3)] * 20'")
    return value


def _evaluate(node: ast.expr) -> Any:
    """The value of a list, tuple, integer or boolean, a sum of lists or a list times an integer; nothing else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.List):
        return [_evaluate(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_evaluate(item) for item in node.elts)
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left), _evaluate(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return _limited(left, right)
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and type(right) is int:
            if len(left) * right > _MAX_LAYERS:
                raise ValueError(f"more than {_MAX_LAYERS} layers")
            return left * right
    raise ValueError(f"{ast.unparse(node)!r} is not a list, a tuple, an integer, or lists joined by + or repeated by *")


def _limited(left: list[Any], right: list[Any]) -> list[Any]:
    if len(left) + len(right) > _MAX_LAYERS:
        raise ValueError(f"more than {_MAX_LAYERS} layers")
    return left + right
