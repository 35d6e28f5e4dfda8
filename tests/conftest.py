"""Settings for all tests."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings

from tests.browser import browser  # noqa: F401  # a fixture of all tests

# The tensors of the tests are so small that a second thread makes them slower, above all on a busy machine.
torch.set_num_threads(1)

# The same examples in every run, and no time limit for an example, since a busy machine could exceed it.
settings.register_profile("seqgen", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("seqgen")
