"""Decoding a GPT-2 folder equals transformers: greedy and beam search token for token, sampling in distribution."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import load_model
from seqgen.config import GenerationConfig
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.core.setup import Limits
from seqgen.core.structures import Batch, Source
from seqgen.data.dictionary import Dictionary
from seqgen.data.pair_dataset import pad_rows
from seqgen.decoding.options import build_setup
from seqgen.decoding.processors.tokens import SequenceBias
from seqgen.decoding.search.contrastive import ContrastiveSession
from seqgen.models.huggingface.architecture import JSONConfig
from seqgen.models.huggingface.gpt2 import ARCHITECTURE
from seqgen.models.huggingface.weights import load_weights
from seqgen.models.transformer_lm import TransformerLanguageModel
from tests.huggingface_decoding import Pair, assert_same, pairs
from tests.huggingface_gpt2 import tiny_folder, tiny_model

pytestmark = pytest.mark.slow

WORDS = 17
EOS = WORDS - 1
PROMPTS = [[3, 9, 4, 3], [7], [5, 11, 5, 11, 2, 8], [12, 1, 12]]
SEEDS = (1, 2, 3, 8)


class Vocabularies:
    """A vocabulary in which one token is end-of-sentence and padding, as GPT-2's."""

    source_dictionary = target_dictionary = Dictionary(
        [f"w{number}" for number in range(WORDS)], pad=EOS, eos=EOS, unk=EOS, bos=EOS
    )


WORD_LIST = Vocabularies.target_dictionary


def sharp_model(seed: int) -> Any:
    """A tiny GPT-2 with few tokens, in which some outputs end early and beams are reordered.

    A model with tied embeddings tends to repeat its last token; the negative factor prevents that.
    """
    model = tiny_model(seed, vocab_size=WORDS)
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(-0.5)
        for layer in model.transformer.h:
            layer.attn.c_attn.weight.mul_(2.0)
    return model


@functools.lru_cache(maxsize=8)
def seqgen_model(seed: int) -> TransformerLanguageModel:
    """The same model, from the files that transformers wrote."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sharp_model(seed).save_pretrained(folder)
        cfg = ARCHITECTURE.read_config(JSONConfig.read(folder / "config.json"))
        model = TransformerLanguageModel.build_model(cfg, Vocabularies())
        load_weights(model, ARCHITECTURE.layout(cfg), folder, torch.device("cpu"))
    return model.eval()


def decode(
    seed: int, prompts: Sequence[Sequence[int]], processors: Sequence[Any] = (), **keys: Any
) -> list[list[Pair]]:
    """Decode a left-padded batch of prompts with seqgen by Hugging Face's rules."""
    values = {"semantics": "huggingface", "beam": 1, "min_len": 0, "max_len": 12, **keys}
    values.setdefault("nbest", values["beam"])
    cfg = GenerationConfig(**values)
    generator = SequenceGenerator(build_setup([seqgen_model(seed)], WORD_LIST, cfg, processors=processors))
    return [pairs(found) for found in generator.generate(batch(prompts))]


def batch(prompts: Sequence[Sequence[int]]) -> Batch:
    rows = [torch.tensor(prompt) for prompt in prompts]
    return Batch(torch.arange(len(rows)), Source(pad_rows(rows, EOS, left=True), torch.tensor([len(r) for r in rows])))


def original(seed: int, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[Pair]]:
    """Decode a left-padded batch of prompts by transformers; tokens without the prompt."""
    source = batch(prompts).source
    width = source.src_tokens.size(1)
    mask = (torch.arange(width) >= width - source.src_lengths.unsqueeze(1)).long()
    beam = options.get("num_beams", 1)
    values = {"max_new_tokens": 12, "num_return_sequences": beam, "pad_token_id": EOS, "do_sample": False, **options}
    values |= {"return_dict_in_generate": True, "output_scores": True}
    model = sharp_model(seed)
    out = model.generate(source.src_tokens, attention_mask=mask, **values)
    rows = [_until_end(row) for row in out.sequences[:, width:].tolist()]
    if beam > 1:
        scores = out.sequences_scores.tolist()
    else:
        steps = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
        scores = [float(row[: len(own)].sum()) / len(own) for row, own in zip(steps, rows, strict=True)]
    found = list(zip(rows, scores, strict=True))
    return [found[start : start + beam] for start in range(0, len(found), beam)]


def _until_end(tokens: list[int]) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens)


Keys = tuple[dict[str, Any], dict[str, Any]]

