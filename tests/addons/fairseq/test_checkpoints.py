"""Checkpoints of many versions of fairseq are read as what they are, and what is not known is refused."""

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqgen.addons.fairseq.loader import read_options
from seqgen.extend import EncoderDecoderModel, FConvConfig, ReadingConfig, TransformerConfig, UserError, load_model
from tests.covering import covering
from tests.fairseq_checkpoints import (
    FCONV,
    LANGUAGE_MODEL,
    TRANSFORMER,
    AnyConfig,
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
from tests.hostile import Trap
from tests.model_zoo import LEARNED, PRE_NORM

Weights = dict[str, Tensor]


TOKENS = torch.randint(4, 24, (2, 13), generator=torch.Generator().manual_seed(5))
BATCH = TOKENS[:, :7], torch.tensor([7, 7]), TOKENS[:, 7:]


@torch.no_grad()
def assert_same_model(got: EncoderDecoderModel, wanted: EncoderDecoderModel) -> None:
    torch.testing.assert_close(got(*BATCH).logits, wanted(*BATCH).logits)


# -- what is read -----------------------------------------------------------------------------------------------------

EMBEDDINGS = {"layernorm_embedding": True, "no_scale_embedding": True}
CONFIGS: dict[str, AnyConfig] = {
    "fconv": FCONV,
    "fconv with attention in some layers": replace(FCONV, decoder_attention="[True, False, True]"),
    "fconv with a shared output": replace(FCONV, share_input_output_embed=True),
    "transformer": TRANSFORMER,
    "transformer, pre-norm, learned positions": replace(TRANSFORMER, **PRE_NORM, **LEARNED, activation_fn="gelu"),
    "transformer, all shared": replace(TRANSFORMER, share_all_embeddings=True, **EMBEDDINGS),
    "transformer, decoder shared": replace(TRANSFORMER, share_decoder_input_output_embed=True),
    "transformer, narrow decoder": replace(TRANSFORMER, decoder_embed_dim=6, decoder_ffn_embed_dim=10),
    "language model": LANGUAGE_MODEL,
    "language model, learned positions, shared": replace(
        LANGUAGE_MODEL, decoder_learned_pos=True, share_decoder_input_output_embed=True, activation_fn="gelu"
    ),
    "language model, no final norm": replace(LANGUAGE_MODEL, no_decoder_final_norm=True, activation_fn="gelu_accurate"),
    "language model, post-norm": replace(LANGUAGE_MODEL, decoder_normalize_before=False, activation_fn="gelu_fast"),
    "language model, norm of embeddings": replace(LANGUAGE_MODEL, **EMBEDDINGS),
}
WAYS = covering(list(CONFIGS), [in_args, in_dict, in_omegaconf], [True, False], times=2)


@pytest.mark.parametrize(("name", "describe", "zipped"), [*WAYS, ("transformer", in_groups, True)])
def test_each_model_and_each_way_of_saving_options(
    name: str, describe: Callable[[dict[str, Any]], dict[str, Any]], zipped: bool, tmp_path: Path
) -> None:
    """In zip files and in the files of torch before version 1.6."""
    config = CONFIGS[name]
    model = random_model(config)
    loaded = load_model(write(tmp_path, model, describe(options_of(config)), zipped=zipped))
    assert type(loaded.model) is type(model)
    assert loaded.config.model == config
    assert_same_model(loaded.model, model)
    if name.startswith("language"):
        assert loaded.task.encode_source("w3 w1").tolist() == [2, 7, 5], "a prompt begins with end-of-sentence"
    else:
        assert (loaded.task_values["source_lang"], loaded.task_values["target_lang"]) == ("en", "de")
        assert loaded.task.cfg.source_lang == "en"
        assert loaded.task.translates


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


OLD_WEIGHTS = {
    "numbered norms": (TRANSFORMER, numbered_norms),
    "fused attention": (TRANSFORMER, fused_attention),
    "shared output saved once": (replace(TRANSFORMER, share_decoder_input_output_embed=True), output_once),
    "output as a bare parameter": (TRANSFORMER, bare_output),
    "sinusoids saved": (TRANSFORMER, saved_sinusoids),
    "language model": (LANGUAGE_MODEL, lambda weights: bare_output(numbered_norms(fused_attention(weights)))),
    "half precision": (TRANSFORMER, lambda weights: {name: tensor.half() for name, tensor in weights.items()}),
}


@pytest.mark.parametrize(("config", "age"), OLD_WEIGHTS.values(), ids=list(OLD_WEIGHTS))
def test_old_weights(config: AnyConfig, age: Callable[[Weights], Weights], tmp_path: Path) -> None:
    """They have other names or half precision, and become the model in float32."""
    model = random_model(config)
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()  # values that half precision has too
    path = write(tmp_path, model, in_args(options_of(config)), age(fairseq_weights(model)))
    assert_same_model(load_model(path).model, model)


def test_old_options_of_language_models(tmp_path: Path) -> None:
    """Positions default to the tokens of an example; an option implied that there is no final normalization.

    Some versions build a pre-norm model although the option says otherwise; its weights have a final norm.
    """
    model = random_model(LANGUAGE_MODEL)
    options = options_of(LANGUAGE_MODEL) | {"decoder_normalize_before": False}
    assert_same_model(load_model(write(tmp_path, model, in_dict(options))).model, model)
    model = random_model(replace(LANGUAGE_MODEL, no_decoder_final_norm=True))
    options = options_of(LANGUAGE_MODEL) | {"max_target_positions": None, "tokens_per_sample": 33}
    del options["no_decoder_final_norm"]
    loaded = load_model(write(tmp_path, model, in_args(options | {"no_tie_adaptive_proj": True}))).model
    assert loaded.decoder.max_positions() == 33
    assert_same_model(loaded, model)


@pytest.mark.parametrize("final_norm", [True, False])
@torch.no_grad()
def test_learned_positions_of_language_models_are_those_of_biogpt(final_norm: bool, tmp_path: Path) -> None:
    """Such a model of fairseq has this name in transformers, and its weights have the same names."""
    transformers = pytest.importorskip("transformers")
    config = replace(CONFIGS["language model, learned positions, shared"], no_decoder_final_norm=not final_norm)
    model = random_model(config)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    theirs = transformers.BioGptConfig(24, max_position_embeddings=40, layer_norm_eps=1e-5, **sizes)
    original = transformers.BioGptForCausalLM(theirs).eval()
    weights = {name.replace("decoder", "biogpt"): tensor for name, tensor in fairseq_weights(model).items()}
    original.load_state_dict(weights, strict=False)  # whose output projection is the embedding
    if not final_norm:
        original.biogpt.layer_norm = torch.nn.Identity()
    wanted = original(torch.cat([BATCH[0], BATCH[2][:, 1:]], dim=1)).logits[:, -6:]
    got = load_model(write(tmp_path, model, in_args(options_of(config)))).model(*BATCH).logits
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)


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


def test_what_the_user_knows_better(tmp_path: Path) -> None:
    """An option, task or architecture of one's own is accepted where the user says that it makes no difference."""
    own = {"arch": "my_transformer", "task": "my_translation", "my_option": 3}
    model = random_model(TRANSFORMER)
    path = write(tmp_path, model, in_args({**options_of(TRANSFORMER), **own}))
    reading = ReadingConfig(architecture="transformer", ignore=["my_option", "task"])
    assert_same_model(load_model(path, reading=reading).model, model)


# -- what is never run ------------------------------------------------------------------------------------------------


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
        words = f"{name}.*no code was run" if protocol == 2 else "was not written by torch.save"
        with pytest.raises(UserError, match=words):
            load_model(path)
        path.write_bytes(pickle.dumps(trap, protocol=protocol))  # without torch.save's wrapping, too
        with pytest.raises(UserError):
            load_model(path)
    assert not witness.exists()
