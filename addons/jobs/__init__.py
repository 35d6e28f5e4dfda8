"""Jobs: decoding of any amount of text in parts, which survives that processes and machines die; docs/large-jobs.md

``Job`` cuts the input into parts, gives their lines to workers, and writes each part whole or not at all. Workers are
processes of this machine (``processes``) or actors of Ray (``ray_workers``); all other code is the same for both.
"""
