"""The weights of a checkpoint, and the model that they are loaded into.

A damaged configuration can ask for a billion layers, whereas the weights of a checkpoint are no larger than its file.
So the model is first built on PyTorch's ``meta`` device, which allocates no memory. Only if its weights match those of
the checkpoint, they are allocated, on the device and in the dtype in which they are needed.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from seqgen.checkpoints.run_checkpoints import MODEL, read_unchanged
from seqgen.checkpoints.serialization import read_tensors, verify_checksums
from seqgen.core.errors import CheckpointError, ConfigError, UserError, listing
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import tensors_in
from seqgen.modules.cached_weight import CachedWeight
from seqgen.modules.inspection import memory_footprint
from seqgen.system.mapped_weights import MappedFile, release_pages
from seqgen.system.switches import MAPPED_WEIGHTS


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Read a checkpoint's weights into a model.

    Parameters of the file's device and dtype use its memory, see ``seqgen.system.mapped_weights``.
    Of what is copied, a small part is in memory at a time.

    Args:
        model: a model of the architecture that the checkpoint was trained with.
        checkpoint: the checkpoint's folder; see ``resolve``.

    Raises:
        CheckpointError: the file cannot be used, or names or shapes differ. In the latter case the model is unchanged.
    """

    def stream() -> None:
        verify_checksums(checkpoint, [MODEL])
        fit(model, read_tensors(path, values=False), str(checkpoint))
        file = MappedFile(model, path) if MAPPED_WEIGHTS.is_on() else None
        parameters, others = _plain_parameters(model), {}
        for name, tensor in read_tensors(path).items():
            if name not in parameters:
                others[name] = tensor
            elif not (file and file.share_mapped_memory(parameters[name], tensor)):
                parameters[name].detach().copy_(tensor)
                release_pages(tensor)
        model.load_state_dict(others, strict=False)

    path = checkpoint / MODEL
    read_unchanged(checkpoint, stream)


def _plain_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of modules that load weights as they are, by name; a tied one has several names."""
    return {
        f"{prefix}.{name}" if prefix else name: parameter
        for prefix, module in model.named_modules(remove_duplicate=False)
        if type(module)._load_from_state_dict in (nn.Module._load_from_state_dict, CachedWeight._load_from_state_dict)
        for name, parameter in module._parameters.items()
        if parameter is not None
    }


def named(weights: Mapping[str, Tensor], patterns: Sequence[str]) -> dict[str, Tensor]:
    """The weights whose names match a pattern, such as ``EncoderDecoderModel.saved_weights``."""
    return {name: one for name, one in weights.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def fit(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Check that weights have the names and shapes of a model's weights; those that are not saved may be missing.

    Args:
        model: the model.
        weights: weights by name.
        where: the checkpoint of the weights, for messages.

    Raises:
        CheckpointError: names or shapes differ; the message lists them.
    """
    wanted = model.state_dict()
    shapes = {
        name: (tuple(weights[name].shape), tuple(tensor.shape))
        for name, tensor in wanted.items()
        if name in weights and weights[name].shape != tensor.shape
    }
    saved = named(wanted, getattr(model, "saved_weights", ("*",)))
    missing, unexpected = sorted(set(saved) - set(weights)), sorted(set(weights) - set(wanted))
    if not missing and not unexpected and not shapes:
        return
    for name, (there, here) in shapes.items():
        module = dict(model.named_modules()).get(name.rpartition(".")[0])
        is_vocabulary = isinstance(module, nn.Embedding) and "position" not in name
        if is_vocabulary and there and there[0] != here[0]:
            raise CheckpointError(
                f"{where}: the vocabulary does not fit: the checkpoint was trained with {there[0]} tokens, the "
                f"vocabulary here has {here[0]} ({name}); use the vocabulary and tokenizer of its run"
            )
    faults = {
        "missing": missing,
        "unknown to the model": unexpected,
        "of another shape": [f"{name} ({there}, here {here})" for name, (there, here) in shapes.items()],
    }
    raise CheckpointError(
        f"{where}: the weights are not those of this model; choose the model and keys with which it was trained: "
        + "; ".join(f"{what}: {listing(names)}" for what, names in faults.items() if names)
    )


MAX_BUFFERS = 1 << 32
"""Maximum bytes of buffers that a model computes when it is built and does not save, such as sinusoidal positions."""


