"""What holds for every architecture in Hugging Face's layout: it is read, computes, starts and is written as there."""

import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from seqgen.addons.huggingface.architecture import JSONConfig
from seqgen.addons.huggingface.checkpoint import architecture_of, save_pretrained
from seqgen.extend import GenerationConfig, T5Model, TransformerModel, load_model, load_pretrained_tokenizer
from seqgen.models.llama import LlamaModel
from seqgen.models.transformer_lm import TransformerLanguageModel
from tests import huggingface_bart, huggingface_gpt2
from tests.commands import done
from tests.covering import covering, mostly_slow
from tests.huggingface_families import (
    KINDS,
    VARIANTS,
    architecture,
    assert_same_logits,
    every_kind,
    every_variant,
    lively_model,
    original_logits,
    our_logits,
    reread,
    tiny_model,
    write_folder,
)
from tests.huggingface_t5 import change_config, without_casts
from tests.pretrained_folders import write_folder as tokenizer_folder

transformers = pytest.importorskip("transformers")

LAYOUTS: dict[str, tuple[dict[str, Any], str]] = {
    "whole": ({}, "model.safetensors"),
    "shards": ({"max_shard_size": "9KB"}, "model-00002-of-*.safetensors"),
    "bin": ({"safe_serialization": False}, "pytorch_model.bin"),
    "bin shards": ({"safe_serialization": False, "max_shard_size": "9KB"}, "pytorch_model-00002-of-*.bin"),
}


# --- reading


@pytest.mark.parametrize(("variant", "layout"), covering(VARIANTS, list(LAYOUTS)))
def test_logits_are_the_originals(variant: str, layout: str, tmp_path: Path) -> None:
    original = tiny_model(variant)
    saving, files = LAYOUTS[layout]
    loaded = load_model(write_folder(tmp_path / "theirs", original, **saving))
    assert list((tmp_path / "theirs").glob(files))
    assert_same_logits(loaded.model, original)
    assert loaded.notes == []
    assert not loaded.model.training
    assert isinstance(loaded.model, T5Model | TransformerModel | TransformerLanguageModel | LlamaModel)
    assert len(loaded.task.target_dictionary) == original.config.vocab_size
    assert is_tied(loaded.model) == original.config.tie_word_embeddings


def is_tied(model: Any) -> bool:
    """Whether the embedding of the target is the output projection."""
    tied: bool = model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    return tied


@pytest.mark.parametrize(
    ("variant", "values"),
    [
        *(("t5", {"feed_forward_proj": name}) for name in ("gelu", "swish", "gated-gelu", "gated-gelu_new")),
        ("t5", {"feed_forward_proj": "gelu", "dense_act_fn": "relu"}),
        ("mt5", {"tie_word_embeddings": True}),  # version 4 scales it
        *(("mbart", {"activation_function": name}) for name in ("relu", "gelu_new", "swish")),
        *(("gpt2", {"activation_function": name}) for name in ("relu", "silu", "tanh", "gelu_pytorch_tanh")),
        ("gpt2", {"scale_attn_weights": False}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"reorder_and_upcast_attn": True}),
        ("gpt2", {"n_head": 4, "n_layer": 3, "n_embd": 16, "n_inner": 40, "layer_norm_epsilon": 0.3}),
    ],
    ids=str,
)
def test_values_of_the_config_are_honoured(variant: str, values: dict[str, Any], tmp_path: Path) -> None:
    original = tiny_model(variant, **values)
    assert_same_logits(load_model(write_folder(tmp_path / "theirs", original)).model, original)


