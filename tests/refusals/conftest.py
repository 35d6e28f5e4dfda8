"""What the rows of the tables name: a corpus and trained runs, made once."""

from tests.cli.conftest import data, runs  # noqa: F401  # fixtures
