"""Utilities for minimum Bayes risk: TER, any Python function of two texts, and the similarity of embeddings.

``ter`` is sacreBLEU's translation edit rate (Snover et al. 2006) with a negative sign, since larger utilities are
better. Any Python function of a text and a reference becomes a utility by one line, ``@utility(NAME)``: add yours to a
copy of this folder, as ``similarity`` below. ``embedding`` compares the mean hidden states of a Hugging Face encoder::

    u(h, r) = cos(mean of the encoder's states of h, mean of its states of r)

    seqgen-generate common.user_dir=examples/papers/mbr path=runs/a input=test.en generation.beam=16
        generation.rerank=mbr reranker.utility=embedding reranker.utility_keys={model:models/labse}

They also work without a reranker (``generation.mbr=ter``). ``embedding`` needs the package transformers.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, make_dataclass
from typing import Any, Self

import numpy
import torch
from sacrebleu.metrics import TER

from seqgen.extend import ConfigError, Matrix, Resources, Utility, UtilityLine, option, register_utility

TextFunction = Callable[[str, str], float]
"""A function of a text and its reference; the larger, the better."""


class PairUtility(Utility):
    """A utility that compares one text with one reference; a subclass implements ``score``."""

    def score(self, text: str, reference: str) -> float:
        """The utility of a text with a reference."""
        raise NotImplementedError

    def __call__(self, line: UtilityLine) -> Matrix:
        """See ``Utility``."""
        found = [[self.score(text, reference) for reference in line.references] for text in line.texts]
        return numpy.array(found, dtype=numpy.float64)


def utility(name: str) -> Callable[[TextFunction], TextFunction]:
    """Register a function of a text and its reference as a utility, with ``@utility(NAME)``."""

    def register(function: TextFunction) -> TextFunction:
        methods = {"score": lambda self, text, reference: function(text, reference), "__doc__": function.__doc__}
        component = type(name, (PairUtility,), {**methods, "__module__": function.__module__})
        register_utility(name, config=make_dataclass(f"{name}_config", []))(component)
        return function

    return register


@utility("similarity")
def similarity(text: str, reference: str) -> float:
    """Twice the length of the longest matching blocks of characters, divided by both lengths, in percent."""
    return 100 * difflib.SequenceMatcher(None, text, reference, autojunk=False).ratio()


@dataclass
class TerConfig:
    """Configuration of TER."""

    case_sensitive: bool = option(False, "distinguish upper and lower case")


@register_utility("ter", config=TerConfig)
class Ter(PairUtility):
    """100 minus the translation edit rate, in edits for each 100 words of the reference; at most 100.

    Args:
        case_sensitive: whether upper and lower case differ.
    """

    def __init__(self, case_sensitive: bool = False):
        self.metric = TER(case_sensitive=case_sensitive)

    def score(self, text: str, reference: str) -> float:
        """See ``PairUtility.score``."""
        return 100 - float(self.metric.sentence_score(text, [reference]).score)


@dataclass
class EmbeddingConfig:
    """Configuration of the similarity of embeddings."""

    model: str = option("", "Hugging Face folder of an encoder and its tokenizer", role="input_path")


@register_utility("embedding", config=EmbeddingConfig)
class Embedding(Utility):
    """The cosine of the mean hidden states of two texts, in percent.

    Args:
        tokenizer: turns texts into ids and a mask, ``(N, T)``.
        encoder: turns these into hidden states ``(N, T, C)``.
    """

    def __init__(self, tokenizer: Any, encoder: Any):
        self.tokenizer, self.encoder = tokenizer, encoder

    @classmethod
    def build(cls, cfg: EmbeddingConfig, resources: Resources) -> Self:
        """Load the encoder. No code of the folder is run.

        Raises:
            ConfigError: no folder is given, transformers is not installed, or the folder cannot be read.
        """
        if not cfg.model:
            raise ConfigError("the utility embedding needs an encoder; give its folder with the key model")
        try:
            from transformers import AutoModel, AutoTokenizer

            tokenizer: Any = AutoTokenizer
            tokenizer = tokenizer.from_pretrained(cfg.model, local_files_only=True)
            model = AutoModel.from_pretrained(cfg.model, local_files_only=True, use_safetensors=True)
        except (ImportError, OSError, ValueError) as error:
            raise ConfigError(f"the encoder {cfg.model} cannot be loaded: {str(error).splitlines()[0]}") from None
        encoder = model.get_encoder() if model.config.is_encoder_decoder else model
        return cls(tokenizer, encoder.eval().to(resources.device))

    def __call__(self, line: UtilityLine) -> Matrix:
        """See ``Utility``."""
        return 100 * (self.embed(line.texts) @ self.embed(line.references).T).double().cpu().numpy()

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """The mean hidden state of each text, of length 1: ``(N, C)``."""
        inputs = self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        inputs = inputs.to(self.encoder.device)
        mask = inputs["attention_mask"].unsqueeze(-1)
        states = self.encoder(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).last_hidden_state
        return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1).clamp(min=1), dim=-1)
