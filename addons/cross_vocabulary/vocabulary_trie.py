"""The texts of all members' tokens in one tree of prefixes, and the best joint continuations in it.

A text is a string with one character for each byte; ``END`` is a further character, the text of end-of-sentence.
Tokens of several members agree if, of any two of their texts, one is a prefix of the other: all of them are then on one
path of the tree, and the deepest node of the path is the longest of their texts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from seqgen.extend import EncoderDecoderModel, Source, Tokenizer, best_continuations

END = chr(256)
"""The text of end-of-sentence."""

PendingText: TypeAlias = tuple[str, ...]
"""The text of each member after the text that all members have generated: empty for the members that step next."""

_LAST = chr(0x10FFFF)

WIDTH = 64
"""Tokens of each member that are tried as the longest text.

With all tokens, the best joint continuations are exact, but a step takes 20 times as long. For a fconv with 8,000
pieces and a transformer with 4,000, and 100 lines of Multi30k, 64 tokens gave the outputs and scores of 512 for all
lines, 32 tokens for 98.
"""


def token_texts(tokenizer: Tokenizer, ends: Sequence[int] = ()) -> list[str]:
    """The text of each id of a vocabulary: ``END`` for end-of-sentence, empty for tokens that are not generated.

    Args:
        tokenizer: a tokenizer that implements ``token_bytes``.
        ends: further tokens that end an output.

    Raises:
        ConfigError: the tokenizer does not implement it.
    """
    texts = ["" if content is None else content.decode("latin-1") for content in tokenizer.token_bytes()]
    for index in (tokenizer.dictionary.eos(), *ends):
        texts[index] = END
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
        self.tokens: dict[str, list[int]] = {}
        """The ids of the tokens with each text."""
        for token, text in enumerate(texts):
            if text:
                self.tokens.setdefault(text, []).append(token)
        self.sorted = sorted(self.tokens)
        self._reachable: dict[str, bool] = {"": True}

    def reaches(self, text: str) -> bool:
        """True if the texts of some tokens begin with the given text; if not, a hypothesis leads nowhere."""
        if text not in self._reachable:
            place = bisect_left(self.sorted, text)
            longer = place < len(self.sorted) and self.sorted[place].startswith(text)
            parts = (n for n in range(1, len(text)) if text[:n] in self.tokens)
            self._reachable[text] = longer or any(self.reaches(text[n:]) for n in parts)
        return self._reachable[text]


class Longest(NamedTuple):
    """The longest texts of the best joint continuations.

    Attributes:
        values: ``(sentences, K)`` value of the best continuation with this longest text; ``-inf`` if there is none.
        rows: ``(sentences, K)`` int64, the row that it continues.
        nodes: ``(sentences, K)`` int64, the node of the longest text; the root for the text of the waiting members.
    """

    values: Tensor
    rows: Tensor
    nodes: Tensor


class VocabularyTrie:
    """The distinct texts of all members' tokens, sorted; each is a node, and its parent is its longest proper prefix.

    With the tokens ``a``, ``ab``, ``abc`` and ``b``, these are the nodes 0 to 3, and node 4 is the root. The parents
    are 4, 0, 1 and 4. The nodes 0 to 2 begin with ``a``.

    Args:
        texts: the text of each token of each member.
        width: number of tokens of each member that are tried as the longest text, see ``best``.

    Attributes:
        members: the texts of each member.
        texts: the text of each node.
        root: the number of the root.
        paths: ``(nodes + 1, D)`` int64, the nodes from each node up to the root, filled with the root.
        tokens: for each member ``(nodes + 1, R)`` int64, the tokens with the text of each node, filled with ``V``.
    """

    def __init__(self, texts: Sequence[Sequence[str]], width: int = WIDTH):
        self.width = width
        self.members = [Vocabulary(of_member) for of_member in texts]
        self.texts = sorted(set().union(*(vocabulary.tokens for vocabulary in self.members)))
        self.root = len(self.texts)
        self._numbers = {text: node for node, text in enumerate(self.texts)}
        paths: list[list[int]] = []
        for node, text in enumerate(self.texts):  # a prefix is sorted before the text, so that its path is known
            parent = self.nearest(text[:-1])
            paths.append([node, *(paths[parent] if parent < node else [])])
        self.paths = torch.tensor(filled([*paths, []], self.root))
        by_node = [[[*member.tokens.get(text, ())] for text in [*self.texts, ""]] for member in self.members]
        pairs = zip(by_node, texts, strict=True)
        self.tokens = [torch.tensor(filled(lists, len(of_member))) for lists, of_member in pairs]
        self._nodes = [torch.tensor([self._numbers.get(text, self.root) for text in of_member]) for of_member in texts]
        self._reached = [torch.tensor(filled(self._reached_by(member, paths), False)) for member in self.members]
        self._barred: dict[PendingText, list[int]] = {}

    def nearest(self, text: str) -> int:
        """The node of the longest prefix of a text, itself included."""
        return next((self._numbers[text[:n]] for n in range(len(text), 0, -1) if text[:n] in self._numbers), self.root)

    def _reached_by(self, member: Vocabulary, paths: list[list[int]]) -> list[list[bool]]:
        """For each node on the path to a node, true if a member can generate the rest of the text after it."""
        reached = [
            [member.reaches(text[len(self.texts[above]) :]) for above in path]
            for text, path in zip(self.texts, paths, strict=True)
        ]
        return [*reached, []]

    def to(self, device: torch.device) -> None:
        """Move the tables to a device."""
        self.paths = self.paths.to(device)
        self.tokens, self._nodes, self._reached = (
            [table.to(device) for table in tables] for tables in (self.tokens, self._nodes, self._reached)
        )

    def possible(self, texts: PendingText) -> bool:
        """True if each member can generate the rest of the longest text."""
        longest = max(texts, key=len)
        return all(member.reaches(longest[len(text) :]) for member, text in zip(self.members, texts, strict=True))

    def span(self, pending: PendingText) -> tuple[int, int]:
        """The nodes of the continuations of a joint hypothesis.

        Args:
            pending: the text of each member after the text of all members.

        Returns:
            The first node that is longer than the longest of these texts and begins with it, and the first node after
            all of these.
        """
        text = max(pending, key=len)
        if not text:
            return 0, self.root
        return bisect_left(self.texts, text) + (text in self._numbers), bisect_left(self.texts, text + _LAST)

    def barred(self, pending: PendingText) -> list[int]:
        """The nodes in the span of a joint hypothesis that a waiting member cannot reach.

        Args:
            pending: see ``span``.
        """
        if pending not in self._barred:
            waiting = [(member, len(text)) for member, text in zip(self.members, pending, strict=True) if text]
            nodes = range(*self.span(pending)) if waiting else ()
            self._barred[pending] = [
                node for node in nodes if not all(member.reaches(self.texts[node][size:]) for member, size in waiting)
            ]
        return self._barred[pending]

    def best(
        self, gains: Sequence[Tensor | None], base: Tensor, texts: Sequence[PendingText], beam: int, count: int
    ) -> Longest:
        """The longest texts that allow the best joint continuations of each sentence.

        The tokens of the members that step are on the path to the longest text, and at least one of them ends there,
        unless the longest text is what a waiting member has generated already. Tokens after which a member could not
        generate the rest of the longest text are left out. The ``width`` best tokens of each member are tried as the
        longest text; the result is exact if ``width`` is at least the size of the largest vocabulary.

        Args:
            gains: for each member ``(rows, V)``, the gain of each token; ``None`` for a member that waits in all rows.
            base: ``(rows,)``, added to each value; ``-inf`` for a row that does not exist.
            texts: for each row, see ``span``.
            beam: rows of each sentence.
            count: ``K``, the number of longest texts.
        """
        values, nodes = self._among_best(gains, texts, max(self.width, count))
        best, entries = (values + base.unsqueeze(1)).view(-1, beam * values.size(1)).topk(count, dim=1)
        # (sentences, beam * w): entry 2 * w + 7 is the seventh node of beam 2
        begins = torch.arange(0, len(base), beam, device=base.device).unsqueeze(1)
        return Longest(best, begins + entries // nodes.size(1), nodes.view(len(best), -1).gather(1, entries))

    def _among_best(
        self, gains: Sequence[Tensor | None], texts: Sequence[PendingText], width: int
    ) -> tuple[Tensor, Tensor]:
        """The values of the ``width`` best tokens of each member as longest texts, and their nodes."""
        device = self.paths.device
        steps = torch.tensor([[not text for text in pending] for pending in texts], device=device)
        first, end = torch.tensor([self.span(pending) for pending in texts], device=device).T.unsqueeze(-1)
        nodes = []
        for gain, numbers, step in zip(gains, self._nodes, steps.T, strict=True):
            if gain is None:
                continue
            inside = (numbers >= first) & (numbers < end) & step.unsqueeze(1)
            allowed = gain.masked_fill(~inside, -torch.inf).unsqueeze(1)
            found = best_continuations(allowed, gain.new_zeros(len(gain), 1), width)
            nodes.append(numbers[found.tokens].masked_fill(found.scores == -torch.inf, self.root))
        longest = torch.cat(nodes, dim=1).sort(dim=1).values
        again = torch.nn.functional.pad(longest[:, 1:] == longest[:, :-1], (1, 0))
        longest = longest.masked_fill(again, self.root)
        values = self._values(gains, steps, longest)
        for row, pending in enumerate(texts):
            if barred := self.barred(pending):
                values[row].masked_fill_(torch.isin(longest[row], torch.tensor(barred, device=device)), -torch.inf)
        column = torch.full_like(longest[:, :1], self.root)
        return torch.cat([values, self._inside(gains, texts)], dim=1), torch.cat([longest, column], dim=1)

    def _values(self, gains: Sequence[Tensor | None], steps: Tensor, longest: Tensor) -> Tensor:
        """The best sum of gains with each longest text, ``(rows, w)``; ``-inf`` without agreement."""
        total = torch.zeros_like(longest, dtype=next(gain for gain in gains if gain is not None).dtype)
        loss = torch.full_like(total, torch.inf)
        for number, gain in enumerate(gains):
            if gain is None:
                continue
            step = steps[:, number : number + 1]
            on_path = self._at_nodes(gain, number, self.paths[longest])  # (rows, w, D)
            upto = on_path.masked_fill(~self._reached[number][longest], -torch.inf).amax(-1)
            total += upto.masked_fill(~step, 0.0)
            ending = on_path[..., 0]
            loss = torch.minimum(loss, (upto - ending).masked_fill(~step | (ending == -torch.inf), torch.inf))
        return total - loss

    def _inside(self, gains: Sequence[Tensor | None], texts: Sequence[PendingText]) -> Tensor:
        """The best sum of gains if the longest text is that of the waiting members, ``(rows, 1)``."""
        total = torch.zeros_like(next(gain for gain in gains if gain is not None)[:, :1])
        for number, gain in enumerate(gains):
            if gain is None:
                continue
            waits = torch.tensor([bool(pending[number]) for pending in texts], device=gain.device)
            lists = [[] if pending[number] else self._parts(max(pending, key=len), number) for pending in texts]
            best = self._at_nodes(gain, number, torch.tensor(filled(lists, self.root), device=gain.device)).amax(1)
            total += best.masked_fill(waits, 0.0).unsqueeze(1)
        free = torch.tensor([not any(pending) for pending in texts], device=total.device)
        return total.masked_fill(free.unsqueeze(1), -torch.inf)

    def _parts(self, text: str, number: int) -> list[int]:
        """The nodes inside a text after which a member can generate the rest of it."""
        member = self.members[number]
        sizes = (n for n in range(1, len(text) + 1) if text[:n] in member.tokens and member.reaches(text[n:]))
        return [self._numbers[text[:n]] for n in sizes]

    def _at_nodes(self, gains: Tensor, number: int, nodes: Tensor) -> Tensor:
        """A member's best gain at each node: ``(rows, V)`` gains and ``(rows, ...)`` nodes give ``(rows, ...)``."""
        tokens = self.tokens[number][nodes]
        padded = torch.nn.functional.pad(gains, (0, 1), value=-torch.inf)
        return padded.gather(1, tokens.flatten(1)).view(tokens.shape).amax(-1)


