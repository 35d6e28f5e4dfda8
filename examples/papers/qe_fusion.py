"""QE-fusion (Vernikos and Popescu-Belis 2024, "Don't Rank, Combine! Combining Machine Translation Hypotheses Using
Quality Estimation").

The candidate with the highest quality is the base. Where other candidates differ from it, their words may stand in its
place: of ``a b c`` and ``a x c y``, the spans are ``b`` or ``x``, and nothing or ``y``. The spans are decided from left
to right; after each one, the ``beam`` fusions of the highest quality remain::

    F(0) = {base};   F(i) = best ``beam`` of F(i-1) and of its fusions with each alternative of span i

The quality of a text is its mean utility with all candidates as references. A quality estimator is a utility that reads
the source and no reference. Each step rates the new texts of many lines in one call. The reranker ``fusion`` ranks by
the same quality, so that the fused output comes first::

    seqgen-generate common.user_dir=examples/papers/qe_fusion.py path=runs/a input=test.en
        generation.sampling=true generation.epsilon_cutoff=0.02 generation.beam=16
        generation.rewriters=[qe_fusion] rewriter.qe_fusion.utility=chrf
        generation.rerank=fusion reranker.utility=chrf

The output is at least as good as the best candidate, by the utility; it helps most if candidates are diverse. The paper
finds a span in the text of a fusion by its neighbours; here, it is known by its position, so that overlapping spans are
never both exchanged.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple, Self

from seqgen import GenerationConfig
from seqgen.addons.rewriting import Rewriter
from seqgen.extend import (
    DecodedLine,
    Reranker,
    Resources,
    Utility,
    UtilityLine,
    compare_texts,
    option,
    register_reranker,
    register_rewriter,
    utility_from_config,
)

FUSED = ("qe_fusion", "QualityFusion")
"""The origins of fusions."""


def qualities(utility: Utility, lines: Sequence[tuple[DecodedLine, Sequence[str]]]) -> list[list[float]]:
    """The quality of some texts of each line, with the hypotheses that are no fusions as the candidates."""
    rated = [
        UtilityLine(line.member_sources[0], texts, [item.text for item in found if item.origin not in FUSED])
        for (line, found), texts in lines
    ]
    return [matrix.mean(1).tolist() for matrix in compare_texts(utility, rated)]


class Edit(NamedTuple):
    """Words in place of ``start`` to ``stop`` of the base; ``start == stop`` if they are inserted."""

    start: int
    stop: int
    words: tuple[str, ...]


def differences(base: Sequence[str], others: Sequence[Sequence[str]]) -> list[list[Edit]]:
    """The spans of the base where others differ from it, from left to right, each with its alternatives."""
    edits = dict[Edit, None]()
    for other in others:
        codes = SequenceMatcher(None, base, other, autojunk=False).get_opcodes()
        edits |= {Edit(a, b, tuple(other[c:d])): None for kind, a, b, c, d in codes if kind != "equal"}
    spans = sorted({edit[:2] for edit in edits})
    return [[edit for edit in edits if edit[:2] == span] for span in spans]


def applied(base: Sequence[str], edits: Sequence[Edit]) -> str:
    """The text of a fusion.

    Args:
        base: the words of the base.
        edits: from left to right, without overlap.
    """
    words = list(base)
    for edit in reversed(edits):
        words[edit.start : edit.stop] = edit.words
    return " ".join(words)


def fuse(candidates: Sequence[str], beam: int) -> Generator[list[str], Sequence[float], str]:
    """Fuse the candidates of one line.

    Args:
        candidates: outputs; at least one.
        beam: fusions that remain after each span.

    Yields:
        Texts; it expects the quality of each.

    Returns:
        The best fusion.
    """
    texts = list(dict.fromkeys(" ".join(text.split()) for text in candidates))
    values = dict(zip(texts, (yield texts), strict=True))
    texts.sort(key=lambda text: -values[text])
    base, *others = (text.split() for text in texts)
    fusions: dict[str, tuple[Edit, ...]] = {texts[0]: ()}
    for alternatives in differences(base, others):
        pairs = [(edits, new) for edits in fusions.values() for new in alternatives]
        for edits in [(*edits, new) for edits, new in pairs if not edits or edits[-1].stop <= new.start]:
            fusions.setdefault(applied(base, edits), edits)
        if new_texts := [text for text in fusions if text not in values]:
            values |= dict(zip(new_texts, (yield new_texts), strict=True))
        fusions = {text: fusions[text] for text in sorted(fusions, key=lambda text: -values[text])[:beam]}
    return next(iter(fusions))


@dataclass
class FusionConfig:
    """Configuration of the rewriter; its fields are the keys ``rewriter.qe_fusion.FIELD``."""

    utility: str = option("chrf", "name of the utility")
    beam: int = option(5, "fusions that remain after each span", minimum=1)


@register_rewriter("qe_fusion", config=FusionConfig)
class QualityFusion(Rewriter):
    """Adds the best fusion of the hypotheses of a line.

    Args:
        utility: rates texts.
        beam: fusions that remain after each span.
    """

    def __init__(self, utility: Utility, beam: int = 5):
        self.utility, self.beam = utility, beam

    @classmethod
    def build(cls, cfg: FusionConfig, resources: Resources) -> Self:
        """See ``Component``."""
        return cls(utility_from_config(GenerationConfig(mbr=cfg.utility), resources), cfg.beam)

    def __call__(self, lines: Sequence[DecodedLine]) -> list[list[str]]:
        """See ``Rewriter``; the steps of all lines are done together."""
        found: list[list[str]] = [[] for _ in lines]
        running = {i: fuse([item.text for item in hypotheses], self.beam) for i, (_, hypotheses) in enumerate(lines)}
        asked = {i: next(fusing) for i, fusing in running.items()}
        while asked:
            answers = zip(asked, qualities(self.utility, [(lines[i], asked[i]) for i in asked]), strict=True)
            asked = {}
            for i, values in answers:
                try:
                    asked[i] = running[i].send(values)
                except StopIteration as done:
                    found[i] = [done.value]
        return found


@dataclass
class FusionRerankerConfig:
    """Configuration of the reranker; its fields are the keys ``reranker.FIELD``."""

    utility: str = option("chrf", "as for the rewriter qe_fusion")


@register_reranker("fusion", config=FusionRerankerConfig)
class FusionReranker(Reranker):
    """Ranks hypotheses by their quality, with those that are no fusions as the candidates.

    Args:
        utility: rates texts.
    """

    def __init__(self, utility: Utility):
        self.utility = utility

    @classmethod
    def build(cls, cfg: FusionRerankerConfig, resources: Resources) -> Self:
        """See ``Component``."""
        return cls(utility_from_config(GenerationConfig(mbr=cfg.utility), resources))

    def of_lines(self, lines: Sequence[DecodedLine]) -> list[Sequence[float]]:
        """See ``Reranker``."""
        return [*qualities(self.utility, [(line, [item.text for item in line[1]]) for line in lines])]
