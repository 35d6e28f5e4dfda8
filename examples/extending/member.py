"""A member with its own source: source-contrastive decoding (Sennrich, Vamvas and Mohammadshahi 2024).

The ensemble has the same model twice. The second member reads the source with some words replaced by the unknown word,
where the paper uses a random source. Fusion with a negative weight prefers outputs that depend on these words::

    loaded = seqgen.load_model("runs/a")
    best = decode(loaded, "a dog sees a cat", words=["cat"], weight=-0.3)[0]
    print(loaded.task.decode(best.tokens))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

import seqgen
from seqgen.extend import Fusion, Hypothesis, MemberSpec, Source, TextModel


@dataclass(frozen=True)
class Blind(MemberSpec):
    """A member that reads the unknown word in place of some tokens.

    Attributes:
        hidden: source ids of these tokens.
        unk: source id of the unknown word.
    """

    source: str = "blind"
    hidden: tuple[int, ...] = ()
    unk: int = 3

    def source_of(self, source: Source) -> Source:
        """The source ``(sentences, S)`` that this member reads, made from the source of the batch."""
        hidden = torch.tensor(self.hidden, dtype=torch.int64, device=source.src_tokens.device)
        return replace(source, src_tokens=source.src_tokens.where(~torch.isin(source.src_tokens, hidden), self.unk))


def decode(loaded: TextModel, text: str, words: Sequence[str], weight: float, beam: int = 5) -> list[Hypothesis]:
    """Decode a text with emphasis on some of its words.

    Args:
        loaded: the model, as ``seqgen.load_model`` returns it.
        text: the source.
        words: the source words to emphasize.
        weight: fusion weight of the member that cannot see them, below 0.
        beam: hypotheses kept at each step.

    Returns:
        The n-best list, best first.
    """
    task, model = loaded.task, loaded.model
    hidden = tuple(index for word in words for index in task.source_tokenizer.encode(word))
    members = [MemberSpec(model), Blind(model, hidden=hidden, unk=task.source_dictionary.unk())]
    generator = task.build_generator(members, seqgen.GenerationConfig(beam=beam), combination=Fusion(weight))
    return generator.generate(task.collate([(0, task.encode_source(text), None)], model))[0]
