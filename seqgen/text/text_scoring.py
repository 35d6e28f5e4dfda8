"""The scores of known targets: of lines with their sources, and of running text in blocks under language models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from seqgen.core.errors import ConfigError, DataError
from seqgen.core.member import INPUT
from seqgen.core.model import EncoderDecoderModel
from seqgen.core.structures import Batch, Hypothesis
from seqgen.data.pair_dataset import Example
from seqgen.data.tokenizers.languages import TargetLanguage
from seqgen.decoding.building import Resources
from seqgen.decoding.scorer import SequenceScorer
from seqgen.modules.language_model import LanguageModel
from seqgen.text.input_line import source_text, sources_from_config
from seqgen.text.languages import LanguageReader, TextModel, encode_source, encode_target, tokens_of


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
        self.task = members[0].task
        self.tokens_at_once = _SCORES // len(self.task.target_dictionary)

    def lines(self, sources: Sequence[str], references: Sequence[str], numbers: Sequence[int]) -> Iterator[Hypothesis]:
        """Score one target for each source line; see ``Translator.score``."""
        reader = LanguageReader(self.members, self.cfg)
        for start in range(0, len(sources), self.cfg.batch_size):
            rows = range(start, min(start + self.cfg.batch_size, len(sources)))
            texts, languages = zip(*(reader.read(i, sources[i]) for i in rows), strict=True)
            targets = [encode_target(self.task, references[i], pair) for i, pair in zip(rows, languages, strict=True)]
            ids = [numbers[i] for i in rows]
            encoded_sources = []
            for member, source in zip(self.members, self.sources, strict=True):
                encoded_sources.append(
                    [
                        encode_source(member.task, source_text(source, text, number), pair)
                        for text, number, pair in zip(texts, ids, languages, strict=True)
                    ]
                )
                _check_lengths(rows, encoded_sources[-1], targets, member.model)
            at_once = max(1, self.tokens_at_once // max(map(len, targets)))
            for part in (slice(first, first + at_once) for first in range(0, len(ids), at_once)):
                examples = [list(map(Example, ids[part], source[part], targets[part])) for source in encoded_sources]
                start_tokens = tokens_of([reader.target_token(pair, TargetLanguage.START) for pair in languages[part]])
                batch = replace(self._collate(examples), texts=list(texts[part]), start_tokens=start_tokens)
                yield from (hypotheses[0] for hypotheses in self.scorer.generate(batch))

    def running_text(self, lines: Sequence[str], tokens_per_sample: int, context_window: int) -> Iterator[Hypothesis]:
        """Score lines as one text, in blocks; see ``Translator.score_text``.

        The source of a block is the token before its context, which the model sees too.
        """
        LanguageReader(self.members, self.cfg)  # refuses languages
        encoded = [self.task.encode_target(line) for line in lines]
        # token i of the text is in column i + 1, after the one before it
        text = torch.cat([self.task.encode_source("")[-1:], *encoded])
        scores = torch.zeros(len(text) - 1)
        cut = blocks(len(scores), tokens_per_sample, context_window)
        rows = max(1, min(self.cfg.batch_size, self.tokens_at_once // tokens_per_sample))
        for begin in range(0, len(cut), rows):
            some = cut[begin : begin + rows]
            examples = [
                Example(begin + i, text[block.first : block.first + 1], text[block.first + 1 : block.stop + 1])
                for i, block in enumerate(some)
            ]
            lengths = [block.stop - block.first for block in some]
            scored = self.scorer.score(self._collate([examples] * len(self.members)), lengths)
            for block, one in zip(some, scored, strict=True):
                scores[block.start : block.stop] = one.hypothesis.positional_scores[block.start - block.first :]
        for tokens, found in zip(encoded, scores.split([len(line) for line in encoded]), strict=True):
            total = float(found.sum())
            yield Hypothesis(tokens, total / len(tokens) if self.cfg.normalize_scores else total, found)

    def _collate(self, examples: Sequence[Sequence[Example]]) -> Batch:
        """A batch of examples, which are given as each member reads them."""
        batches = [member.task.collate(rows, member.model) for member, rows in zip(self.members, examples, strict=True)]
        sources = [other.source for other in batches] if len(batches) > 1 else None
        return replace(batches[0], member_sources=sources).to(self.device)


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
    if context_window and not tokens_per_sample:
        raise ConfigError(f"context_window={context_window} needs tokens_per_sample: each line is scored alone")
    if not 0 <= context_window <= max(0, tokens_per_sample - 1):
        raise ConfigError(
            f"context_window={context_window} leaves no token to score in blocks of tokens_per_sample="
            f"{tokens_per_sample}; lower it"
        )


def _check_lengths(
    rows: Sequence[int], sources: Sequence[Tensor], targets: Sequence[Tensor], model: EncoderDecoderModel
) -> None:
    longest = model.max_positions()
    rooms = model.max_target_lengths(torch.tensor([len(source) for source in sources]))
    for index, (row, source, target) in enumerate(zip(rows, sources, targets, strict=True)):
        room = longest[1] if rooms is None else int(rooms[index])
        for side, tokens, limit in (("source", source, longest[0]), ("reference", target, room)):
            if len(tokens) > limit:
                raise DataError(
                    f"{side}, line {row + 1}: {len(tokens)} tokens are more than the {limit} that the model can "
                    "process; shorten the line"
                )
