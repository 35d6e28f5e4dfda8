"""Which key/value cache self-attention uses where the user has not chosen one."""

from __future__ import annotations

from seqgen.incremental_state import IncrementalState, StateDict
from seqgen.modules.kv_cache.growing import GrowingCache
from seqgen.modules.kv_cache.indirection import IndirectionCache, IndirectionTable
from seqgen.modules.kv_cache.protocol import KeysAndValues, KeyValueCache


def choose_cache(incremental_state: StateDict, new: KeysAndValues) -> KeyValueCache:
    """Make an empty cache for one module of self-attention.

    Beams stay in place, with an indirection table that all modules share, where there are several beams and the state
    allows it (``IncrementalState.beam_table``). Each row has a history of its own where gradients are wanted, since the
    memory is written in place, and where positions are padding, since the table has no mask for them.

    Args:
        incremental_state: the decoding state.
        new: keys and values of the first step.
    """
    keys = new.keys
    if not isinstance(incremental_state, IncrementalState) or incremental_state.beam_table is False:
        return GrowingCache()
    beam_size = incremental_state.beam_size
    if beam_size == 1 or keys.size(0) % beam_size or keys.requires_grad or new.padding_mask is not None:
        return GrowingCache()
    table = IndirectionTable(keys.size(0) // beam_size, beam_size, keys.device)
    shared: IndirectionTable = incremental_state.shared.setdefault("indirection_table", table)
    if shared.clock > 1:  # the other modules are beyond their first step
        return GrowingCache()
    return IndirectionCache(shared, stays=incremental_state.beam_table is True)
