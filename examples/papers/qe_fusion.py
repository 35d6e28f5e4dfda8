"""QE-fusion (Vernikos and Popescu-Belis 2024, "Don't Rank, Combine! Combining Machine Translation Hypotheses Using
Quality Estimation").

The candidate that a judge prefers is the base. Where other candidates differ from it, their words may stand in its
place: of ``a b c`` and ``a x c y``, the spans are ``b`` or ``x``, and nothing or ``y``. The spans are decided from left
to right; after each one, the ``beam`` best fusions remain, as the judge values the whole text::

    F(0) = {base};   F(i) = best ``beam`` of F(i-1) and of its fusions with each alternative of span i

The judge is a quality estimator that reads the source, registered in a copy of this file with ``@judge(NAME)``, as
``length_ratio`` below; or a utility by its name, whose mean against all candidates counts (minimum Bayes risk). Each
step judges the new texts of many lines in one call. The reranker ``fusion_judge`` ranks by the same judge, so that the
fused output comes first::

    seqgen-generate common.user_dir=examples/papers/qe_fusion.py path=runs/a input=test.en
        generation.sampling=true generation.epsilon_cutoff=0.02 generation.beam=16
        generation.rewriters=[qe_fusion] rewriter.qe_fusion.judge=chrf
        generation.rerank=fusion_judge reranker.judge=chrf

The output is at least as good as the best candidate, by the judge; it helps most if candidates are diverse. The paper
finds a span in the text of a fusion by its neighbours; here, it is known by its position, so that overlapping spans are
never both exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple, Self

from seqgen import GenerationConfig
from seqgen.addons.rewriting import Rewriter
from seqgen.extend import (
    DecodedLine,
    Reranker,
    Resources,
    TextHypothesis,
    Translation,
    UtilityLine,
    compare_texts,
    option,
    register_reranker,
    register_rewriter,
    utility_from_config,
)

Judge = Callable[[Sequence[UtilityLine]], Sequence[Sequence[float]]]
"""A function of some lines, whose references are the candidates, to a value of each text; the larger, the better."""

FUSED = ("qe_fusion", "QualityFusion")
"""The origins of fusions."""

JUDGES: dict[str, Judge] = {}
"""The registered judges, by name."""


def judge(name: str) -> Callable[[Judge], Judge]:
    """Register a judge, with ``@judge(NAME)``."""

    def register(function: Judge) -> Judge:
        JUDGES[name] = function
        return function

    return register


@judge("length_ratio")
def length_ratio(lines: Sequence[UtilityLine]) -> list[list[float]]:
    """Minus the distance of the ratio of the numbers of words from 1, as an example."""
    ratios = [[len(text.split()) / (1 + len(line.source.split())) for text in line.texts] for line in lines]
    return [[-abs(ratio - 1) for ratio in row] for row in ratios]


def judge_from_config(name: str, resources: Resources) -> Judge:
    """A registered judge; or the mean utility of each text, with the candidates as references.

    Raises:
        ConfigError: there is neither a judge nor a utility of this name.
    """
    if name in JUDGES:
        return JUDGES[name]
    utility = utility_from_config(GenerationConfig(mbr=name), resources)

    return lambda lines: [found.mean(1).tolist() for found in compare_texts(utility, lines)]


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
        Texts to be judged; it expects a value of each.

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

    judge: str = option("chrf", "name of a judge: length_ratio or your own; or of a utility")
    beam: int = option(5, "fusions that remain after each span", minimum=1)


@register_rewriter("qe_fusion", config=FusionConfig)
class QualityFusion(Rewriter):
    """Adds the best fusion of the hypotheses of a line.

    Args:
        judge: values texts.
        beam: fusions that remain after each span.
    """

    def __init__(self, judge: Judge, beam: int = 5):
        self.judge, self.beam = judge, beam

    @classmethod
    def build(cls, cfg: FusionConfig, resources: Resources) -> Self:
        """See ``Component``."""
        return cls(judge_from_config(cfg.judge, resources), cfg.beam)

    def __call__(self, lines: Sequence[DecodedLine]) -> list[list[str]]:
        """See ``Rewriter``; the steps of all lines are done together."""
        found: list[list[str]] = [[] for _ in lines]
        running = {i: fuse([item.text for item in hypotheses], self.beam) for i, (_, hypotheses) in enumerate(lines)}
        asked = {i: next(fusing) for i, fusing in running.items()}
        while asked:
            some = [_judged(*lines[i], texts) for i, texts in asked.items()]
            answers = zip(asked, self.judge(some), strict=True)
            asked = {}
            for i, values in answers:
                try:
                    asked[i] = running[i].send(values)
                except StopIteration as done:
                    found[i] = [done.value]
        return found


@dataclass
class JudgeConfig:
    """Configuration of the reranker; its fields are the keys ``reranker.FIELD``."""

    judge: str = option("chrf", "as for the rewriter qe_fusion")


@register_reranker("fusion_judge", config=JudgeConfig)
class JudgedFusion(Reranker):
    """Ranks hypotheses by the judge, with those of the search as the candidates.

    Args:
        judge: values texts.
    """

    def __init__(self, judge: Judge):
        self.judge = judge

    @classmethod
    def build(cls, cfg: JudgeConfig, resources: Resources) -> Self:
        """See ``Component``."""
        return cls(judge_from_config(cfg.judge, resources))

    def of_lines(self, lines: Sequence[DecodedLine]) -> list[Sequence[float]]:
        """See ``Reranker``."""
        return list(self.judge([_judged(*line, [item.text for item in line[1]]) for line in lines]))


def _judged(line: Translation, found: Sequence[TextHypothesis], texts: Sequence[str]) -> UtilityLine:
    return UtilityLine(line.member_sources[0], texts, [item.text for item in found if item.origin not in FUSED])
