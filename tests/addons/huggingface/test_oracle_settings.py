"""Any ``generation_config.json`` gives the outputs of transformers: tokens and scores of every hypothesis.

The settings are random, and may also give a refusal or a note.
"""

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.addons.huggingface.generation import write_generation
from seqgen.extend import GenerationConfig, UserError, load_model
from seqgen.text.translator import Translator
from tests.addons.huggingface.test_configs import FLAG, Draw, draw, outcomes, refused
from tests.huggingface_decoding import Pair, assert_same, hypotheses_of, pairs
from tests.huggingface_families import LANGUAGE_MODEL_TYPES, lively_model, write_folder

transformers = pytest.importorskip("transformers")

IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
SOURCES = ("w8 w9 w7 w6", "w7", "w9 w6 w10 w6 w11 w8 w12")


def write(folder: Path, original: Any, values: Mapping[str, Any]) -> Path:
    """Save the original with some decoding settings, and no others."""
    original.generation_config = transformers.GenerationConfig()
    write_folder(folder, original)
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


def decoded(original: Any, folder: Path, values: Mapping[str, Any], source: str) -> list[Pair]:
    """What transformers generates with some settings: tokens up to the first that ends an output, and scores."""
    (folder / "settings.json").write_text(json.dumps(values))
    settings = transformers.GenerationConfig.from_pretrained(folder, "settings.json")
    ids = [int(word[1:]) for word in source.split()]
    decoder_only = not original.config.is_encoder_decoder
    tokens = torch.tensor([ids if decoder_only else [*ids, original.config.eos_token_id]])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    options = {"tokenizer": tokenizer} if settings.stop_strings else {}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    out = original.generate(tokens, settings, attention_mask=torch.ones_like(tokens), **options)
    ends = values["eos_token_id"] if isinstance(values["eos_token_id"], list) else [values["eos_token_id"]]
    begin = tokens.size(1) if decoder_only else 1
    return hypotheses_of(original, out, len(out.sequences), ends, begin, settings.length_penalty)[0]


WORDS, PAD, EOS = 13, 0, 1
"""Tokens of the vocabulary, and its special ids; 3 is the unknown word, the others are words."""

MOST_OFTEN: Mapping[str, Draw] = {
    **{"num_beams": (1, 2, 4), "num_return_sequences": (1, 2), "max_length": (3, 6, 12, 20, 21)},
    "eos_token_id": (EOS, EOS, [EOS, 7], [9, EOS], 6, None),
}
"""Fields that at least half of all cases have."""

_SEARCH: dict[str, Draw] = {
    **{"max_new_tokens": (None, 1, 5, 9), "min_length": (0, 1, 4, 9), "min_new_tokens": (None, 0, 2, 6)},
    **{"early_stopping": (True, False, "never"), "max_time": (None, 1000.0), "do_sample": (False, False, True)},
    **{"stop_strings": (None, "w7", ["w5 w6", "w9"]), "top_k": (1, 50, 4), "num_beam_groups": (1, 2)},
    **{"diversity_penalty": (0.0, 0.7), "penalty_alpha": (None, 0.6), "dola_layers": (None, "low")},
    **{"length_penalty": (1.0, 0.0, 2.0, -1.0), "prompt_lookup_num_tokens": (None, 2)},
    **{"max_matching_ngram_size": (None, 2), "low_memory": (None, True)},
}
_SCORES: dict[str, Draw] = {
    **{"temperature": (1.0, 0.5), "top_p": (1.0, 0.8), "min_p": (None, 0.1), "typical_p": (1.0, 0.9)},
    **{"epsilon_cutoff": (0.0, 0.05), "eta_cutoff": (0.0, 0.05), "repetition_penalty": (1.0, 1.6, 0.8)},
    **{"encoder_repetition_penalty": (1.0, 1.7), "no_repeat_ngram_size": (0, 1, 2)},
    **{"encoder_no_repeat_ngram_size": (0, 2), "force_words_ids": (None, [[5]]), "constraints": (None,)},
    "bad_words_ids": (None, [[5]], [[5, 6], [8]], [[PAD], [EOS]], [[4, PAD]], [[PAD, 5], [PAD, 6]]),
    "sequence_bias": (None, [[[5], 3.0]], [[[5, 6], -2.5], [[8], 2.0]], [[[PAD], 1.5]]),
    **dict.fromkeys(("renormalize_logits", "remove_invalid_values", "token_healing"), FLAG),
    **{"forced_bos_token_id": (None, 5), "forced_eos_token_id": (None, EOS, 8, [EOS, 8])},
    **{"exponential_decay_length_penalty": (None, [1, 1.3], [3, 1.6]), "suppress_tokens": (None, [], [5, 9])},
    **{"begin_suppress_tokens": (None, [EOS], [4, 8]), "guidance_scale": (None, 1.0, 1.5)},
    "watermarking_config": (None, {"bias": 2.0}),
}
_OTHERS: dict[str, Draw] = {
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_scores", "return_dict_in_generate"), FLAG),
    **dict.fromkeys(("use_cache", "disable_compile"), FLAG),
    **dict.fromkeys(("cache_config", "prefill_chunk_size", "assistant_early_exit", "compile_config"), (None,)),
    **{"cache_implementation": (None, "dynamic", "static"), "return_legacy_cache": (None, True)},
    **{"output_logits": (None, True), "pad_token_id": (PAD, EOS, 4), "bos_token_id": (None, 2, 4)},
    **{"decoder_start_token_id": (0, 2, 4), "num_assistant_tokens": (5, 20), "is_assistant": (False,)},
    **{"num_assistant_tokens_schedule": ("constant", "heuristic"), "assistant_confidence_threshold": (0.4, 0.0)},
    **{"assistant_lookbehind": (10, 3), "target_lookbehind": (10, 3), "a_key_of_nobody": (0, 3, "text")},
}

