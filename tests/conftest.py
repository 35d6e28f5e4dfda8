"""What holds for every test."""

from __future__ import annotations

import torch

# The tensors of the tests are so small that a second thread costs more than it gives, and much more on a busy machine.
torch.set_num_threads(1)
