"""The keys of decoding lines of text: languages, reranking, and unknown words."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config.options import FILES, KEEPS_SCORES, MODEL, NOT_IN_TRAINING, SCORES_TARGETS, Requirement, decoding_key

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


@dataclass
class UnknownWordOptions:
    """What becomes of unknown words."""

    replace_unknown: str = decoding_key(
        "",
        "replace unknown words by the source word with the highest attention (source), or by its translation in a FILE "
        "with lines SOURCE<tab>TARGET",
        FILES | KEEPS_SCORES | NOT_IN_TRAINING,
        role="input_path",
    )
