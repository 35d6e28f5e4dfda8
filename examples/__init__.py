"""Models and tasks as a user would write them, each a single file."""
