"""Token healing: the last token of a prefix is generated again (Lundberg 2023, "The Art of Prompt Design: Prompt
Boundaries and Token Healing", an article on the library guidance).

A prefix that ends inside a word has tokens t_1 ... t_n, of which the last one is rarely followed by the rest of the
word in training text. Only the first n - 1 are forced. With text(v), what token v adds to the output, then

    score(v) = log p(v | x, t_1 ... t_(n-1)) if text(v) begins with text(t_n), else -inf

and the output continues freely after it. It still begins with the text of the prefix.

``seqgen-generate common.user_dir=examples/papers/token_healing.py path=runs/a input=test.en
generation.processors=[token_healing] processor.token_healing.prefixes=beginnings14.de``

The file has one prefix for each line of the input; an empty line means no prefix. Do not give other prefixes too, which
are forced token by token. Expect completed words where a forced prefix ends inside a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from seqgen.extend import (
    ConfigError,
    LogitsProcessor,
    Resources,
    StepContext,
    option,
    read_lines,
    register_logits_processor,
)


@dataclass
class TokenHealingConfig:
    """Configuration of the processor; its fields are the keys ``processor.token_healing.FIELD``."""

    prefixes: str = option("", "file with one prefix for each line of the input", role="input_path")


class TokenTexts:
    """The text that each ordinary token adds to the output: at its beginning (``first``), or later.

    Args:
        resources: the target vocabulary and its tokenizer.

    Raises:
        ConfigError: there is no tokenizer.
    """

    def __init__(self, resources: Resources):
        words, decode = resources.dictionary, resources.decode
        if decode is None:
            raise ConfigError("a processor that reads text needs a tokenizer of the target language")
        special = {words.pad(), words.bos(), words.unk(), words.eos(), *resources.extra_end_tokens}
        ordinary = [token for token in range(len(words)) if token not in special]
        self.first = {token: decode([token]) for token in ordinary}
        anchor = next((token for token in ordinary if self.first[token].strip()), 0)
        skipped = len(decode([anchor]))
        self.later = {token: decode([anchor, token])[skipped:] for token in ordinary}


@register_logits_processor("token_healing", config=TokenHealingConfig)
class TokenHealing(LogitsProcessor):
    """Forces all tokens of a prefix except the last one, and then a token whose text begins with that of the last one.

    Args:
        prefixes: the ids of the prefix of each input line.
        texts: the text of each token.
    """

    shift_invariant = True  # it only forbids tokens
    can_merge = True  # it uses context.steps and the line numbers of sentences

    def __init__(self, prefixes: Sequence[Sequence[int]], texts: TokenTexts):
        self.prefixes, self.texts = prefixes, texts

    @classmethod
    def build(cls, cfg: TokenHealingConfig, resources: Resources) -> Self:
        """Make the processor; it needs the tokenizer, so the default ``build`` is not enough."""
        texts = TokenTexts(resources)
        if not cfg.prefixes or not Path(cfg.prefixes).is_file():
            raise ConfigError(f"processor.token_healing.prefixes={cfg.prefixes}: no such file; give a file of prefixes")
        lines = read_lines(Path(cfg.prefixes))
        return cls([resources.phrase(line) if line.strip() else () for line in lines], texts)

    def __call__(self, lprobs: Tensor, context: StepContext) -> Tensor:
        """Change the ``(rows, V)`` scores of the next token."""
        allowed = torch.ones_like(lprobs, dtype=torch.bool)
        places = zip(context.sentence_ids.tolist(), context.steps.tolist(), strict=True)
        for row, (sentence, step) in enumerate(places):
            if sentence >= len(self.prefixes):
                raise ConfigError("processor.token_healing.prefixes has fewer lines than the input; give one for each")
            if step < len(self.prefixes[sentence]):
                allowed[row] = False
                allowed[row, self.choices(self.prefixes[sentence], step)] = True
        return lprobs.masked_fill(~allowed, -torch.inf)

    def choices(self, prefix: Sequence[int], step: int) -> list[int]:
        """The tokens that may follow the first ``step`` tokens of a prefix."""
        if step < len(prefix) - 1:
            return [prefix[step]]
        texts = self.texts.later if step else self.texts.first
        return [token for token, text in texts.items() if text.startswith(texts[prefix[step]])]
