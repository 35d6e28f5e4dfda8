"""What decoding gives for a line of text."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from seqgen.structures import Hypothesis


def on_one_line(text: str) -> str:
    """A text with a space for each newline, so that line n of a file stays the output of line n.

    Other characters stay, also those that some programs break lines at (``\\r``, U+2028): only ``\\n`` ends a line.
    """
    return text.replace("\n", " ")


@dataclass(frozen=True)
class TextHypothesis:
    """A hypothesis and its text.

    Attributes:
        text: the text as the model wrote it, newlines included.
        hypothesis: tokens, scores, and where asked for attention and alignment, over this line's source alone.
        utility: the expected similarity to the other hypotheses, where ``generation.mbr`` ranks by it.
        rerank_score: the score of the reranker, where ``generation.rerank`` names one.
        model_score: what the score would be if the models alone had their say, without temperature and penalties; where
            asked for.
        member_scores: for each model ``(T,)`` the log-probabilities that it gives to the tokens, in nats; where asked
            for.
        hidden: for each model ``(T, C)`` the last hidden features of its decoder, at ``t`` those that token ``t`` is
            predicted from; where asked for.
    """

    text: str
    hypothesis: Hypothesis
    utility: float | None = None
    rerank_score: float | None = None
    model_score: float | None = None
    member_scores: list[Tensor] | None = None
    hidden: list[Tensor] | None = None

    @property
    def score(self) -> float:
        """What the search ranks by; see ``Hypothesis``."""
        return self.hypothesis.score

    @property
    def tokens(self) -> Tensor:
        """``(T,)`` int64 ids; see ``Hypothesis``."""
        return self.hypothesis.tokens

    @property
    def positional_scores(self) -> Tensor:
        """``(T,)`` the score of each token, in nats; see ``Hypothesis``."""
        return self.hypothesis.positional_scores

    @property
    def attention(self) -> Tensor | None:
        """``(T, S)`` weights over the source, end-of-sentence included; ``None`` where not asked for."""
        return self.hypothesis.attention

    @property
    def alignment(self) -> Tensor | None:
        """``(T,)`` int64 the source word with the largest weight; ``None`` where not asked for."""
        return self.hypothesis.alignment


@dataclass(frozen=True)
class Translation:
    """The answer to one line; its lists are filled while it is decoded.

    Attributes:
        id: number of the line, from 0.
        source: the line.
        source_tokens: ``(S,)`` int64, what the first model read; empty for an empty line.
        hypotheses: best first; none for an empty line.
        constraints: phrases that the line demands of its output, after tabs (``generation.constraints``).
        prefix: what every hypothesis begins with; empty where nothing was given.
        notes: what was out of the ordinary, such as a truncation, in words.
    """

    id: int
    source: str
    source_tokens: Tensor
    hypotheses: list[TextHypothesis] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    prefix: str = ""

    @property
    def text(self) -> str:
        """The text of the best hypothesis on one line: each newline is a space, see ``on_one_line``.

        ``hypotheses[0].text`` keeps the newlines.
        """
        return on_one_line(self.hypotheses[0].text) if self.hypotheses else ""

    @property
    def score(self) -> float:
        """The score of the best hypothesis; minus infinity where there is none."""
        return self.hypotheses[0].score if self.hypotheses else float("-inf")
