"""Pseudo-references: the outputs of another decoding of the same lines, with the same models and other settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from seqgen import Translator
from seqgen.extend import Translation


class PseudoReferences:
    """Decodes lines once more with other settings.

    Args:
        models: the models, each with its task.
        keys: keys of ``generation``; all ``beam`` hypotheses of a line are pseudo-references.
        ensemble: the settings of the models' ensemble, which ``keys`` override; by default equal weights and sources.
    """

    def __init__(self, models: Sequence[Any], keys: dict[str, Any], ensemble: Mapping[str, Any] | None = None):
        translator = Translator(models, **{**(ensemble or {}), **keys, "rerank": "", "mbr": ""})
        self.decoding = cache(lambda **languages: translator.prepare(nbest=translator.settings().beam, **languages))
        self.decoding()  # refuses keys at once
        self.known: dict[tuple[int, str, str], list[str]] = {}

    def prepare(self, lines: Sequence[Translation]) -> None:
        """Decode lines together; the random numbers of a line depend on its number alone."""
        self.known = {}
        for languages, group in groupby(lines, lambda line: line.languages):
            some = list(group)
            texts, prefixes = [line.source for line in some], [line.prefix for line in some]
            decoded = self.decoding(**languages).translate(texts, prefixes, len(some), [line.id for line in some])
            self.known |= {(t.id, t.source, t.prefix): [item.text for item in t.hypotheses] for t in decoded}

    def __call__(self, line: Translation) -> list[str]:
        """The pseudo-references of a line."""
        if (line.id, line.source, line.prefix) not in self.known:
            self.prepare([line])
        return self.known[line.id, line.source, line.prefix]
