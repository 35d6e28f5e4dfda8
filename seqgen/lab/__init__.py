"""The laboratory: examines models, decodes and runs. Only the commands import it.

``checks`` tries invariants, ``traces`` records decodes, ``compare`` compares outputs and runs.
"""
