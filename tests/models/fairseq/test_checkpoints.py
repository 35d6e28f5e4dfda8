"""Checkpoints of many versions of fairseq are read as what they are, and what is not known is refused."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the checkpoint loaders
from seqgen.checkpoints.loading import load_model, split_path
from seqgen.config import ReadingConfig
from seqgen.core.errors import CheckpointError, UserError
from seqgen.core.model import EncoderDecoderModel
from seqgen.models.fairseq import read_options
from seqgen.models.fconv import FConvConfig
from seqgen.models.transformer import TransformerConfig
from tests.fairseq_checkpoints import (
    COMMON,
    FCONV,
    LANGUAGES,
    TRANSFORMER,
    dictionary,
    fairseq_weights,
    in_args,
    in_dict,
    in_groups,
    in_omegaconf,
    options_of,
    random_model,
    write,
)
from tests.huggingface_bart import tiny_model

Weights = dict[str, Tensor]


@torch.no_grad()
def assert_same_model(got: EncoderDecoderModel, wanted: EncoderDecoderModel) -> None:
    generator = torch.Generator().manual_seed(5)
    source = torch.randint(4, 24, (2, 7), generator=generator)
    target = torch.randint(4, 24, (2, 6), generator=generator)
    lengths = torch.tensor([7, 7])
    torch.testing.assert_close(got(source, lengths, target).logits, wanted(source, lengths, target).logits)


# -- what is read -----------------------------------------------------------------------------------------------------

CONFIGS = {
    "fconv": FCONV,
    "fconv with attention in some layers": replace(FCONV, decoder_attention="[True, False, True]"),
    "fconv with a shared output": replace(FCONV, share_input_output_embed=True),
    "transformer": TRANSFORMER,
    "transformer, pre-norm, learned positions": replace(
        TRANSFORMER,
        encoder_normalize_before=True,
        decoder_normalize_before=True,
        encoder_learned_pos=True,
        decoder_learned_pos=True,
        activation_fn="gelu",
    ),
    "transformer, all shared": replace(
        TRANSFORMER, share_all_embeddings=True, no_scale_embedding=True, layernorm_embedding=True
    ),
    "transformer, decoder shared": replace(TRANSFORMER, share_decoder_input_output_embed=True),
    "transformer, narrow decoder": replace(TRANSFORMER, decoder_embed_dim=6, decoder_ffn_embed_dim=10),
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_each_kind_of_model(config: FConvConfig | TransformerConfig, zipped: bool, tmp_path: Path) -> None:
    model = random_model(config)
    loaded = load_model(write(tmp_path, model, in_args(options_of(config)), zipped=zipped))
    assert loaded.config.model == config
    assert loaded.task_values["source_lang"] == "en"
    assert_same_model(loaded.model, model)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("describe", [in_args, in_dict, in_omegaconf, in_groups])
def test_each_way_of_saving_options(
    describe: Callable[[dict[str, Any]], dict[str, Any]], zipped: bool, tmp_path: Path
) -> None:
    model = random_model(TRANSFORMER)
    loaded = load_model(write(tmp_path, model, describe(options_of(TRANSFORMER)), zipped=zipped))
    assert loaded.config.model == TRANSFORMER
    assert (loaded.task_values["source_lang"], loaded.task_values["target_lang"]) == ("en", "de")
    assert loaded.task.cfg.source_lang == "en"
    assert loaded.task.translates
    assert_same_model(loaded.model, model)


def numbered_norms(weights: Weights) -> Weights:
    encoder = {"self_attn_layer_norm": "layer_norms.0", "final_layer_norm": "layer_norms.1"}
    names = {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1, "final_layer_norm": 2}
    decoder = {name: f"layer_norms.{number}" for name, number in names.items()}
    result = {}
    for name, tensor in weights.items():
        for new, old in (encoder if name.startswith("encoder.") else decoder).items():
            name = name.replace(f".{new}.", f".{old}.")
        result[name] = tensor
    return result


def fused_attention(weights: Weights) -> Weights:
    result = dict(weights)
    for name in [name for name in weights if ".q_proj." in name]:
        prefix, _, kind = name.rpartition("q_proj.")
        parts = [result.pop(f"{prefix}{letter}_proj.{kind}") for letter in "qkv"]
        result[f"{prefix}in_proj_{kind}"] = torch.cat(parts)
    return result


def output_once(weights: Weights) -> Weights:
    return {name: tensor for name, tensor in weights.items() if name != "decoder.output_projection.weight"}


def bare_output(weights: Weights) -> Weights:
    return {**output_once(weights), "decoder.embed_out": weights["decoder.output_projection.weight"]}


def saved_sinusoids(weights: Weights) -> Weights:
    extra = ["encoder.embed_positions.weights", "encoder.embed_positions._float_tensor", "encoder.version"]
    return {**weights, **{name: torch.zeros(1) for name in extra}}


def half(weights: Weights) -> Weights:
    return {name: tensor.half() for name, tensor in weights.items()}


OLD_WEIGHTS = {
    "numbered norms": (TRANSFORMER, numbered_norms),
    "fused attention": (TRANSFORMER, fused_attention),
    "shared output saved once": (replace(TRANSFORMER, share_decoder_input_output_embed=True), output_once),
    "output as a bare parameter": (TRANSFORMER, bare_output),
    "sinusoids saved": (TRANSFORMER, saved_sinusoids),
}


@pytest.mark.parametrize(("config", "age"), OLD_WEIGHTS.values(), ids=list(OLD_WEIGHTS))
def test_old_names_of_weights(config: TransformerConfig, age: Callable[[Weights], Weights], tmp_path: Path) -> None:
    model = random_model(config)
    path = write(tmp_path, model, in_args(options_of(config)), age(fairseq_weights(model)))
    assert_same_model(load_model(path).model, model)


def test_half_precision_weights_become_float32(tmp_path: Path) -> None:
    model = random_model(TRANSFORMER)
    path = write(tmp_path, model, in_args(options_of(TRANSFORMER)), half(fairseq_weights(model)))
    assert {parameter.dtype for parameter in load_model(path).model.parameters()} == {torch.float32}


def test_convolutions_normalized_over_time(tmp_path: Path) -> None:
    """Old decoders have one norm for each position of the kernel; the weight itself is what counts."""
    model = random_model(FCONV)
    weights = fairseq_weights(model)
    with torch.no_grad():
        for number, convolution in enumerate(model.decoder.convolutions):
            name = f"decoder.convolutions.{number}.weight"
            weight = convolution.weight
            weights[f"{name}_v"] = weight * 3
            weights[f"{name}_g"] = weight.norm(dim=(1, 2), keepdim=True)
    weights["decoder.version"] = torch.tensor([1.0])
    assert_same_model(load_model(write(tmp_path, model, in_args(options_of(FCONV)), weights)).model, model)


def test_missing_options_take_the_defaults_of_the_model() -> None:
    """As in fairseq, which fills in those of ``base_architecture`` when it loads a checkpoint."""

    def config(arch: str, **given: Any) -> FConvConfig | TransformerConfig:
        return read_options({"args": {"arch": arch, **given}}, Path("x.pt")).model

    assert config("fconv") == config("fconv_wmt_en_ro") == FConvConfig()
    assert config("transformer") == config("transformer_wmt_en_de_big") == TransformerConfig()
    options = {"_name": "transformer_wmt_en_de_big_t2t", "encoder_normalize_before": True, "dropout": 0.0}
    given = read_options({"cfg": {"model": {**options, "relu_dropout": "???"}}}, Path("x.pt")).model
    assert given == TransformerConfig(encoder_normalize_before=True, dropout=0.0)
    narrow = config("transformer", encoder_embed_dim=64, encoder_ffn_embed_dim=32, relu_dropout=0.3)
    assert isinstance(narrow, TransformerConfig)
    assert (narrow.decoder_embed_dim, narrow.decoder_ffn_embed_dim, narrow.activation_dropout) == (64, 32, 0.3)


def test_separate_dictionaries_are_found_by_language(tmp_path: Path) -> None:
    source, target = dictionary(15, "s"), dictionary()
    model = random_model(FCONV, source, target)
    path = write(tmp_path, model, in_dict(options_of(FCONV)))
    source.save(tmp_path / "dict.en.txt")
    task = load_model(path).task
    assert (task.source_dictionary, task.target_dictionary) == (source, target)
    source.save(tmp_path / "given.txt")
    (tmp_path / "dict.en.txt").unlink()
    task = load_model(path, reading=ReadingConfig(source_dictionary=str(tmp_path / "given.txt"))).task
    assert (task.source_dictionary, task.target_dictionary) == (source, target)


def test_a_joined_dictionary_under_two_names_is_one(tmp_path: Path) -> None:
    path = write(tmp_path, random_model(FCONV), in_dict(options_of(FCONV)))
    (tmp_path / "dict.txt").rename(tmp_path / "dict.en.txt")
    (tmp_path / "dict.de.txt").write_bytes((tmp_path / "dict.en.txt").read_bytes())
    loaded = load_model(path)
    assert loaded.task.source_tokenizer is loaded.task.target_tokenizer
    assert loaded.task_values["joined_dictionary"]


def test_several_paths_in_one() -> None:
    assert split_path("a.pt:b.pt:runs/c") == ["a.pt", "b.pt", "runs/c"]
    assert split_path("runs/a") == ["runs/a"]


def test_a_path_with_a_colon_that_exists_is_one(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    assert split_path(str(tmp_path / "a:b")) == [str(tmp_path / "a:b")]


# -- what is refused --------------------------------------------------------------------------------------------------


class Trap:
    """Pickled, it is a call of a function that unpickling would run."""

    def __init__(self, function: Callable[..., Any], *args: Any):
        self.call = (function, args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def refused(path: Path, *words: str, reading: ReadingConfig | None = None) -> None:
    with pytest.raises(UserError) as caught:
        load_model(path, reading=reading)
    message = str(caught.value)
    assert "\n" not in message
    for word in (*words, str(path)):
        assert word in message, message


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_code_is_not_run(zipped: bool, protocol: int, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    path = tmp_path / "model.pt"
    for trap, name in (
        (Trap(os.mkdir, str(witness)), "posix.mkdir"),
        (Trap(eval, f"open({str(witness)!r}, 'w')"), "builtins.eval"),
        (Trap(exec, f"open({str(witness)!r}, 'w')"), "builtins.exec"),
    ):
        torch.save({"model": {}, "args": trap}, path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
        refused(path, *([name, "no code was run"] if protocol == 2 else ["was not written by torch.save"]))
        path.write_bytes(pickle.dumps(trap, protocol=protocol))  # without torch.save's wrapping, too
        refused(path)
    assert not witness.exists()


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_truncated_files(zipped: bool, tmp_path: Path) -> None:
    path = write(tmp_path, random_model(FCONV), in_omegaconf(options_of(FCONV)), zipped=zipped)
    content = path.read_bytes()
    for size in (0, 1, 3, 20, 300, 2000, len(content) // 2, len(content) - 30, len(content) - 1):
        path.write_bytes(content[:size])
        refused(path, "damaged")


def test_files_that_are_something_else(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_text("not a model")
    refused(path, "damaged")
    torch.save(random_model(FCONV).state_dict(), path)
    refused(path, "not a fairseq checkpoint")
    torch.save({"model": {}, "args": None}, path)
    refused(path, "its architecture is unknown")


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (FCONV, {"arch": "lstm"}, ["'lstm'", "fconv_iwslt_de_en"]),
        (TRANSFORMER, {"task": "multilingual_translation"}, ["'multilingual_translation'", "reading.ignore=[task]"]),
        (TRANSFORMER, {"adaptive_softmax_cutoff": [100, 200]}, ["adaptive_softmax_cutoff=[100, 200]"]),
        (TRANSFORMER, {"activation_fn": "relu_squared"}, ["activation_fn=relu_squared"]),
        (TRANSFORMER, {"relative_attention": True}, ["relative_attention", "reading.ignore=[relative_attention]"]),
        (TRANSFORMER, {"encoder_layers": "six"}, ["encoder_layers='six'"]),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_what_is_not_known(
    config: FConvConfig | TransformerConfig, changes: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    path = write(tmp_path, random_model(config), in_args({**options_of(config), **changes}))
    refused(path, *words)


def test_what_the_user_knows_better(tmp_path: Path) -> None:
    """An option, task or architecture of one's own is accepted where the user says that it makes no difference."""
    own = {"arch": "my_transformer", "task": "my_translation", "my_option": 3}
    model = random_model(TRANSFORMER)
    path = write(tmp_path, model, in_args({**options_of(TRANSFORMER), **own}))
    reading = ReadingConfig(architecture="transformer", ignore=["my_option", "task"])
    assert_same_model(load_model(path, reading=reading).model, model)


