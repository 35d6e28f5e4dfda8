"""Folders in Hugging Face's layout are read: weights, dtypes, and how to decode."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.checkpoints.loading import load_model, load_models
from seqgen.config import GenerationConfig
from seqgen.models.huggingface.architecture import JSONConfig
from seqgen.models.huggingface.checkpoint import save_pretrained
from seqgen.models.huggingface.generation import write_generation
from seqgen.models.huggingface.t5 import ARCHITECTURE
from seqgen.models.t5 import T5Model
from tests.commands import command
from tests.huggingface_t5 import (
    VARIANTS,
    VOCAB,
    assert_near,
    change_config,
    logits,
    original_logits,
    refusal,
    seqgen_model,
    tiny_folder,
    tiny_model,
    tiny_tokenizer,
)

every_variant = pytest.mark.parametrize("variant", list(VARIANTS))


# --- reading


@every_variant
@pytest.mark.parametrize(
    ("layout", "files"),
    [
        ({}, ["model.safetensors"]),
        ({"max_shard_size": "20KB"}, ["model-00001-of-*.safetensors", "model.safetensors.index.json"]),
        ({"safe_serialization": False}, ["pytorch_model.bin"]),
        ({"safe_serialization": False, "max_shard_size": "20KB"}, ["pytorch_model-00002-of-*.bin"]),
    ],
    ids=["whole", "shards", "bin", "bin shards"],
)
def test_a_folder_is_read_whatever_its_files(
    variant: str, layout: dict[str, Any], files: list[str], tmp_path: Path
) -> None:
    folder = tiny_folder(tmp_path / "theirs", variant, **layout)
    assert all(list(folder.glob(name)) for name in files)
    loaded = load_model(folder)
    assert isinstance(loaded.model, T5Model)
    assert not loaded.model.training
    assert loaded.notes == []
    assert_near(logits(loaded.model), original_logits(tiny_model(variant)))
    assert len(loaded.task.target_dictionary) == VOCAB
    text = "the dog <extra_id_0> sees a boat"
    assert loaded.task.encode_source(text).tolist() == tiny_tokenizer()(text).input_ids


def test_dtype_and_device(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5_v1_1", dtype=torch.bfloat16)

    def dtypes(**arguments: Any) -> set[torch.dtype]:
        return {parameter.dtype for parameter in load_model(folder, **arguments).model.parameters()}

    assert dtypes() == {torch.bfloat16}
    assert dtypes(dtype=torch.float32) == {torch.float32}
    assert dtypes(dtype=torch.float64) == {torch.float64}
    assert {p.dtype for p in load_models([str(folder)])[0].model.parameters()} == {torch.float32}
    half = load_model(folder, dtype=torch.float16).model
    for name, parameter in half.named_parameters():
        assert parameter.dtype == (torch.float32 if name.endswith("feed_forward.wo.weight") else torch.float16)
    assert {p.device.type for p in load_model(folder, "meta").model.parameters()} == {"meta"}


def test_ties_survive(tmp_path: Path) -> None:
    tied = load_model(tiny_folder(tmp_path / "tied", "t5"), dtype=torch.float64).model
    assert tied.encoder.embed_tokens.weight is tied.decoder.embed_tokens.weight
    assert tied.decoder.output_projection.weight is tied.decoder.embed_tokens.weight
    untied = load_model(tiny_folder(tmp_path / "untied", "mt5")).model
    assert untied.encoder.embed_tokens.weight is untied.decoder.embed_tokens.weight
    assert untied.decoder.output_projection.weight is not untied.decoder.embed_tokens.weight


def test_names_that_are_known_in_vain(tmp_path: Path) -> None:
    """Old files hold a bias that nothing reads, and the embedding under other names, also under those alone."""
    folder = tiny_folder(tmp_path / "theirs", "t5")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    shared = weights.pop("shared.weight")
    weights["encoder.embed_tokens.weight"] = shared
    weights["lm_head.weight"] = shared.clone()
    weights["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.zeros(8, 3)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert_near(logits(load_model(folder).model), original_logits(tiny_model("t5")))
    weights["shared.weight"], weights["decoder.embed_tokens.weight"] = shared.clone(), shared.clone()
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    loaded = load_model(folder)
    assert_near(logits(loaded.model), original_logits(tiny_model("t5")))
    assert loaded.model.cfg.tie_word_embeddings
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):  # one embedding is all that there is
        changed = weights | {name: shared + 1}
        safetensors.torch.save_file(changed, folder / "model.safetensors", {"format": "pt"})
        assert f"different from the tensors to which they should be tied: {name}" in refusal(folder)


def test_a_tied_mt5_of_version_4_is_scaled(tmp_path: Path) -> None:
    """Version 5 never scales one; tests/models/huggingface/test_oracle_transformers5.py reads its folders."""
    folder = tiny_folder(tmp_path / "theirs", "mt5", tie_word_embeddings=True)
    assert_near(logits(load_model(folder).model), original_logits(tiny_model("mt5", tie_word_embeddings=True)))


def test_an_output_projection_that_the_config_denies(tmp_path: Path) -> None:
    """It is used, which a note says unless version 5 wrote the folder, where it is usual; of another shape, refused."""
    folder = tiny_folder(tmp_path / "theirs", "t5_v1_1")
    change_config(folder, tie_word_embeddings=True, scale_decoder_outputs=False)
    loaded = load_model(folder)
    assert_near(logits(loaded.model), original_logits(tiny_model("t5_v1_1")))
    assert loaded.notes == [
        f"{folder}: its config.json sets tie_word_embeddings, but lm_head.weight differs from the embedding and is "
        "used as the output projection"
    ]
    change_config(folder, transformers_version="5.23.0")
    assert load_model(folder).notes == []
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.zeros(1)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "of another shape: lm_head.weight ((1,), expected (40, 24))" in refusal(folder)


def test_what_a_config_does_not_say(tmp_path: Path) -> None:
    """The defaults are those of the original's class for the model type."""
    transformers = pytest.importorskip("transformers")
    for kind in ("t5", "mt5", "umt5"):
        cfg = ARCHITECTURE.read_config(JSONConfig(tmp_path, {"model_type": kind}))
        original = transformers.AutoConfig.for_model(kind)
        for name in ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads"):
            assert getattr(cfg, name) == getattr(original, name)
        for name in ("feed_forward_proj", "tie_word_embeddings", "dropout_rate", "layer_norm_epsilon"):
            assert getattr(cfg, name) == getattr(original, name)
        assert cfg.per_layer_bias == (kind == "umt5")


