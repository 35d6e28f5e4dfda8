"""What changes outputs after the search: rewriters, which add some, and unknown words; docs/extending.md."""

from typing import TYPE_CHECKING

from seqgen.extend import lazy_names

if TYPE_CHECKING:
    from seqgen.addons.rewriting.stage import Rewriter as Rewriter

__getattr__, __dir__ = lazy_names(__name__)
