"""The laboratory: examines models, decodes and runs. Only the commands import it.

``checks`` tries invariants, ``traces`` records decodes, ``compare`` compares outputs and runs, ``tuning`` finds values
of decoding keys.
"""

from seqgen.lab.inspection import StepLogits, given_embeddings, masked_heads
from seqgen.lab.traces.trace import Trace

__all__ = ["StepLogits", "Trace", "given_embeddings", "masked_heads"]