def test_weights_that_do_not_fit_the_options(tmp_path: Path) -> None:
    model = random_model(TRANSFORMER)
    weights = fairseq_weights(model)
    path = write(tmp_path, model, in_args(options_of(TRANSFORMER)), {**weights, "decoder.extra": torch.zeros(2)})
    refused(path, "decoder.extra")
    path = write(tmp_path, model, in_args({**options_of(TRANSFORMER), "encoder_layers": 3}))
    refused(path, "encoder.layers.2")
    path = write(tmp_path, model, in_args({**options_of(TRANSFORMER), "share_decoder_input_output_embed": True}))
    refused(path, "two different tensors")


@pytest.mark.parametrize("config", [TRANSFORMER, FCONV], ids=["transformer", "fconv"])
def test_sizes_that_the_weights_do_not_have(config: FConvConfig | TransformerConfig, tmp_path: Path) -> None:
    """They are refused before anything of that size is made."""
    model = random_model(config)
    options = options_of(config)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"max_source_positions": 10**18}, "a model of these sizes cannot be built"),
        ({"dropout": 10**400}, "does not fit into 64 bits"),
    ]
    if isinstance(config, TransformerConfig):
        cases += [
            ({"encoder_layers": 10**9}, "the model has more weights than the checkpoint"),
            ({"encoder_embed_dim": 10**9}, "a model of these sizes cannot be built"),
            ({"decoder_ffn_embed_dim": 10**9}, "decoder.layers.0.fc1.weight ((12, 8), here (1000000000, 8))"),
            ({"max_source_positions": 10**9}, "the model would need 29 GiB for buffers, more than 4 GiB"),
        ]
    else:
        cases += [
            ({"encoder_layers": "[(8, 3)] * 10000000000"}, "more than 1000 layers"),
            ({"encoder_layers": "[(1000000000000000000000, 3)]"}, "a model of these sizes cannot be built"),
            ({"decoder_out_embed_dim": 10**9}, "decoder.fc2.bias ((8,), here (1000000000,))"),
            ({"max_source_positions": 10**9}, "encoder.embed_positions.weight ((40, 8), here (1000000000, 8))"),
        ]
    for changes, words in cases:
        path = write(tmp_path, model, in_args({**options, **changes}))
        refused(path, words)


