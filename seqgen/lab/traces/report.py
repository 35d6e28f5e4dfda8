"""The report that ``seqgen-diff`` prints about a difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqgen.config.values import value_text
from seqgen.lab.traces.difference import (
    HYPOTHESIS_SCORE,
    SCORE,
    Decode,
    Difference,
    Explanation,
    Lines,
    LineTrace,
    differing_keys,
)
from seqgen.text.results import TextHypothesis

OUTCOMES = {
    "C": "continues",
    "F": "finished",
    "B": "below the beam",
    "E": "ended, but ranks too low",
}
ROWS = 10
"""Maximum number of candidates shown per step, if the difference is among them."""

TOKENS = 12
"""Maximum number of tokens shown per candidate: the newest ones."""


class Report:
    """Describes differences between two decodes.

    Args:
        first: the first decode.
        other: the other decode.
        tolerance: scores that differ by at most this value count as equal, in nats.
    """

    def __init__(self, first: Decode, other: Decode, tolerance: float):
        self.decodes, self.tolerance = {"first": first, "other": other}, tolerance
        self.dictionary = first.dictionary

    def text(self, lines: Lines, line: int, difference: Difference, why: Explanation | LineTrace) -> str:
        """The whole report about a line.

        Args:
            lines: the lines that were decoded together.
            line: number of the line that differs, from 0.
            difference: its first difference.
            why: the explanation; a trace if continuous batching changes the result of that decode.

        Returns:
            The report, without a newline at the end.
        """
        parts = [f"line {line + 1}: {lines.texts[line - lines.first]}"]
        if differing := self._differing():
            parts.append(f"different in the two decodes (first | other): {', '.join(differing)}")
        if isinstance(why, LineTrace):
            parts += [_where(difference), *_nbest("without continuous batching", why.hypotheses)]
            parts += [*_nbest("with continuous batching", why.joined or []), self._by_joining(difference)]
            return "\n".join(parts)
        parts.append(_where(difference))
        if difference.step is not None:
            for side, trace in zip(self.decodes, why.traces, strict=True):
                parts += self._candidates(side, trace, difference.step, difference.rank)
            parts += self._forbidden(why, difference.step, difference.rank)
        for side, trace in zip(self.decodes, why.traces, strict=True):
            parts += _nbest(side, trace.hypotheses)
        return "\n".join([*parts, *self._cause(difference, why)])

    def _differing(self) -> list[str]:
        first, other = self.decodes.values()
        models = [] if first.models is other.models else ["models"]
        return [*models, *map(self._key, differing_keys(first.settings, other.settings))]

    def _candidates(self, side: str, trace: LineTrace, step: int, rank: int) -> list[str]:
        """The candidates of a step, best first; ``>`` marks the rank of the difference."""
        if step >= len(trace.steps):
            return [f"{side}: the sentence was done before this step"]
        item = trace.steps[step]
        lines = [f"{side}: candidates of step {step} (the sentence is {'' if item.done else 'not '}done after it)"]
        lines.append(f"    {'rank':>4} {'beam':>4} {'score':>9} {'model':>9}  {'outcome':<24}  tokens")
        for row in range(min(len(item.tokens), max(ROWS, rank + 1))):
            letter = item.outcomes[row]
            if letter == "I":
                continue
            shown = OUTCOMES[letter] + (f" with {item.finished[row]:.4f}" if row in item.finished else "")
            model = "/".join(f"{member[row]:.4f}" for member in item.members) or "-"
            place = f"{'>' if row == rank else ' '} {row + 1:>4} {item.beams[row] + 1:>4}"
            text = self._tokens(trace.tokens(step, row))
            lines.append(f"  {place} {item.scores[row]:>9.4f} {model:>9}  {shown:<24}  {text}")
        return lines

    def _tokens(self, tokens: Sequence[int]) -> str:
        words = [self.dictionary.symbol(token) for token in tokens[-TOKENS:]]
        return ("... " if len(tokens) > TOKENS else "") + " ".join(words)

    def _forbidden(self, why: Explanation, step: int, rank: int) -> list[str]:
        """The processor of one decode that forbids the candidate of the other decode at this rank."""
        lines = []
        for side, trace, other in zip(self.decodes, why.traces, reversed(why.traces), strict=True):
            if step >= min(len(trace.steps), len(other.steps)) or rank >= len(other.steps[step].tokens):
                continue
            wanted = other.tokens(step, rank)
            for item in trace.steps[step].forbidden:
                if [*trace.history(step, item.beam), item.token] == wanted:
                    name = self.dictionary.symbol(item.token)
                    lines.append(f"{side}: {name} after beam {item.beam + 1} is forbidden by {item.by}")
        return lines

    def _cause(self, difference: Difference, why: Explanation) -> list[str]:
        lines = []
        same_models = self.decodes["first"].models is self.decodes["other"].models
        if why.model_gap == float("inf"):
            lines.append("the decodes have different numbers of models, or one forbids a token that the other allows")
        elif why.model_gap is not None:
            what = "largest difference between the models' log-probabilities of common candidates"
            lines.append(f"{what}: {why.model_gap:.3g} nats")
        if difference.size < float("inf"):
            lines.append(f"difference between the scores at this rank: {difference.size:.3g} nats")
        if difference.tie:
            lines.append(f"it is a tie: the scores are equal within tolerance={self.tolerance:g}, so rounding decides")
        if why.keys:
            lines.append(f"cause: {', '.join(self._key(key) for key in why.keys)}")
            values = "values of these keys" if len(why.keys) > 1 else "value of this key"
            lines.append(f"  with the other decode's {values}, the first decode agrees with it up to this difference")
            if all(key.startswith("debug.") for key in why.keys):
                lines.append(f"  {self._optimization(difference)}")
        elif not same_models:
            lines.append(
                "cause: the models, whose log-probabilities differ"
                if why.model_gap is not None
                else "cause: probably the models, whose log-probabilities at this difference are not known"
            )
        else:
            lines.append(
                "cause: not found; the decodes differ even if all their keys are equal, so one of them is not "
                "reproducible"
            )
        return lines

    def _key(self, key: str) -> str:
        """A key with both values, and whether they come from the model."""
        values = [decode.settings.get(key) for decode in self.decodes.values()]
        given = "." in key or any(key in decode.given for decode in self.decodes.values())
        name = key if "." in key else f"generation.{key}"
        return f"{name} ({_value(values[0])} | {_value(values[1])}{'' if given else ', taken from the model'})"

    def _optimization(self, difference: Difference) -> str:
        if difference.tie:
            return "the optimization changes rounding, which decides a tie"
        if difference.what in (SCORE, HYPOTHESIS_SCORE):
            return (
                f"the optimization changes a score by more than tolerance={self.tolerance:g}: because of rounding in a "
                "low-precision dtype, or because it has a bug"
            )
        return "the optimization changes the result by more than rounding, so it has a bug"

    def _by_joining(self, difference: Difference) -> str:
        tie = "; it is a tie, so rounding decides" if difference.tie else ""
        return (
            f"cause: debug.continuous_batching: the scores of the two lists differ by {difference.size:.3g} nats at "
            f"this rank{tie}"
        )


def _where(difference: Difference) -> str:
    if difference.step is None:
        return f"all steps agree; the n-best lists differ first at rank {difference.rank + 1}: {difference.what}"
    step, rank = difference.step, difference.rank + 1
    return f"first difference: step {step} (after {step} tokens), rank {rank}: {difference.what}"


def _nbest(side: str, hypotheses: Sequence[TextHypothesis]) -> list[str]:
    lines = [f"{side}: n-best list", f"    {'rank':>4} {'score':>9} {'model':>9}  text"]
    for rank, item in enumerate(hypotheses, start=1):
        model = "-" if item.model_score is None else f"{item.model_score:.4f}"
        lines.append(f"    {rank:>4} {item.score:>9.4f} {model:>9}  {item.text}")
    return lines


def _value(value: Any) -> str:
    return "not set" if value is None else value_text(value) or '""'
