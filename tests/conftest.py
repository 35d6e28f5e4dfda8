"""Settings for all tests."""

from __future__ import annotations

import signal

import torch
from hypothesis import HealthCheck, settings

from tests.browser import browser  # noqa: F401  # a fixture of all tests

# The tensors of the tests are so small that a second thread makes them slower, above all on a busy machine.
torch.set_num_threads(1)

# The same examples in every run, and no time limit for an example, since a busy machine could exceed it.
settings.register_profile("seqgen", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("seqgen")

# Processes that tests start inherit ignored signals, as in `make test &` and under nohup, but not handlers.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
