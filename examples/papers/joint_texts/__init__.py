"""Members with different vocabularies decode one text: the tokens of the search are texts.

``common.user_dir=examples/papers/joint_texts`` registers::

    generation.combination=union      Yao et al. 2025 (union.py)
    generation.combination=bytes      Phan et al. 2025, Vieira et al. 2025 (byte_marginals.py)

``joint.py`` has what a rule of your own derives from.
"""

from . import byte_marginals, joint, union

__all__ = ["byte_marginals", "joint", "union"]
