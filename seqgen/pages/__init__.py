"""HTML pages without a script library, network or server, for the commands that compare."""
