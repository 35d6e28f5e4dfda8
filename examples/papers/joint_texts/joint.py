"""Rules whose search decodes texts: its tokens are texts, which each member divides into tokens of its vocabulary.

The loop is the ordinary one. Strategies, processors, stopping rules, observers and fields see the joint vocabulary, and
a combination gets, as always, one distribution of each member::

    @register_combination("mean_of_texts")
    class MeanOfTexts(JointRule, ProbabilityMean): ...

A member gives a text that is a token the probability of this token, and any other text that of the first token into
which it divides the text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, count, takewhile
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from seqgen.addons.cross_vocabulary import END, AgreementMember, CrossVocabulary, MemberTexts, TextRule
from seqgen.config import ResolvedSettings
from seqgen.extend import (
    ATTENTION,
    HIDDEN_STATES,
    LAYER_LOGITS,
    ConfigError,
    DecodingRequest,
    DecodingSetup,
    Dictionary,
    Ensemble,
    Hypothesis,
    MemberOutput,
    MemberSpec,
    OwnMember,
    Search,
    Session,
    Source,
    StepContext,
    build_setup,
    flattened,
    normalized,
    pad_rows,
)


class JointVocabulary:
    """The vocabulary of a decode whose tokens are texts. A text has one character for each byte.

    Args:
        members: the texts of the members' tokens.
        texts: the texts of the vocabulary.
        space: the text that all outputs have before their first token: a space, or nothing if that token has it.

    Attributes:
        texts: the text of each id; ``END`` for end-of-sentence, empty for the other special tokens.
        dictionary: a symbol for each id.
    """

    def __init__(self, members: MemberTexts, texts: Sequence[str], space: str):
        self.members, self.space = members, space
        self.dictionary = Dictionary([*Dictionary().symbols, *map(repr, texts)])
        self.texts = ["", "", END, "", *texts]
        self.ids = {text: index for index, text in enumerate(self.texts) if text}

    def encode(self, text: str) -> list[int]:
        """The ids of a text, by the longest texts from the left."""
        return self.divide(f" {text}".encode().decode("latin-1"))

    def divide(self, text: str) -> list[int]:
        """The ids of a text that begins with the space of all outputs, or has another place in the output."""
        return [self.ids[part] for part in spelling(text.removeprefix(self.space), self.ids) or ()]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        text = self.space + "".join(self.texts[index] for index in ids)
        return text.replace(END, "").removeprefix(" ").encode("latin-1").decode(errors="replace")

    def special_text(self, index: int) -> str:
        """No text, as of all ids that ``decode`` leaves out."""
        return ""


def spelling(text: str, known: Any) -> list[str] | None:
    """Divide a text into known texts, each the longest one that is possible; ``None`` if that is not possible."""
    found: dict[int, list[str]] = {len(text): []}
    for place in reversed(range(len(text))):
        ends = (end for end in range(len(text), place, -1) if end in found and text[place:end] in known)
        if end := next(ends, 0):
            found[place] = [text[place:end], *found[end]]
    return found.get(0)


class Divider:
    """Divides texts into the tokens of one member.

    Args:
        members: the texts of the members' tokens.
        number: the member.
        joint: the joint vocabulary.
    """

    def __init__(self, members: MemberTexts, number: int, joint: JointVocabulary):
        self.vocabulary, self.tokenizer = members.trie.members[number], members.tokenizers[number]
        self.members, self.number, self.ends, self.joint = members, number, members.ends[number], joint
        self._tables: dict[str, tuple[Tensor, Tensor]] = {}

    def tokens(self, text: str, before: str) -> list[int] | None:
        """The ids of a text that begins with a space: those of the tokenizer if they give it, else the longest tokens.

        Args:
            text: the text.
            before: what the member has of it before its first token.

        Returns:
            The ids; ``None`` if no tokens give the text.
        """
        if (ids := self.members.encode(self.number, text, before)) is not None:
            return ids
        parts = spelling(text[len(before) :], self.vocabulary.tokens)
        return None if parts is None else [self.vocabulary.tokens[part][0] for part in parts]

    def table(self, lacking: str, device: torch.device) -> tuple[Tensor, Tensor]:
        """The tokens whose probability each text of the joint vocabulary has.

        Args:
            lacking: text that comes before it, which the member has not generated yet.
            device: where the tables are.

        Returns:
            ``(V, R)`` int64, filled with the size of the member's vocabulary; ``(V,)`` bool, which texts are tokens.
        """
        if lacking not in self._tables:
            ids, size = self.vocabulary.tokens, len(self.vocabulary.texts)
            whole = [text if text in ("", END) else lacking + text for text in self.joint.texts]
            divided = [[text] if text in ids else (spelling(text, ids) or [])[:1] for text in whole]
            rows = [
                ids[parts[0]][: None if parts[0] == text else 1] if parts else [size]
                for text, parts in zip(whole, divided, strict=True)
            ]
            table = pad_rows([torch.tensor(row) for row in rows], size)
            self._tables[lacking] = table.to(device), torch.tensor([text in ids for text in whole], device=device)
        return self._tables[lacking]


class Written(NamedTuple):
    """What a row of a member has generated.

    Attributes:
        text: the text of the beam.
        before: what the member has of it before its first token.
        lacking: its end that the member's tokens do not give yet.
        anew: whether the text was divided anew.
    """

    text: str
    before: str
    lacking: str
    anew: bool = False


class JointMember(AgreementMember):
    """A member whose rows follow texts.

    A text that is a token is appended. Otherwise the whole text is divided anew by the tokenizer, at this step and all
    later ones. A member whose tokens cannot give the text waits until they can; until then, or if it has reached its
    maximum length, it gives all texts the same probability.

    Args:
        divider: divides texts into its tokens.
        before: for each sentence the text that it has before its first token: a space, or nothing.
        first_token: the token that its outputs begin with; ``None`` for none.
        spec: see ``AgreementMember``.
        source: see ``AgreementMember``.
        setup: how to decode.

    Attributes:
        known: ``(rows, V)`` bool, which texts of the joint vocabulary are tokens.
    """

    def __init__(
        self,
        divider: Divider,
        before: Sequence[str],
        first_token: int | None,
        spec: MemberSpec,
        source: Source,
        setup: DecodingSetup,
    ):
        super().__init__(spec, source, setup, divider.ends, 0)
        self.divider, self.joint, space = divider, divider.joint, divider.joint.space
        self.written = [
            Written(space, text, space.removeprefix(text)) for text in before for _ in range(self.beam_size)
        ]
        self.fixed = 1 + (first_token is not None)
        if first_token is not None:
            self.force(torch.full_like(self.lengths, first_token))
        self.known = torch.empty(0, dtype=torch.bool)

    def next_output(self, tokens: Tensor, needs: Any = frozenset()) -> MemberOutput:
        """See ``Member.next_output``; tokens and logits are those of the joint vocabulary."""
        if tokens.size(1) > 1:
            self._follow([self.joint.texts[index] for index in tokens[:, -1].tolist()])
        lprobs = self.next_lprobs(torch.ones_like(self.lengths, dtype=torch.bool), 0)
        padded = torch.nn.functional.pad(lprobs, (0, 1), value=-torch.inf)
        found = []
        for row, written in zip(padded, self.written, strict=True):
            table, known = self.divider.table(written.lacking, lprobs.device)
            found.append((row[table].logsumexp(-1), known))
        scores, self.known = (torch.stack(each) for each in zip(*found, strict=True))
        return MemberOutput(scores.masked_fill((scores == -torch.inf).all(1, keepdim=True), 0.0))

    def _follow(self, texts: Sequence[str]) -> None:
        """Append a text to each row."""
        rows = [row[: 1 + size] for row, size in zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)]
        longest = self.last_steps.repeat_interleave(self.beam_size).tolist()
        changed = list(rows)
        for row, text in enumerate(texts):
            if text in ("", END):  # a beam that does not continue
                continue
            old = self.written[row]
            new = old._replace(text=old.text + text, lacking=old.lacking + text)
            ids = self.divider.vocabulary.tokens.get(new.lacking)
            if ids is not None and not old.anew:
                tokens: list[int] | None = [*rows[row], ids[0]]
            else:
                new, own = new._replace(anew=True), self.divider.tokens(new.text, old.before)
                tokens = None if own is None else [*rows[row][: self.fixed], *own]
            if tokens is not None and len(tokens) <= 1 + longest[row]:
                new, changed[row] = new._replace(lacking=""), tokens
            self.written[row] = new
        pairs = [zip(*pair, strict=False) for pair in zip(rows, changed, strict=True)]
        self.unchanged = min(sum(1 for _ in takewhile(lambda both: both[0] == both[1], pair)) for pair in pairs)
        self.tokens = pad_rows([torch.tensor(row) for row in changed], self.ends[0]).to(self.tokens.device)
        self.lengths = torch.tensor([len(row) - 1 for row in changed], device=self.tokens.device)

    def _select_rows(self, rows: Tensor) -> None:
        super()._select_rows(rows)
        self.written = [self.written[row] for row in rows.tolist()]


class JointSession(Session):
    """Decodes a batch by the ordinary loop over a joint vocabulary.

    Args:
        setup: its search is a ``JointSearch``, which has the setup of the loop.
        request: what to decode; prefixes and phrases have ids of the first member.
    """

    can_rewind = False

    def __init__(self, setup: DecodingSetup, request: DecodingRequest):
        assert isinstance(setup.search, JointSearch)
        self.outer, self.specs = setup.search, setup.ensemble.members
        inner, sources = self.outer.setup, setup.ensemble.sources(request.sample)
        texts, models = self.outer.members.texts, setup.ensemble.models
        self.before = list(map(texts.before, count(), models, sources))
        observers = [*inner.observers, *setup.observers]
        ensemble = Ensemble(self.specs, inner.ensemble.combination)
        of_call: dict[str, Any] = {"observers": observers, "scoring": setup.scoring, "notes": setup.notes}
        inner = replace(inner, ensemble=ensemble, **of_call)
        if (given := request.prefix_tokens) is not None:
            rows = [torch.tensor(self._joint(row), dtype=torch.int64) for row in given.tolist()]
            request = replace(request, prefix_tokens=pad_rows(rows, inner.pad).to(given.device))
        if (given_phrases := request.constraints) is not None:
            phrases = [[self._phrase(one) for one in each] for each in given_phrases]
            request = replace(request, constraints=phrases)
            inner.search.check_constraints(phrases, len(phrases), inner.vocab_size)
        super().__init__(inner, request)
        combination: Any = self.scoring.combination
        combination.members = self.members

    def _joint(self, ids: Sequence[int]) -> list[int]:
        """The joint ids of the text of the first member's tokens."""
        texts = self.outer.dividers[0].vocabulary.texts
        text = "".join(texts[index] for index in ids).replace(END, "")
        return self.outer.joint.divide(text if text.startswith(" ") else f" {text}")

    def _phrase(self, phrase: Any) -> Any:
        """The joint ids of a phrase, or of its alternatives."""
        return self._joint(phrase) if isinstance(phrase[0], int) else list(map(self._phrase, phrase))

    def new_member(self, spec: MemberSpec, source: Source, start_token: int | None) -> Any:
        """See ``Session.new_member``."""
        number = next(number for number, one in enumerate(self.specs) if one is spec)
        combination: Any = self.setup.ensemble.combination
        # limits and temperature are those of the joint tokens
        limits = replace(self.setup.limits, max_len_a=0.0, max_len_b=1 << 30)
        setup = replace(self.setup, temperature=1.0, limits=limits)
        further = self.outer.members.first_tokens[number], spec, source, setup
        return combination.new_member(self.outer.dividers[number], self.before[number], *further)

    def run(self) -> list[list[Hypothesis]]:
        """See ``Session.run``; the hypotheses have tokens of the members."""
        found = zip(super().run(), zip(*self.before, strict=True), strict=True)
        return [[self._of_members(one, before) for one in hypotheses] for hypotheses, before in found]

    def _of_members(self, one: Hypothesis, before: Sequence[str]) -> Hypothesis:
        """A hypothesis as tokens of each member; the score of a token is that of the texts that end in it."""
        joint = self.outer.joint
        texts = [joint.texts[index] for index in one.tokens.tolist()]
        whole = (joint.space + "".join(texts)).removesuffix(END)
        text = whole.encode("latin-1").decode(errors="ignore")  # an output that was cut off may end in a character
        after = _sizes_after(texts)
        tokens, scores, fields = [], [], dict[str, Tensor]()
        for divider, own_before in zip(self.outer.dividers, before, strict=True):
            ids = divider.tokens(text.encode().decode("latin-1"), own_before)
            ids = divider.tokenizer.encode(text) if ids is None else ids
            ids += divider.ends[: texts[-1:] == [END] or not ids]
            rest = _sizes_after([divider.vocabulary.texts[index] for index in ids])
            places = (rest.unsqueeze(1) > after).sum(0)
            tokens.append(torch.tensor(ids))
            scores.append(one.positional_scores.new_zeros(len(ids)).index_add(0, places, one.positional_scores))
            last = [max(bisect_right(places.tolist(), place) - 1, 0) for place in range(len(ids))]
            fields = fields or {name: values[last] for name, values in one.fields.items()}
        forced = one.forced_end and (one.timed_out or texts[-1:] == [END])  # not by a stopping rule
        found = replace(one, tokens=tokens[0], positional_scores=scores[0], fields=fields, forced_end=forced)
        return replace(found, member_tokens=tokens, member_scores=scores)


