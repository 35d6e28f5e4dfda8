"""An output format: each line has its number, the score of its best hypothesis, and the text.

``seqgen-generate common.user_dir=examples/extending/output_format.py path=runs/a input=test.en format=numbered``
"""

from __future__ import annotations

from collections.abc import Sequence

from seqgen.extend import TextDecoding, Translation, Writer, register_output_format


@register_output_format("numbered")
def numbered(decoding: TextDecoding, references: Sequence[str] | None) -> Writer:
    """Write a line such as ``3<TAB>-0.81<TAB>ein Hund``; an empty line of the input has no score.

    Args:
        decoding: the models and their settings.
        references: the reference outputs, if there are any.

    Returns:
        The function from a translation to its line.
    """

    def write(translation: Translation) -> str:
        score = f"{translation.score:.2f}" if translation.hypotheses else ""
        return f"{translation.id + 1}\t{score}\t{translation.text}\n"

    return write
