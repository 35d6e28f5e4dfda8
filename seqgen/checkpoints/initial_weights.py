"""The initial weights of a run that fine-tunes a model (``checkpoint.finetune_from``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from seqgen.checkpoints.hub import local_path
from seqgen.checkpoints.loading import CONFIG_FILE, checkpoint_loader_of, load_model, read_yaml, run_folder
from seqgen.checkpoints.model_weights import fit
from seqgen.checkpoints.run_checkpoints import read_weights, resolve
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import load_tokenizer
from seqgen.errors import CheckpointError, shown
from seqgen.model import EncoderDecoderModel, Vocabularies
from seqgen.registry import MODELS
from seqgen.system.switches import MAPPED_WEIGHTS

PREFIXES = {"source": "encoder.", "target": "decoder."}
"""What the names of each side's weights begin with."""


@dataclass(frozen=True)
class InitialWeights:
    """The weights of a trained model, and the vocabularies of its embeddings.

    Attributes:
        origin: the checkpoint.
        weights: the weights by name.
        vocabularies: the vocabularies of ``source`` and ``target``; empty if the checkpoint is not in a run folder.
        model: the name of the model that the weights are of; empty if it is not known.
        notes: what the user should know about how it was read.
    """

    origin: Path
    weights: dict[str, Tensor]
    vocabularies: dict[str, Dictionary]
    model: str = ""
    notes: list[str] = field(default_factory=list)


def read_initial_weights(given: str) -> InitialWeights:
    """Read the weights of a trained model.

    Args:
        given: a run folder, a checkpoint, or a path that a checkpoint loader recognizes, such as a Hugging Face folder.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
        DataError: a tokenizer is missing or damaged.
    """
    path = local_path(given)
    if checkpoint_loader_of(path) is not None:
        with MAPPED_WEIGHTS.off():  # training changes all of them
            loaded = load_model(path, dtype=torch.float32)
        both = {"source": loaded.task.source_dictionary, "target": loaded.task.target_dictionary}
        kind = MODELS.of(loaded.config.model).name
        return InitialWeights(path, dict(loaded.model.state_dict()), both, kind, loaded.notes)
    checkpoint = resolve(path)
    weights, folder = read_weights(checkpoint), run_folder(checkpoint)
    if folder is None:
        return InitialWeights(checkpoint, weights, {})
    return InitialWeights(checkpoint, weights, _vocabularies(folder), read_yaml(folder / CONFIG_FILE)["model"]["_name"])


def _vocabularies(folder: Path) -> dict[str, Dictionary]:
    """The vocabularies of a run; a task of the user's own may have none of these folders."""
    found = {}
    for side in PREFIXES:
        places = [folder / f"{side}_tokenizer", folder / "tokenizer"]
        if place := next((place for place in places if place.is_dir()), None):
            tokenizer = load_tokenizer(place)
            found[side] = (tokenizer if side == "source" else tokenizer.target_side).dictionary
    return found


def initialize(model: EncoderDecoderModel, given: str, task: Vocabularies) -> list[str]:
    """Load the weights of a trained model into a new one, whose vocabularies may have further tokens at the end.

    The rows of further tokens, in embeddings and in the output projection, keep their new random values::

        checkpoint   <s> <pad> </s> <unk> a b              rows 0 to 5 are loaded
        here         <s> <pad> </s> <unk> a b __de__       row 6 is new

    Args:
        model: the new model.
        given: see ``read_initial_weights``.
        task: has the vocabularies of the new model.

    Returns:
        Messages for the user: the origin of the weights, and how many rows are new.

    Raises:
        CheckpointError: the checkpoint cannot be read, the vocabularies differ in another way, or names or shapes of
            weights differ; the model is then unchanged.
    """
    initial = read_initial_weights(given)
    trained = {name for name, one in model.named_parameters(remove_duplicate=False) if one.requires_grad}
    messages = [*initial.notes, f"starting from the weights of {initial.origin}"]
    for side, new in (("source", task.source_dictionary), ("target", task.target_dictionary)):
        old, prefix = initial.vocabularies.get(side), PREFIXES[side]
        if old is None or not any(name.startswith(prefix) for name in initial.weights):
            continue
        _check_vocabulary(old, new, f"{initial.origin}: the vocabulary does not fit: in the {side}")
        if added := _add_rows(initial.weights, model, prefix, len(old), len(new)):
            further = new.symbols[len(old) :]
            listing = ", ".join(further[:5]) + (", ..." if len(further) > 5 else "")
            frozen = [name for name in added if name not in trained]
            stay = f" and stay so, because {frozen[0]} is frozen" if frozen else ""
            messages.append(f"new tokens of the {side}, whose embeddings are initialized at random{stay}: {listing}")
    try:
        fit(model, initial.weights, str(initial.origin))
    except CheckpointError:
        if initial.model and not isinstance(model, MODELS.entry(initial.model).component):
            raise CheckpointError(
                f"{initial.origin}: these are the weights of a model={initial.model}, and the model here is a "
                f"{type(model).__name__}; leave out model=NAME, so that the new run has the checkpoint's model"
            ) from None
        raise
    model.load_state_dict(initial.weights)
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
