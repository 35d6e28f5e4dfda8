"""Random valid ``generation_config.json`` files: each gives the outputs of transformers, a refusal, or a note."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.checkpoints.loading import load_model
from seqgen.core.errors import UserError
from seqgen.text.translator import Translator
from tests import huggingface_bart, huggingface_gpt2
from tests.huggingface_bart import write_tokenizer
from tests.huggingface_decoding import Pair, assert_same, pairs, sharp_model
from tests.huggingface_decoding_fields import EOS, FIELDS, PAD, WORDS, errors_of_transformers, random_settings
from tests.models.huggingface.test_configs import outcomes, refused

transformers = pytest.importorskip("transformers")

KINDS = ("bart", "marian", "t5", "gpt2")
SOURCES = ("w5 w9 w4", "w8", "w6 w7 w10 w6 w7 w12")


def original_of(kind: str, seed: int) -> Any:
    """A tiny model of transformers in which some hypotheses end early."""
    if kind == "t5":
        return sharp_model("t5", seed, vocab_size=WORDS)
    if kind == "gpt2":
        model = huggingface_gpt2.tiny_model(seed, vocab_size=WORDS, bos_token_id=EOS, eos_token_id=EOS)
        with torch.no_grad():
            model.transformer.ln_f.weight.mul_(-0.5)
        return model
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD, "forced_eos_token_id": None}
    model = huggingface_bart.tiny_model(kind, seed, vocab_size=WORDS, **ids)
    model.final_logits_bias[0, EOS] = 2.0
    return model


def write(folder: Path, original: Any, values: Mapping[str, Any]) -> Path:
    """Save the original with some decoding settings."""
    original.generation_config = transformers.GenerationConfig()
    original.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(values))
    write_tokenizer(folder, WORDS, PAD, EOS)
    return folder


def decoded(original: Any, folder: Path, values: Mapping[str, Any], source: str) -> list[Pair]:
    """What transformers generates with some settings: tokens up to the first that ends an output, and scores."""
    (folder / "settings.json").write_text(json.dumps(values))
    settings = transformers.GenerationConfig.from_pretrained(folder, "settings.json")
    ids = [int(word[1:]) for word in source.split()]
    decoder_only = not original.config.is_encoder_decoder
    tokens = torch.tensor([ids if decoder_only else [*ids, EOS]])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    options = {"tokenizer": tokenizer} if settings.stop_strings else {}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    out = original.generate(tokens, settings, attention_mask=torch.ones_like(tokens), **options)
    ends = values["eos_token_id"] if isinstance(values["eos_token_id"], list) else [values["eos_token_id"]]
    rows = [row[tokens.size(1) if decoder_only else 1 :] for row in out.sequences.tolist()]
    rows = [row[: next((at + 1 for at, token in enumerate(row) if token in ends), len(row))] for row in rows]
    scores = getattr(out, "sequences_scores", None)
    if scores is None:
        return [(tuple(row), 0.0) for row in rows]
    found = zip(map(tuple, rows), scores.tolist(), strict=True)
    return [pair for pair in found if not pair[1] < -1e6]  # ranks without a hypothesis


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
    if kind == "gpt2" and values.get("max_length", 20) != 20:  # which counts the prompt
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
            compare(mine, theirs)
        except AssertionError as error:
            raise AssertionError(f"{case}: {notes}: {mine} is not {theirs}: {error}") from None
    unknown = values.get("a_key_of_nobody", 0) != 0
    assert unknown == any("a_key_of_nobody" in note for note in notes), f"{case}: {notes}"
    return "same" if kept == values else "noted"


def compare(mine: list[Pair], theirs: list[Pair]) -> None:
    """Tokens are the same, and the scores of beams."""
    if len(theirs) == 1 and theirs[0][1] == 0:
        assert mine[0][0] == theirs[0][0]
    else:
        assert_same(mine, theirs)


def test_every_field_is_drawn() -> None:
    fields = set(transformers.GenerationConfig().to_dict()) - {"transformers_version", "_from_model_config"}
    assert fields <= set(FIELDS)


@pytest.mark.parametrize("kind", KINDS)
def test_random_settings(kind: str, tmp_path: Path) -> None:
    outcomes(outcome, kind, 2, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_settings(kind: str, tmp_path: Path) -> None:
    found = outcomes(outcome, kind, 120, tmp_path)
    assert found.count("same") >= 40
    assert found.count("noted") >= 5
