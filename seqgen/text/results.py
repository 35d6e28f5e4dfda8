"""Results of decoding lines: translations and their hypotheses."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from seqgen.modules.internals import Internals
from seqgen.structures import Hypothesis


def on_one_line(text: str) -> str:
    """Replace each newline by a space, so that line n of an output file is the output of line n.

    Only ``\\n`` ends a line. Characters at which some programs break lines, such as ``\\r`` and U+2028, are kept.
    """
    return text.replace("\n", " ")


@dataclass(frozen=True)
class TextHypothesis:
    """A hypothesis and its text.

    Attributes:
        text: the decoded tokens, newlines included.
        hypothesis: tokens and scores; if requested, also attention and alignment, without the columns of padding.
        utility: the expected utility against all hypotheses, if ``generation.mbr`` ranks by it.
        rerank_score: the score of the reranker, if ``generation.rerank`` names one.
        model_score: the score without temperature, penalties and other processors, if requested.
        member_scores: for each model that reads the input line ``(T,)`` its log-probabilities of the tokens, in nats,
            if requested.
        hidden: for each model ``(T, C)`` the last hidden features of its decoder, if requested; row ``t`` predicts
            token ``t``.
        internals: for each model the hidden states and attention weights of all its layers, if requested.
    """

    text: str
    hypothesis: Hypothesis
    utility: float | None = None
    rerank_score: float | None = None
    model_score: float | None = None
    member_scores: list[Tensor] | None = None
    hidden: list[Tensor] | None = None
    internals: list[Internals] | None = None

    @property
    def score(self) -> float:
        """The score by which hypotheses are ranked; see ``Hypothesis``."""
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
        """``(T, S)`` weights over the source, end-of-sentence included; ``None`` if not requested."""
        return self.hypothesis.attention

    @property
    def alignment(self) -> Tensor | None:
        """``(T,)`` int64 source positions with the largest weight; ``None`` if not requested."""
        return self.hypothesis.alignment


@dataclass(frozen=True)
class Translation:
    """The result for one line; its lists are filled during decoding.

    Attributes:
        id: number of the line, from 0.
        source: the line.
        source_tokens: ``(S,)`` int64 source ids of the first model; empty for an empty line.
        hypotheses: best first; none for an empty line.
        constraints: phrases that the output must contain (``generation.constraints``).
        prefix: the forced beginning of every hypothesis; empty if there is none.
        member_sources: what each member of the ensemble reads (``generation.members``), by default the line; none for
            an empty line.
        notes: messages for the user, for example about a truncation.
    """

    id: int
    source: str
    source_tokens: Tensor
    hypotheses: list[TextHypothesis] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    prefix: str = ""
    member_sources: list[str] = field(default_factory=list)

    @property
    def first_source(self) -> str:
        """What the first member reads: the line, or a part of it that ``generation.members`` chooses."""
        return self.member_sources[0] if self.member_sources else self.source

    @property
    def text(self) -> str:
        """The text of the best hypothesis with a space for each newline; ``hypotheses[0].text`` keeps the newlines."""
        return on_one_line(self.hypotheses[0].text) if self.hypotheses else ""

    @property
    def score(self) -> float:
        """The score of the best hypothesis; minus infinity if there is none."""
        return self.hypotheses[0].score if self.hypotheses else float("-inf")
