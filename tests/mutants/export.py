"""Faults in ``seqgen/export``."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "seqgen/export/folder.py",
        '"max_source_length": source_max,\n        "max_target_length": target_max,',
        '"max_source_length": target_max,\n        "max_target_length": source_max,',
        "the limits of source and target are exchanged",
        ("tests/export/test_export.py",),
    ),
    Fault(
        "seqgen/export/folder.py",
        '"padding_side": "left" if model.left_pad_source else "right"',
        '"padding_side": "right" if model.left_pad_source else "left"',
        "exported models are padded on the other side",
        ("tests/export/test_export.py",),
    ),
    Fault(
        "seqgen/export/folder.py",
        '"start": model.start_token(words.eos())',
        '"start": words.eos()',
        "an exported decoder begins with end-of-sentence",
        ("tests/export/test_export.py",),
    ),
    Fault(
        "seqgen/export/folder.py",
        '"source_pad": task.source_dictionary.pad()',
        '"source_pad": words.pad()',
        "sources are padded with the id of the target vocabulary",
        ("tests/export/test_export.py",),
    ),
    Fault(
        "seqgen/export/folder.py",
        "if not found <= TOLERANCE:",
        "if found > 1:",
        "a model whose graph computes something else is exported",
        ("tests/export/test_export.py",),
    ),
    Fault(
        "seqgen/export/graphs.py",
        "seen = prev_output_tokens.size(1) - 1",
        "seen = prev_output_tokens.size(1)",
        "positions of an exported step are one too high",
        ("tests/export/test_export.py",),
    ),
]
