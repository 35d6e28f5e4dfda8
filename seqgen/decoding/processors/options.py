"""The keys of logits processors."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config.options import ENSEMBLE, MODEL, Requirement, decoding_key


@dataclass
class ProcessorOptions:
    """Changes of the scores of tokens."""

    temperature: float = decoding_key(
        1.0,
        "divide logits by this value",
        MODEL,
        Requirement(
            lambda cfg: cfg.semantics != "huggingface" or cfg.is_stochastic,
            "affects only sampling under Hugging Face's rules; set generation.sampling=true, or remove it",
        ),
        minimum=1e-6,
    )
    unkpen: float = decoding_key(
        0.0, "penalty subtracted from the score of the unknown token; negative values reward it", MODEL
    )
    suppress: list[str] = decoding_key([], "tokens of the target vocabulary that are never generated", MODEL)
    suppress_at_begin: list[str] = decoding_key([], "tokens that are not generated at the first position", MODEL)
    forced_first: str = decoding_key("", "token that every output begins with", MODEL)
    forced_last: str = decoding_key(
        "",
        "token that is forced when an output reaches its maximum length",
        MODEL,
        Requirement(
            lambda cfg: cfg.semantics == "huggingface",
            "belongs to Hugging Face's rules; under fairseq's rules, every output ends with end-of-sentence; set "
            "generation.semantics=huggingface, or remove it",
        ),
    )
    bad_words: list[str] = decoding_key([], "strings, or ids:ID ID, that are never generated", MODEL)
    sequence_bias: list[str] = decoding_key(
        [], "TEXT=BIAS, or ids:ID ID=BIAS: value added to the score of a token that would complete the text", MODEL
    )
    no_repeat_ngram_size: int = decoding_key(
        0, "n-grams of this size occur at most once in an output; 0 for no limit", MODEL, minimum=0
    )
    encoder_no_repeat_ngram_size: int = decoding_key(
        0, "n-grams of this size that occur in the source are not generated; 0 for no limit", MODEL, minimum=0
    )
    repetition_penalty: float = decoding_key(
        1.0, "above 1, tokens that were already generated get lower scores; 1 for no effect", MODEL, minimum=1e-6
    )
    encoder_repetition_penalty: float = decoding_key(
        1.0, "above 1, tokens that do not occur in the source get lower scores; 1 for no effect", MODEL, minimum=1e-6
    )
    exponential_decay_start: int = decoding_key(
        0,
        "output length after which the score of end-of-sentence grows exponentially",
        MODEL,
        Requirement(
            lambda cfg: cfg.exponential_decay_factor != 1,
            "has no effect without generation.exponential_decay_factor; set both or neither",
        ),
        minimum=0,
    )
    exponential_decay_factor: float = decoding_key(
        1.0, "base of the exponential growth; 1 for no effect", MODEL, minimum=1e-6
    )
    guidance_scale: float = decoding_key(
        1.0,
        "scale of classifier-free guidance against the scores for an empty source; 1 for none",
        MODEL | ENSEMBLE,
        minimum=0,
    )
    renormalize: bool = decoding_key(
        False, "renormalize probabilities after logits processors have changed them", MODEL
    )
    remove_invalid: bool = decoding_key(
        False, "replace NaN and infinite scores by finite values instead of stopping with an error", MODEL
    )
    processors: list[str] = decoding_key([], "names of additional logits processors, applied after all others", MODEL)
