"""Peak memory of a workload."""

from __future__ import annotations

import ctypes
import re
import resource
from pathlib import Path
from typing import Any

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class ProcessMemory:
    """The memory of this process.

    On Linux the peak can be reset. Elsewhere it cannot, so that only the memory of the largest workload is measured.
    """

    def start(self) -> int:
        """Return free memory to the system, reset the peak, and return the bytes in use."""
        try:
            ctypes.CDLL(None).malloc_trim(0)
            CLEAR.write_text("5")
        except (AttributeError, OSError):
            return self.peak()
        return _status("VmRSS")

    def peak(self) -> int:
        """The peak since ``start``, in bytes."""
        return _status("VmHWM") if STATUS.exists() else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class CudaMemory:
    """The memory of tensors on a GPU.

    Args:
        torch: the module; some workers do not have it.
    """

    def __init__(self, torch: Any):
        self.cuda = torch.cuda

    def start(self) -> int:
        """Reset the peak, and return the bytes in use."""
        self.cuda.reset_peak_memory_stats()
        return int(self.cuda.memory_allocated())

    def peak(self) -> int:
        """The peak since ``start``, in bytes."""
        return int(self.cuda.max_memory_allocated())


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", STATUS.read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0
