"""``python -m seqgen`` names the commands."""

import sys

from seqgen.cli.commands import COMMANDS, commands
from seqgen.core.errors import nearest

if __name__ == "__main__":
    words = [word for word in sys.argv[1:2] if not word.startswith("-")]
    unknown = [f"there is no command {word!r}{nearest(f'seqgen-{word}', COMMANDS)}; " for word in words]
    print(f"seqgen: {''.join(unknown)}give a command; --help explains it\n{commands()}", file=sys.stderr)
    sys.exit(2)
