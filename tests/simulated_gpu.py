"""A GPU simulated on the CPU: what would fail, wait or be launched on a GPU is seen without one.

A tensor of the simulated device says that it is on ``gpu:0``; its numbers are in a CPU tensor, so that results are real
and, apart from other code for GPUs, those of the CPU::

    with simulated_gpu() as counts:
        model.to("gpu")
        out = model(batch.to("gpu"))
    print(counts.launches.total(), counts.waits, counts.transfers)

- Tensors of two devices in one operator raise, as on CUDA; CPU tensors without dimensions are allowed, as there.
- Views and CPU operators are no launches. A wait is what makes the host wait for the device: ``item``, ``tolist``,
  ``bool``, copies to the CPU, ``nonzero``, and indexing with a mask.
- ``Graph`` records the launches of a region and replays them on the same memory, without Python, as a CUDA graph does.
  Numbers that Python computed while recording stay as they were; a wait or a transfer while recording raises.

Not simulated: time, streams, other orders of sums, kernels that a GPU has for several operators, and generators of the
device. Attention is one launch in inference mode, and otherwise as many as its parts.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

_ROOT = Path(__file__).parents[1]
_HERE = __file__
_WAITS = {
    *("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal"),
    *("_unique2", "unique_dim", "unique_consecutive"),
}
_VIEWS = {"_unsafe_view", "_reshape_alias", "lift_fresh"}
"""Views that do not declare that they are."""

_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_CPU_KERNELS = ("mkldnn", "onednn", "quantized", "fbgemm", "mkl")


@dataclass
class Counts:
    """What happened on the device.

    Attributes:
        launches: the number of launches of each operator.
        waits: the number of times that each line of the repository waited for the device.
        transfers: the number of copies from the CPU to the device by each line of the repository.
    """

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    transfers: Counter[str] = field(default_factory=Counter)
    recorded: list[tuple[Any, Any, Any, Any]] | None = None

    def clear(self) -> None:
        for counter in (self.launches, self.waits, self.transfers):
            counter.clear()

    def wait(self, what: str) -> None:
        self._refuse(what)
        self.waits[_line(what)] += 1

    def transfer(self, what: str) -> None:
        self._refuse(what)
        self.transfers[_line(what)] += 1

    def launch(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self.launches[func.overloadpacket.__name__] += 1
        if self.recorded is not None:
            self.recorded.append((func, args, kwargs, out))

    def _refuse(self, what: str) -> None:
        if self.recorded is not None:
            raise RuntimeError(f"operation not permitted while a graph is recorded: {_line(what)}")


def _line(what: str) -> str:
    """The line of the repository that called an operator."""
    frame = sys._getframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_ROOT) and ".venv" not in path.parts and str(path) != _HERE:
            return f"{path.relative_to(_ROOT)}:{frame.f_lineno} {what}"
        frame = frame.f_back  # type: ignore[assignment]
    return what


_counts = Counts()


class GPUTensor(Tensor):
    """A tensor of the simulated device; ``numbers`` is the CPU tensor with its numbers."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> Any:
        made: GPUTensor = Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=torch.device("gpu", 0),
        )
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        with torch.no_grad():
            copied = GPUTensor(self.numbers.clone())
        is_parameter = isinstance(self, torch.nn.Parameter)
        made = torch.nn.Parameter(copied, self.requires_grad) if is_parameter else copied
        memo[id(self)] = made
        return made

    def __repr__(self, **_: Any) -> str:
        return f"GPUTensor({self.numbers!r})"

    def tolist(self) -> Any:
        _counts.wait("tolist")
        return self.numbers.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert gpu:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor first.")

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()


