"""Looking at decodes from outside: what happened at every step, where two decodes differ, and why."""