KEYS: dict[str, Keys] = {
    "greedy": ({}, {}),
    "beam": ({"beam": 4}, {"num_beams": 4}),
    "early stopping": ({"beam": 3, "early_stopping": "true"}, {"num_beams": 3, "early_stopping": True}),
    "length penalty": ({"beam": 3, "length_penalty": 2.0}, {"num_beams": 3, "length_penalty": 2.0}),
    "min_new_tokens": ({"min_len": 5}, {"min_new_tokens": 5}),
    "min_new_tokens in beams": ({"beam": 3, "min_len": 9}, {"num_beams": 3, "min_new_tokens": 9}),
    "groups": (
        {"beam": 4, "search": "diverse_beam", "components": {"search.groups": 2, "search.strength": 0.5}},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    ),
    "forced_eos": ({"forced_last": f"w{EOS}"}, {"forced_eos_token_id": EOS}),
    "suppress": ({"suppress": ["w3", "w5"]}, {"suppress_tokens": [3, 5]}),
    "begin_suppress": ({"suppress_at_begin": ["w3", f"w{EOS}"]}, {"begin_suppress_tokens": [3, EOS]}),
    "decay": (
        {"exponential_decay_start": 2, "exponential_decay_factor": 1.3},
        {"exponential_decay_length_penalty": (2, 1.3)},
    ),
}
"""Our keys and theirs."""

WITH_PROMPT: dict[str, Keys] = {
    "repetition_penalty": ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
    "repetition_penalty in beams": (
        {"beam": 3, "repetition_penalty": 1.7},
        {"num_beams": 3, "repetition_penalty": 1.7},
    ),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    "single tokens": ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 1}),
    "no_repeat_ngram_size in beams": (
        {"beam": 3, "no_repeat_ngram_size": 2},
        {"num_beams": 3, "no_repeat_ngram_size": 2},
    ),
    "encoder_no_repeat_ngram_size": ({"encoder_no_repeat_ngram_size": 2}, {"encoder_no_repeat_ngram_size": 2}),
    "encoder_repetition_penalty": ({"encoder_repetition_penalty": 1.5}, {"encoder_repetition_penalty": 1.5}),
    "min_length": ({"min_total_len": 9}, {"min_length": 9}),
    "min_length in beams": ({"beam": 3, "min_total_len": 11}, {"num_beams": 3, "min_length": 11}),
    "total length": ({"max_len_a": -1.0, "max_len_b": 8, "max_len": 0}, {"max_length": 9, "max_new_tokens": None}),
}
"""Our keys and theirs whose effect depends on the prompt; in transformers it depends on the padding as well."""

UNEQUAL_IN_BATCHES = ("beam", "length penalty", "min_new_tokens in beams", *WITH_PROMPT)
"""Keys with which transformers does not decode a prompt in a batch as alone: it adds hypotheses to a finished sentence
until all sentences are finished, or counts padding."""


@pytest.mark.parametrize("name", [name for name in KEYS if name not in UNEQUAL_IN_BATCHES])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_left_padded_batch(name: str, seed: int) -> None:
    ours, theirs = KEYS[name]
    for got, wanted in zip(decode(seed, PROMPTS, **ours), original(seed, PROMPTS, **theirs), strict=True):
        assert_same(got, wanted)


@pytest.mark.parametrize("name", [*KEYS, *WITH_PROMPT])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_prompt_of_a_batch(name: str, seed: int) -> None:
    """Decoded in a batch, each prompt gives what transformers gives for it alone."""
    ours, theirs = (KEYS | WITH_PROMPT)[name]
    for prompt, got in zip(PROMPTS, decode(seed, PROMPTS, **ours), strict=True):
        (wanted,) = original(seed, [prompt], **theirs)
        assert_same(got, wanted)


@pytest.mark.parametrize(("alpha", "topk"), [(0.6, 4), (0.3, 3), (0.9, 5)])
def test_contrastive_search_looks_at_the_prompt(alpha: float, topk: int) -> None:
    """Batches with padding on the left, token for token; the generated tokens alone give other outputs."""
    keys = {"search": "contrastive", "components": {"search.penalty_alpha": alpha, "search.contrastive_topk": topk}}
    without = mock.patch.object(ContrastiveSession, "_prompt_features", lambda own, of_start: of_start[:, :1])
    differences = 0
    for seed in range(6):
        wanted = [own[0][0] for own in original(seed, PROMPTS, penalty_alpha=alpha, top_k=topk)]
        got = [own[0][0] for own in decode(seed, PROMPTS, **keys)]
        assert got == wanted
        with without:
            differences += got != [own[0][0] for own in decode(seed, PROMPTS, **keys)]
    assert differences


