"""The trained runs of the tests of the commands."""

from tests.cli.conftest import data, runs  # noqa: F401  # fixtures
