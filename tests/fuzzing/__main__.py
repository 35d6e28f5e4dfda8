"""``python -m tests.fuzzing``; see the package."""

import sys

from tests.fuzzing.command import main

sys.exit(main(sys.argv[1:]))
