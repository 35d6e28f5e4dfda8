"""A decoding component whose invariants are checked: decodes with it, and its state during a decode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from seqgen.config import DebugConfig, GenerationConfig
from seqgen.data.dictionary import Dictionary
from seqgen.data.tokenizers.base import Tokenizer, WhitespaceTokenizer
from seqgen.generation.component import Component, Composite, Phrases
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.generation.session import Session
from seqgen.generation.setup import DecodingRequest, DecodingSetup
from seqgen.lab.checks.checking import Compared, NotApplicableError, Violation, needs
from seqgen.lab.checks.subject import SOURCES, Ids, Results
from seqgen.model import EncoderDecoderModel
from seqgen.registry import DECODING_COMPONENTS
from seqgen.structures import Batch

LONGEST = 6
"""The maximum length of an output, end-of-sentence included."""


@dataclass
class Decoding(Compared):
    """A decoding component, and small models to decode with.

    Attributes:
        generation: names the component, last of its kind, and has its keys and those of the components that it is
            checked with; its ``beam`` is the beam size of the checks.
        group: the kind of component, the prefix of its keys.
        build: builds a random model for a vocabulary, given a seed; ``None`` for trained models.
        dictionary: the target vocabulary.
        sources: the source vocabulary.
        kind: the class of the component; of a search strategy or combination the base class, since rules have variants.
        all_rules: names of the rules that it is checked under.
        rules: name of the rules in use.
        models: the members; a single random one if none is given.
        tokenizer: the target tokenizer; by default, tokens are words.
    """

    generation: GenerationConfig
    group: str
    build: Callable[[Dictionary, int], EncoderDecoderModel] | None
    dictionary: Dictionary
    sources: Dictionary
    kind: type[Component]
    all_rules: Sequence[str] = ("fairseq", "huggingface")
    rules: str = "fairseq"
    models: list[EncoderDecoderModel] = field(default_factory=list)
    tokenizer: Tokenizer | None = None

    def __post_init__(self) -> None:
        if self.build is not None:
            self.models = self.models or [self.build(self.dictionary, 0)]

    @property
    def without(self) -> dict[str, Any]:
        """The options of a decode without the component, but with the components that it is checked with."""
        _, chooser = DECODING_COMPONENTS[self.group]
        chosen = getattr(self.generation, chooser)
        single = isinstance(chosen, str)
        prefix = f"{self.group}." if single else f"{self.group}.{chosen[-1]}."
        return {chooser: "" if single else chosen[:-1], "components": self.keys_without(prefix)}

    def keys_without(self, *prefixes: str) -> dict[str, Any]:
        """The components' own keys, without those that begin with one of some prefixes."""
        return {key: value for key, value in self.generation.components.items() if not key.startswith(prefixes)}

    @cached_property
    def ids(self) -> Ids:
        """The ids of the inputs."""
        return Ids.of(self.models[0], self.dictionary, len(self.sources))

    def batch(self, rows: Sequence[int] | None = None, lengths: Sequence[int] = SOURCES, seed: int = 1) -> Batch:
        """Random sources with their texts and line numbers; see ``Ids.batch``."""
        batch, special = self.ids.batch(lengths, rows, seed=seed), (self.ids.pad, self.ids.eos)
        rows_of_ids = batch.source.src_tokens.tolist()
        texts = [" ".join(self.sources.symbol(id) for id in row if id not in special) for row in rows_of_ids]
        return replace(batch, texts=texts)

    def generator(
        self,
        members: int = 1,
        debug: DebugConfig | None = None,
        objects: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> SequenceGenerator:
        """A generator with the component.

        Args:
            members: number of members, all with the same model.
            debug: switches of optimizations.
            objects: further components; see ``SequenceGenerator.from_config``.
            options: fields of ``GenerationConfig``.
        """
        first = self.ids.words[0]
        ends = [self.dictionary.symbol(token) for token in range(first, first + 8, 3)]  # outputs have unequal lengths
        values = {"min_len": 0, "max_len": LONGEST, "end_symbols": ends, "semantics": self.rules, **options}
        models = self.models * members if len(self.models) == 1 else self.models
        return SequenceGenerator.from_config(
            models,
            self.dictionary,
            replace(self.generation, **values),
            self.tokenizer or WhitespaceTokenizer(self.dictionary),
            debug=debug,
            **(objects or {}),
        )

    def phrases(self, setup: DecodingSetup, batch: Batch) -> list[Phrases] | None:
        """Phrases for a strategy that supports constraints: none, one or two for each sentence."""
        if not setup.search.takes_constraints:
            return None
        first = self.ids.words[0]
        every: list[Phrases] = [[[first + 1, first + 2]], [], [[first + 4]], [[first + 1], [first + 7]], []]
        return [every[row % len(every)] for row in batch.ids.tolist()]

    def decode(self, batch: Batch, prefix: bool = False, **options: Any) -> Results:
        """Decode a batch.

        Args:
            batch: the batch.
            prefix: whether each output has to begin with a token that depends on the line number.
            options: see ``generator``.
        """
        generator = self.generator(**options)
        tokens = (self.ids.words[0] + batch.ids % 2 + 1).unsqueeze(1) if prefix else None
        return generator.generate(batch, tokens, self.phrases(generator.setup, batch))

    def session(
        self, batch: Batch, setup: DecodingSetup | None = None, kind: type[Session] = Session, **options: Any
    ) -> Session:
        """A session that has not decoded a step.

        Args:
            batch: the batch.
            setup: how to decode; by default that of a new generator.
            kind: the class of the session.
            options: see ``generator``.

        Raises:
            NotApplicableError: the search strategy has a decoding loop of its own.
        """
        setup = setup or self.generator(**options).setup
        needs(setup.search.session_class is None, "the search strategy has a decoding loop of its own")
        return kind(setup, DecodingRequest(batch, None, self.phrases(setup, batch)))

    def hold(self, invariant: Callable[[Any], None]) -> None:
        """See ``Compared.hold``: the invariant is checked under all rules; a violation names the rules."""
        reasons: list[NotApplicableError] = []
        for rules in self.all_rules:
            self.rules = rules
            try:
                invariant(self)
            except NotApplicableError as error:
                reasons.append(error)
            except Violation as error:
                error.what += f" (semantics={rules})"
                raise
        if len(reasons) == len(self.all_rules):
            raise reasons[0]

    def parts(self, owner: Session | DecodingSetup) -> list[Component]:
        """The component in a session or setup."""
        return components_in(owner.components, self.kind)

    @property
    def wide(self) -> Decoding:
        """The same component with a vocabulary of 643 tokens, which is searched in blocks.

        Raises:
            NotApplicableError: the models are trained.
        """
        if self.build is None:
            raise NotApplicableError("a trained model has one vocabulary")
        words = Dictionary()
        for number in range(639):
            words.add_symbol(f"w{number}")
        models = [self.build(words, 0) for _ in self.models]
        return replace(self, dictionary=words, sources=words, models=models)


def components_in(components: Sequence[Component], kind: type[Component]) -> list[Component]:
    """The components of a class, also those within others."""
    found: list[Component] = []
    for component in components:
        if isinstance(component, kind):
            found.append(component)
        elif isinstance(component, Composite):
            found += components_in(component.parts, kind)
    return found
