"""Sweeps: ``seqgen-train -m`` by Hydra's sweepers and launchers; docs/training.md."""
