"""What holds for every test."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings

# The tensors of the tests are so small that a second thread costs more than it gives, and much more on a busy machine.
torch.set_num_threads(1)

# The same examples in every run, and no limit to the time of one, which a busy machine would break.
settings.register_profile("seqgen", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("seqgen")