M = TypeVar("M", bound=nn.Module)


@contextlib.contextmanager
def on_meta() -> Iterator[None]:
    """Build models on the ``meta`` device, without computing initial values, since tensors have no values there."""
    with torch.device("meta"), _WithoutValues():
        yield


class _WithoutValues(TorchFunctionMode):
    """Skips the functions that compute initial weights.

    On the ``meta`` device PyTorch would import its compiler for them, which takes more than a second.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if function in _INITIALIZERS:
            return args[0] if args else given["tensor"]
        if function is torch.norm_except_dim:  # the norms by which weight normalization divides
            weight, _, dim = args
            return weight.new_empty([size if axis == dim else 1 for axis, size in enumerate(weight.shape)])
        return function(*args, **given)


_INITIALIZERS = {
    *(Tensor.normal_, Tensor.uniform_),
    *(function for name, function in vars(nn.init).items() if name.endswith("_") and not name.startswith("_")),
}
"""The functions that fill a tensor in place with an initialization."""


def build_to_load(
    build: Callable[[], M], weights: Mapping[str, Tensor], where: str, device: torch.device, dtype: torch.dtype | None
) -> M:
    """Build a model for the weights of its checkpoint; names and shapes are compared before memory is allocated.

    A model that cannot be built on the ``meta`` device, or not completed from there, is built as it is.

    Args:
        build: builds the model.
        weights: the checkpoint's weights by name; only their shapes are read, so they may be on the ``meta`` device.
        where: the checkpoint, for messages.
        device: where to put parameters and buffers, likewise.
        dtype: of the weights; ``None`` for those of the model. Both need not be those of a model that is built as it
            is.

    Raises:
        CheckpointError: the model has other weights, too large buffers or impossible sizes, or there is not enough
            memory.
    """
    try:
        with on_meta(), _most_parameters(weights, where):
            model = build()
    except UserError:
        raise
    except (RuntimeError, TypeError, ValueError, NotImplementedError, OverflowError) as error:
        if "overflow" in str(error).lower():  # the sizes of a tensor, on any device
            raise _impossible(error, where) from error
    else:
        fit(model, weights, where)
        _check_buffers(model, where)
        if can_materialize(model):
            model.to(dtype)
            materialize(model, device)
            return model
    try:
        return build()
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise _impossible(error, where) from error


def build_with_weights(build: Callable[[], M], weights: Mapping[str, Tensor], where: str, device: torch.device) -> M:
    """Build a model with the weights of its checkpoint; memory is allocated only if names and shapes are the same.

    Args:
        build: builds the model, also on the ``meta`` device.
        weights: the checkpoint's weights by the model's names.
        where: the checkpoint, for messages.
        device: where to put the model.

    Raises:
        CheckpointError: the model cannot be built, has other weights, or needs too much memory.
    """
    with _most_parameters(weights, where):
        model: M = build_on_meta(build, where)
    fit(model, weights, where)
    if others := sorted(name for name, tensor in weights.items() if not tensor.is_floating_point()):
        raise CheckpointError(f"{where}: these weights are not floating-point numbers: {listing(others)}")
    materialize(model, device)
    model.load_state_dict(weights)
    return model


def fuse_projections(weights: dict[str, Tensor]) -> None:
    """Concatenate the matrices of queries, keys and values of a checkpoint that has them separately.

    Self-attention has one matrix for all three, ``in_proj``; encoder-decoder attention, a module named
    ``encoder_attn``, has one for queries and one for keys and values, ``kv_proj``.

    Args:
        weights: weights by name, which are changed; the separate ones are ``q_proj``, ``k_proj`` and ``v_proj``. Where
            one is missing or has another shape or dtype, all stay, so that a later check reports it.
    """
    for name in [name for name in weights if name.endswith((".k_proj.weight", ".k_proj.bias"))]:
        prefix, _, kind = name.rpartition("k_proj.")
        whole, letters = ("kv_proj", "kv") if prefix.endswith("encoder_attn.") else ("in_proj", "qkv")
        parts = [f"{prefix}{letter}_proj.{kind}" for letter in letters]
        found = [weights[part] for part in parts if part in weights and weights[part].dim()]
        if len(found) == len(parts) and len({(one.dtype, one.shape[1:]) for one in found}) == 1:
            weights[f"{prefix}{whole}.{kind}"] = torch.cat([weights.pop(part) for part in parts])


def _check_buffers(model: nn.Module, where: str) -> None:
    """Check the size of the buffers that a model computes when it is built.

    Args:
        model: the model.
        where: the checkpoint, for messages.

    Raises:
        CheckpointError: they are too large.
    """
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if buffers > MAX_BUFFERS:
        raise CheckpointError(
            f"{where}: the model would need {buffers >> 30} GiB for buffers, more than {MAX_BUFFERS >> 30} GiB; its "
            "configuration is damaged, perhaps its maximum source or target length"
        )


def build_on_meta(build: Callable[[], Any], where: str) -> Any:
    """Build a model of a checkpoint on the ``meta`` device, with errors for the user.

    Args:
        build: builds the model.
        where: the checkpoint, for messages.

    Returns:
        The model.

    Raises:
        CheckpointError: the configured sizes are impossible, or exclude each other, or buffers are too large.
    """
    try:
        with on_meta():
            model = build()
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from None
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:  # the sizes of a tensor
        raise _impossible(error, where) from error
    _check_buffers(model, where)
    return model


def can_materialize(model: nn.Module) -> bool:
    """True if ``materialize`` and the weights of a checkpoint make a complete model of one on the ``meta`` device.

    They do not if a module has values that are neither saved with the weights nor computed by ``reset_buffers``, or
    parameters of a subclass.

    Args:
        model: a model on the ``meta`` device.
    """
    if any(type(parameter) is not nn.Parameter or vars(parameter) for parameter in model.parameters()):
        return False
    registered = ("_parameters", "_buffers", "_modules")
    for module in model.modules():
        found = tensors_in({name: value for name, value in vars(module).items() if name not in registered})
        if not hasattr(module, "reset_buffers"):
            found += [module._buffers[name] for name in module._non_persistent_buffers_set]  # type: ignore[misc]
        if any(tensor is not None and tensor.is_meta for tensor in found):
            return False
    return True


def materialize(model: nn.Module, device: torch.device) -> None:
    """Replace parameters on the ``meta`` device by uninitialized ones, and compute buffers; tied parameters stay tied.

    A module with buffers that are not saved computes them in its method ``reset_buffers``.

    Args:
        model: a model whose parameters are on the ``meta`` device.
        device: where to put parameters and buffers.

    Raises:
        CheckpointError: there is not enough memory.
    """
    try:
        made = {
            parameter: nn.Parameter(_empty(parameter, device), parameter.requires_grad)
            for parameter in model.parameters()
        }
    except (RuntimeError, MemoryError):
        size = memory_footprint(model) / 1e9
        raise CheckpointError(
            f"the model needs {size:.1f} GB, more than {device} has free; choose a smaller dtype or model"
        ) from None
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, made[parameter])
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, _empty(buffer, device) if buffer.is_meta else buffer.to(device))
        if hasattr(module, "reset_buffers"):
            module.reset_buffers()  # type: ignore[operator]


def _empty(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _impossible(error: BaseException, where: str) -> CheckpointError:
    reason = str(error).strip().partition("\n")[0][:200]
    return CheckpointError(f"{where}: a model of these sizes cannot be built ({reason})")


@contextlib.contextmanager
def _most_parameters(weights: Mapping[str, Tensor], where: str) -> Iterator[None]:
    """Fail when far more parameters are registered than there are weights; replaced and shared ones count too."""
    count, limit = 0, 4 * len(weights) + 1000

    def add(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > limit:
            raise CheckpointError(
                f"{where}: the model has more weights than the checkpoint; was its configuration edited?"
            )

    hook = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        hook.remove()


def merge_additions(model: EncoderDecoderModel) -> EncoderDecoderModel:
    """A model without the additions that can be merged into its weights, for layouts without them.

    Returns:
        A copy, in which ``merge_weights()`` was called on each module that has this method; the model itself if there
        is none.
    """
    if not any(hasattr(module, "merge_weights") for module in model.modules()):
        return model
    merged = copy.deepcopy(model)
    for module in [module for module in merged.modules() if hasattr(module, "merge_weights")]:
        module.merge_weights()  # type: ignore[operator]
    merged.new_weights, merged.saved_weights = type(model).new_weights, type(model).saved_weights
    return merged
