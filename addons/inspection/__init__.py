"""Inspection of a model: embeddings in place of tokens, logits of chosen steps, head masks; docs/inspection.md."""

from seqgen.addons.inspection.embeddings import given_embeddings
from seqgen.addons.inspection.heads import masked_heads
from seqgen.addons.inspection.logits import StepLogits

__all__ = ["StepLogits", "given_embeddings", "masked_heads"]
