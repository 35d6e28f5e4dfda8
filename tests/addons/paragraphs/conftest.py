"""The trained models of the tests of commands."""

from tests.cli.conftest import *  # noqa: F403