def _sizes_after(texts: Sequence[str]) -> Tensor:
    """``(texts,)`` int64, the characters after each text."""
    return torch.tensor([*accumulate(map(len, reversed(texts[1:])), initial=0)]).flip(0)


class JointSearch(Search):
    """A strategy over a joint vocabulary.

    Args:
        members: the models, with the texts of their tokens.
        joint: the joint vocabulary.
        setup: how to decode it.
    """

    session_class = JointSession
    enforces_constraints = True

    def __init__(self, members: CrossVocabulary, joint: JointVocabulary, setup: DecodingSetup):
        self.members, self.joint, self.setup = members, joint, setup
        self.dividers = [Divider(members.texts, number, joint) for number in range(len(members.members))]

    def rows(self, beam: int) -> int:
        """See ``Search.rows``."""
        return self.setup.search.rows(beam)

    def summary(self) -> str:
        """See ``Search.summary``."""
        found = [self.setup.search.summary(), *(observer.summary() for observer in self.setup.observers)]
        return " ".join(filter(None, found))


STEPS = (
    *("search", "sampling", "seed", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("renormalize", "no_repeat_ngram_size", "repetition_penalty", "stop_strings", "max_time"),
    *("processors", "stopping_rules", "observers"),
)
"""Keys of the ``generation`` group that apply to texts as to tokens."""


class JointRule(TextRule):
    """A combination of members that follow texts; a subclass implements ``__call__``.

    Attributes:
        members: the members of the batch, in their order; none if the members have one vocabulary.
    """

    keys: ClassVar[Sequence[str]] = STEPS
    note = "the tokens of the search are texts, which each member divides into its own tokens"

    members: Sequence[Any] = ()

    @classmethod
    def search(cls, members: CrossVocabulary, resolved: ResolvedSettings) -> Search:
        """See ``TextRule.search``."""
        joint, cfg = cls.joint(members), resolved.generation
        tokenizer: Any = joint  # which encodes and decodes as tokenizers do
        names = {"search": "search_strategy", "stopping_rules": "stopping"}
        objects = {names.get(key, key): value for key, value in resolved.objects.items() if key in cls.keys}
        resources = {"models": members.members, "ensemble": resolved.ensemble}
        if given := resolved.objects.get("combination"):
            objects["combination"] = given
        setup = build_setup(
            [member.model for member in members.members],
            joint.dictionary,
            cfg,
            tokenizer,
            fast=resolved.fast,
            resources=resources,
            **objects,
        )
        what = "is not possible with texts as tokens; remove it"
        if setup.search.session_class is not None:
            raise ConfigError(f"{type(setup.search).__name__}, which has a decoding loop of its own, {what}")
        for one in flattened(setup.components):
            if isinstance(one, OwnMember) or one.needs & {HIDDEN_STATES, ATTENTION, LAYER_LOGITS}:
                raise ConfigError(f"{type(one).__name__}, which reads tokens or features of one model, {what}")
        return JointSearch(members, joint, setup)

    @classmethod
    def joint(cls, members: CrossVocabulary) -> JointVocabulary:
        """The joint vocabulary; by default the texts of all members' tokens, also without a space before them."""
        texts = members.texts
        prompted = any(member.model.continues_source for member in members.members)
        space = " " * (prompted or " " in texts.first)
        known = {*texts.trie.texts, *(text.removeprefix(space) for text in texts.trie.texts)}
        return JointVocabulary(texts, sorted(known - {END, ""}), space)

    def new_member(self, divider: Divider, *arguments: Any) -> Any:
        """Make a member; the arguments are those of ``JointMember``."""
        return JointMember(divider, *arguments)

    def own(self, lprobs: Sequence[Tensor]) -> Iterator[Tensor]:
        """The scores of the texts that are tokens of the member; ``-inf`` for texts that it must divide.

        Args:
            lprobs: ``(rows, V)`` of each member.
        """
        for number, scores in enumerate(lprobs):
            yield scores.masked_fill(~self.members[number].known, -torch.inf) if self.members else scores

    def among(self, lprobs: Sequence[Tensor], context: StepContext | None, texts: Tensor | None = None) -> list[Tensor]:
        """The members' distributions, renormalized over the texts that all members can generate.

        Args:
            lprobs: ``(rows, V)`` of each member.
            context: the step context; a text that must follow, such as that of a prefix, is always possible.
            texts: ``(rows, V)`` bool, the texts among which members choose; ``None`` for all.
        """
        possible = torch.stack([scores > -torch.inf for scores in lprobs]).all(0)
        possible = possible if texts is None else possible & texts
        if context is not None and (forced := context.forced) is not None:
            columns = torch.arange(possible.size(-1), device=possible.device)
            possible = possible | (columns == forced.unsqueeze(-1))
        return [normalized(scores.masked_fill(~possible, -torch.inf)) for scores in lprobs]