@pytest.mark.parametrize(
    ("projection", "further"),
    [
        ("relu", {}),
        ("gelu", {}),
        ("swish", {}),
        ("gated-gelu", {}),
        ("gated-gelu_new", {}),
        ("gelu", {"dense_act_fn": "relu"}),
    ],
)
def test_activations_are_the_originals(projection: str, further: dict[str, Any]) -> None:
    original = tiny_model("t5", feed_forward_proj=projection, **further)
    assert_near(logits(seqgen_model(original)), original_logits(original))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "run"])
def test_loading_never_has_two_copies_of_the_weights(kind: str, tmp_path: Path) -> None:
    """Resident memory, mapped files included, in a process of its own: the weights and a small part of a file."""
    script = """
import sys, threading, time, torch, seqgen.models, seqgen.tasks
from seqgen.checkpoints.loading import load_model
from seqgen.system.switches import MAPPED_WEIGHTS, apply_switches

def resident():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmRSS"))

load_model(sys.argv[2])
before = peak = resident()
done = threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, resident())

thread = threading.Thread(target=watch)
thread.start()
with apply_switches({MAPPED_WEIGHTS: sys.argv[3] != "copied"}):
    model = load_model(sys.argv[1], dtype=None if sys.argv[3] in ("as saved", "copied") else sys.argv[3]).model
done.set()
thread.join()
print((peak - before) / sum(parameter.nbytes for parameter in model.parameters()))
"""
    size = {"d_model": 512, "d_ff": 4096, "d_kv": 64, "num_heads": 8, "num_layers": 6}
    paths = []
    for name, values in (("large", size), ("small", {})):
        path = tiny_folder(tmp_path / name, "t5_v1_1", **values)
        if kind == "run":
            outcome = command("convert", f"path={path}", f"output={tmp_path / f'{name}_run'}")
            assert outcome.code == 0, outcome.err
            path = tmp_path / f"{name}_run"
        paths.append(str(path))
    # the folder has float32; weights that are mapped are not in memory before they are used
    for dtype, least, most in (
        ("as saved", 0, 0.8),
        ("copied", 0.9, 1.2),
        ("bfloat16", 0.9, 1.2),
        ("float64", 0.9, 1.2),
    ):
        arguments = [sys.executable, "-c", script, *paths, dtype]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert least <= float(done.stdout) < most, (dtype, done.stdout)


