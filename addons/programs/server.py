"""Runs in the other environment, by execnet, which need not be installed there: answers rows by the user's program."""

import math
import os
import runpy
import sys

if __name__ == "__channelexec__":
    channel = globals()["channel"]  # execnet's
    errors, *sys.argv[:] = channel.receive()
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    score = runpy.run_path(sys.argv[0]).get("score") or sys.exit("it has no function score")
    channel.send("loaded")
    for rows in channel:
        values = score([dict(zip(("source", "text", "reference"), row)) for row in rows])  # noqa: B905  # old Pythons
        values = [float(value) for value in values]
        if len(values) != len(rows) or not all(map(math.isfinite, values)):
            sys.exit(f"score must return a finite number for each of {len(rows)} rows, not {str(values)[:200]}")
        channel.send(values)
