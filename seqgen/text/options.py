"""The keys of decoding lines of text: languages, and reranking."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config.options import KEEPS_SCORES, MODEL, NOT_IN_TRAINING, SCORES_TARGETS, Requirement, decoding_key

_SEVERAL_OUTPUTS = Requirement(
    lambda cfg: cfg.beam > 1 and not cfg.declared("generates_one", False),
    "compares hypotheses, but only one is generated; set generation.beam to 2 or more, and do not use greedy or "
    "contrastive search, which ignore the beam",
)


@dataclass
class LanguageOptions:
    """The languages of a multilingual model."""

    source_lang: str = decoding_key(
        "",
        "multilingual models: language of the source, or fieldN for the code in field N of a line with tabs",
        MODEL | KEEPS_SCORES | NOT_IN_TRAINING | SCORES_TARGETS,
    )
    target_lang: str = decoding_key(
        "",
        "multilingual models: language of the output, or fieldN for the code in field N of a line with tabs",
        MODEL | NOT_IN_TRAINING | SCORES_TARGETS,
    )


@dataclass
class RerankingOptions:
    """What ranks the hypotheses of a line after the search."""

    mbr: str = decoding_key(
        "",
        "minimum Bayes risk: utility by which hypotheses are ranked, by name (chrf, bleu or your own)",
        MODEL | KEEPS_SCORES,
        _SEVERAL_OUTPUTS,
    )
    rerank: str = decoding_key(
        "",
        "name of a registered reranker, by whose scores hypotheses are ranked",
        MODEL | KEEPS_SCORES | NOT_IN_TRAINING,
        Requirement(lambda cfg: not cfg.mbr, "and generation.mbr both rank the hypotheses; choose one"),
        _SEVERAL_OUTPUTS,
    )