@every_variant
def test_logits_and_gradients_are_the_originals_in_float64(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_casts(monkeypatch)
    original = tiny_model(variant, dtype=torch.float64)
    folder = write_folder(tmp_path / "theirs", original)
    model = load_model(folder).model
    theirs, ours = original_logits(original), our_logits(model, original.config)
    # the original has sinusoids in float32
    tolerance = 1e-10 if any(kind in variant for kind in ("t5", "bart", "gpt2")) else 1e-5
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    for logits in (theirs, ours):
        logits.log_softmax(-1)[..., 7].sum().backward()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    wanted, compared = dict(original.named_parameters(remove_duplicate=False)), 0
    for name, piece in architecture(folder).layout(model.cfg).pieces.items():
        if name in wanted and wanted[name].grad is not None:
            grad = parameters[piece.parameter].grad
            assert grad is not None
            assert wanted[name].grad.abs().max() > 0
            torch.testing.assert_close(piece.of(grad), wanted[name].grad, rtol=0, atol=10 * tolerance)
            compared += 1
    assert compared > 25


@pytest.mark.parametrize("variant", KINDS)
def test_dtypes(variant: str, tmp_path: Path) -> None:
    """Weights in bfloat16, computed with in float32: also the table of positions has bfloat16's values, where saved."""
    folder = write_folder(tmp_path / "theirs", tiny_model(variant, dtype=torch.bfloat16))
    original = reread(folder, torch_dtype=torch.float32)
    assert_same_logits(load_model(folder, dtype=torch.float32).model, original)
    narrow = load_model(folder).model
    assert {parameter.dtype for parameter in narrow.parameters()} == {torch.bfloat16}
    difference = our_logits(narrow, original.config).float() - original_logits(original)
    assert difference.std() < 0.1
    for name in ("torch_dtype", "dtype"):  # version 5 of transformers has the second name
        change_config(folder, **{"torch_dtype": "absent", "dtype": "absent", name: "float64"})
        wide = load_model(folder).model
        assert {parameter.dtype for parameter in wide.parameters()} == {torch.float64}
        assert is_tied(wide) == original.config.tie_word_embeddings


def test_the_device_and_the_dtype_that_are_asked_for(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "theirs", tiny_model("t5_v1_1"))
    assert {p.device.type for p in load_model(folder, "meta").model.parameters()} == {"meta"}
    for name, parameter in load_model(folder, dtype=torch.float16).model.named_parameters():
        assert parameter.dtype == (torch.float32 if name.endswith("feed_forward.wo.weight") else torch.float16)


# --- the configuration

RENAMED = {
    **{"encoder_embed_dim": "d_model", "max_source_positions": "max_position_embeddings"},
    **{"encoder_ffn_embed_dim": "encoder_ffn_dim", "decoder_ffn_embed_dim": "decoder_ffn_dim"},
    **{"decoder_embed_dim": "n_embd", "decoder_layers": "n_layer", "decoder_attention_heads": "n_head"},
    **{"max_target_positions": "n_positions", "dropout": "resid_pdrop", "embedding_dropout": "embd_pdrop"},
    **{"attention_dropout": "attn_pdrop", "activation_fn": "activation_function"},
}
"""Fields here by those of the original, unless both have the same name."""
IDS = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "forced_eos_token_id")


@every_kind
def test_what_a_config_does_not_say(kind: str, tmp_path: Path) -> None:
    """The defaults are those of the original's class."""
    config = JSONConfig(tmp_path / "config.json", {"model_type": kind})
    cfg, original = architecture_of(config).read_config(config), transformers.AutoConfig.for_model(kind)
    theirs, here = original.to_dict(), {field.name for field in fields(cfg)} - {"decoder_start_token_id"}
    names = {own: RENAMED[own] if RENAMED.get(own) in theirs else own for own in here}
    same = {own: name for own, name in names.items() if theirs.get(name) is not None}
    if kind == "gpt2":
        del same["activation_fn"]  # gelu_new has another name here
    assert len(same) > 9
    assert {own: getattr(cfg, own) for own in same} == {own: theirs[name] for own, name in same.items()}
    assert architecture_of(config).vocab_size(cfg, config) == original.vocab_size
    if kind in huggingface_bart.KINDS:
        assert cfg.no_scale_embedding != original.scale_embedding
        known = {name: getattr(original, name) for name in IDS}
        assert architecture_of(config).generation_defaults(config) == {
            name: value for name, value in known.items() if value is not None
        }


START, BOS = "decoder_start_token_id", "bos_token_id"
SAID: list[dict[str, Any]] = [{}, {BOS: 6}, {START: 5}, {START: 5, BOS: 6}, {START: None}, {START: None, BOS: 6}]


@pytest.mark.parametrize("kind", mostly_slow(["t5", "mt5", "mbart", "bart", "marian", "m2m_100"], "mbart"))
def test_the_start_token_is_the_originals(kind: str, tmp_path: Path) -> None:
    """Each file may have ``decoder_start_token_id`` and ``bos_token_id``, say that there is none, or be silent."""
    folder = write_folder(tmp_path / "theirs", tiny_model(kind))
    text = (folder / "config.json").read_text()
    pad, eos = (json.loads(text)[f"{name}_token_id"] for name in ("pad", "eos"))
    compared = 0
    for in_config, in_generation in covering(SAID, [None, *SAID], times=2):
        (folder / "config.json").write_text(text)
        change_config(folder, **{START: "absent", BOS: "absent", **in_config})
        (folder / "generation_config.json").unlink(missing_ok=True)
        if in_generation is not None:
            values = {"pad_token_id": pad, "eos_token_id": eos, **in_generation}
            (folder / "generation_config.json").write_text(json.dumps(values))
        try:
            start = reread(folder).generate(torch.tensor([[5, 9, eos]]), max_new_tokens=1)[0, 0].item()
        except (ValueError, IndexError):  # it has none, or one outside the vocabulary
            continue
        assert load_model(folder).model.start_token(eos) == start, (in_config, in_generation)
        compared += 1
    assert compared >= 8


