"""A member with a source of its own: the same model once more, unable to see some source words.

The fusion of the two with a negative weight prefers outputs that depend on those words: the source-contrastive decoding
of Sennrich et al. (2024), with a source that lacks words in place of a random one. ``main`` decodes a text so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

import seqgen
from seqgen.generation.ensemble.combinations import Fusion
from seqgen.generation.ensemble.member import MemberSpec
from seqgen.structures import Hypothesis, Source
from seqgen.text.text_decoding import TextModel


@dataclass(frozen=True)
class Blind(MemberSpec):
    """A model that reads the unknown word in place of some tokens.

    Attributes:
        hidden: ids of the tokens.
        unk: id of the unknown word.
    """

    source: str = "blind"
    hidden: tuple[int, ...] = ()
    unk: int = 3

    def source_of(self, source: Source) -> Source:
        """What this member reads where an ordinary one reads ``source``."""
        hidden = torch.tensor(self.hidden, dtype=torch.int64, device=source.src_tokens.device)
        return replace(source, src_tokens=source.src_tokens.where(~torch.isin(source.src_tokens, hidden), self.unk))


def decode(loaded: TextModel, text: str, words: Sequence[str], weight: float, beam: int = 5) -> list[Hypothesis]:
    """Decode a text with emphasis on some of its words.

    Args:
        loaded: the model, as ``seqgen.load_model`` returns it.
        text: the source.
        words: the source words to emphasize.
        weight: weight of the member that cannot see them, below 0.
        beam: hypotheses kept at each step.
    """
    task, model = loaded.task, loaded.model
    hidden = tuple(index for word in words for index in task.source_tokenizer.encode(word))
    members = [MemberSpec(model), Blind(model, hidden=hidden, unk=task.source_dictionary.unk())]
    generator = task.build_generator(members, seqgen.GenerationConfig(beam=beam), combination=Fusion(weight))
    return generator.generate(task.collate([(0, task.encode_source(text), None)], model))[0]
