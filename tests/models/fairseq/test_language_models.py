"""Checkpoints of fairseq's transformer_lm: every way of saving options, old names, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.checkpoints.loading import load_model
from seqgen.config import GenerationConfig
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.data.pair_dataset import collate
from seqgen.decoding.options import build_setup
from seqgen.models.transformer_lm import TransformerLanguageModel, TransformerLMConfig
from tests.commands import command
from tests.fairseq_checkpoints import (
    LANGUAGE_MODEL,
    dictionary,
    fairseq_weights,
    in_args,
    in_dict,
    in_omegaconf,
    options_of,
    random_model,
    write,
)
from tests.models.fairseq.test_checkpoints import fused_attention, refused

PROMPT = torch.tensor([[2, 5, 9, 4], [2, 7, 7, 21]])
FURTHER = torch.tensor([[2, 6, 8], [2, 10, 11]])

CONFIGS = {
    "sinusoids": LANGUAGE_MODEL,
    "learned positions, shared embeddings": replace(
        LANGUAGE_MODEL, decoder_learned_pos=True, share_decoder_input_output_embed=True, activation_fn="gelu"
    ),
    "no final norm": replace(LANGUAGE_MODEL, no_decoder_final_norm=True, activation_fn="gelu_accurate"),
    "post-norm": replace(LANGUAGE_MODEL, decoder_normalize_before=False, activation_fn="gelu_fast"),
    "norm of embeddings": replace(LANGUAGE_MODEL, layernorm_embedding=True, no_scale_embedding=True),
}


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(PROMPT, torch.tensor([4, 4]), FURTHER).logits
    return out


@pytest.mark.parametrize("describe", [in_args, in_dict, in_omegaconf])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_each_model_and_way_of_saving_options(
    config: TransformerLMConfig, describe: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    model = random_model(config)
    loaded = load_model(write(tmp_path, model, describe(options_of(config))))
    assert isinstance(loaded.model, TransformerLanguageModel)
    torch.testing.assert_close(logits(loaded.model), logits(model))
    assert loaded.task.encode_source("w3 w1").tolist() == [2, 7, 5], "a prompt begins with end-of-sentence"


def test_the_formula_of_the_embedding(tmp_path: Path) -> None:
    """fairseq's: scaled embeddings, plus learned positions numbered from padding_idx + 1, pre-norm layers."""
    config = replace(CONFIGS["learned positions, shared embeddings"], decoder_layers=1, decoder_attention_heads=1)
    weights = fairseq_weights(random_model(config))
    tokens = torch.cat([PROMPT, FURTHER[:, 1:]], dim=1)

    def w(name: str) -> Tensor:
        return weights[f"decoder.{name}"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w(f"{name}.weight").T + w(f"{name}.bias")

    def norm(x: Tensor, name: str) -> Tensor:
        return nn.functional.layer_norm(x, (8,), w(f"{name}.weight"), w(f"{name}.bias"))

    with torch.no_grad():
        x = w("embed_tokens.weight")[tokens] * 8**0.5 + w("embed_positions.weight")[2 : 2 + tokens.size(1)]
        y = norm(x, "layers.0.self_attn_layer_norm")
        q, k, v = (linear(y, f"layers.0.self_attn.{letter}_proj") for letter in "qkv")
        hidden = torch.ones(6, 6).triu(1).bool()
        scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(hidden, -torch.inf)
        x = x + linear(scores.softmax(-1) @ v, "layers.0.self_attn.out_proj")
        y = linear(norm(x, "layers.0.final_layer_norm"), "layers.0.fc1")
        x = x + linear(nn.functional.gelu(y), "layers.0.fc2")
        wanted = norm(x, "layer_norm") @ w("embed_tokens.weight").T
    loaded = load_model(write(tmp_path, random_model(config), in_args(options_of(config)), weights))
    torch.testing.assert_close(logits(loaded.model), wanted[:, 3:], rtol=0, atol=1e-5)


def test_old_names(tmp_path: Path) -> None:
    model = random_model(LANGUAGE_MODEL)
    weights = fused_attention(fairseq_weights(model))
    for index in range(2):
        for number, name in enumerate(("self_attn", None, "final")):
            for kind in ("weight", "bias"):
                if name:
                    old = weights.pop(f"decoder.layers.{index}.{name}_layer_norm.{kind}")
                    weights[f"decoder.layers.{index}.layer_norms.{number}.{kind}"] = old
    weights["decoder.embed_out"] = weights.pop("decoder.output_projection.weight")
    loaded = load_model(write(tmp_path, model, in_args(options_of(LANGUAGE_MODEL)), weights))
    torch.testing.assert_close(logits(loaded.model), logits(model))


def test_old_options(tmp_path: Path) -> None:
    """Positions default to the tokens of an example; an option implied that there is no final normalization."""
    config = replace(LANGUAGE_MODEL, no_decoder_final_norm=True)
    options = {
        **options_of(config),
        "no_tie_adaptive_proj": True,
        "max_target_positions": None,
        "tokens_per_sample": 33,
    }
    del options["no_decoder_final_norm"]
    loaded = load_model(write(tmp_path, random_model(config), in_args(options)))
    assert loaded.model.decoder.max_positions() == 33
    torch.testing.assert_close(logits(loaded.model), logits(random_model(config)))


def test_pre_norm_whatever_the_option(tmp_path: Path) -> None:
    """Some versions build a pre-norm model although the option says otherwise; its weights have a final norm."""
    model = random_model(LANGUAGE_MODEL)
    options = {**options_of(LANGUAGE_MODEL), "decoder_normalize_before": False}
    loaded = load_model(write(tmp_path, model, in_dict(options)))
    torch.testing.assert_close(logits(loaded.model), logits(model))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"adaptive_softmax_cutoff": "10,20"}, "adaptive_softmax_cutoff='10,20', which seqgen does not support"),
        ({"add_bos_token": True}, "add_bos_token=True"),
        ({"task": "translation"}, "the task 'translation'; only 'language_modeling' is supported"),
        ({"alibi": True}, "unknown options: alibi"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_what_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    model = random_model(LANGUAGE_MODEL)
    refused(write(tmp_path, model, in_args({**options_of(LANGUAGE_MODEL), **changes})), words)


def test_the_command_continues_prompts_and_converts(tmp_path: Path) -> None:
    path = write(tmp_path, random_model(LANGUAGE_MODEL), in_args(options_of(LANGUAGE_MODEL)))
    prompts = b"w1 w2 w3\n\nw9\n"
    outcome = command("generate", f"path={path}", "input=-", "generation.max_len_b=6", stdin=prompts)
    assert outcome.code == 0, outcome.err
    assert len(outcome.out.splitlines()) == 3
    converted = command("convert", f"path={path}", f"output={tmp_path / 'run'}")
    assert converted.code == 0, converted.err
    assert "task=language_modeling" in converted.out
    assert f"checkpoint.finetune_from={tmp_path / 'run'}" in converted.out
    again = command("generate", f"path={tmp_path / 'run'}", "input=-", "generation.max_len_b=6", stdin=prompts)
    assert again.out == outcome.out


def test_the_prompt_counts_as_generated_but_not_its_first_token() -> None:
    """No bigram occurs twice in a prompt after its end-of-sentence and its output together, alone or in a batch."""
    model, cfg = (
        random_model(LANGUAGE_MODEL),
        GenerationConfig(beam=3, no_repeat_ngram_size=2, max_len_b=14, min_len=14),
    )
    generator = SequenceGenerator(build_setup([model], dictionary(), cfg))
    prompts = [torch.tensor(ids) for ids in ([2, 5, 9, 5, 7], [2], [2, 8, 8])]

    def decode(rows: list[Tensor]) -> list[list[int]]:
        examples = [(number, row, None) for number, row in enumerate(rows)]
        batch = collate(examples, source_pad=1, target_pad=1, start_token=2, left_pad_source=True)
        return [found[0].tokens.tolist() for found in generator.generate(batch)]

    outputs = decode(prompts)
    assert outputs == [decode([prompt])[0] for prompt in prompts]
    for prompt, output in zip(prompts, outputs, strict=True):
        text = [*prompt.tolist()[1:], *output]
        pairs = list(itertools.pairwise(text))
        assert len(set(pairs)) == len(pairs)


def test_single_tokens_may_be_forbidden_to_repeat() -> None:
    """The end-of-sentence with which a prompt begins does not forbid the one that ends the output."""
    cfg = GenerationConfig(beam=1, no_repeat_ngram_size=1, max_len_b=4, min_len=0)
    generator = SequenceGenerator(build_setup([random_model(LANGUAGE_MODEL)], dictionary(), cfg))
    batch = collate([(0, torch.tensor([2, 5]), None)], source_pad=1, target_pad=1, start_token=2, left_pad_source=True)
    hypothesis = generator.generate(batch)[0][0]
    assert hypothesis.tokens.tolist()[-1] == 2
    assert hypothesis.score > -torch.inf