FIELDS: Mapping[str, Draw] = {**MOST_OFTEN, **_SEARCH, **_SCORES, **_OTHERS}
"""All fields of a ``generation_config.json``, besides ``transformers_version``."""


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
    values |= {name: draw(FIELDS[name], rng) for name in names}
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
    """Whether version 4.53.3 decodes such settings wrongly; tests/addons/huggingface/test_errors.py shows each.

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


KINDS = ("bart", "marian", "t5", "gpt2", "qwen3")


def original_of(kind: str, seed: int) -> Any:
    """A model of few tokens with the special ids of the random settings."""
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD, "forced_eos_token_id": None}
    own = {"bos_token_id": EOS, "eos_token_id": EOS} if kind in LANGUAGE_MODEL_TYPES else {} if kind == "t5" else ids
    return lively_model(kind, seed, vocab_size=WORDS, **own)


def unused(notes: list[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that are not used, as the notes say."""
    named = {key for key in values if any(re.search(rf"\b{key}\b", note) for note in notes)}
    kept = {key: value for key, value in values.items() if key not in named}
    if "eos_token_id" in named:  # the note is that the tokenizer's end-of-sentence also ends outputs
        ends = values["eos_token_id"]
        kept["eos_token_id"] = [EOS, *(ends if isinstance(ends, list) else [ends] if ends else [])]
    if "forced_eos_token_id" in named:
        kept["forced_eos_token_id"] = values["forced_eos_token_id"][0]
    return kept


def outcome(kind: str, seed: int, folder: Path) -> str:
    """Compare one random case.

    Returns:
        ``same``, ``noted`` if it is the same without the keys that notes name, ``refused``, or ``impossible`` if
        transformers refuses the settings.

    Raises:
        AssertionError: the outputs differ, or the refusal does not name a key.
    """
    rng = random.Random(f"{kind} {seed}")
    values = random_settings(rng)
    while errors_of_transformers(values):
        values = random_settings(rng)
    if kind in LANGUAGE_MODEL_TYPES and values.get("max_length", 20) != 20:  # which counts the prompt
        values["max_length"] += 6
    original = original_of(kind, seed % 5)
    write(folder, original, values)
    case = f"{kind}, seed {seed}: {values}"
    try:
        decoding = Translator(loaded := load_model(folder)).prepare()
        found = [pairs(translation.hypotheses) for translation in decoding.translate(SOURCES)]
    except UserError as error:
        return refused(str(error), ["generation.", *values], case)
    said = "the model decodes with settings of its own, which your keys override"
    notes = [note for note in [*loaded.notes, *decoding.notes] if not note.startswith(said)]
    kept = unused(notes, values)
    try:
        wanted = [decoded(original, folder, kept, source) for source in SOURCES]
    except Exception:  # whatever transformers raises
        return "impossible"
    for mine, theirs in zip(found, wanted, strict=True):
        try:
            assert_same(mine, theirs)
        except AssertionError as error:
            raise AssertionError(f"{case}: {notes}: {mine} is not {theirs}: {error}") from None
    unknown = values.get("a_key_of_nobody", 0) != 0
    assert unknown == any("a_key_of_nobody" in note for note in notes), f"{case}: {notes}"
    if kept != values:
        return "noted"
    decoder_only = kind in LANGUAGE_MODEL_TYPES  # what is written of the settings is the same
    written = write_generation(GenerationConfig(**loaded.generation), loaded.task.target_tokenizer, decoder_only)
    write(folder, original, {name: values[name] for name in IDS if name in values} | written)
    assert load_model(folder).generation == loaded.generation, case
    return "same"


def test_every_field_is_drawn() -> None:
    fields = set(transformers.GenerationConfig().to_dict()) - {"transformers_version", "_from_model_config"}
    assert fields <= set(FIELDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "count", [4, pytest.param(20, marks=pytest.mark.slow), pytest.param(120, marks=pytest.mark.nightly)]
)
def test_random_settings(kind: str, count: int, tmp_path: Path) -> None:
    found = outcomes(outcome, kind, count, tmp_path)
    assert found.count("same") >= count // 3
    assert count < 120 or found.count("noted") >= 5
