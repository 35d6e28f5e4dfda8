"""The generator made from the arguments of fairseq's ``SequenceGenerator``."""

from __future__ import annotations

from collections.abc import Sequence

from seqgen.config import GenerationConfig, from_dict
from seqgen.extend import Dictionary, EncoderDecoderModel, MemberSpec, Search, SequenceGenerator, build_setup


def fairseq_generator(
    models: Sequence[EncoderDecoderModel | MemberSpec],
    tgt_dict: Dictionary,
    beam_size: int = 1,
    max_len_a: float = 0.0,
    max_len_b: int = 200,
    max_len: int = 0,
    min_len: int = 1,
    normalize_scores: bool = True,
    len_penalty: float = 1.0,
    unk_penalty: float = 0.0,
    temperature: float = 1.0,
    match_source_len: bool = False,
    no_repeat_ngram_size: int = 0,
    search_strategy: Search | None = None,
    tokens_to_suppress: Sequence[str] = (),
) -> SequenceGenerator:
    """Make a generator that decodes by fairseq's rules; the parameters have fairseq's names and meanings.

    Args:
        models: one or more models that share the target vocabulary; ``MemberSpec`` gives a model a role.
        tgt_dict: the target vocabulary.
        beam_size: hypotheses kept at each step.
        max_len_a: outputs have at most ``max_len_a * source length + max_len_b`` tokens, end-of-sentence not counted.
            The length of a source is that of the sentence itself, end-of-sentence included.
        max_len_b: see ``max_len_a``.
        max_len: outputs have at most this many tokens, end-of-sentence included; 0 for the limit of the models.
        min_len: outputs have at least this many tokens, end-of-sentence not counted.
        normalize_scores: divide cumulative log-probabilities by ``length ** len_penalty``, end-of-sentence counted.
        len_penalty: see ``normalize_scores``; above 1 favours longer outputs.
        unk_penalty: subtracted from the score of the unknown word; the scores of outputs include it.
        temperature: divides the logits.
        match_source_len: outputs have exactly the length of their source.
        no_repeat_ngram_size: no n-gram of this size occurs twice in an output; 0 allows all.
        search_strategy: chooses candidates; beam search by default.
        tokens_to_suppress: tokens that are never generated.

    Raises:
        ConfigError: a parameter is out of range or contradicts another one; the message names the key of the
            configuration that stands for it.
    """
    values = {
        "semantics": "fairseq",
        "beam": beam_size,
        "max_len_a": max_len_a,
        "max_len_b": max_len_b,
        "max_len": max_len,
        "min_len": min_len,
        "normalize_scores": normalize_scores,
        "length_penalty": len_penalty,
        "unkpen": unk_penalty,
        "temperature": temperature,
        "match_source_len": match_source_len,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "suppress": list(tokens_to_suppress),
    }
    cfg = from_dict(GenerationConfig, values, "fairseq_generator")
    return SequenceGenerator(build_setup(models, tgt_dict, cfg, search_strategy=search_strategy))