def filled(lists: Sequence[list[Any]], value: Any) -> list[list[Any]]:
    """Lists of one length, filled up with a value."""
    width = max(1, *map(len, lists))
    return [values + [value] * (width - len(values)) for values in lists]


class MemberTexts:
    """The texts of the tokens of all members.

    Args:
        tokenizers: the target tokenizer of each member.
        ends: for each member the tokens that end its outputs besides end-of-sentence; ``None`` if there are none.

    Attributes:
        trie: the texts of all members' tokens.
        first: for each member the text before its first token, see ``first_text``.
        ends: for each member the ids that end its outputs, that of end-of-sentence first.

    Raises:
        ConfigError: a tokenizer does not return the bytes of its tokens.
    """

    def __init__(self, tokenizers: Sequence[Tokenizer], ends: Sequence[Sequence[int]] | None = None):
        self.tokenizers = tokenizers
        pairs = list(zip(tokenizers, ends or [()] * len(tokenizers), strict=True))
        texts = [token_texts(*pair) for pair in pairs]
        self.trie = VocabularyTrie(texts)
        self.first = [first_text(*pair) for pair in zip(tokenizers, texts, strict=True)]
        self.ends = [[tokenizer.dictionary.eos(), *own] for tokenizer, own in pairs]

    def before(self, number: int, model: EncoderDecoderModel, source: Source) -> list[str]:
        """For each sentence the text that a member has before its first token.

        Every output begins with one space. The text is empty if the member still has to generate this space, and a
        space if the prompt ends with white space. The last token of a prompt may have no text, such as the one before
        an empty prompt, or that of a template; then a text begins.

        Args:
            number: the member.
            model: its model.
            source: the sentences as it reads them; prompts are padded on the left.
        """
        first = self.first[number]
        if not model.continues_source:
            return [first] * len(source.src_tokens)
        prompts = [self.trie.members[number].texts[token] for token in source.src_tokens[:, -1].tolist()]
        return [first if text in ("", END) else " " * text.endswith((" ", "\n", "\t")) for text in prompts]

    def encode(self, number: int, text: str, before: str) -> list[int] | None:
        """The ids of a text that begins with a space, by the tokenizer of a member.

        Args:
            number: the member.
            text: the text, one character for each byte.
            before: what the member has of it before its first token.

        Returns:
            The ids; ``None`` if the tokenizer does not give tokens with this text.
        """
        texts, rest = self.trie.members[number].texts, text[len(before) :]
        with suppress(UnicodeDecodeError):
            for given in (text[1:], rest):
                ids = self.tokenizers[number].encode(given.encode("latin-1").decode())
                if "".join(texts[index] for index in ids) == rest:
                    return ids
        return None
