"""fairseq: its checkpoints, and the arguments of its generator; docs/from-fairseq.md."""

from seqgen.addons.fairseq.generator import fairseq_generator

__all__ = ["fairseq_generator"]
