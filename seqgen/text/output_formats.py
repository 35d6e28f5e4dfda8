"""The output formats of decoding: functions from a translation to the lines that are written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from seqgen.config import GenerateConfig
from seqgen.config.generate import OUTPUT_FORMATS
from seqgen.data.dictionary import Dictionary
from seqgen.decoding.resolution import changes_scores
from seqgen.registry import add_format
from seqgen.text.line_stages import installed_stages
from seqgen.text.results import Details, TextHypothesis, Translation, alignment_pairs, on_one_line
from seqgen.text.text_decoding import TextDecoding
from seqgen.text.translator import Translator

Writer: TypeAlias = Callable[[Translation], str]
"""From the translation of one input line to the lines that are written."""
Format: TypeAlias = Callable[[TextDecoding, Sequence[str] | None], Writer]
F = TypeVar("F", bound=Format)

_SEPARATORS = re.compile("[ \t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
"""Characters that separate pieces, fields or, in some programs, lines."""


def wanted_details(cfg: GenerateConfig, translator: Translator) -> Details:
    """The details of hypotheses that the output format needs, besides tokens and scores.

    JSON output has the scores of the models alone for ensembles, and if the settings change scores during the search.

    Args:
        cfg: the configuration of ``seqgen-generate``.
        translator: the models.

    Returns:
        The details.
    """
    if cfg.format == "json":
        scores = len(translator.members) > 1 or changes_scores(translator.settings())
        return Details(attention=translator.shares_vocabulary, scores=scores)
    return Details(attention=cfg.print_alignment)


def text_writer(decoding: TextDecoding, references: Sequence[str] | None) -> Writer:
    """Format ``text``: output line n is the best hypothesis of input line n."""
    return lambda translation: translation.text + "\n"


def json_writer(decoding: TextDecoding, references: Sequence[str] | None) -> Writer:
    """Format ``json``: one JSON object per line; floats are written with full precision.

    JSON escapes ``\\n`` and ``\\r``. The other characters at which some programs break lines are escaped here.
    """
    cfg = decoding.cfg
    how: dict[str, Any] = {"semantics": decoding.generator.setup.rules.name}
    how |= {"seed": cfg.seed} if cfg.uses_seed else {}

    def fields(translation: Translation, **further: Any) -> dict[str, Any]:
        hypotheses = [
            _hypothesis(item, len(decoding.members)) | _top_tokens(item, decoding.task.target_dictionary)
            for item in translation.hypotheses
        ]
        described = decoding.stages.record(translation)
        return {"source": translation.source, **further, **described, "hypotheses": hypotheses}

    def write(translation: Translation) -> str:
        record: dict[str, Any] = {"id": translation.id, **fields(translation, **how)}
        if translation.sentences:
            record["sentences"] = list(map(fields, translation.sentences))
        for name in ("prefix", "constraints", "notes"):
            if value := getattr(translation, name):
                record[name] = value
        # a JSON parser turns the escapes back into the characters
        line = json_text(record)
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
    if item.member_tokens is not None:
        values["member_tokens"] = [tokens.tolist() for tokens in item.member_tokens]
    if item.utility is not None:
        values["utility"] = item.utility
    if item.rerank_score is not None:
        values["rerank_score"] = item.rerank_score
    if item.alignment is not None:
        values["alignment"] = item.alignment.tolist()
    if item.fields:
        values["fields"] = {name: each.tolist() for name, each in item.fields.items()}
    return values


def _top_tokens(hypothesis: TextHypothesis, dictionary: Dictionary) -> dict[str, Any]:
    """For each token the id, the token and the probability of the most probable tokens; empty if not requested."""
    if hypothesis.top_tokens is None or hypothesis.top_scores is None:
        return {}
    rows = zip(hypothesis.top_tokens.tolist(), hypothesis.top_scores.double().exp().tolist(), strict=True)
    top = [[[token, dictionary.symbol(token), p] for token, p in zip(*row, strict=True) if p > 0] for row in rows]
    return {"top_tokens": top}


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON, which has no infinity: ``null`` stands for one, such as the score of an impossible token.

    Args:
        value: the value.
        indent: see ``json.dumps``.
    """
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def fairseq_writer(decoding: TextDecoding, references: Sequence[str] | None) -> Writer:
    """Format ``fairseq``: lines that begin with S, T, H, D, P or A.

    S has the pieces of the source, T the reference, H the pieces of a hypothesis, D its text, P its positional scores
    and A its alignment. As in fairseq, scores are base-2 logarithms, and positional scores have four decimals. Fields
    are separated by tabs, and pieces by spaces. Therefore a newline or tab in a text is written as a space, and white
    space in a piece, such as a token of a byte-level vocabulary, as its code point: ``<0x0A>``.
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
            # a hypothesis that was cut off has no end-of-sentence, so the last token is not always the one to remove
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
    """A text as one field of a tab-separated line."""
    return on_one_line(text).replace("\t", " ")


def tsv_writer(decoding: TextDecoding, references: Sequence[str] | None) -> Writer:
    """Format ``tsv``: source, output, score and the columns of line stages, after a line with their names."""
    stages = installed_stages()

    def write(translation: Translation) -> str:
        columns = {"source": translation.source, "output": translation.text}
        columns["score"] = f"{translation.score:.4f}" if translation.hypotheses else ""
        for stage in stages:
            columns |= stage.columns(translation)
        rows = [[*columns]] if translation.id == 0 else []
        return "".join("\t".join(map(_field, row)) + "\n" for row in [*rows, [*columns.values()]])

    return write


FORMATS: dict[str, Format] = {
    "text": text_writer,
    "json": json_writer,
    "fairseq": fairseq_writer,
    "tsv": tsv_writer,
}
"""The formats by name: functions from a prepared decoding, and the references if there are any, to a writer."""

BUILT_IN = frozenset(FORMATS)


def register_output_format(name: str) -> Callable[[F], F]:
    """Add an output format: the value ``name`` of ``format``.

    The decorated function takes the prepared decoding, and the references or ``None``; it returns a ``Writer``::

        @register_output_format("numbered")
        def numbered(decoding, references):
            return lambda translation: f"{translation.id}\\t{translation.text}\\n"

    Args:
        name: its name.

    Returns:
        The decorator; it returns the function unchanged.

    Raises:
        ConfigError: the name is taken.
    """

    def decorator(function: F) -> F:
        add_format(name, function, FORMATS, OUTPUT_FORMATS)
        return function

    return decorator
