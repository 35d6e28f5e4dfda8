"""The output formats of ``seqgen-generate``: functions from a translation to the lines that are written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from seqgen.config import GenerateConfig
from seqgen.data.dictionary import Dictionary
from seqgen.generation.compatibility import takes_seed
from seqgen.generation.model_settings import changes_scores
from seqgen.text.alignment import alignment_pairs
from seqgen.text.results import TextHypothesis, Translation, on_one_line
from seqgen.text.text_decoding import Details, TextDecoding
from seqgen.text.translator import Translator

Writer = Callable[[Translation], str]

_SEPARATORS = re.compile("[ \t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
"""Characters that separate pieces, fields or, for some programs, lines."""


def wanted_details(cfg: GenerateConfig, translator: Translator) -> Details:
    """What a format shows of hypotheses besides tokens and scores.

    The models' own scores are for ensembles, and for settings with which the search's scores are no longer theirs.
    """
    if cfg.format == "json":
        scores = len(translator.members) > 1 or changes_scores(translator.settings())
        return Details(attention=True, scores=scores)
    return Details(attention=cfg.print_alignment)


def text_writer(decoding: TextDecoding, references: Sequence[str] | None) -> Writer:
    """The best hypothesis of line n on line n."""
    return lambda translation: translation.text + "\n"


def json_writer(decoding: TextDecoding, references: Sequence[str] | None) -> Writer:
    """One JSON object a line, with floats that round-trip.

    JSON escapes ``\\n`` and ``\\r`` in a text; here also the other characters at which some programs break lines.
    """
    cfg = decoding.cfg
    how: dict[str, Any] = {"semantics": decoding.generator.setup.rules.name}
    how |= {"seed": cfg.seed} if takes_seed(cfg) else {}

    def write(translation: Translation) -> str:
        record: dict[str, Any] = {
            "id": translation.id,
            "source": translation.source,
            **how,
            "hypotheses": [_hypothesis(item, len(decoding.members)) for item in translation.hypotheses],
        }
        for name in ("prefix", "constraints", "notes"):
            if value := getattr(translation, name):
                record[name] = value
        # an escape is the same text to every reader of JSON
        line = json.dumps(record, ensure_ascii=False)
        return re.sub("[\x85\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", line) + "\n"

    return write


def _hypothesis(item: TextHypothesis, members: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "text": item.text,
        "tokens": item.tokens.tolist(),
        "score": item.score,
        "positional_scores": item.positional_scores.tolist(),
    }
    if item.model_score is not None:
        values["model_score"] = item.model_score
    if item.member_scores is not None and members > 1:
        values["member_scores"] = [scores.tolist() for scores in item.member_scores]
    if item.utility is not None:
        values["utility"] = item.utility
    if item.alignment is not None:
        values["alignment"] = item.alignment.tolist()
    return values


def fairseq_writer(decoding: TextDecoding, references: Sequence[str] | None) -> Writer:
    """Lines that begin with S (source), T (target), H (pieces), D (text), P (scores of the tokens) and A (alignment).

    As with fairseq, scores are logarithms to base 2 and rounded to four digits, and the text of S and H is in pieces.
    Fields are separated by tabs, and pieces by spaces. So a newline or tab in a text is a space, and white space in a
    piece, which is one in a model of bytes, is written by its number: ``<0x0A>``.
    """
    dictionary, source_dictionary = decoding.task.target_dictionary, decoding.task.source_dictionary

    def write(translation: Translation) -> str:
        number = translation.id
        lines = [f"S-{number}\t{_pieces(source_dictionary, _without_end(translation, source_dictionary.eos()))}"]
        if references is not None and number < len(references):
            lines.append(f"T-{number}\t{_field(references[number])}")
        for item in translation.hypotheses:
            score = item.score / math.log(2)
            positional = " ".join(f"{value / math.log(2):.4f}" for value in item.positional_scores.tolist())
            # one that was cut off has no end-of-sentence
            written = [token for token in item.tokens.tolist() if token != dictionary.eos()]
            lines.append(f"H-{number}\t{score}\t{_pieces(dictionary, written)}")
            lines.append(f"D-{number}\t{score}\t{_field(item.text)}")
            lines.append(f"P-{number}\t{positional}")
            if item.alignment is not None:
                pairs = alignment_pairs(item.tokens, item.alignment, dictionary.eos())
                lines.append(f"A-{number}\t{' '.join(f'{source}-{target}' for source, target in pairs)}")
        return "\n".join(lines) + "\n"

    return write


def _without_end(translation: Translation, eos: int) -> list[int]:
    """The source tokens without the end-of-sentence at the end, or before a prompt."""
    tokens = translation.source_tokens.tolist()
    return tokens[:-1] if tokens[-1:] == [eos] else tokens[tokens[:1] == [eos] :]


def _pieces(dictionary: Dictionary, tokens: Iterable[int]) -> str:
    """Tokens separated by spaces; a separator inside a token is written as its code point, such as ``<0x0A>``."""
    return " ".join(
        _SEPARATORS.sub(lambda found: f"<0x{ord(found[0]):02X}>", dictionary.symbol(token)) for token in tokens
    )


def _field(text: str) -> str:
    """A text as the last of several fields with tabs between them."""
    return on_one_line(text).replace("\t", " ")


FORMATS: dict[str, Callable[[TextDecoding, Sequence[str] | None], Writer]] = {
    "text": text_writer,
    "json": json_writer,
    "fairseq": fairseq_writer,
}
