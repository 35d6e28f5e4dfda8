"""seqgen: sequence-to-sequence models that are easy to write, train and decode with."""

from pathlib import Path

if __name__ != "seqgen":
    raise ImportError(f"import this package as 'seqgen', not as {__name__!r}, or its components register twice")

__version__ = "0.1.0"

# In a checkout that is not installed, models/, tasks/ and cli/ stand beside this folder rather than in it.
_root = Path(__file__).resolve().parent.parent
if (_root / "setup.py").is_file() and (_root / "models" / "__init__.py").is_file():
    __path__.append(str(_root))
