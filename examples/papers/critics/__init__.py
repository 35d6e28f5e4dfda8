"""Models and functions that rate partial outputs.

``common.user_dir=examples/papers/critics`` registers what the files of this folder have::

    generation.processors=[reward]           Deng and Raffel 2023 (reward_augmented.py)
    generation.processors=[interventions]    Zhou et al. 2023 (error_interventions.py)
    generation.processors=[quality]          Koneru et al. 2025 (quality_aware.py)
    generation.processors=[language]         Yang and Klein 2021, with a language identifier (target_language.py)

The first three read a head on the features of a model, which ``fit.py`` fits::

    python examples/papers/critics/fit.py path=RUN source=FILE target=FILE rewards=FILE head=FILE
    python examples/papers/critics/fit.py path=RUN source=FILE target=FILE references=FILE head=FILE

``rewards`` has the reward of each output, between 0 and 1. With ``references``, each token of an output is right or
wrong. The model is the one that decodes, or another one, ``processor.NAME.model``, also with another vocabulary: it
then reads the partial outputs as text (text_member.py).
"""

from . import error_interventions, head, quality_aware, reward_augmented, target_language, text_member

__all__ = ["error_interventions", "head", "quality_aware", "reward_augmented", "target_language", "text_member"]
