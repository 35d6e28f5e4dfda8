"""The output formats of decoding: functions from a translation to the lines that are written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from seqgen.config import GenerateConfig
from seqgen.config.generate import OUTPUT_FORMATS
from seqgen.data.dictionary import Dictionary
from seqgen.decoding.resolution import changes_scores
from seqgen.registry import add_format
from seqgen.text.line_stages import stages_of
from seqgen.text.results import Details, TextHypothesis, Translation, on_one_line
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
        members, dictionary = len(decoding.members), decoding.task.target_dictionary
        hypotheses = [_hypothesis(item, members, dictionary) for item in translation.hypotheses]
        review = getattr(translation, "review", None)  # of any stage
        described = {**({"review": review} if review else {}), **decoding.stages.record(translation)}
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


_FIELDS = (
    *("text", "origin", "tokens", "score", "positional_scores", "model_score", "member_scores", "member_tokens"),
    *("utility", "rerank_score", "alignment", "fields"),
)
"""The values of a hypothesis that JSON has, if they are known."""


def _hypothesis(item: TextHypothesis, members: int, dictionary: Dictionary) -> dict[str, Any]:
    values = {name: getattr(item, name) for name in _FIELDS if members > 1 or name != "member_scores"}
    if item.top_tokens is not None and item.top_scores is not None:  # for each token the id, the token, the probability
        rows = zip(item.top_tokens.tolist(), item.top_scores.double().exp().tolist(), strict=True)
        top = [[[token, dictionary.symbol(token), p] for token, p in zip(*row, strict=True) if p > 0] for row in rows]
        values["top_tokens"] = top
    optional = ("origin", "fields")
    return {name: value for name, value in values.items() if value is not None and (name not in optional or value)}


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON, which has no infinity: ``null`` stands for one, such as the score of an impossible token.

    Args:
        value: the value; tensors are written as lists.
        indent: see ``json.dumps``.
    """
    dump = partial(json.dumps, ensure_ascii=False, indent=indent, allow_nan=False, default=Tensor.tolist)
    try:
        return dump(value)
    except ValueError:
        return dump(_finite(value))


def _finite(value: Any) -> Any:
    value = value.tolist() if isinstance(value, Tensor) else value
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
                words = item.alignment[item.tokens != dictionary.eos()].tolist()
                lines.append(f"A-{number}\t{' '.join(f'{place}-{word}' for word, place in enumerate(words))}")
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
    stages = stages_of().values()

    def write(translation: Translation) -> str:
        columns = {"source": translation.source, "output": translation.text}
        columns["score"] = f"{translation.score:.4f}" if translation.hypotheses else ""
        for stage in stages:
            columns |= stage.columns(translation)
        if getattr(decoding.cfg, "rewriters", []):
            columns["origin"] = translation.hypotheses[0].origin if translation.hypotheses else ""
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