# -- through the commands ---------------------------------------------------------------------------------------------


# -- inert objects ----------------------------------------------------------------------------------------------------


# -- BART -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bart", "mbart"])
def test_bart_and_mbart(kind: str, tmp_path: Path) -> None:
    """Under fairseq's names, with weights of transformers, whose names for them are the same."""
    pytest.importorskip("transformers")
    words = dictionary()
    original = tiny_model(kind, vocab_size=len(words), scale_embedding=kind == "mbart", encoder_attention_heads=2)
    original.final_logits_bias.zero_()
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in original.state_dict().items()
        if "shared" not in name and name not in ("final_logits_bias", "lm_head.weight")
    }
    sides = {
        **{"embed_dim": 12, "attention_heads": 2, "normalize_before": kind == "mbart", "learned_pos": True},
        **{"embed_path": None},
    }
    config = original.config
    options = {
        **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sides.items()},
        **{f"{side}_layers": getattr(config, f"{side}_layers") for side in ("encoder", "decoder")},
        **{f"{side}_ffn_embed_dim": getattr(config, f"{side}_ffn_dim") for side in ("encoder", "decoder")},
        **{"max_source_positions": 26, "max_target_positions": 26, "pooler_activation_fn": "tanh", "relu_dropout": 0.0},
        **{"share_all_embeddings": True, "share_decoder_input_output_embed": True, "layernorm_embedding": True},
        **{"activation_fn": "gelu", "no_scale_embedding": kind == "bart", **LANGUAGES, "arch": f"{kind}_base"},
    }
    model = random_model(FCONV)
    loaded = load_model(write(tmp_path, model, in_args({**COMMON, **options}), weights))
    sources, prefixes = torch.tensor([[8, 9, 20, 2], [7, 2, 1, 1]]), torch.tensor([[2, 8, 6], [2, 11, 5]])
    mask = sources.ne(1)
    with torch.no_grad():
        wanted = original(input_ids=sources, attention_mask=mask.long(), decoder_input_ids=prefixes).logits
        got = loaded.model(sources, mask.sum(1), prefixes).logits
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    for task in ("denoising", "translation_from_pretrained_bart"):
        path = write(tmp_path, model, in_args({**COMMON, **options, "task": task}), weights)
        with pytest.raises(CheckpointError, match=f"was trained for the task '{task}'"):
            load_model(path)
