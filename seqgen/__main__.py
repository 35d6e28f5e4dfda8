"""``python -m seqgen`` names the commands."""

import sys

COMMANDS = ("train", "generate", "score", "convert", "tune", "check", "diff", "show")

print(
    f"seqgen: give a command: {', '.join(f'seqgen-{name}' for name in COMMANDS)}; --help explains it", file=sys.stderr
)
sys.exit(2)
