"""The weights of a checkpoint, and the model that they are loaded into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from seqgen.checkpoints.run_checkpoints import MODEL, read_weights, unchanged
from seqgen.checkpoints.serialization import read_tensors, tensor_chunks, verify_checksums
from seqgen.checkpoints.sharded import is_sharded
from seqgen.errors import CheckpointError
from seqgen.modules.cached_weight import CachedWeight
from seqgen.system.mapped_weights import MappedFile, give_back
from seqgen.system.switches import MAPPED_WEIGHTS


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Read a checkpoint's weights into a model.

    Parameters of the file's device and dtype use its memory, see ``seqgen.system.mapped_weights``.
    Of what is copied, a small part is in memory at a time.

    The weights of a sharded checkpoint are all in memory at once.

    Args:
        model: a model of the architecture that the checkpoint was trained with.
        checkpoint: the checkpoint's folder; see ``resolve``.

    Raises:
        CheckpointError: the file cannot be used, or names or shapes differ. In the latter case the model is unchanged.
    """
    if is_sharded(checkpoint):
        weights = read_weights(checkpoint)
        fit(model, weights, str(checkpoint))
        model.load_state_dict(weights)
        return

    def stream() -> None:
        verify_checksums(checkpoint, [MODEL])
        fit(model, read_tensors(checkpoint / MODEL, values=False), str(checkpoint))
        if MAPPED_WEIGHTS.is_on():
            _map_weights(model, checkpoint / MODEL)
            return
        for chunk in tensor_chunks(checkpoint / MODEL):
            model.load_state_dict(chunk, strict=False)

    unchanged(checkpoint, stream)


def _map_weights(model: nn.Module, path: Path) -> None:
    file, parameters = MappedFile(model, path), _plain_parameters(model)
    others = {}
    for name, tensor in read_tensors(path).items():
        if name not in parameters:
            others[name] = tensor
        elif not file.lend(parameters[name], tensor):
            parameters[name].detach().copy_(tensor)
            give_back(tensor)
    model.load_state_dict(others, strict=False)


def _plain_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of modules that load weights as they are, by name; a tied one has several names."""
    return {
        f"{prefix}.{name}" if prefix else name: parameter
        for prefix, module in model.named_modules(remove_duplicate=False)
        if type(module)._load_from_state_dict in (nn.Module._load_from_state_dict, CachedWeight._load_from_state_dict)
        for name, parameter in module._parameters.items()
        if parameter is not None
    }


def fit(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Check that weights have the names and shapes of a model's weights.

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
    missing, unexpected = sorted(set(wanted) - set(weights)), sorted(set(weights) - set(wanted))
    if not missing and not unexpected and not shapes:
        return
    for name, (there, here) in shapes.items():
        if _is_vocabulary(model, name) and there[0] != here[0]:
            raise CheckpointError(
                f"{where}: the vocabulary does not fit: the checkpoint was trained with {there[0]} tokens, the "
                f"vocabulary here has {here[0]} ({name}); use the vocabulary and tokenizer of its run"
            )
    parts = [
        _listing("missing", missing),
        _listing("unknown to the model", unexpected),
        _listing("of another shape", [f"{name} ({there}, here {here})" for name, (there, here) in shapes.items()]),
    ]
    raise CheckpointError(
        f"{where}: the weights are not those of this model; choose the model and keys with which it was trained: "
        f"{'; '.join(filter(None, parts))}"
    )


def _is_vocabulary(model: nn.Module, name: str) -> bool:
    """Whether a weight is the token embedding matrix (and not the position embeddings)."""
    module = dict(model.named_modules()).get(name.rpartition(".")[0])
    return isinstance(module, nn.Embedding) and "position" not in name


def _listing(what: str, names: Sequence[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{what}: {', '.join(names[:limit])}{more}" if names else ""
