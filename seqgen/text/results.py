"""Results of decoding lines: translations and their hypotheses, with alignments and other optional fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torch import Tensor

from seqgen.core.finished import Ranking
from seqgen.core.structures import Batch, Hypothesis
from seqgen.decoding.scorer import SequenceScorer
from seqgen.modules.inspection import Internals


def on_one_line(text: str) -> str:
    """Replace each newline by a space, so that line n of an output file is the output of line n.

    Only ``\\n`` ends a line. Characters at which some programs break lines, such as ``\\r`` and U+2028, are kept.
    """
    return text.replace("\n", " ")


@dataclass(frozen=True)
class TextHypothesis(Hypothesis):
    """A hypothesis with its text; its attention is without the columns of padding.

    Attributes:
        text: the decoded tokens, newlines included.
        origin: the rewriter that added it, and what that says of it (``pool:runs/b``); empty for one of the search.
        utility: the expected utility against all hypotheses, if ``generation.mbr`` ranks by it.
        rerank_score: the score of the reranker, if ``generation.rerank`` names one.
        model_score: the score without temperature, penalties and other processors, if requested.
        member_scores: for each model that reads the input line ``(T,)`` its log-probabilities of the tokens, in nats,
            if requested, or if the models have different target vocabularies.
        hidden: for each model ``(T, C)`` the last hidden features of its decoder, if requested; row ``t`` predicts
            token ``t``.
        internals: for each model the hidden states and attention weights of all its layers, if requested.
    """

    text: str = ""
    origin: str = ""
    utility: float | None = None
    rerank_score: float | None = None
    model_score: float | None = None
    hidden: list[Tensor] | None = None
    internals: list[Internals] | None = None


@dataclass(frozen=True)
class Computed:
    """An extra that is computed from the translation when it is read, because the text may change until then.

    Attributes:
        of: a function of a module, so that translations can be pickled.
    """

    of: Callable[[Translation], Any]


@dataclass(frozen=True)
class Translation:
    """The result for one line.

    Attributes:
        id: number of the line, from 0.
        source: the line.
        source_tokens: ``(S,)`` int64 source ids of the first model; empty for an empty line.
        hypotheses: best first; none for an empty line.
        constraints: phrases that the output must contain (``generation.constraints``, and those of line stages).
        prefix: the forced beginning of every hypothesis; empty if there is none.
        languages: those of the line, by the keys ``source_lang`` and ``target_lang`` with which ``Translator`` reads
            ``source`` alike; without those that are not told.
        member_sources: what each member of the ensemble reads (``generation.member_sources``), by default the line;
            none for an empty line.
        notes: messages for the user, for example about a truncation.
        sentences: the translations of the parts of a line that a line stage has divided, if there are several.
        extras: values of line stages, by name; each can be read as an attribute, too.
    """

    id: int
    source: str
    source_tokens: Tensor
    hypotheses: list[TextHypothesis] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    prefix: str = ""
    languages: Mapping[str, str] = field(default_factory=dict)
    member_sources: list[str] = field(default_factory=list)
    sentences: list[Translation] = field(default_factory=list)
    extras: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        extras = self.__dict__.get("extras", {})  # copy and pickle ask for attributes before there are any
        if name not in extras:
            raise AttributeError(f"a translation has no attribute {name!r}, and no line stage added it")
        value = extras[name]
        return value.of(self) if isinstance(value, Computed) else value

    def with_extra(self, name: str, value: Any) -> Translation:
        """The translation with a value of a line stage.

        Args:
            name: the value's name.
            value: the value, or how it is computed.
        """
        return replace(self, extras={**self.extras, name: value})

    @property
    def text(self) -> str:
        """The text of the best hypothesis with a space for each newline; ``hypotheses[0].text`` keeps the newlines."""
        return on_one_line(self.hypotheses[0].text) if self.hypotheses else ""

    @property
    def score(self) -> float:
        """The score of the best hypothesis; minus infinity if there is none."""
        return self.hypotheses[0].score if self.hypotheses else float("-inf")

    @property
    def num_tokens(self) -> int:
        """The tokens of the best hypothesis; 0 if there is none."""
        return len(self.hypotheses[0].tokens) if self.hypotheses else 0


DecodedLine: TypeAlias = tuple[Translation, list[TextHypothesis]]
"""A line without hypotheses, and its hypotheses as the search or rewriters order them; at least one."""


def attend_to_source(hypothesis: Hypothesis, width: int, length: int, left_pad: bool) -> Hypothesis:
    """Remove the columns of padding from the attention, and compute the alignment.

    With a width of 5 and a length of 3, columns 0 to 2 are the source, or columns 2 to 4 if padding is on the left.
    No token is aligned with end-of-sentence, the last source position, because it is not a word.

    Args:
        hypothesis: a hypothesis of this source.
        width: number of columns of the batch's source.
        length: number of source tokens of this sentence, end-of-sentence included.
        left_pad: whether padding is on the left.

    Returns:
        The hypothesis with its attention ``(T, length)`` and alignment ``(T,)``; without both if its attention has
        another width, because it is over the source of another member.
    """
    attention = hypothesis.attention
    if attention is None or attention.size(1) != width:
        return replace(hypothesis, attention=None, alignment=None)
    attention = attention[:, width - length :] if left_pad else attention[:, :length]
    return replace(hypothesis, attention=attention, alignment=attention[:, : max(1, length - 1)].argmax(-1))


@dataclass(frozen=True)
class Details:
    """The optional fields of hypotheses that are computed; see ``TextHypothesis``.

    Attributes:
        attention: attention and alignment.
        scores: ``model_score`` and ``member_scores``; requires another pass of the models over the hypotheses.
        hidden: ``hidden``; requires another pass, too.
        internals: ``internals``; requires another pass, too.
    """

    attention: bool = False
    scores: bool = False
    hidden: bool = False
    internals: bool = False

    @property
    def rescores(self) -> bool:
        """True if the models make another pass over the hypotheses."""
        return self.scores or self.hidden or self.internals

    def added(
        self, items: Sequence[TextHypothesis], batch: Batch, scorer: SequenceScorer, ranking: Ranking
    ) -> list[TextHypothesis]:
        """Fill the optional fields of hypotheses.

        Args:
            items: the hypotheses.
            batch: the source of each, with the hypothesis as target.
            scorer: makes the passes.
            ranking: the rule that turns log-probabilities into a score.

        Returns:
            The hypotheses with these fields.
        """
        lengths, further = [len(item.tokens) for item in items], [dict[str, Any]() for _ in items]
        if self.scores:
            for item, values, one in zip(items, further, scorer.score(batch, lengths), strict=True):
                positional = one.hypothesis.positional_scores
                score = float(ranking.score(positional.sum(), len(positional)))
                values |= {"model_score": score, "member_scores": one.member_scores}
                if not len(item.positional_scores):  # the search did not find it
                    values |= {"score": score, "positional_scores": positional}
        if self.hidden:
            features = scorer.features(batch)
            for row, (values, length) in enumerate(zip(further, lengths, strict=True)):
                values["hidden"] = [rows[row, :length] for rows in features]
        if self.internals:
            for values, internals in zip(further, scorer.internals(batch, lengths), strict=True):
                values["internals"] = internals
        return [replace(item, **values) for item, values in zip(items, further, strict=True)]
