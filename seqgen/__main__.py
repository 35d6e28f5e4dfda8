"""``python -m seqgen`` names the commands."""

import sys

from seqgen.cli.help import commands

if __name__ == "__main__":
    print(f"seqgen: give a command; --help explains it\n{commands()}", file=sys.stderr)
    sys.exit(2)
