"""Minimum Bayes risk decoding with candidates and pseudo-references of their own, and three fast estimators.

``common.user_dir=examples/papers/mbr`` registers what the files of this folder have::

    generation.rerank=mbr               all candidates against all pseudo-references (exact.py)
    generation.rerank=mbr_pruned        Cheng and Vlachos 2023 (pruning.py)
    generation.rerank=mbr_aggregated    Vamvas and Sennrich 2024 (aggregation.py)
    generation.rerank=mbr_low_rank      Trabelsi et al. 2024 (low_rank.py)

    reranker.utility=chrf|bleu                    built-in utilities
    reranker.utility=ter|similarity|embedding     those of utilities.py; or your own
"""

from . import aggregation, exact, low_rank, pruning, references, utilities

__all__ = ["aggregation", "exact", "low_rank", "pruning", "references", "utilities"]
