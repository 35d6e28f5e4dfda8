"""The key/value cache that self-attention uses if the user has not set one."""

from __future__ import annotations

import torch

from seqgen.incremental_state import IncrementalState, StateDict
from seqgen.modules.kv_cache.growing import GrowingCache
from seqgen.modules.kv_cache.indirection import IndirectionCache, IndirectionTable
from seqgen.modules.kv_cache.protocol import KeysAndValues, KeyValueCache


def choose_cache(incremental_state: StateDict, new: KeysAndValues) -> KeyValueCache:
    """Make an empty cache for one module of self-attention.

    With several beams, keys and values stay in place, and all modules on a device share one indirection table, unless
    ``IncrementalState.beam_table`` is false. Each row has its own copy of its keys and values if gradients are needed,
    since the memory of the table is written in place, and if positions are padding, for which the table has no mask.

    Args:
        incremental_state: the decoding state.
        new: keys and values of the first step.

    Returns:
        An empty cache.
    """
    keys = new.keys
    if not isinstance(incremental_state, IncrementalState) or incremental_state.beam_table is False:
        return GrowingCache()
    beam_size = incremental_state.beam_size
    if beam_size == 1 or keys.size(0) % beam_size or keys.requires_grad or new.padding_mask is not None:
        return GrowingCache()
    table = IndirectionTable(keys.size(0) // beam_size, beam_size, keys.device)
    tables: dict[torch.device, IndirectionTable] = incremental_state.shared.setdefault("indirection_table", {})
    shared = tables.setdefault(keys.device, table)
    if shared.clock > 1:  # the other modules have already computed more than one step
        return GrowingCache()
    return IndirectionCache(shared, stays=incremental_state.beam_table is True)