# --- names of weights

Weights = dict[str, Tensor]
T5_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def copied(weights: Weights, name: str, *copies: str) -> Weights:
    return weights | {copy: weights[name].clone() for copy in copies}


def renamed(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items()}


def without(weights: Weights, name: str) -> Weights:
    return {key: tensor for key, tensor in weights.items() if key != name}


def sides(prefix: str = "") -> tuple[str, str]:
    return f"{prefix}encoder.embed_tokens.weight", f"{prefix}decoder.embed_tokens.weight"


OTHER_NAMES: dict[str, Any] = {
    "t5 with a bias that nothing reads": lambda w: {**w, T5_BIAS: torch.zeros(8, 3)},
    "t5 with copies": lambda w: copied(w, "shared.weight", "lm_head.weight", *sides()),
    "t5 with copies alone": lambda w: without(
        copied(w, "shared.weight", sides()[0], "lm_head.weight"), "shared.weight"
    ),
    **{
        f"{kind} with copies": lambda w: copied(w, "model.shared.weight", "lm_head.weight", *sides("model."))
        for kind in ("bart", "mbart", "pegasus", "marian")
    },
    **dict.fromkeys(("bart resized", "marian resized"), lambda w: w),
    "mbart without a bias": lambda w: without(w, "final_logits_bias"),
    "m2m_100 with sinusoids": lambda w: {**w, "model.encoder.embed_positions.weights": torch.zeros(2, 2)},
    "bart without its output": lambda w: without(renamed(w, "model."), "final_logits_bias"),
    "m2m_100 without its output": lambda w: renamed(w, "model."),
    "gpt2 as published": lambda w: {
        **renamed(w, "transformer."),
        **{f"h.{index}.attn.bias": torch.ones(1, 1, 48, 48).tril() for index in range(2)},
    },
    "gpt2 with a copy": lambda w: {
        **copied(w, "transformer.wte.weight", "lm_head.weight"),
        "transformer.h.1.attn.masked_bias": torch.tensor(-1e4),
    },
}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names_of_weights(name: str, tmp_path: Path) -> None:
    """Names of old versions, copies of tied weights, models without their output projection, and added rows."""
    original = tiny_model(name.split()[0])
    if hasattr(original, "final_logits_bias") and "without" in name:
        original.final_logits_bias.zero_()
    if "resized" in name:
        original.resize_token_embeddings(original.config.vocab_size + 8)
    folder = write_folder(tmp_path / "theirs", original)
    path = folder / "model.safetensors"
    weights = OTHER_NAMES[name](safetensors.torch.load_file(path))
    safetensors.torch.save_file(weights, path, {"format": "pt"})
    loaded = load_model(folder)
    assert loaded.notes == []
    assert_same_logits(loaded.model, original)


# --- writing


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "gpt2" not in name])
def test_transformers_reads_what_is_written(variant: str, tmp_path: Path) -> None:
    generation = {"num_beams": 3, "max_length": 9, "forced_bos_token_id": 11, "length_penalty": 0.7}
    folder = write_folder(tmp_path / "theirs", lively_model(variant), generation)
    original, loaded = reread(folder), load_model(folder)
    tokenizer, settings = loaded.task.target_tokenizer, GenerationConfig(**loaded.generation)
    notes = save_pretrained(loaded.model, tmp_path / "ours", tokenizer, settings)
    assert [note[:33] for note in notes] == ["umT5 with an untied output projec"] * (variant == "umt5")
    of_text = not original.config.is_encoder_decoder
    auto = transformers.AutoModelForCausalLM if of_text else transformers.AutoModelForSeq2SeqLM
    again, report = auto.from_pretrained(tmp_path / "ours", output_loading_info=True, attn_implementation="eager")
    assert type(again) is type(original) or variant in ("mt5", "mistral_unlimited")  # which are a T5 and a Llama
    assert not any(report.values())
    assert torch.equal(original_logits(again.eval()), original_logits(original))
    sources = torch.tensor([[8, 9, 16, original.config.eos_token_id]])
    assert again.generate(sources).tolist() == original.generate(sources).tolist()
    read = load_model(tmp_path / "ours")
    assert read.generation == loaded.generation
    assert torch.equal(our_logits(read.model, original.config), our_logits(loaded.model, original.config))
    text = "w5 w6 </s> w16"
    words = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "ours" / "tokenizer.json"))
    assert words(text).input_ids == tokenizer.encode(text)


def test_half_precision_is_written(tmp_path: Path) -> None:
    model = load_model(write_folder(tmp_path / "theirs", tiny_model("t5_v1_1", dtype=torch.bfloat16))).model
    save_pretrained(model, tmp_path / "ours")
    again = reread(tmp_path / "ours", torch_dtype="auto")
    assert again.dtype == torch.bfloat16
    assert_same_logits(model.float(), again.float())


