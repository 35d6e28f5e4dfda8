"""``python -m seqgen`` names the commands."""

import sys

COMMANDS = ("train", "generate", "score", "convert", "tune", "calibrate", "check", "diff", "show")

if __name__ == "__main__":
    names = ", ".join(f"seqgen-{name}" for name in COMMANDS)
    print(f"seqgen: give a command: {names}; --help explains it", file=sys.stderr)
    sys.exit(2)
