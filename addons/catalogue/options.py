"""The keys of allowed outputs: tries, certificates and shortlists."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config import FILES, LISTS_OUTPUTS, MODEL, NEEDS_STEPS, WHOLE_LINE, Requirement, decoding_key


@dataclass
class CatalogueOptions:
    """The outputs or tokens that are allowed, and whether the best output was found."""

    allowed_outputs: str = decoding_key(
        "",
        "file with the allowed outputs, one per line; FILE.ids has ids "
        "in place of text, FILE.safetensors is a trie written by seqgen-convert",
        FILES | LISTS_OUTPUTS,
        role="input_path",
        other_names=("prefix_trie",),
    )
    certificate: bool = decoding_key(
        False,
        "bound the scores of the outputs that beam search pruned; report for each line whether its list is exact",
        MODEL | WHOLE_LINE,
        Requirement(
            lambda cfg: not (cfg.mbr or cfg.rerank),
            "certifies the order of scores, which generation.mbr or generation.rerank changes; choose one",
        ),
        setup="seqgen.addons.catalogue.certificate:certify",
    )
    shortlist: str = decoding_key(
        "",
        "file with target tokens for each source token (made by examples/shortlist.py, or Marian's lex.*.bin); each "
        "output contains only those of its source",
        FILES | NEEDS_STEPS,
        Requirement(
            lambda cfg: not cfg.allowed_outputs,
            "and generation.allowed_outputs both limit the tokens, and together they may allow no output; choose one",
        ),
        role="input_path",
        setup="seqgen.addons.catalogue.shortlist:restrict_to_file",
    )
