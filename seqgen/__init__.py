"""seqgen: sequence-to-sequence models that are easy to write, train and decode with."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ != "seqgen":
    raise ImportError(f"import this package as 'seqgen', not as {__name__!r}, or its components register twice")

__version__ = "0.1.0"

# In a checkout that is not installed, models/, tasks/ and cli/ are next to this folder, not in it.
_root = Path(__file__).resolve().parent.parent
if (_root / "setup.py").is_file() and (_root / "models" / "__init__.py").is_file():
    __path__.append(str(_root))

if TYPE_CHECKING:
    from seqgen.checkpoints.loaders import LoadedModel
    from seqgen.checkpoints.loading import load_model, load_models
    from seqgen.checkpoints.run_config import save_generation
    from seqgen.config import GenerationConfig
    from seqgen.text.translator import Translator
    from seqgen.text.word_streaming import TextStreamer

__all__ = ["GenerationConfig", "LoadedModel", "TextStreamer", "Translator"]
__all__ += ["load_model", "load_models", "save_generation"]


def __getattr__(name: str) -> Any:
    """What Python users begin with is imported when it is first asked for, so that ``import seqgen`` costs nothing.

    The built-in models and tasks are declared then, as the commands do.
    """
    if name not in __all__:
        raise AttributeError(f"module 'seqgen' has no attribute {name!r}")
    for package in ("seqgen.models", "seqgen.tasks"):
        importlib.import_module(package)
    from seqgen.core.lazy_names import lazy_names

    load, _ = lazy_names(__name__)
    return load(name)
