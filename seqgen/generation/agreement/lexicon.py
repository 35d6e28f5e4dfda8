"""The lexicon: the texts of all members' tokens in one tree of prefixes, and the best joint continuations in it.

A text is a string with one character for each byte; ``END`` is a further character, the text of end-of-sentence.
Tokens of several members agree if, of any two of their texts, one is a prefix of the other: all of them are then on one
path of the tree, and the deepest node of the path is the longest of their texts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from seqgen.data.tokenizers.base import Tokenizer

END = chr(256)
"""The text of end-of-sentence."""

Ahead: TypeAlias = tuple[str, ...]
"""The text of each member after the text that all members have generated: empty for the members that step next."""

_LAST = chr(0x10FFFF)


def token_texts(tokenizer: Tokenizer) -> list[str]:
    """The text of each id of a vocabulary: ``END`` for end-of-sentence, empty for tokens that are not generated.

    Args:
        tokenizer: a tokenizer that implements ``token_bytes``.

    Raises:
        ConfigError: the tokenizer does not implement it.
    """
    texts = ["" if content is None else content.decode("latin-1") for content in tokenizer.token_bytes()]
    texts[tokenizer.dictionary.eos()] = END
    return texts


def first_text(tokenizer: Tokenizer, texts: Sequence[str]) -> str:
    """The text that an output has before its first token: every output begins with one space.

    It is empty if the first token has this space itself, as SentencePiece's ``▁Hello`` does, and a space otherwise.

    Args:
        tokenizer: the tokenizer.
        texts: its ``token_texts``.
    """
    words = (text[1:] for text in texts if text.startswith(" ") and text[1:].isascii() and text[1:].isalnum())
    first = tokenizer.encode(next(words, "a"))[:1]
    return "" if first and texts[first[0]].startswith(" ") else " "


class Vocabulary:
    """The texts of one member's tokens.

    Args:
        texts: the text of each token; tokens with an empty text are not generated.
    """

    def __init__(self, texts: Sequence[str]):
        self.texts = texts
        self.sorted = sorted({text for text in texts if text})
        self.known = set(self.sorted)
        self._reachable: dict[str, bool] = {"": True}

    def reaches(self, text: str) -> bool:
        """Whether some tokens have a text that begins with a given one; if not, a hypothesis leads nowhere."""
        if text not in self._reachable:
            place = bisect_left(self.sorted, text)
            longer = place < len(self.sorted) and self.sorted[place].startswith(text)
            parts = (n for n in range(1, len(text)) if text[:n] in self.known)
            self._reachable[text] = longer or any(self.reaches(text[n:]) for n in parts)
        return self._reachable[text]


class Lexicon:
    """The distinct texts of all members' tokens, sorted; each is a node, and its parent is its longest proper prefix.

    With the tokens ``a``, ``ab``, ``abc`` and ``b``, these are the nodes 0 to 3, and node 4 is the root. The parents
    are 4, 0, 1 and 4. The nodes 0 to 2 begin with ``a``.

    Args:
        texts: the text of each token of each member.

    Attributes:
        members: the texts of each member.
        texts: the text of each node.
        root: the number of the root.
        parents: ``(nodes + 1,)`` int64.
        tokens: for each member ``(nodes + 1, R)`` int64, the tokens with the text of each node, filled with ``V``.
    """

    def __init__(self, texts: Sequence[Sequence[str]]):
        self.members = [Vocabulary(own) for own in texts]
        self.texts = sorted(set().union(*(own.known for own in self.members)))
        self.root = len(self.texts)
        self._numbers = {text: node for node, text in enumerate(self.texts)}
        self.parents = torch.tensor([*(self._nearest(text[:-1]) for text in self.texts), self.root])
        self.tokens = [self._tokens_of(own) for own in texts]
        self._shorter = [self._pairs_of(own) for own in self.members]
        self._barred: dict[Ahead, list[int]] = {}

    def _nearest(self, text: str) -> int:
        """The node of the longest prefix of a text, itself included."""
        return next((self._numbers[text[:n]] for n in range(len(text), 0, -1) if text[:n] in self._numbers), self.root)

    def _tokens_of(self, texts: Sequence[str]) -> Tensor:
        lists: list[list[int]] = [[] for _ in range(self.root + 1)]
        for token, text in enumerate(texts):
            if text:
                lists[self._numbers[text]].append(token)
        width = max(map(len, lists))
        return torch.tensor([own + [len(texts)] * (width - len(own)) for own in lists])

    def _pairs_of(self, member: Vocabulary) -> list[Tensor]:
        """Pairs of a node and a node above it at which the member can wait for the rest; ``(2, pairs)`` by distance."""
        by_distance: dict[int, list[tuple[int, int]]] = {}
        parents = self.parents.tolist()
        for node, text in enumerate(self.texts):
            above, distance = parents[node], 1
            while above != self.root:
                shorter = self.texts[above]
                if shorter in member.known and member.reaches(text[len(shorter) :]):
                    by_distance.setdefault(distance, []).append((node, above))
                above, distance = parents[above], distance + 1
        return [torch.tensor(pairs).T for pairs in by_distance.values()]

    def to(self, device: torch.device) -> None:
        """Move the tables to a device."""
        self.parents = self.parents.to(device)
        self.tokens = [tokens.to(device) for tokens in self.tokens]
        self._shorter = [[pairs.to(device) for pairs in own] for own in self._shorter]

    def possible(self, texts: Ahead) -> bool:
        """Whether each member can generate the rest of the longest text."""
        longest = max(texts, key=len)
        return all(own.reaches(longest[len(text) :]) for own, text in zip(self.members, texts, strict=True))

    def span(self, ahead: Ahead) -> tuple[int, int, int]:
        """Where the continuations of a joint hypothesis are.

        Args:
            ahead: the text of each member after the text of all members.

        Returns:
            The first node that is longer than the longest of these texts and begins with it; the first node after all
            of these; and the node of the longest prefix of this text, itself included.
        """
        text = max(ahead, key=len)
        if not text:
            return 0, self.root, self.root
        first, end = bisect_left(self.texts, text), bisect_left(self.texts, text + _LAST)
        return first + (text in self._numbers), end, self._nearest(text)

    def barred(self, ahead: Ahead) -> list[int]:
        """The nodes in the span of a joint hypothesis that a waiting member cannot reach.

        Args:
            ahead: see ``span``.
        """
        if ahead not in self._barred:
            waiting = [(own, len(text)) for own, text in zip(self.members, ahead, strict=True) if text]
            nodes = range(*self.span(ahead)[:2]) if waiting else ()
            self._barred[ahead] = [
                node for node in nodes if not all(own.reaches(self.texts[node][size:]) for own, size in waiting)
            ]
        return self._barred[ahead]

    def path(self, nodes: Tensor) -> Tensor:
        """The nodes from each of ``nodes`` up to the root: ``(...)`` gives ``(..., D)``, filled with the root."""
        path = [nodes]
        while bool((path[-1] != self.root).any()):
            path.append(self.parents[path[-1]])
        return torch.stack(path, dim=-1)

    def best(self, gains: Sequence[Tensor | None], aheads: Sequence[Ahead]) -> Tensor:
        """The largest sum of gains that each longest text allows.

        The tokens of the members that step are on the path to the longest text, and at least one of them ends there,
        unless the longest text is what a waiting member has generated already. Tokens after which a member could not
        generate the rest of the longest text are left out.

        Args:
            gains: for each member ``(rows, V)``, what each token adds; ``None`` for a member that waits in all rows.
            aheads: for each row, see ``span``.

        Returns:
            ``(rows, nodes + 1)``; in the last column, the longest text is that of the waiting members. ``-inf`` where
            there is no agreement.
        """
        example = next(own for own in gains if own is not None)
        device = example.device
        total = example.new_zeros(len(aheads), self.root + 1)
        loss = torch.full_like(total, torch.inf)
        for number, own in enumerate(gains):
            if own is None:
                continue
            step = torch.tensor([not ahead[number] for ahead in aheads], device=device).unsqueeze(1)
            ending = self._at_nodes(own, self.tokens[number])
            upto = ending.clone()  # the best gain of a token on the path to each node
            for nodes, above in self._shorter[number]:
                upto[:, nodes] = torch.maximum(upto[:, nodes], ending[:, above])
            inside = torch.tensor(_filled([self._inside(ahead, number) for ahead in aheads], self.root), device=device)
            upto[:, -1] = ending.gather(1, inside).amax(1)
            total += upto.masked_fill(~step, 0.0)
            lost = (upto - ending).masked_fill(~step | (ending == -torch.inf), torch.inf)
            loss = torch.minimum(loss, lost)
        loss[:, -1] = torch.tensor([0.0 if any(ahead) else torch.inf for ahead in aheads], device=device)
        spans = torch.tensor([[*self.span(ahead)[:2], self.root] for ahead in aheads], device=device)
        columns = torch.arange(self.root + 1, device=device)
        outside = (columns < spans[:, :1]) | ((columns >= spans[:, 1:2]) & (columns < self.root))
        best = (total - loss).masked_fill_(outside, -torch.inf)
        barred = [(row, node) for row, ahead in enumerate(aheads) for node in self.barred(ahead)]
        if barred:
            rows, nodes = torch.tensor(barred, device=device).T
            best[rows, nodes] = -torch.inf
        return best

    def _inside(self, ahead: Ahead, number: int) -> list[int]:
        """The nodes inside the text of the waiting members at which a member can wait for the rest of it."""
        text, own = max(ahead, key=len), self.members[number]
        sizes = (n for n in range(1, len(text) + 1) if text[:n] in own.known and own.reaches(text[n:]))
        return [self._numbers[text[:n]] for n in sizes]

    def _at_nodes(self, gains: Tensor, tokens: Tensor) -> Tensor:
        """The best gain of a token with the text of each node: ``(rows, V)`` gives ``(rows, nodes + 1)``."""
        padded = torch.nn.functional.pad(gains, (0, 1), value=-torch.inf)
        best = padded[:, tokens[:, 0]]
        for column in tokens.T[1:]:
            best = torch.maximum(best, padded[:, column])
        return best


def _filled(lists: Sequence[list[int]], value: int) -> list[list[int]]:
    width = max(1, *map(len, lists)) if lists else 1
    return [own + [value] * (width - len(own)) for own in lists]
