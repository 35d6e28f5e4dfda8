"""Random valid values of every field of a ``generation_config.json``, for models of ``WORDS`` tokens."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from tests.huggingface_fields import FLAG, Draw, one_of

WORDS, PAD, EOS = 13, 0, 1
"""Tokens of the vocabulary, and its special ids; 3 is the unknown word, the others are words."""

WORD = one_of(*range(4, WORDS))

MOST_OFTEN: Mapping[str, Draw] = {
    "num_beams": one_of(1, 2, 4),
    "num_return_sequences": one_of(1, 2),
    "max_length": one_of(3, 6, 12, 20, 21),
    "eos_token_id": one_of(EOS, EOS, [EOS, 7], [9, EOS], 6, None),
}
"""Fields that at least half of all cases have."""

_SEARCH: dict[str, Draw] = {
    "max_new_tokens": one_of(None, 1, 5, 9),
    "min_length": one_of(0, 1, 4, 9),
    "min_new_tokens": one_of(None, 0, 2, 6),
    "early_stopping": one_of(True, False, "never"),
    "max_time": one_of(None, 1000.0),
    "stop_strings": one_of(None, "w7", ["w5 w6", "w9"]),
    "do_sample": one_of(False, False, True),
    "top_k": one_of(1, 50, 4),
    "num_beam_groups": one_of(1, 2),
    "diversity_penalty": one_of(0.0, 0.7),
    "penalty_alpha": one_of(None, 0.6),
    "dola_layers": one_of(None, "low"),
    "length_penalty": one_of(1.0, 0.0, 2.0, -1.0),
    "prompt_lookup_num_tokens": one_of(None, 2),
    "max_matching_ngram_size": one_of(None, 2),
    "low_memory": one_of(None, True),
}
_SCORES: dict[str, Draw] = {
    "temperature": one_of(1.0, 0.5),
    "top_p": one_of(1.0, 0.8),
    "min_p": one_of(None, 0.1),
    "typical_p": one_of(1.0, 0.9),
    "epsilon_cutoff": one_of(0.0, 0.05),
    "eta_cutoff": one_of(0.0, 0.05),
    "repetition_penalty": one_of(1.0, 1.6, 0.8),
    "encoder_repetition_penalty": one_of(1.0, 1.7),
    "no_repeat_ngram_size": one_of(0, 1, 2),
    "encoder_no_repeat_ngram_size": one_of(0, 2),
    "bad_words_ids": one_of(None, [[5]], [[5, 6], [8]], [[PAD], [EOS]], [[4, PAD]], [[PAD, 5], [PAD, 6]]),
    "force_words_ids": one_of(None, [[5]]),
    "constraints": one_of(None),
    "sequence_bias": one_of(None, [[[5], 3.0]], [[[5, 6], -2.5], [[8], 2.0]], [[[PAD], 1.5]]),
    "renormalize_logits": FLAG,
    "remove_invalid_values": FLAG,
    "forced_bos_token_id": one_of(None, 5),
    "forced_eos_token_id": one_of(None, EOS, 8, [EOS, 8]),
    "exponential_decay_length_penalty": one_of(None, [1, 1.3], [3, 1.6]),
    "suppress_tokens": one_of(None, [], [5, 9]),
    "begin_suppress_tokens": one_of(None, [EOS], [4, 8]),
    "guidance_scale": one_of(None, 1.0, 1.5),
    "token_healing": FLAG,
    "watermarking_config": one_of(None, {"bias": 2.0}),
}
_OTHERS: dict[str, Draw] = {
    "use_cache": FLAG,
    "cache_implementation": one_of(None, "dynamic", "static"),
    "cache_config": one_of(None),
    "return_legacy_cache": one_of(None, True),
    "prefill_chunk_size": one_of(None),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_scores", "return_dict_in_generate"), FLAG),
    "output_logits": one_of(None, True),
    "pad_token_id": one_of(PAD, EOS, 4),
    "bos_token_id": one_of(None, 2, 4),
    "decoder_start_token_id": one_of(0, 2, 4),
    "num_assistant_tokens": one_of(5, 20),
    "num_assistant_tokens_schedule": one_of("constant", "heuristic"),
    "assistant_confidence_threshold": one_of(0.4, 0.0),
    "assistant_early_exit": one_of(None),
    "assistant_lookbehind": one_of(10, 3),
    "target_lookbehind": one_of(10, 3),
    "compile_config": one_of(None),
    "disable_compile": FLAG,
    "is_assistant": one_of(False),
    "a_key_of_nobody": one_of(0, 3, "text"),
}

FIELDS: Mapping[str, Draw] = {**MOST_OFTEN, **_SEARCH, **_SCORES, **_OTHERS}
"""All fields, besides ``transformers_version``."""


def random_settings(rng: random.Random) -> dict[str, Any]:
    """The content of a ``generation_config.json``.

    Args:
        rng: draws the values.
    """
    names = [name for name in MOST_OFTEN if rng.random() < 0.7]
    names += rng.sample(sorted({*_SEARCH, *_SCORES}), rng.randint(0, 5)) + rng.sample(
        sorted(_OTHERS), rng.randint(0, 2)
    )
    values: dict[str, Any] = {"eos_token_id": EOS, "pad_token_id": PAD, "decoder_start_token_id": PAD}
    values |= {name: FIELDS[name](rng) for name in names}
    if values.get("num_beam_groups", 1) > 1 or values.get("diversity_penalty", 0) > 0:
        values |= {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.7}
    values["num_return_sequences"] = min(values.get("num_return_sequences", 1), values.get("num_beams", 1))
    if values.get("do_sample"):  # so that there is nothing to draw
        values |= {"top_k": 1, "num_beams": 1, "num_return_sequences": 1}
    return values


_FORBIDS_AN_END = (
    *("min_length", "min_new_tokens", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "forced_bos_token_id"),
    *("forced_eos_token_id", "remove_invalid_values"),
)


def errors_of_transformers(values: Mapping[str, Any]) -> bool:
    """Whether version 4.53.3 decodes such settings wrongly; tests/models/huggingface/test_errors.py shows each.

    Args:
        values: the content of a ``generation_config.json``.
    """
    beams = values.get("num_beams", 1)
    decay = values.get("exponential_decay_length_penalty")
    return bool(
        (beams > 1 and values.get("encoder_repetition_penalty", 1.0) != 1)
        or (values.get("num_beam_groups", 1) > 1 and values["eos_token_id"] != EOS)  # also the tokenizer's
        or (decay and any(values.get(name) for name in _FORBIDS_AN_END))
        or values.get("guidance_scale") not in (None, 1)
    )
