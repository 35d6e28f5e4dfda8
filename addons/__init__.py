"""Features in one row on top of the engine: a folder each, which can be deleted, and which knows no other add-on.

An add-on is named in tables only: those of the registries, and that of the commands. Without its folder, a name of such
a table ends in a sentence that says which add-on it belongs to.
"""

if __name__ != "seqgen.addons":
    raise ImportError(f"import this package as 'seqgen.addons', not as {__name__!r}, or its components register twice")
