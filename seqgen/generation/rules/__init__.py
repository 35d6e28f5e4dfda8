"""fairseq's and Hugging Face's rules of decoding: every difference between the two is in this package."""

from __future__ import annotations

from dataclasses import replace

from seqgen.config import GenerationConfig
from seqgen.generation.rules.base import DRAWING, Rules, draws
from seqgen.generation.rules.fairseq import FairseqRules
from seqgen.generation.rules.huggingface import HuggingFaceRules

FAIRSEQ, HUGGINGFACE = FairseqRules(), HuggingFaceRules()
RULES: dict[str, Rules] = {rules.name: rules for rules in (FAIRSEQ, HUGGINGFACE)}


def rules_named(semantics: str) -> Rules:
    """The rules that ``generation.semantics`` names; fairseq's where it is empty."""
    return RULES[semantics] if semantics else FAIRSEQ


def with_semantics(cfg: GenerationConfig) -> GenerationConfig:
    """The configuration with the name of its rules in place of an empty ``semantics``."""
    return replace(cfg, semantics=rules_named(cfg.semantics).name)


__all__ = ["DRAWING", "FAIRSEQ", "HUGGINGFACE", "RULES", "Rules", "draws", "rules_named", "with_semantics"]
