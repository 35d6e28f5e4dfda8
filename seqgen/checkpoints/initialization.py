"""Starting to train from the weights of a trained model."""

from __future__ import annotations

import torch
from torch import Tensor

from seqgen.checkpoints.loading import load_model
from seqgen.checkpoints.model_weights import (
    fit,
)
from seqgen.data.dictionary import Dictionary
from seqgen.errors import CheckpointError, shown
from seqgen.model import EncoderDecoderModel, Vocabularies
from seqgen.registry import MODELS
from seqgen.system.switches import MAPPED_WEIGHTS


def initialize(model: EncoderDecoderModel, given: str, task: Vocabularies) -> list[str]:
    """Load the weights of a trained model into a new one, whose vocabularies may have further tokens at the end.

    The rows of further tokens, in embeddings and in the output projection, keep their new random values::

        checkpoint   <s> <pad> </s> <unk> a b              rows 0 to 5 are loaded
        here         <s> <pad> </s> <unk> a b __de__       row 6 is new

    Args:
        model: the new model.
        given: what ``load_model`` takes.
        task: has the vocabularies of the new model.

    Returns:
        Messages for the user: the origin of the weights, and how many rows are new.

    Raises:
        CheckpointError: the checkpoint cannot be read, the vocabularies differ in another way, or names or shapes of
            weights differ; the model is then unchanged.
    """
    with MAPPED_WEIGHTS.off():  # training changes all of them
        initial = load_model(given, dtype=torch.float32)
    origin, weights = initial.checkpoint, dict(initial.model.state_dict())
    trained = {name for name, one in model.named_parameters(remove_duplicate=False) if one.requires_grad}
    messages = [*initial.notes, f"starting from the weights of {origin}"]
    for side, prefix in (("source", "encoder."), ("target", "decoder.")):
        old, new = (getattr(one, f"{side}_dictionary") for one in (initial.task, task))
        if not any(name.startswith(prefix) for name in weights):
            continue
        _check_vocabulary(old, new, f"{origin}: the vocabulary does not fit: in the {side}")
        if added := _add_rows(weights, model, prefix, len(old), len(new)):
            further = new.symbols[len(old) :]
            listing = ", ".join(further[:5]) + (", ..." if len(further) > 5 else "")
            frozen = [name for name in added if name not in trained]
            stay = f" and stay so, because {frozen[0]} is frozen" if frozen else ""
            messages.append(f"new tokens of the {side}, whose embeddings are initialized at random{stay}: {listing}")
    try:
        fit(model, weights, str(origin))
    except CheckpointError:
        if not isinstance(model, type(initial.model)):
            raise CheckpointError(
                f"{origin}: these are the weights of a model={MODELS.of(initial.config.model).name}, and the model "
                f"here is a {type(model).__name__}; leave out model=NAME, so that the new run has the checkpoint's "
                "model"
            ) from None
        raise
    model.load_state_dict(weights)
    return messages


def _check_vocabulary(old: Dictionary, new: Dictionary, where: str) -> None:
    """Check that two vocabularies have the same tokens up to the end of the shorter one."""
    for index, (before, now) in enumerate(zip(old.symbols, new.symbols, strict=False)):
        if before != now:
            raise CheckpointError(
                f"{where}, the id {index} is {shown(before)} in the checkpoint and {shown(now)} here; use the "
                "tokenizer of the checkpoint"
            )


def _add_rows(
    weights: dict[str, Tensor], model: EncoderDecoderModel, prefix: str, old_size: int, new_size: int
) -> list[str]:
    """Add rows to the weights that have a row for each token; return the names of these weights.

    Args:
        weights: the weights of the checkpoint, which are changed.
        model: has the values of new rows.
        prefix: what the names of the side's weights begin with.
        old_size: number of tokens of the checkpoint.
        new_size: number of tokens of the model.
    """
    added = []
    for name, fresh in model.state_dict().items():
        saved = weights.get(name)
        if saved is None or not name.startswith(prefix) or "position" in name or saved.dim() == 0:
            continue
        # embeddings can have more rows than there are tokens
        if saved.shape[1:] == fresh.shape[1:] and old_size <= len(saved) < len(fresh) >= new_size > old_size:
            weights[name] = torch.cat([saved[:old_size].to(fresh), fresh[old_size:]])
            added.append(name)
    return added
