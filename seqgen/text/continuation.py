"""The text of an output that continues a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def continuation(decode: Callable[[Sequence[int]], str], prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """Turn an output into text that is correct after the text of its prompt.

    Decoded alone, the pieces ``▁dog s`` and the pieces ``dog s`` both give ``dogs``. After a prompt, they give
    `` dogs`` and ``dogs``: the text of an output is what it adds to the text of its prompt.

    Args:
        decode: turns ids into text.
        prompt: ids of the prompt; empty if the output does not continue anything.
        tokens: ids of the output.

    Returns:
        The text. If the output changes how the tokenizer decodes the prompt, it is the output decoded alone.
    """
    if not prompt:
        return decode(tokens)
    before, whole = decode(prompt), decode([*prompt, *tokens])
    return whole.removeprefix(before) if whole.startswith(before) else decode(tokens)
