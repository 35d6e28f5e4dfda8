"""The built-in tasks, declared by name; a task is imported when it is used."""

if __name__ != "seqgen.tasks":
    raise ImportError(f"import this package as 'seqgen.tasks', not as {__name__!r}, or its components register twice")

from seqgen.registry import TASKS

TASKS.declare("decoding", "seqgen.checkpoints.loaders")
TASKS.declare("prompt_decoding", "seqgen.checkpoints.loaders")
TASKS.declare("translation", "seqgen.tasks.translation")
TASKS.declare("number_names", "seqgen.tasks.number_names")
TASKS.declare("denoising", "seqgen.addons.mixtures.denoising")
TASKS.declare("text_to_text", "seqgen.addons.mixtures.text_to_text")
TASKS.declare("language_modeling", "seqgen.tasks.language_modeling")
TASKS.declare("multilingual_translation", "seqgen.tasks.multilingual_translation")
