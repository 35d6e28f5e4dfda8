"""Text cut into examples for language models, in every break mode."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from seqgen.core.errors import DataError
from seqgen.data.text_dataset import BREAK_MODES, BlockDataset

EOS, BEGIN = 2, 3


class Lines:
    """The part of a token store that the dataset uses."""

    def __init__(self, lines: list[list[int]]):
        self.lines = lines
        self.meta: Any = type("Meta", (), {"files": [("text.txt", len(lines))], "unknown_lines": 0})()

    def lengths(self) -> Any:
        return np.array([len(line) for line in self.lines], np.int32)

    def __getitem__(self, line: int) -> Any:
        return np.array(self.lines[line], np.int32)


def examples(lines: list[list[int]], mode: str, size: int) -> list[tuple[list[int], list[int]]]:
    dataset = BlockDataset(Lines(lines), EOS, BEGIN, mode, size)  # type: ignore[arg-type]
    found = [dataset.example(i) for i in range(len(dataset))]
    assert [example.id for example in found] == list(range(len(dataset)))
    assert dataset.lengths().tolist() == [[len(e.source), len(e.target)] for e in found if e.target is not None]
    return [(e.source.tolist(), e.target.tolist()) for e in found if e.target is not None]


def reference(lines: list[list[int]], mode: str, size: int) -> list[tuple[list[int], list[int]]]:
    """Blocks of the text, each token with the token before it, cut line by line in plain Python."""
    text = []
    for line in lines:
        pairs, previous = [], BEGIN
        for token in [*line, EOS]:
            pairs.append((previous, token))
            previous = token
        text.append(pairs)
    if mode == "none":
        pieces = [[pair for line in text for pair in line]]
    elif mode == "eos":
        pieces = [line for line in text if len(line) > 1]
    else:
        pieces = [[]]
        for line in text:
            separates = mode == "complete_doc" and len(line) == 1
            if separates or len(pieces[-1]) + len(line) > size:
                pieces.append([])
            if not separates:
                pieces[-1] += line
    chunks = [piece[i : i + size] for piece in pieces for i in range(0, len(piece), size)]
    return [([chunk[0][0]], [token for _, token in chunk]) for chunk in chunks]


TEXT = [[5, 6], [], [7], [8, 9, 10, 11, 12, 13], [], [], [14, 15], [16]]


def test_blocks_that_fit_into_the_model_are_used_as_they_are() -> None:
    dataset = BlockDataset(Lines(TEXT), EOS, BEGIN, "none", 10)  # type: ignore[arg-type]
    assert dataset.limited(4, 10) is dataset


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(4, 30), max_size=9), min_size=1, max_size=12),
    st.sampled_from(BREAK_MODES),
    st.integers(2, 12),
)
def test_blocks_are_those_of_a_plain_loop(lines: list[list[int]], mode: str, size: int) -> None:
    if not any(lines):
        with pytest.raises(DataError, match=r"text\.txt contains no token"):
            examples(lines, mode, size)
        return
    found = examples(lines, mode, size)
    assert found == reference(lines, mode, size)
    kept = [[*line, EOS] for line in lines if line or mode in ("none", "complete")]
    assert [token for _, target in found for token in target] == [token for line in kept for token in line]
    assert all(0 < len(target) <= size for _, target in found)
