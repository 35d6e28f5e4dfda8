"""How many omitted sentences of paragraphs are noted, and how many notes are false alarms.

``python -m benchmarks.omissions RUN SOURCE`` joins the sentences of a file, one on each line, to lines of several. It
decodes the sentences alone, the lines whole (``generation.input_split=note``, and without the key) and the lines split.
A sentence counts as omitted if the output of its line has less than a fifth of the words, of four letters or more, that
its own translation has; a line counts as complete if it has at least half of the words of each of its sentences.
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path
from statistics import median

import seqgen
from seqgen.data.text import read_lines
from seqgen.text.results import Translation

NAMED = re.compile(r"of \d+ sentences, sentences? ([\d, ]+)")


def kept(whole: Translation, alone: list[Translation]) -> list[float]:
    """For each sentence the part of the words of its own translation that the output of the line has."""
    words = [set(re.findall(r"\w{4,}", line.text.lower())) for line in (whole, *alone)]
    return [len(words[0] & own) / max(1, len(own)) for own in words[1:]]


def noted(line: Translation) -> bool:
    """Whether a note says that the output may lack something."""
    return any("may be missing" in note or "may lack" in note for note in line.notes)


def named(line: Translation) -> set[int]:
    """The sentences that the notes of a line name, from 0."""
    return {int(n) - 1 for note in line.notes for found in NAMED.findall(note) for n in found.split(",") if n.strip()}


def report(translator: seqgen.Translator, sentences: list[str], least: int, most: int, language: str) -> None:
    """Measure lines of ``least`` to ``most`` sentences, and print what was found."""
    draw, groups, start = random.Random(1), list[range](), 0
    while (size := draw.randint(least, most)) <= len(sentences) - start:
        groups.append(range(start, start + size))
        start += size
    lines = [" ".join(sentences[i] for i in group) for group in groups]
    notes = {"input_split": "note", "input_split_lang": language}
    alone, whole = translator.translate(sentences, **notes), translator.translate(lines, **notes)
    plain, split = translator.translate(lines), translator.translate(lines, **{**notes, "input_split": "sentences"})
    parts = [kept(line, [alone[i] for i in group]) for line, group in zip(whole, groups, strict=True)]
    omitted = [(row, i) for row, line in enumerate(parts) for i, part in enumerate(line) if part < 0.2]
    lacking = {row for row, _ in omitted}
    complete = [row for row, line in enumerate(parts) if min(line) >= 0.5]
    again = [kept(line, [alone[i] for i in group]) for line, group in zip(split, groups, strict=True)]
    caught = sum(i in named(whole[row]) for row, i in omitted)
    print(f"{len(lines)} lines of {least} to {most} sentences, {sum(map(len, groups))} sentences")
    print(f"  whole: {len(omitted)} sentences omitted, of which {caught} noted, in {len(lacking)} lines")
    print(f"    of these lines noted: {sum(noted(whole[row]) for row in lacking)} with input_split=note,")
    print(f"      {sum(noted(plain[row]) for row in lacking)} without")
    print(f"    of {len(complete)} complete lines noted: {sum(noted(whole[row]) for row in complete)}")
    print(f"  split: {sum(part < 0.2 for line in again for part in line)} sentences omitted,")
    print(f"    {sum(noted(line) for line in split)} lines noted")


def main(argv: list[str] | None = None) -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.omissions", description="notes on omitted sentences")
    parser.add_argument("run", help="a run folder or another model")
    parser.add_argument("source", type=Path, help="file with one sentence on each line")
    parser.add_argument("--language", default="en", help="language of the source")
    arguments = parser.parse_args(argv)
    translator = seqgen.Translator(arguments.run)
    sentences = list(read_lines(arguments.source))
    notes = {"input_split_lang": arguments.language}
    alone = {how: translator.translate(sentences, input_split=how, **notes) for how in ("note", "sentences")}
    lengths = [len(line.hypotheses[0].tokens) / len(line.source_tokens) for line in alone["note"] if line.hypotheses]
    print(f"{len(sentences)} sentences, usual_ratio={median(lengths):.2f}")
    for how, lines in alone.items():
        print(f"  noted with input_split={how}: {sum(noted(line) for line in lines)}")
    for least, most in ((2, 2), (3, 8)):
        report(translator, sentences, least, most, arguments.language)


if __name__ == "__main__":
    main()
