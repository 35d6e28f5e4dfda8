"""Fixtures of the commands."""

from tests.cli.conftest import data  # noqa: F401  # a fixture
