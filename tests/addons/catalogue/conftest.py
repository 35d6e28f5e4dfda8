"""The runs that the refused commands name."""

from tests.cli.conftest import data, runs  # noqa: F401  # fixtures
