"""The scores of known targets: of lines with their sources, and of running text in blocks under language models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seqgen.core.errors import ConfigError, DataError
from seqgen.core.member import INPUT
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Hypothesis
from seqgen.decoding.building import Resources
from seqgen.decoding.scorer import SequenceScorer
from seqgen.modules.language_model import LanguageModel
from seqgen.text.batching import collate
from seqgen.text.input_line import InputLine, output_room, source_text, sources_from_config
from seqgen.text.languages import LanguageReader, encode_source, encode_target
from seqgen.text.members import TextModel


class Block(NamedTuple):
    """Consecutive tokens of a text.

    Attributes:
        first: index of the first token of the context.
        start: index of the first token that is scored.
        stop: index after the last token.
    """

    first: int
    start: int
    stop: int


def blocks(length: int, tokens_per_sample: int, context_window: int) -> list[Block]:
    """Cut a text into blocks, as fairseq's ``eval_lm`` does.

    A text of 7 tokens with ``tokens_per_sample=5`` and ``context_window=2``: the tokens 0 to 2 are scored; 3 to 5 are
    scored after 1 and 2; 6 is scored after 4 and 5.

    Args:
        length: tokens of the text.
        tokens_per_sample: most tokens of a block, context included.
        context_window: most tokens of the context, below ``tokens_per_sample``.

    Returns:
        The blocks, in order; each token is scored in one of them.
    """
    step = tokens_per_sample - context_window
    starts = range(0, length, step)
    return [Block(max(0, start - context_window), start, min(start + step, length)) for start in starts]


_SCORES = 2**27
"""Most scores that a batch computes, unless one target needs more: each token needs one for every vocabulary entry."""


class TextScoring:
    """Scores known targets with one model or an ensemble, in batches.

    Args:
        members: the models, each with the task that encodes its source.
        resources: what the sources of members may use, with the settings and the device.
        scorer: the scorer of all models.
    """

    def __init__(self, members: Sequence[TextModel], resources: Resources, scorer: SequenceScorer):
        self.members, self.cfg, self.scorer, self.device = members, resources.settings, scorer, resources.device
        self.sources = sources_from_config(self.cfg, resources) or [INPUT] * len(members)
        self.task, self.languages = members[0].task, LanguageReader(members, self.cfg)
        self.tokens_at_once = _SCORES // len(self.task.target_dictionary)

    def lines(self, sources: Sequence[str], references: Sequence[str], numbers: Sequence[int]) -> Iterator[Hypothesis]:
        """Score one target for each source line; see ``Translator.score``."""
        for start in range(0, len(sources), self.cfg.batch_size):
            rows = list[tuple[InputLine, Tensor]]()
            for i in range(start, min(start + self.cfg.batch_size, len(sources))):
                text, languages = self.languages.read(i, sources[i])
                text, columns = self.task.split_columns(text, numbers[i]) if text.strip() else (text, {})
                texts = [source_text(source, text, numbers[i]) for source in self.sources]
                pairs = zip(self.members, texts, strict=True)
                ids = [encode_source(member.task, each, languages) for member, each in pairs]
                target = encode_target(self.task, references[i], languages)
                self._check_lengths(i + 1, ids, target)
                rows.append((InputLine(numbers[i], text, ids, languages=languages, columns=columns), target))
            at_once = max(1, self.tokens_at_once // max(len(target) for _, target in rows))
            for first in range(0, len(rows), at_once):
                batch = collate(rows[first : first + at_once], self.members, self.languages)
                yield from (hypotheses[0] for hypotheses in self.scorer.generate(batch.to(self.device)))

    def _check_lengths(self, number: int, sources: Sequence[Tensor], target: Tensor) -> None:
        """Refuse a line, counted from 1, that is longer than a model can process."""
        for member, source in zip(self.members, sources, strict=True):
            longest, most = member.model.max_positions()
            most = most if (room := output_room(member, source)) is None else room
            for side, tokens, limit in (("source", source, longest), ("reference", target, most)):
                if len(tokens) > limit:
                    raise DataError(
                        f"{side}, line {number}: {len(tokens)} tokens are more than the {limit} that the model can "
                        "process; shorten the line"
                    )

    def running_text(self, lines: Sequence[str], tokens_per_sample: int, context_window: int) -> Iterator[Hypothesis]:
        """Score lines as one text, in blocks; see ``Translator.score_text``.

        The source of a block is the token before its context, which the model sees too.
        """
        encoded = [self.task.encode_target(line) for line in lines]
        # token i of the text is in column i + 1, after the one before it
        text = torch.cat([self.task.encode_source("")[-1:], *encoded])
        scores = torch.zeros(len(text) - 1)
        cut = blocks(len(scores), tokens_per_sample, context_window)
        rows = max(1, min(self.cfg.batch_size, self.tokens_at_once // tokens_per_sample))
        for begin in range(0, len(cut), rows):
            some, examples = cut[begin : begin + rows], []
            for number, block in enumerate(some, begin):
                line = InputLine(number, "", [text[block.first : block.first + 1]] * len(self.members))
                examples.append((line, text[block.first + 1 : block.stop + 1]))
            batch = collate(examples, self.members, self.languages).to(self.device)
            scored = self.scorer.score(batch, [block.stop - block.first for block in some])
            for block, one in zip(some, scored, strict=True):
                scores[block.start : block.stop] = one.hypothesis.positional_scores[block.start - block.first :]
        for tokens, found in zip(encoded, scores.split([len(line) for line in encoded]), strict=True):
            total = float(found.sum())
            yield Hypothesis(tokens, total / len(tokens) if self.cfg.normalize_scores else total, found)


def check_blocks(models: Sequence[EncoderDecoderModel], tokens_per_sample: int, context_window: int) -> None:
    """Refuse to score running text by a model that needs a source, or in blocks that it cannot read.

    Args:
        models: the models.
        tokens_per_sample: tokens of each block; 0 if each line is scored alone.
        context_window: tokens of each block that are context.

    Raises:
        ConfigError: says what is wrong.
    """
    if not all(isinstance(model, LanguageModel) for model in models):
        raise ConfigError("text without sources is scored by language models only; give the sources too")
    longest = min(model.max_positions()[1] for model in models)
    if tokens_per_sample > longest:
        raise ConfigError(f"tokens_per_sample={tokens_per_sample} is more than the {longest} positions of the model")
    if not 0 <= context_window <= max(0, tokens_per_sample - 1):
        raise ConfigError(
            f"context_window={context_window} must be at least 0 and less than tokens_per_sample={tokens_per_sample}, "
            "or no token of a block is scored; change one of them"
        )