@pytest.mark.parametrize("variant", mostly_slow(["t5_v1_1", "marian", "gpt2", "llama_3", "mbart"], "gpt2"))
def test_a_folder_becomes_a_run_and_a_folder_again(variant: str, tmp_path: Path) -> None:
    """All three compute and decode equally; a GPT-2 does not become a folder."""
    folder, run, again = (tmp_path / name for name in ("theirs", "run", "again"))
    write_folder(folder, lively_model(variant), {"num_beams": 2, "max_length": 9})
    made = [(folder, run, [])] + [(run, again, ["format=huggingface"])] * (variant != "gpt2")
    for path, output, options in made:
        done("convert", f"path={path}", f"output={output}", *options)
    lines = []
    for path in (folder, *(output for _, output, _ in made)):
        assert_same_logits(load_model(path).model, reread(folder))
        lines.append(decoded(path, b"w8 w9 w16\nw7\n\n"))
    assert all(one == lines[0] for one in lines)
    assert len(" ".join(lines[0]).split()) > 3
    if variant != "gpt2":
        assert torch.equal(original_logits(reread(again)), original_logits(reread(folder)))
        settings = reread(again).generation_config
        assert (settings.num_beams, settings.max_new_tokens or settings.max_length - 1) == (2, 8)


def fine_tune(folder: Path, run: Path, names: dict[str, str], *further: str) -> None:
    """Convert a folder, and train a new run by the command that is printed, with names in place of the capitals."""
    converted = done("convert", f"path={folder}", f"output={run}")
    printed = next(line for line in converted.out.splitlines() if line.startswith("fine-tune: "))
    program, *words = shlex.split(printed.removeprefix("fine-tune: "))
    assert program == "seqgen-train"
    arguments = [f"{key}={names.get(key, value)}" for key, _, value in (word.partition("=") for word in words)]
    trained = done("train", *arguments, *further, "common.log_format=lines", "common.threads=1", "task.workers=1")
    assert "starting from the weights of" in trained.err + trained.out


def decoded(path: Path, text: bytes, *settings: str) -> list[str]:
    return done("generate", f"path={path}", "input=-", *settings, stdin=text).out.splitlines()


@pytest.mark.slow
def test_a_marian_with_two_vocabularies_is_fine_tuned_by_the_command_that_is_printed(tmp_path: Path) -> None:
    """Both sides have more rows than tokens; the run keeps the number of rows of each."""
    folder = tokenizer_folder(tmp_path / "theirs", "MarianTokenizer", {"separate_vocabs": True}, separate=True)
    tokenizer = load_pretrained_tokenizer(folder)
    source, target = len(tokenizer.dictionary) + 2, len(tokenizer.target_side.dictionary) + 5
    assert source != target
    pad, eos = tokenizer.dictionary.pad(), tokenizer.dictionary.eos()
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": eos, "forced_eos_token_id": eos}
    original = tiny_model("marian_separate", vocab_size=source, decoder_vocab_size=source, max_length=8, **ids)
    original.resize_decoder_token_embeddings(target)
    original.save_pretrained(folder)
    for language, lines in {"en": "a dog runs\ntwo dog\n", "fr": "deux chien\nchien\n"}.items():
        (tmp_path / f"text.{language}").write_text(lines)
    names = {"run_dir": str(tmp_path / "new"), "task.source_lang": "en", "task.target_lang": "fr"}
    names |= dict.fromkeys(("task.train", "task.valid"), str(tmp_path / "text"))
    fine_tune(folder, tmp_path / "run", names, "optimization.max_update=1")
    assert decoded(folder, b"two dog\n") == decoded(tmp_path / "run", b"two dog\n")
    loaded = load_model(tmp_path / "new")
    assert [len(loaded.task.source_dictionary), len(loaded.task.target_dictionary)] == [source, target]
    assert loaded.model.decoder.embed_tokens.num_embeddings == target


@pytest.mark.slow
def test_a_gpt2_is_fine_tuned_by_the_command_that_is_printed(tmp_path: Path) -> None:
    """Padding is end-of-sentence, which counts in the loss nevertheless, and is learned."""
    folder = huggingface_gpt2.tiny_folder(tmp_path / "theirs")
    (tmp_path / "text").write_text("the dog\nno\n" * 20)
    names = {"run_dir": f"{tmp_path}/new", "task.train": f"{tmp_path}/text", "task.valid": f"{tmp_path}/text"}
    few = ("optimization.max_update=60", "optimization.lr=0.005", "lr_scheduler.warmup_updates=4")
    fine_tune(folder, tmp_path / "run", names, *few, "task.sample_break_mode=eos")
    settings = ["generation.max_len=8", "generation.min_len=0"]
    assert decoded(tmp_path / "new", b"the\nno\n", *settings) == [" dog", ""]
