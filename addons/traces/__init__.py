"""Traces: every step of a search, and the first difference of two decodes; docs/inspection.md."""

from seqgen.addons.traces.page import page_of
from seqgen.addons.traces.trace import Trace
from seqgen.addons.traces.writer import TraceWriter

__all__ = ["Trace", "TraceWriter", "page_of"]
