"""A language identifier as a critic (after Yang and Klein 2021, "FUDGE: Controlled Text Generation With Future
Discriminators"), against outputs in a wrong language.

The distribution of outputs in a language l is, by Bayes' rule, ``p(y_t | y_<t, x, l) ~ p(y_t | y_<t, x) p(l | y_<=t)``.
At each step, the k most probable tokens of each beam therefore get, and all other tokens are forbidden::

    log p(y_t | y_<t, x) + weight (log p(l | y_<=t) - log p(l | y_<t))

The differences sum to ``log p(l | y)`` of the whole output, which py3langid estimates from the text::

    pip install py3langid
    seqgen-generate common.user_dir=examples/papers/critics path=runs/a input=test.en generation.processors=[language]
        processor.language.code=de processor.language.weight=0.5

A text takes about 0.1 ms. The paper trains a discriminator on beginnings of texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor

from seqgen.addons.partial_texts import PartialTexts
from seqgen.extend import ConfigError, Critic, Resources, StepContext, option, register_logits_processor


@dataclass
class LanguageConfig:
    """Configuration of the processor; its fields are the keys ``processor.language.FIELD``."""

    code: str = option("", "the language of the outputs, such as de")
    weight: float = option(1.0, "factor of the log-probability of the language", minimum=0)
    k: int = option(20, "candidates of each beam; at least two for each beam", minimum=1)


@register_logits_processor("language", config=LanguageConfig)
class TargetLanguage(Critic):
    """Adds the change of the log-probability of a language.

    Args:
        texts: the partial outputs.
        code: the language.
        weight: factor of its log-probability.
        k: candidates of each beam.

    Raises:
        ConfigError: py3langid is not installed, or does not know the language.
    """

    can_merge = True

    def __init__(self, texts: PartialTexts, code: str, weight: float = 1.0, k: int = 20):
        super().__init__([texts], k, weight)
        try:
            from py3langid import langid
        except ImportError:
            raise ConfigError("processor language needs a package: pip install py3langid") from None
        identifier: Any = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
        if code not in identifier.labels:
            raise ConfigError(f"processor.language.code={code} is none of {', '.join(sorted(identifier.labels))}")
        self.probability = lru_cache(1 << 14)(lambda text: float(dict(identifier.rank(text))[code]))

    @classmethod
    def build(cls, cfg: LanguageConfig, resources: Resources) -> Self:
        """Read the tokenizer of the outputs."""
        return cls(PartialTexts.of(resources), cfg.code, cfg.weight, cfg.k)

    def values(self, context: StepContext, tokens: Tensor) -> Tensor:
        """See ``Critic.values``."""
        (texts,) = self.parts
        after = [[self.probability(text) for text in row] for row in texts.peek(context, tokens)]
        before = [[self.probability(text)] for text in texts.texts(context)]
        found = [torch.tensor(some, dtype=torch.float64, device=tokens.device) for some in (after, before)]
        new, old = (probabilities.clamp(min=1e-30).log() for probabilities in found)
        return new - old