class _Mode(TorchDispatchMode):
    """Calls operators that have no tensor of the device yet, such as those that make one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


def _call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    device = kwargs.get("device") or next((x for x in args if isinstance(x, torch.device)), None)
    onto = device is not None and torch.device(device).type == "gpu"
    if not onto and not any(isinstance(x, GPUTensor) for x in tensors):
        return func(*args, **kwargs)
    if func._can_decompose() and func.overloadpacket.__name__ != "scaled_dot_product_attention":
        with _Mode():  # in inference mode, operators come here whole
            return func.decompose(*args, **kwargs)
    if func.overloadpacket.__name__ == "_to_copy":
        return _moved(func, args[0], kwargs, onto or device is None)
    _check(func, args, kwargs, tensors)
    if onto:
        kwargs = {**kwargs, "device": "cpu"}
    inside = tree_map_only(GPUTensor, lambda x: x.numbers, (args, kwargs))
    out = func(*inside[0], **inside[1])
    if func.is_view and not args[0].is_inference():
        with torch.inference_mode(False):  # a view of an ordinary tensor is an ordinary tensor in inference mode too
            return tree_map_only(Tensor, GPUTensor, out)
    if func.is_view or func.overloadpacket.__name__ in _VIEWS or not isinstance(out, Tensor | tuple | list):
        return tree_map_only(Tensor, GPUTensor, out)
    _counts.launch(func, *inside, out)
    if func.overloadpacket.__name__ == "_pack_padded_sequence":
        return GPUTensor(out[0]), out[1]  # the rows of each step stay on the CPU
    if not func._schema.is_mutable:
        return tree_map_only(Tensor, GPUTensor, out)
    owners = {id(x.numbers): x for x in tensors if isinstance(x, GPUTensor)}
    return tree_map_only(Tensor, lambda x: owners[id(x)] if id(x) in owners else GPUTensor(x), out)


def _check(func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
    """Count waits and transfers of an operator, and raise what CUDA would."""
    name = func.overloadpacket.__name__
    if func.namespace in _CPU_KERNELS:
        raise RuntimeError(f"{func} is a kernel of the CPU, called with tensors on gpu:0")
    allowed: list[Tensor] = [args[1]] if name == "_pack_padded_sequence" else []  # its lengths
    if name == "copy_":
        into, source = allowed = list(args[:2])
        if not isinstance(source, GPUTensor):
            _counts.transfer("copy")
        elif not isinstance(into, GPUTensor):
            _counts.wait("copy to the CPU")
    if name in _INDEXING:
        for index in (index for index in args[1] if index is not None):
            if not isinstance(index, GPUTensor):
                allowed.append(index)
                _counts.transfer("index on the CPU")
            if index.dtype in (torch.bool, torch.uint8):
                _counts.wait("index with a mask")
    if any(not isinstance(x, GPUTensor) and x.dim() and not any(x is one for one in allowed) for x in tensors):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found gpu:0 and cpu in {func}")
    if name in _WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        _counts.wait(name)


def _moved(func: Any, source: Tensor, kwargs: dict[str, Any], onto: bool) -> Tensor:
    kwargs = {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking", "pin_memory")}
    if not onto:
        _counts.wait("copy to the CPU")
        moved: Tensor = func(source.numbers, **kwargs)  # type: ignore[attr-defined]
        return moved
    if not isinstance(source, GPUTensor):
        _counts.transfer("copy to the device")
        return GPUTensor(func(source, **kwargs))
    out = func(source.numbers, **kwargs)
    _counts.launch(func, (source.numbers,), kwargs, out)
    return GPUTensor(out)


class Graph:
    """Launches that are recorded and replayed on the same memory, as by ``torch.cuda.CUDAGraph``."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._launches: list[tuple[Any, Any, Any, Any]] = []

    def warm_up(self) -> AbstractContextManager[None]:
        """Nothing needs preparation."""
        return nullcontext()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """In the ``with`` block, launches are recorded; they also run."""
        _counts.recorded = self._launches
        try:
            yield
        finally:
            _counts.recorded = None

    def replay(self) -> None:
        """Run the launches again: their results are written to the memory of the recorded ones; counted as one."""
        _counts.launches["replay"] += 1
        with torch._C._DisableTorchDispatch(), torch.inference_mode():
            for func, args, kwargs, out in self._launches:
                again = func(*args, **kwargs)
                if not func._schema.is_mutable:
                    for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                        if isinstance(old, Tensor):
                            old.copy_(new)


class _Module(_DummyBackendModule):
    """The random numbers of the device are those of the CPU's generator."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_LIBRARIES = [torch.library.Library(name, "IMPL", "AutocastPrivateUse1") for name in ("_", "aten")]


@cache
def _register(trains: bool) -> None:
    if (
        not trains
    ):  # autograd then starts no thread for the device, with which processes that are forked could not train
        torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    _setup_privateuseone_for_python_backend("gpu", _Module())
    _LIBRARIES[0].fallback(torch.library.fallthrough_kernel)
    for name in ("linear", "matmul", "bmm", "addmm"):
        _LIBRARIES[1].impl(name, partial(_in_autocast_dtype, getattr(torch.ops.aten, name)))


def _in_autocast_dtype(func: Any, *args: Any, **kwargs: Any) -> Any:
    dtype = torch.get_autocast_dtype("gpu")
    args, kwargs = tree_map_only(Tensor, lambda x: x.to(dtype) if x.dtype == torch.float32 else x, (args, kwargs))
    with torch.autocast("gpu", enabled=False):
        return func(*args, **kwargs)


@contextmanager
def simulated_gpu(trains: bool = False) -> Iterator[Counts]:
    """In the ``with`` block, the device ``"gpu"`` exists.

    Args:
        trains: whether gradients are computed; only in a process of its own, which computed none before.

    Yields:
        The counts, which start at zero.
    """
    _register(trains)
    _counts.clear()
    before = torch._C._only_lift_cpu_tensors(), torch.__future__.get_swap_module_params_on_conversion()
    # torch.tensor(..., device="gpu") makes a CPU tensor and copies it; Module.to keeps the identity of parameters
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with _Mode():
            yield _counts
    finally:
        torch._C._set_only_lift_cpu_tensors(before[0])
        torch.__future__.set_swap_module_params_on_conversion(before[1])