# --- how to decode


def generation(folder: Path) -> dict[str, Any]:
    return load_model(folder).generation


def test_defaults_of_decoding(tmp_path: Path) -> None:
    """Without settings, the original decodes greedily, up to 20 new tokens."""
    folder = tiny_folder(tmp_path / "theirs", "t5")
    values = generation(folder)
    wanted = {"semantics": "huggingface", "beam": 1, "max_len": 20, "min_len": 0, "early_stopping": "false"}
    assert {name: values[name] for name in wanted} == wanted
    GenerationConfig(**values)  # nothing but its fields
    original = tiny_model("t5")
    original.generation_config.eos_token_id = None
    assert original.generate(torch.tensor([[5, 1]])).size(1) == 1 + values["max_len"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"max_length": 12}, {"max_len": 11}),
        ({"max_length": 12, "max_new_tokens": 7}, {"max_len": 7}),
        ({"min_length": 4}, {"min_len": 3}),
        ({"min_new_tokens": 4}, {"min_len": 4}),
        ({"num_beams": 4, "early_stopping": True}, {"beam": 4, "early_stopping": "true"}),
        ({"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.6}, {"nbest": 2, "length_penalty": 0.6}),
        ({"do_sample": True}, {"sampling": True, "top_k": 50}),
        (
            {"do_sample": True, "top_k": 0, "top_p": 0.9, "temperature": 0.7, "typical_p": 0.8},
            {"top_k": 0, "top_p": 0.9, "temperature": 0.7, "typical_p": 0.8},
        ),
        ({"do_sample": True, "num_beams": 3}, {"search": "beam_sampling", "beam": 3}),
        ({"do_sample": True, "min_p": 0.1, "epsilon_cutoff": 1e-3, "eta_cutoff": 2e-3}, {"min_p": 0.1}),
        (
            {"penalty_alpha": 0.6, "top_k": 4},
            {"search": "contrastive", "components": {"search.penalty_alpha": 0.6, "search.contrastive_topk": 4}},
        ),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.3},
            {"search": "diverse_beam", "components": {"search.groups": 2, "search.strength": 0.3}},
        ),
        ({"repetition_penalty": 1.2, "no_repeat_ngram_size": 3}, {"repetition_penalty": 1.2}),
        ({"encoder_no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.3}, {"encoder_no_repeat_ngram_size": 2}),
        ({"suppress_tokens": [5, 39]}, {"suppress": ["▁d", "<unused_39>"]}),
        ({"begin_suppress_tokens": [1]}, {"suppress_at_begin": ["</s>"]}),
        ({"forced_bos_token_id": 5, "forced_eos_token_id": 1}, {"forced_first": "▁d", "forced_last": "</s>"}),
        ({"eos_token_id": [5, 1, 39]}, {"end_symbols": ["▁d", "<unused_39>"]}),
        ({"renormalize_logits": True, "remove_invalid_values": True}, {"renormalize": True, "remove_invalid": True}),
        (
            {"exponential_decay_length_penalty": [5, 1.5]},
            {"exponential_decay_start": 5, "exponential_decay_factor": 1.5},
        ),
        ({"guidance_scale": 1.5}, {"guidance_scale": 1.5}),
        ({"stop_strings": ["dog"]}, {"stop_strings": ["dog"]}),
        ({"prompt_lookup_num_tokens": 3}, {"draft_tokens": 3, "prompt_lookup": 2}),
    ],
)
def test_how_to_decode_is_read_and_written(theirs: dict[str, Any], ours: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5")
    tokens = load_model(folder).task.target_dictionary.symbols
    ours = {name: _named(value, tokens) for name, value in ours.items()}
    change_config(folder, "generation_config.json", **theirs)
    loaded = load_model(folder)
    assert {name: loaded.generation[name] for name in ours} == ours
    assert len(loaded.notes) == ("guidance_scale" in theirs)
    save_pretrained(
        loaded.model, tmp_path / "again", loaded.task.target_tokenizer, GenerationConfig(**loaded.generation)
    )
    assert generation(tmp_path / "again") == loaded.generation


def _named(value: Any, tokens: list[str]) -> Any:
    """``▁d`` stands for whatever token has the id 5."""
    if isinstance(value, list):
        return [_named(item, tokens) for item in value]
    return tokens[5] if value == "▁d" else value


def test_texts_that_are_forbidden_or_biased(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5")
    ids = tiny_tokenizer()("dog", add_special_tokens=False).input_ids
    change_config(
        folder,
        "generation_config.json",
        bad_words_ids=[ids, [0, 0]],
        sequence_bias=[[ids, -2.5], [[0], 1.5]],
        watermarking_config={"bias": 2},
        cache_implementation="quantized",
    )
    change_config(folder, torch_dtype="float8_e4m3fn")
    loaded = load_model(folder)
    assert loaded.generation["bad_words"] == ["dog", "ids:0 0"]
    assert loaded.generation["sequence_bias"] == ["dog=-2.5", "ids:0=1.5"]
    written = write_generation(GenerationConfig(**loaded.generation), loaded.task.target_tokenizer)
    assert (written["bad_words_ids"], written["sequence_bias"]) == ([ids, [0, 0]], [[ids, -2.5], [[0], 1.5]])
    wanted = (
        "cache_implementation='quantized' is not supported and is ignored",
        "watermarking_config={'bias': 2} is unknown and is ignored",
        "has the dtype float8_e4m3fn, which is not supported; the weights become float32",
    )
    assert len(loaded.notes) == len(wanted)
    assert all(words in note for words, note in zip(wanted, loaded.notes, strict=True))


@pytest.mark.parametrize("kind", ["t5", pytest.param("mt5", marks=pytest.mark.slow)])
def test_the_start_token_is_the_originals(kind: str, tmp_path: Path) -> None:
    """Where ``decoder_start_token_id`` is missing in one file or both, ``bos_token_id`` counts."""
    transformers = pytest.importorskip("transformers")
    folder = tiny_folder(tmp_path / "theirs", kind)
    said: list[dict[str, Any] | None] = [None, {}, {"bos_token_id": 6}, {"decoder_start_token_id": 5}]
    said.append({"bos_token_id": 6, "decoder_start_token_id": 5})
    source = torch.tensor([[5, 9, 20, 1]])
    compared = 0
    for in_config, in_generation in itertools.product(said[1:], said):
        ids = {"decoder_start_token_id": "absent", "bos_token_id": "absent"}
        change_config(folder, **{**ids, **(in_config or {})})
        (folder / "generation_config.json").unlink(missing_ok=True)
        if in_generation is not None:
            values = {"pad_token_id": 0, "eos_token_id": 1, **in_generation}
            (folder / "generation_config.json").write_text(json.dumps(values))
        original = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
        try:
            start = original.generate(source, max_new_tokens=1)[0, 0].item()
        except ValueError:  # it has none
            continue
        assert load_model(folder).model.start_token(1) == start, (in_config, in_generation)
        compared += 1
    assert compared >= 15


def test_a_minimum_above_the_maximum_is_the_maximum(tmp_path: Path) -> None:
    """Then no output ends before its last token, whoever gives the maximum."""
    transformers = pytest.importorskip("transformers")
    folder = tiny_folder(tmp_path / "theirs", "t5_v1_1", generation={"min_new_tokens": 30})
    original = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sources = tokenizer(["the dog", "a man"], return_tensors="pt", padding=True)
    for arguments, longest in (([], 20), (["generation.max_len=6"], 6)):
        outcome = command("generate", f"path={folder}", "input=-", *arguments, stdin=b"the dog\na man\n")
        assert outcome.code == 0, outcome.err
        ids = original.generate(**sources, max_new_tokens=longest)
        assert outcome.out.splitlines() == tokenizer.batch_decode(ids, skip_special_tokens=True)
        assert f"{2 * longest} tokens" in outcome.err
        assert f"min_len={longest}" in outcome.err


def test_quantization_over_float_weights_is_said(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5")
    change_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    (note,) = load_model(folder).notes
    assert note.startswith(f"{folder / 'config.json'}: quantization_config=")
    assert note.endswith(" is unknown and is ignored")


def test_the_page_on_t5_shows_python_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_folder(tmp_path / "T5", "t5_v1_1")
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parent.parent.parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if "save_pretrained" in block]
    exec(compile(code, "docs/models.md", "exec"), {})
    assert {p.dtype for p in load_model("T5-float32").model.parameters()} == {torch.float32}