def test_sequences_that_begin_in_the_prompt() -> None:
    """A bias on a sequence of ids counts tokens of the prompt, but neither the first one nor padding."""
    prompt = PROMPTS[0]
    first = original(0, [prompt])[0][0][0][0]
    biases = {(prompt[-1], first): -torch.inf, (2, prompt[-1], 5): 4.0, (EOS, *prompt, 5): 9.0, (*prompt, 6): 9.0}
    got = decode(0, [PROMPTS[2], prompt], [SequenceBias(biases)])[1]
    (wanted,) = original(0, [prompt], sequence_bias=[[list(ids), bias] for ids, bias in biases.items()])
    assert got[0][0][0] != first
    assert [tokens for tokens, _ in got] == [tokens for tokens, _ in wanted]


WARPERS: dict[str, Keys] = {
    "temperature": ({"temperature": 0.6}, {"temperature": 0.6, "top_k": 0}),
    "top_k": ({"top_k": 5}, {"top_k": 5}),
    "top_p": ({"top_p": 0.7, "temperature": 1.4}, {"top_p": 0.7, "temperature": 1.4, "top_k": 0}),
    "typical_p": ({"typical_p": 0.6}, {"typical_p": 0.6, "top_k": 0}),
    "penalty": ({"repetition_penalty": 1.6, "top_k": 6}, {"repetition_penalty": 1.6, "top_k": 6}),
}


@pytest.mark.parametrize("keys", WARPERS.values(), ids=list(WARPERS))
@pytest.mark.parametrize("seed", SEEDS)
def test_sampled_tokens_have_the_originals_probabilities(keys: Keys, seed: int) -> None:
    """The score of a sampled output is its probability after the warpers, which transformers computes again."""
    ours, theirs = keys
    prompt = PROMPTS[seed % len(PROMPTS)]
    for tokens, score in decode(
        seed, [[1, 2, 3, 4, 5, 6, 7], prompt], sampling=True, beam=3, search="sampling", **ours
    )[1]:
        assert score == pytest.approx(_mean_log_probability(seed, prompt, tokens, theirs), abs=1e-4)


def _mean_log_probability(seed: int, prompt: list[int], tokens: tuple[int, ...], options: dict[str, Any]) -> float:
    """The mean log-probability with which transformers samples tokens after a prompt."""
    transformers = pytest.importorskip("transformers")
    model, total = sharp_model(seed), 0.0
    config = transformers.GenerationConfig(do_sample=True, **options)
    processors = model._get_logits_processor(config, input_ids_seq_length=len(prompt), device="cpu")
    with torch.no_grad():
        for step, token in enumerate(tokens):
            ids = torch.tensor([[*prompt, *tokens[:step]]])
            scores = processors(ids, model(ids).logits[:, -1])
            total += float(scores.log_softmax(-1)[0, token])
    return total / len(tokens)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_folder_decodes_as_its_generation_config_says(beam: int, tmp_path: Path) -> None:
    values = {"num_beams": beam, "max_length": 14, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    loaded = load_model(tiny_folder(tmp_path / "theirs", generation=values))
    model = tiny_model()
    for name, value in values.items():
        setattr(model.generation_config, name, value)
    for text in ("the dog", "a boat sees the old", " x"):
        ids = loaded.task.encode_source(text)
        out = model.generate(ids.unsqueeze(0), attention_mask=torch.ones_like(ids).unsqueeze(0), pad_token_id=299)
        assert _decoded(loaded, ids) == out[0, len(ids) :].tolist()


def _decoded(loaded: LoadedModel, ids: Tensor) -> list[int]:
    generator = loaded.task.build_generator([loaded.model], GenerationConfig(**loaded.generation))
    tokens: list[int] = generator.generate(loaded.task.collate([(0, ids, None)], loaded.model))[0][0].tokens.tolist()
    return tokens


def test_a_prompt_beyond_the_limit_gets_one_token() -> None:
    limits = Limits(max_len_a=-1.0, max_len_b=3, max_len=40)
    assert limits.last_steps(torch.tensor([1, 3, 6])).tolist() == [2, 0, 0]
    ((tokens, _),) = decode(1, [PROMPTS[2]], max_len_a=-1.0, max_len_b=3, max_len=0)[0]
    assert len(tokens) == 1


@pytest.mark.parametrize("name", [*KEYS, *WITH_PROMPT])
def test_these_keys_have_an_effect(name: str) -> None:
    """Otherwise the tests above would compare the same outputs again and again."""
    ours, _ = (KEYS | WITH_PROMPT)[name]
    plain = {key: value for key, value in ours.items() if key == "beam"}
    if plain != ours:
        assert any(decode(seed, PROMPTS, **ours) != decode(seed, PROMPTS, **plain) for seed in SEEDS)
