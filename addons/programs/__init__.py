"""Programs of other environments that score texts: utilities, rerankers and metrics; docs/decoding.md."""

from seqgen.addons.programs.program import Program, register_program

__all__ = ["Program", "register_program"]
