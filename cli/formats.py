"""The output formats of ``seqgen-generate``: functions from a translation to the lines that are written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from seqgen.translator import TextHypothesis, Translation, Translator

Writer = Callable[[Translation], str]


def text_writer(translator: Translator, references: Sequence[str] | None) -> Writer:
    """The best hypothesis of line n on line n."""
    return lambda translation: translation.text + "\n"


def json_writer(translator: Translator, references: Sequence[str] | None) -> Writer:
    """One JSON object a line, with floats that round-trip."""

    def hypothesis(item: TextHypothesis) -> dict[str, Any]:
        values: dict[str, Any] = {
            "text": item.text,
            "tokens": item.hypothesis.tokens.tolist(),
            "score": item.hypothesis.score,
            "positional_scores": item.hypothesis.positional_scores.tolist(),
        }
        if item.hypothesis.alignment is not None:
            values["alignment"] = item.hypothesis.alignment.tolist()
        return values

    def write(translation: Translation) -> str:
        record: dict[str, Any] = {
            "id": translation.id,
            "source": translation.source,
            "hypotheses": [hypothesis(item) for item in translation.hypotheses],
        }
        if translation.constraints:
            record["constraints"] = translation.constraints
        if translation.notes:
            record["notes"] = translation.notes
        return json.dumps(record, ensure_ascii=False) + "\n"

    return write


def fairseq_writer(translator: Translator, references: Sequence[str] | None) -> Writer:
    """Lines that begin with S (source), T (target), H (pieces), D (text) and P (scores of the tokens).

    As with fairseq, scores are logarithms to base 2 and rounded to four digits, and the text of S and H is in pieces.
    """
    dictionary, source_dictionary = translator.task.target_dictionary, translator.task.source_dictionary

    def write(translation: Translation) -> str:
        number = translation.id
        pieces = [source_dictionary.symbol(int(token)) for token in translation.source_tokens[:-1]]
        lines = [f"S-{number}\t{' '.join(pieces)}"]
        if references is not None and number < len(references):
            lines.append(f"T-{number}\t{references[number]}")
        for item in translation.hypotheses:
            score = item.hypothesis.score / math.log(2)
            symbols = " ".join(dictionary.symbol(int(token)) for token in item.hypothesis.tokens[:-1])
            positional = " ".join(f"{value / math.log(2):.4f}" for value in item.hypothesis.positional_scores.tolist())
            lines.append(f"H-{number}\t{score}\t{symbols}")
            lines.append(f"D-{number}\t{score}\t{item.text}")
            lines.append(f"P-{number}\t{positional}")
        return "\n".join(lines) + "\n"

    return write


FORMATS: dict[str, Callable[[Translator, Sequence[str] | None], Writer]] = {
    "text": text_writer,
    "json": json_writer,
    "fairseq": fairseq_writer,
}
