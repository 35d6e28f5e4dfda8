"""The line stage of ``generation.rewriters``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, TypeAlias, cast

import torch

import seqgen.extend as api
from seqgen.config import LISTS_OUTPUTS, keys_tagged

Returned: TypeAlias = api.TextHypothesis | str


class Rewriter(api.Component):
    """Adds hypotheses that the search did not find; a subclass implements ``__call__``.

    Rewriters registered with ``@register_rewriter`` are selected by name (``generation.rewriters=[NAME]``), and run in
    this order, before hypotheses are ranked. The models that decode score what they add, without processors.
    """

    setting = "rewriters"

    def __call__(self, lines: Sequence[api.DecodedLine]) -> Sequence[Sequence[Returned]]:
        """Make hypotheses of some lines.

        Args:
            lines: the lines, to whose notes may be added, with their hypotheses, in the order of the search until one
                is added, then by score.

        Returns:
            For each line what is added: texts; or hypotheses, of which ``tokens`` (the text is tokenized if there are
            none), ``text`` and ``origin`` are read. What is there already, by text or tokens, is not added again.
        """
        raise NotImplementedError


@api.register_line_stage("rewriting")
class RewritingStage(api.LineStage):
    """Calls the rewriters in their order.

    Args:
        rewriters: the rewriters, with their names.
        task: tokenizes texts.
    """

    key = "rewriters"

    def __init__(self, rewriters: Sequence[tuple[str, Rewriter]], task: api.Task):
        self.rewriters, self.task = rewriters, task

    @classmethod
    def build(cls, cfg: api.GenerationConfig, resources: api.Resources) -> RewritingStage:
        """Build the rewriters; see ``LineStage``."""
        for key in (*keys_tagged(LISTS_OUTPUTS), "coverage_penalty", "top_tokens"):
            if getattr(cfg, key):
                raise api.ConfigError(f"generation.{key} is about outputs of the search; remove generation.rewriters")
        registry, _ = api.DECODING_COMPONENTS["rewriter"]
        named = [(name, api.build_component(registry, name, Rewriter, cfg, resources)) for name in cfg.rewriters]
        objects = [(type(each).__name__, each) for each in resources.objects.get("rewriters", ())]
        return cls([*named, *objects], resources.models[0].task)

    def rewrite(self, lines: Sequence[api.InputLine], decoded: Sequence[api.DecodedLine], score: api.Score) -> None:
        """Add what rewriters return, if it is new, in the order of scores; see ``LineStage``."""
        for name, rewriter in self.rewriters:
            returned = rewriter([(translation, list(found)) for translation, found in decoded])
            _check(rewriter, returned, len(lines))
            new = [self._new(*given, name) for given in zip(lines, decoded, returned, strict=True)]
            scored = iter(score([(line, item) for line, items in zip(lines, new, strict=True) for item in items]))
            for (_, found), items in zip(decoded, new, strict=True):
                if items:
                    found[:] = sorted([*found, *islice(scored, len(items))], key=lambda item: -item.score)

    def _new(
        self, line: api.InputLine, decoded: api.DecodedLine, returned: Sequence[Returned], name: str
    ) -> list[api.TextHypothesis]:
        """What is not there yet and may be an output of the line; it has no scores."""
        translation, found = decoded
        known = {key for item in found for key in (item.text, tuple(item.tokens.tolist()))}
        none, new, refused = torch.empty(0), [], 0
        for each in returned:
            item = api.TextHypothesis(none, 0.0, none, text=each) if isinstance(each, str) else each
            if item.text in known:
                continue
            ids = item.tokens if len(item.tokens) else api.encode_target(self.task, item.text, line.languages)
            if (tokens := tuple(ids.tolist())) in known:
                continue
            known |= {item.text, tokens}
            origin = f"{name}:{item.origin}" if item.origin else name
            if _allowed(tokens, line):
                new.append(api.TextHypothesis(ids, 0.0, none, text=item.text, origin=origin))
            else:
                refused += 1
        if refused:
            of_all = f"{refused} of {len(returned)} outputs of the rewriter {name}"
            translation.notes.append(f"{of_all} are left out: without the prefix or a phrase, or too long")
        return new


def _check(rewriter: Rewriter, returned: Any, lines: int) -> None:
    rows = returned if isinstance(returned, list | tuple) else [None]
    items = [each for row in rows for each in (row if isinstance(row, list | tuple) else [None])]
    if len(rows) != lines or not all(isinstance(each, api.TextHypothesis | str) for each in items):
        what = f"must return a list of texts or hypotheses for each of {lines} lines but returns {api.shown(returned)}"
        raise api.contract_error(rewriter, "__call__", what)


def _allowed(tokens: Sequence[int], line: api.InputLine) -> bool:
    """True if an output is short enough, begins with the prefix of its line and has all phrases."""
    prefix, text, phrases = tuple(line.prefix_tokens), f" {' '.join(map(str, tokens))} ", cast("Any", line.phrases)
    whole = all(any(f" {' '.join(map(str, ids))} " in text for ids in phrase) for phrase in phrases)
    return len(tokens) <= line.longest_output + 1 and tokens[: len(prefix)] == prefix and whole
