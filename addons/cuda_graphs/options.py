"""The key of captured steps, see ``captured``."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config import option


@dataclass
class CapturedOptions:
    """Whether steps are recorded."""

    cuda_graphs: bool = option(
        False,
        "on a GPU, record a step of the decoder once for each size and replay it (CUDA graphs)",
        setup="seqgen.addons.cuda_graphs.captured:record_steps",
        other_names=("captured_steps",),
    )
