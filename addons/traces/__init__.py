"""Traces: every step of a search, and the first difference of two decodes; docs/inspection.md."""

from seqgen.addons.traces.trace import Trace

__all__ = ["Trace"]
