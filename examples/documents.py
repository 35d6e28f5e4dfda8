"""Documents: lines are decoded in order, with what was decoded before, and several documents at once.

Line ``i`` of all documents is decoded together, as a wave. A function makes what is decoded for a line from the sources
of its document up to this line and the outputs before it: the text that the models read, and the forced beginning of
its output. ``forced(n)`` joins the last ``n`` sources and the line to one text, whose output must begin with their
outputs (Tiedemann and Scherrer 2017, "Neural Machine Translation with Extended Context"). ``fields(n)`` makes a line of
two fields, for two members: the last ``n`` sources with the line, and the line alone, such as
``examples/papers/context_aware.py`` contrasts. A function of your own can use the outputs in any other way.

An empty line ends a document. The models should be trained on lines of several sentences::

    python examples/documents.py path=[runs/a] input=documents.en output=documents.de context=1

The outputs of a document do not depend on the other documents (those of random strategies depend on its place among
them).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from seqgen import Translator
from seqgen.extend import CommonConfig, new_file, option, read_lines, run, set_up_device

Compose: TypeAlias = Callable[[Sequence[str], Sequence[str]], tuple[str, str]]
"""Makes the text and the prefix of a line from the sources up to it and the outputs before it."""


def forced(context: int) -> Compose:
    """The last ``context`` sources and the line as one text; the prefix is the outputs of these sources."""
    return lambda sources, outputs: (
        " ".join(sources[-1 - context :]),
        " ".join(filter(None, outputs[max(0, len(outputs) - context) :])),
    )


def fields(context: int) -> Compose:
    """Two fields, separated by a tab: the last ``context`` sources and the line, and the line alone."""
    return lambda sources, outputs: (f"{' '.join(sources[-1 - context :])}\t{sources[-1]}", "")


def decode_documents(
    translator: Translator, documents: Sequence[Sequence[str]], compose: Compose, **settings: Any
) -> list[list[str]]:
    """Decode documents, one line of each at a time.

    Args:
        translator: the models.
        documents: the lines of each document; none is empty.
        compose: what is decoded for a line.
        settings: see ``Translator.translate``.

    Returns:
        An output for each line of each document.
    """
    outputs: list[list[str]] = [[] for _ in documents]
    for line in range(max(map(len, documents), default=0)):
        wave = [number for number, lines in enumerate(documents) if line < len(lines)]
        pairs = [compose(documents[number][: line + 1], outputs[number]) for number in wave]
        texts, prefixes = zip(*pairs, strict=True)
        found = translator.translate(texts, prefixes=prefixes, **settings)
        for number, prefix, translation in zip(wave, prefixes, found, strict=True):
            outputs[number].append(translation.text.removeprefix(prefix).strip())
    return outputs


@dataclass
class DocumentsConfig:
    """The keys of the command."""

    path: list[str] = option([], "run folders or checkpoints of the models; several are an ensemble")
    input: str = option("", "file with documents; an empty line ends each", role="input_path")
    output: str = option("", "file to write", role="output_path")
    context: int = option(1, "number of earlier lines that are read and whose outputs are forced", minimum=0)
    common: CommonConfig = field(default_factory=CommonConfig)


def main(cfg: DocumentsConfig) -> None:
    """Decode the documents of a file."""
    groups = itertools.groupby(read_lines(Path(cfg.input)), lambda line: bool(line.strip()))
    documents = [list(lines) for has_text, lines in groups if has_text]
    translator = Translator(cfg.path, device=set_up_device(cfg.common))
    found = decode_documents(translator, documents, forced(cfg.context))
    with new_file(Path(cfg.output)) as file:
        file.write("\n\n".join("\n".join(lines) for lines in found).encode() + b"\n")


if __name__ == "__main__":
    run(DocumentsConfig, main, "decodes documents, line by line, with the outputs of their earlier lines.")
