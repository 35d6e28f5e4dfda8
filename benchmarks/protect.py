"""What a translation model keeps of placeholders, tags, numbers and the like, without and with ``generation.protect``.

``python -m benchmarks.protect firefox:en-pt FOLDER 200 500`` reads the catalogues ``pt_BR/LC_MESSAGES/*.mo`` below a
folder into which pip has installed packages, and measures on 200 messages and on 500 others; ``--reverse`` translates
the other way.
"""

from __future__ import annotations

import argparse
import gettext
import random
from collections import Counter
from pathlib import Path

from sacrebleu.metrics import BLEU

from seqgen import Translator
from seqgen.addons.protect.spans import Span, find_spans, missing, pattern_of

KINDS = ["placeholders", "tags", "urls", "numbers", "code"]
SETTINGS = {"plain": [], "protect": KINDS, "protect and signs": [*KINDS, "signs"]}


def spans(text: str) -> list[Span]:
    """The spans of a text that outputs should keep."""
    return find_spans(pattern_of(KINDS), text)


def messages(folder: Path) -> list[tuple[str, str]]:
    """The messages of several words whose translations have the same spans, in a random order."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("pt_BR/LC_MESSAGES/*.mo")):
        with path.open("rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        pairs = ((each, target.strip()) for each, target in catalog.items() if isinstance(each, str))
        for source, target in ((each.rpartition("\x04")[2].strip(), target) for each, target in pairs):
            if "\n" not in source + target and " " in source and len(source) <= 300 and not source.isupper():
                counts = [Counter(span.text for span in spans(text)) for text in (source, target)]
                if counts[0] and counts[0] == counts[1]:
                    found.setdefault(source, target)
    return random.Random(1).sample(sorted(found.items()), len(found))


def main() -> None:
    """Print a line for each part of the messages and each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", type=int, nargs="+")
    parser.add_argument("--reverse", action="store_true")
    arguments = parser.parse_args()
    pairs, translator = messages(arguments.folder), Translator(arguments.path, beam=1)
    for size in arguments.parts:
        part, pairs = pairs[:size], pairs[size:]
        sources, references = zip(*(pair[::-1] if arguments.reverse else pair for pair in part), strict=True)
        for name, kinds in SETTINGS.items():
            found = translator.translate(sources, protect=kinds)
            lost = [missing(spans(one), one, other.text) for one, other in zip(sources, found, strict=True)]
            total, whole = sum(len(spans(source)) for source in sources), lost.count([])
            kept = 100 - 100 * sum(map(len, lost)) / total
            bleu = BLEU().corpus_score([each.text for each in found], [references]).score
            print(f"{size} {name}: {kept:.1f} % of {total} spans, {whole} lines, BLEU {bleu:.1f}", flush=True)


if __name__ == "__main__":
    main()
