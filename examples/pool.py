"""A pool of hypotheses: each line is decoded again with other settings, models or seeds.

Outputs that the search did not find join its hypotheses. The models that decode score them, so that all can be
compared, and their origin (``pool:NAME``) is written in ``format=json`` and ``format=tsv``. A reranker or minimum Bayes
risk then chooses among all; without either, the scores decide, which are comparable unless a temperature or processors
change those of the search. A decode has the settings of the command, and the keys that are given for it; one with a
``path`` has those of that model and the keys that are given::

    seqgen-generate common.user_dir=examples/pool.py path=runs/a input=test.en format=json
        generation.rewriters=[pool] 'rewriter.pool.decodes={wide:{beam:10},other:{path:runs/b,beam:5}}'
        generation.nbest=5 generation.mbr=chrf

In Python: ``translate(lines, rewriters=[Pool({"other": Translator("runs/b", beam=5)})])``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Self

import torch

from seqgen import Translator
from seqgen.addons.rewriting import Rewriter
from seqgen.config import non_default_values, to_dict
from seqgen.extend import (
    ConfigError,
    DecodedLine,
    Dictionary,
    Resources,
    TextDecoding,
    TextHypothesis,
    Translation,
    UserError,
    option,
    register_rewriter,
)

OF_LINES = ("input_split", "input_split_lang", "glossary", "protect", "check_outputs")
"""Keys that change lines, which a pool reads after the change."""
OF_RESULTS = ("rewriters", "mbr", "rerank", "nbest", "quality_features", "confidence", "review_share", "review_risk")
"""Keys of what is done with hypotheses afterwards."""
COMPONENTS = ("rewriter.", "utility.", "reranker.", "feature.")


@dataclass
class PoolConfig:
    """Configuration of the rewriter; its fields are the keys ``rewriter.pool.FIELD``."""

    decodes: dict[str, Any] = option(
        {},
        "further decodes by name, each with its keys of generation; path for other models than those that decode",
    )


class Decode:
    """One further decode of lines.

    Args:
        translator: decodes with its settings.
        dictionary: the vocabulary that outputs must have so that their tokens are kept; others are tokenized again.
    """

    def __init__(self, translator: Translator, dictionary: Dictionary | None):
        self.translator, self.dictionary = translator, translator.task.target_dictionary
        self.keeps_tokens = self.dictionary == dictionary
        self.prepared: dict[tuple[tuple[str, str], ...], TextDecoding] = {}

    @cached_property
    def constrained(self) -> bool:
        """True if lines have their phrases after tabs."""
        return bool(self.translator.settings().constraints)

    def __call__(self, lines: Sequence[Translation]) -> Iterator[list[TextHypothesis]]:
        """The outputs of each line; its random numbers depend on its number alone."""
        known = self.translator.task.source_tokenizer.languages is not None
        for languages, some in groupby(lines, lambda line: tuple(sorted(line.languages.items())) if known else ()):
            if languages not in self.prepared:
                beam = self.translator.settings().beam
                self.prepared[languages] = self.translator.prepare(nbest=beam, **dict(languages))
            group = list(some)
            texts = ["\t".join([line.source, *line.constraints * self.constrained]) for line in group]
            numbers, prefixes = [line.id for line in group], [line.prefix for line in group]
            for translation in self.prepared[languages].translate(texts, prefixes, len(group), numbers):
                yield translation.hypotheses


@register_rewriter("pool", config=PoolConfig)
class Pool(Rewriter):
    """Adds the outputs of further decodes.

    Args:
        decodes: by name, which is the origin of their outputs.
        dictionary: the target vocabulary of the models that decode; without it, all outputs are tokenized again.
    """

    def __init__(self, decodes: Mapping[str, Translator], dictionary: Dictionary | None = None):
        self.decodes = {name: Decode(translator, dictionary) for name, translator in decodes.items()}

    @classmethod
    def build(cls, cfg: PoolConfig, resources: Resources) -> Self:
        """Make the translators.

        Raises:
            ConfigError: there is no decode, or its keys cannot be used.
        """
        if not cfg.decodes or not all(isinstance(keys, dict) for keys in cfg.decodes.values()):
            raise ConfigError(
                "the pool needs decodes, each with its keys; set rewriter.pool.decodes={NAME:{KEY:VALUE}}, such as "
                "{second:{seed:2}}"
            )
        settings = resources.settings
        given = non_default_values(to_dict(settings))
        of_all = given.pop("components", {})
        given["components"] = {key: value for key, value in of_all.items() if not key.startswith(COMPONENTS)}
        given = {key: value for key, value in given.items() if key not in (*OF_LINES, *OF_RESULTS)}
        phrases = {"constraints": settings.constraints or "unordered"} if settings.is_constrained else {}
        decodes = {}
        for name, keys in cfg.decodes.items():
            base, rest = {**given, **resources.ensemble}, dict(keys)
            if wrong := sorted({*OF_LINES, "rewriters", "nbest"} & {*rest}):
                what = "a pool adds all outputs of lines as they are decoded; remove"
                raise ConfigError(f"rewriter.pool.decodes, {name}: {what} {' and '.join(wrong)}")
            models: Any = resources.models
            if "path" in rest:
                base, path = {}, rest.pop("path")
                models = [str(each) for each in (path if isinstance(path, list) else [path])]
            try:
                decodes[name] = Translator(models, device=resources.device, **{**base, **phrases, **rest})
                decodes[name].prepare()  # refuses keys at once
            except UserError as error:
                raise ConfigError(f"rewriter.pool.decodes, {name}: {error}") from None
        return cls(decodes, resources.dictionary)

    def __call__(self, lines: Sequence[DecodedLine]) -> list[list[TextHypothesis]]:
        """See ``Rewriter``."""
        found: list[list[TextHypothesis]] = [[] for _ in lines]
        for name, decode in self.decodes.items():
            outputs = decode([line for line, _ in lines])
            for all_of_line, some in zip(found, outputs, strict=True):
                kept = some if decode.keeps_tokens else [replace(item, tokens=torch.empty(0)) for item in some]
                all_of_line += [replace(item, origin=name) for item in kept]
        return found
