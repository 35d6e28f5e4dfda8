"""Trained runs."""

from tests.cli.conftest import data, runs  # noqa: F401  # fixtures
