"""Faults in ``seqgen/jobs`` and in the command that runs a job."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "seqgen/jobs/job.py",
        "opened.answers[event.piece.first] = answers",
        "opened.answers[len(opened.answers)] = answers",
        "the pieces of a part are joined in the order in which they were decoded",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/jobs/job.py",
        "Piece(part.index, part.first + start,",
        "Piece(part.index, start,",
        "the numbers of lines begin anew in each part",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/jobs/job.py",
        "Piece(piece.part, piece.first + start,",
        "Piece(piece.part, piece.first,",
        "the pieces of a split piece all have its first number",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/jobs/job.py",
        "if self._failed >= HOPELESS and not self._decoded:",
        "if self._failed >= HOPELESS:",
        "a job stops at its hundredth failed line although others were decoded",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/jobs/job.py",
        "self._decoded = self.folder.lines - self.folder.failed",
        "self._decoded = self.folder.lines",
        "lines that failed before count as decoded, so that a hopeless job is not stopped",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/jobs/workers.py",
        "2 * divisor if full else divisor",
        "2 * divisor",
        "batches become smaller after any error of a line, not only when memory runs out",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/jobs/folder.py",
        ".stat().st_size == known.bytes",
        ".stat().st_size >= 0",
        "a part whose file was cut off counts as done",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/jobs/folder.py",
        'if note["note"] in found or len(found) < MAX_NOTES',
        "if len(found) < MAX_NOTES",
        "once there are 20 different notes, known ones are not counted any more",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/jobs/folder.py",
        "_others(note['lines'] - 1)",
        "_others(note['lines'])",
        "a note counts its first line among the others",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/jobs/folder.py",
        '"tokens": answers.tokens,',
        '"tokens": len(answers.outputs),',
        "a part that is done is recorded with its lines as tokens",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/jobs/manifest.py",
        'total.update(b"%d:" % len(content))',
        'total.update(b"")',
        "texts that are divided into lines in another way have the same digest",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "seqgen/jobs/source.py",
        'Path(file.name.removesuffix(".gz")).suffix',
        "Path(file.name).suffix",
        "compressed JSON lines are read as text",
        ("tests/jobs/test_jobs.py",),
    ),
    Fault(
        "cli/job.py",
        "settings |= {name: str(one) for name, one in value.items()}",
        "continue",
        "a job is continued although keys of components have changed",
        ("tests/jobs/test_command.py",),
    ),
    Fault(
        "cli/job.py",
        "{**models, **files}, cfg.generation.part_lines",
        "dict(models), cfg.generation.part_lines",
        "a job is continued although a file that a key names has changed",
        ("tests/jobs/test_command.py",),
    ),
    Fault(
        "cli/job.py",
        "key not in keys_with(SPEED)",
        "key",
        "a job cannot be continued with batches of another size",
        ("tests/jobs/test_command.py",),
    ),
    Fault(
        "cli/job.py",
        "max_tokens=max(1, tokens // divisor)",
        "max_tokens=tokens",
        "when memory runs out, batches stay as wide as they were",
        ("tests/jobs/test_command.py",),
    ),
    Fault(
        "cli/job.py",
        "available_cores() // (count or 1)",
        "available_cores()",
        "each worker takes all cores",
        ("tests/jobs/test_command.py",),
    ),
]
