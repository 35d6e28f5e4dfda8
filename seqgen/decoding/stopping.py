"""Stopping rules: texts that end an output, and a time limit."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from seqgen.config import GenerationConfig
from seqgen.core.component import BatchInfo
from seqgen.core.context import StepContext
from seqgen.core.errors import ConfigError
from seqgen.core.rules import StoppingRule
from seqgen.data.tokenizers.base import Tokenizer
from seqgen.decoding.building import Resources, build_component
from seqgen.registry import STOPPING_RULES


class TimeLimit(StoppingRule):
    """Ends all outputs of a batch after some time.

    Args:
        seconds: time that a batch may take.
        clock: returns the time in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        self.seconds, self.clock = seconds, clock
        self.since = clock()

    def begin(self, batch: BatchInfo) -> Self:
        """See ``Component.begin``; the time starts here."""
        rule = super().begin(batch)
        rule.since = self.clock()
        return rule

    def __call__(self, tokens: Tensor, context: StepContext) -> Tensor:
        """See ``StoppingRule``."""
        self.expired = self.clock() - self.since > self.seconds
        return tokens.new_full((tokens.size(0),), self.expired, dtype=torch.bool)


class StopStrings(StoppingRule):
    """Ends an output as soon as its text contains one of the given texts.

    Only occurrences that overlap the newest token count. With ``|`` between tokens, ``stop`` occurs in ``st|op`` and in
    ``la|stopper``. Special tokens are part of the text.

    Args:
        texts: the texts that end an output.
        decode: turns ids into text.
        before: ids of a text that is put before each output when it is decoded, so that the tokenizer keeps a space at
            the beginning of the output; stop texts are not searched in it.
        special_text: turns the id of a special token, which ``decode`` leaves out, into its string, and any other id
            into an empty one; by default, there are no special tokens.
    """

    can_merge = True

    def __init__(
        self,
        texts: Sequence[str],
        decode: Callable[[Sequence[int]], str],
        before: Sequence[int] = (),
        special_text: Callable[[int], str] = lambda index: "",
    ):
        self.texts = list(texts)
        self.decode, self.before = decode, list(before)
        self._special_text = functools.cache(special_text)
        self._hidden = len(decode(self.before)) if self.before else 0
        # a token that is part of the text has at least one byte, so that this many tokens contain the longest text
        self._window = max(len(text.encode()) for text in self.texts)
        self._may_complete: dict[int, bool] = {}

    def __call__(self, tokens: Tensor, context: StepContext) -> Tensor:
        """See ``StoppingRule``."""
        newest = tokens[:, -1].tolist()
        rows = [row for row, token in enumerate(newest) if self.may_complete(token)]
        found = torch.zeros(tokens.size(0), dtype=torch.bool)
        if rows:
            tails = tokens[rows, -self._window :].tolist()
            if context.has_joined:  # columns before the first step of a sentence are not its own
                tails = [tail[-size:] for tail, size in zip(tails, (context.steps + 1)[rows].tolist(), strict=True)]
            found[rows] = torch.tensor([self.completes(tail) for tail in tails])
        return found.to(tokens.device)

    def may_complete(self, token: int) -> bool:
        """True if an occurrence can end in this token. Rows that end with other tokens, most rows, are not decoded."""
        if token not in self._may_complete:
            piece = self._text([token])
            # a token that is part of a UTF-8 character cannot be decoded alone
            unclear = not piece or "\ufffd" in piece
            self._may_complete[token] = unclear or any(_overlaps(piece, text) for text in self.texts)
        return self._may_complete[token]

    def completes(self, tail: Sequence[int]) -> bool:
        """True if the last token completes one of the texts.

        Args:
            tail: the newest tokens, as many as the longest text can have.
        """
        before, text = self._text(tail[:-1]), self._text(tail)
        common = next((i for i, pair in enumerate(zip(before, text, strict=False)) if pair[0] != pair[1]), len(before))
        # an occurrence of "stop" that reaches beyond "...st" begins at most 3 characters before the end of "...st"
        return any(text.find(wanted, max(0, common - len(wanted) + 1)) >= 0 for wanted in self.texts)

    def _text(self, ids: Sequence[int]) -> str:
        """The text of some tokens, each special token as its string."""
        runs = itertools.groupby(ids, self._special_text)
        return "".join(
            special * len(list(run)) if special else self.decode([*self.before, *run])[self._hidden :]
            for special, run in runs
        )


def stopping_from_config(
    cfg: GenerationConfig, resources: Resources, tokenizer: Tokenizer | None = None
) -> list[StoppingRule]:
    """The stopping rules that a configuration asks for.

    Args:
        cfg: the configuration; ``resources`` has its ``end_symbols``.
        resources: what the rules may use.
        tokenizer: that of the target language; needed for ``stop_strings``.

    Raises:
        ConfigError: a name is not registered, a stop string is empty, or there is no tokenizer for them.
    """
    found: list[StoppingRule] = []
    if cfg.stop_strings:
        if "" in cfg.stop_strings:
            raise ConfigError("generation.stop_strings: an empty text would end every output at once; remove it")
        if tokenizer is None:
            raise ConfigError("generation.stop_strings needs the target tokenizer; use generation.end_symbols instead")
        of_text = (tokenizer.decode, tokenizer.encode("abc"), tokenizer.special_text)
        found.append(StopStrings(cfg.stop_strings, *of_text))
    if cfg.max_time:
        found.append(TimeLimit(cfg.max_time))
    return found + [build_component(STOPPING_RULES, name, StoppingRule, cfg, resources) for name in cfg.stopping_rules]


def _overlaps(piece: str, text: str) -> bool:
    """True if ``text`` can end inside ``piece``: ``piece`` contains it, or begins with one of its suffixes."""
    return text in piece or any(text.endswith(piece[:size]) for size in range(1, min(len(piece), len(text)) + 1))
