"""How much memory a piece of work takes."""

from __future__ import annotations

import ctypes
import re
import resource
from pathlib import Path
from typing import Any

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class ProcessMemory:
    """The memory of this process.

    Linux forgets the largest size of a process on request. Elsewhere it never gets smaller, so that what a piece of
    work takes is known of the greatest one alone.
    """

    def start(self) -> int:
        """Give back what is free, forget the peak, and return the bytes in use."""
        try:
            ctypes.CDLL(None).malloc_trim(0)
            CLEAR.write_text("5")
        except (AttributeError, OSError):
            return self.peak()
        return _status("VmRSS")

    def peak(self) -> int:
        """The most bytes since ``start``."""
        return _status("VmHWM") if STATUS.exists() else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class CudaMemory:
    """The memory of a GPU that tensors have.

    Args:
        torch: the module, which not every worker has.
    """

    def __init__(self, torch: Any):
        self.cuda = torch.cuda

    def start(self) -> int:
        """Forget the peak, and return the bytes in use."""
        self.cuda.reset_peak_memory_stats()
        return int(self.cuda.memory_allocated())

    def peak(self) -> int:
        """The most bytes since ``start``."""
        return int(self.cuda.max_memory_allocated())


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", STATUS.read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0
