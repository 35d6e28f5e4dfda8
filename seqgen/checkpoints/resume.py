"""Which configuration keys may change when a run is continued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from seqgen.errors import ConfigError

_WORLD_SIZE = "distributed_training.distributed_world_size"
_UPDATE_FREQ = "optimization.update_freq"
_MAY_CHANGE_IN = {
    "optimization": "max_update max_epoch stop_time_hours stop_min_lr checkpoint_activations out_of_memory",
    "checkpoint": "patience save_interval save_interval_updates keep_last_epochs keep_interval_updates",
    "task": "train valid test cache_dir workers",
    "common": "device threads user_dir log_interval log_format tensorboard",
    "distributed_training": "distributed_world_size distributed_backend sharding timeout",
    "dataset": (
        "num_workers max_tokens_valid batch_size_valid validate_interval validate_interval_updates validate_decode"
    ),
}
"""By group, keys about the length of training, files, devices, logging, validation and saving."""

MAY_CHANGE = frozenset(f"{group}.{key}" for group, keys in _MAY_CHANGE_IN.items() for key in keys.split()) | {"run_dir"}
MAY_CHANGE_GROUPS = ("generation.", "common.user_files.")
_LENGTH = "optimization.max_update"
_SCHEDULE_LENGTH = {"polynomial": "total_num_update", "cosine": "lr_period_updates"}
_MISSING = "(not set)"


def check_resumable(old: Mapping[str, Any], new: Mapping[str, Any], otherwise: str = "") -> None:
    """Check that a run can be continued with another configuration.

    Args:
        old: the run's configuration as nested plain values, as in its ``config.yaml``.
        new: the configuration to continue with, likewise.
        otherwise: what else the user can do, for the message.

    Raises:
        ConfigError: keys that influence training differ; the message lists them with both values.
    """
    before, after = dict(flatten(old)), dict(flatten(new))
    keys = [*before, *(key for key in after if key not in before)]
    differing = [key for key in keys if before.get(key, _MISSING) != after.get(key, _MISSING)]
    refused = [key for key in differing if not _may_change(key, before)]
    if _UPDATE_FREQ in refused and _batches_in_update(before) == _batches_in_update(after):
        refused.remove(_UPDATE_FREQ)
    if refused:
        lines = [f"  {key}: {before.get(key, _MISSING)} -> {after.get(key, _MISSING)}" for key in refused]
        hint = f"\n({_LENGTH} determines the length of this run's learning-rate schedule)" if _LENGTH in refused else ""
        if _UPDATE_FREQ in refused and _WORLD_SIZE in differing:
            hint += (
                f"\n({_UPDATE_FREQ} may change together with the number of processes, if their product stays the same)"
            )
        raise ConfigError(
            "this run was started with another configuration and cannot be continued with this one; set these "
            f"keys to their old values, or choose another run_dir{otherwise}:\n" + "\n".join(lines) + hint
        )


def _batches_in_update(config: Mapping[str, Any]) -> list[int]:
    """For each epoch, the number of batches of all processes in one update."""
    return [freq * config.get(_WORLD_SIZE, 1) for freq in config.get(_UPDATE_FREQ) or [1]]


def _may_change(key: str, before: Mapping[str, Any]) -> bool:
    if key == _LENGTH:
        length = _SCHEDULE_LENGTH.get(str(before.get("lr_scheduler._name")))
        return length is None or bool(before.get(f"lr_scheduler.{length}"))
    return key in MAY_CHANGE or key.startswith(MAY_CHANGE_GROUPS)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Walk through the leaves of nested mappings.

    Args:
        tree: nested mappings with string keys.
        prefix: what the names of all leaves begin with.

    Yields:
        The name of each leaf, which is its keys joined by dots, and its value.
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
