"""Checks: the invariants of models, components, tasks and criteria; docs/extending.md."""
