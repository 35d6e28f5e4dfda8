"""Agreement-based ensembling written plainly: every step tries all combinations of all tokens of the members."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from torch import Tensor

from seqgen.data.tokenizers.base import Tokenizer

END = b"\n"
Scores = Callable[[tuple[int, ...]], list[float]]
"""A member's log-probabilities of the next token after a history."""
Found = list[tuple[tuple[tuple[int, ...], ...], float]]
"""Joint token sequences and scores, best first."""


def texts_of(tokenizer: Tokenizer) -> list[bytes]:
    texts = [content or b"" for content in tokenizer.token_bytes()]
    texts[tokenizer.dictionary.eos()] = END
    return texts


def score_of(lprobs: Sequence[Sequence[float]], weights: Sequence[float], length_penalty: float = 1.0) -> float:
    pairs = zip(weights, lprobs, strict=True)
    return sum(weight * sum(own) / max(1, len(own)) ** length_penalty for weight, own in pairs)


def all_joint_outputs(
    members: Sequence[Scores],
    tables: Sequence[list[bytes]],
    weights: Sequence[float],
    longest: int,
    before: Sequence[bytes] | None = None,
) -> Found:
    """Every combination of one complete output per member with one text: at most ``longest`` tokens before the end.

    A member's text begins with ``before``; some members may have several tokens that end an output.
    """

    def outputs(
        scores: Scores, texts: list[bytes], before: bytes
    ) -> Iterator[tuple[tuple[int, ...], bytes, list[float]]]:
        possible = [token for token, own in enumerate(texts) if own and own != END]
        ends = [token for token, own in enumerate(texts) if own == END]
        for count in range(1, longest + 1):
            for *chosen, end in itertools.product(*[possible] * count, ends):
                tokens = (*chosen, end)
                lprobs = [scores(tokens[:place])[token] for place, token in enumerate(tokens)]
                yield tokens, before + b"".join(texts[token] for token in chosen), lprobs

    each = list[dict[bytes, list[Any]]]()
    for one in zip(members, tables, before or [b""] * len(members), strict=True):
        each.append(defaultdict(list))
        for tokens, text, lprobs in outputs(*one):
            each[-1][text].append((tokens, lprobs))
    found = [
        (tuple(tokens for tokens, _ in chosen), score_of([lprobs for _, lprobs in chosen], weights))
        for text in each[0]
        for chosen in itertools.product(*(own.get(text, []) for own in each))
    ]
    return sorted(found, key=lambda one: -one[1])


def beam_search(
    members: Sequence[Scores], tables: Sequence[list[bytes]], weights: Sequence[float], longest: int, beam: int
) -> Found:
    """The search of ``AgreementSession``, without any shortcut."""
    nothing: tuple[Any, ...] = tuple(((), [], b"") for _ in members)
    beams, finished = [nothing], []
    while beams and len(finished) < beam:
        found = []
        for state in beams:
            behind = min(len(text) for _, _, text in state)
            choices = []
            for scores, texts, (tokens, lprobs, text) in zip(members, tables, state, strict=True):
                if len(text) > behind:
                    choices.append([(tokens, lprobs, text)])
                    continue
                after = scores(tokens)
                allowed = [t for t, own in enumerate(texts) if own and (own == END) >= (len(tokens) >= longest)]
                allowed = [t for t in allowed if tokens or texts[t] != END]
                choices.append([((*tokens, t), [*lprobs, after[t]], text + texts[t]) for t in allowed])
            for chosen in itertools.product(*choices):
                whole = max((text for _, _, text in chosen), key=len)
                if all(
                    whole.startswith(text) and reaches(tuple(texts), whole[len(text) :])
                    for (_, _, text), texts in zip(chosen, tables, strict=True)
                ):
                    found.append((score_of([lprobs for _, lprobs, _ in chosen], weights), chosen))
        found = sorted(found, key=lambda one: -one[0])[: 2 * beam]
        ended = [all(text.endswith(END) for _, _, text in chosen) for _, chosen in found]
        for (score, chosen), end in list(zip(found, ended, strict=True))[:beam]:
            if end and len(finished) < beam:
                finished.append((tuple(tokens for tokens, _, _ in chosen), score))
        beams = [chosen for (_, chosen), end in zip(found, ended, strict=True) if not end][:beam]
    return sorted(finished, key=lambda one: -one[1])


@cache
def reaches(texts: tuple[bytes, ...], rest: bytes) -> bool:
    """Whether tokens give a text that begins with ``rest``."""
    return not rest or any(
        text and (text.startswith(rest) or (rest.startswith(text) and reaches(texts, rest[len(text) :])))
        for text in texts
    )


def log_probabilities(rule: Callable[..., Tensor], source: tuple[int, ...]) -> Scores:
    return known(lambda tokens: rule(source, tokens).log_softmax(-1))


def known(scores: Callable[[tuple[int, ...]], Tensor]) -> Scores:
    return cache(lambda tokens: scores(tokens).tolist())
