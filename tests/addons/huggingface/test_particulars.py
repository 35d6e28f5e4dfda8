"""What is particular to an architecture in Hugging Face's layout, and to the settings and notes of a folder."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from seqgen.addons.huggingface.architecture import HEAD
from seqgen.addons.huggingface.checkpoint import save_pretrained
from seqgen.addons.huggingface.generation import write_generation
from seqgen.addons.huggingface.t5 import ARCHITECTURE
from seqgen.extend import GenerationConfig, ReadingConfig, load_model
from seqgen.text.translator import Translator
from tests import huggingface_t5
from tests.commands import done
from tests.huggingface_bart import KINDS, VOCAB
from tests.huggingface_decoding import assert_same, pairs
from tests.huggingface_families import assert_same_logits, lively_model, reread, tiny_model, write_folder
from tests.huggingface_t5 import change_config, tiny_tokenizer
from tests.model_zoo import _NARROW, LEARNED, PRE_NORM, registered

transformers = pytest.importorskip("transformers")


# --- weights


def test_an_output_projection_that_the_config_denies(tmp_path: Path) -> None:
    """It is used, which a note says unless version 5 wrote the folder, where it is usual."""
    folder = huggingface_t5.tiny_folder(tmp_path / "theirs", "t5_v1_1")
    change_config(folder, tie_word_embeddings=True, scale_decoder_outputs=False)
    loaded = load_model(folder)
    assert_same_logits(loaded.model, tiny_model("t5_v1_1"))
    assert loaded.notes == [
        f"{folder}: its config.json sets tie_word_embeddings, but lm_head.weight differs from the embedding and is "
        "used as the output projection"
    ]
    change_config(folder, transformers_version="5.23.0")
    assert load_model(folder).notes == []


@pytest.mark.parametrize("kind", ["mbart", "m2m_100"])
def test_untied_embeddings(kind: str, tmp_path: Path) -> None:
    """The matrices of source, target and output may all differ; the original saves one of the first two only."""
    original = tiny_model(kind, tie_word_embeddings=False)
    folder = write_folder(tmp_path / "theirs", original)
    cfg = load_model(folder).model.cfg
    assert (cfg.share_encoder_decoder_embed, cfg.share_all_embeddings) == (True, False)
    path = folder / "model.safetensors"
    own = {f"model.{side}.embed_tokens.weight": torch.randn(VOCAB, 12) for side in ("encoder", "decoder")}
    for number, changes in enumerate(({}, own)):
        safetensors.torch.save_file(safetensors.torch.load_file(path) | changes, path, {"format": "pt"})
        loaded = load_model(folder)
        original = reread(folder) if number else original
        assert loaded.notes == []
        assert_same_logits(loaded.model, original)
        save_pretrained(loaded.model, tmp_path / f"again{number}")
        assert_same_logits(loaded.model, reread(tmp_path / f"again{number}"))
    assert not loaded.model.cfg.share_encoder_decoder_embed


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({**LEARNED, "layernorm_embedding": True}, "bart"),
        ({"sinusoids": "paper", "position_offset": 0, "share_encoder_decoder_embed": True}, "marian"),
        ({**PRE_NORM, **LEARNED, "layernorm_embedding": True, "share_all_embeddings": True}, "mbart"),
        ({**PRE_NORM, "sinusoids": "paper", "position_offset": 0, "share_encoder_decoder_embed": True}, "pegasus"),
        (PRE_NORM, "m2m_100"),
        ({**PRE_NORM, "share_decoder_input_output_embed": True}, "m2m_100"),
    ],
)
def test_models_of_seqgen_are_written(changes: dict[str, Any], kind: str, tmp_path: Path) -> None:
    """As the type whose structure they have, whatever they share."""
    torch.manual_seed(0)
    model = registered("transformer", joint=True, **_NARROW, **changes)().eval()
    save_pretrained(model, tmp_path / "ours")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "ours").model_type == kind
    assert_same_logits(model, reread(tmp_path / "ours"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "run"])
def test_loading_never_has_two_copies_of_the_weights(kind: str, tmp_path: Path) -> None:
    """Resident memory, mapped files included, in a process of its own: the weights and a small part of a file."""
    script = """
import sys, seqgen.models, seqgen.tasks
from seqgen.checkpoints.loading import load_model
from seqgen.system.switches import MAPPED_WEIGHTS, apply_switches

def resident(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))

load_model(sys.argv[2])
open("/proc/self/clear_refs", "w").write("5")  # begin to measure the peak
before = resident("VmRSS")
with apply_switches({MAPPED_WEIGHTS: sys.argv[3] != "copied"}):
    model = load_model(sys.argv[1], dtype=None if sys.argv[3] in ("as saved", "copied") else sys.argv[3]).model
print((resident("VmHWM") - before) / sum(parameter.nbytes for parameter in model.parameters()))
"""
    size = {"d_model": 512, "d_ff": 4096, "d_kv": 64, "num_heads": 8, "num_layers": 6}
    paths = []
    for name, values in (("large", size), ("small", {})):
        path = huggingface_t5.tiny_folder(tmp_path / name, "t5_v1_1", **values)
        if kind == "run":
            done("convert", f"path={path}", f"output={tmp_path / f'{name}_run'}")
            path = tmp_path / f"{name}_run"
        paths.append(str(path))
    # the folder has float32; weights that are mapped are not in memory before they are used
    limits = {"as saved": (0, 0.8), **dict.fromkeys(("copied", "bfloat16", "float64"), (0.9, 1.2))}
    for dtype, (least, most) in limits.items():
        arguments = [sys.executable, "-c", script, *paths, dtype]
        ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert least <= float(ended.stdout) < most, (dtype, ended.stdout)


# --- how to decode

CUTOFFS = {
    **{"top_k": 0, "top_p": 0.9, "temperature": 0.7, "typical_p": 0.8},
    **{"min_p": 0.1, "epsilon_cutoff": 1e-3, "eta_cutoff": 2e-3},
}


def test_defaults_of_decoding(tmp_path: Path) -> None:
    """Without settings, the original decodes greedily, up to 20 new tokens."""
    values = load_model(huggingface_t5.tiny_folder(tmp_path / "theirs", "t5")).generation
    wanted = {"semantics": "huggingface", "beam": 1, "max_len": 20, "min_len": 0, "early_stopping": "false"}
    assert {name: values[name] for name in wanted} == wanted
    original = tiny_model("t5")
    original.generation_config.eos_token_id = None
    assert original.generate(torch.tensor([[5, 1]])).size(1) == 1 + values["max_len"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"do_sample": True}, {"sampling": True, "top_k": 50}),
        ({"do_sample": True, **CUTOFFS}, CUTOFFS),
        ({"do_sample": True, "num_beams": 3}, {"search": "beam_sampling", "beam": 3}),
        (
            {"penalty_alpha": 0.6, "top_k": 4},
            {"search": "contrastive", "components": {"search.penalty_alpha": 0.6, "search.contrastive_topk": 4}},
        ),
        ({"guidance_scale": 1.5}, {"guidance_scale": 1.5}),
        ({"stop_strings": ["dog"]}, {"stop_strings": ["dog"]}),
        ({"prompt_lookup_num_tokens": 3}, {"draft_tokens": 3, "prompt_lookup": 2}),
    ],
)
def test_how_to_decode_is_read_and_written(theirs: dict[str, Any], ours: dict[str, Any], tmp_path: Path) -> None:
    """Settings that are not compared with the original's outputs, which are drawn, or rest on more than a file."""
    folder = huggingface_t5.tiny_folder(tmp_path / "theirs", "t5")
    change_config(folder, "generation_config.json", **theirs)
    loaded = load_model(folder)
    assert {name: loaded.generation[name] for name in ours} == ours
    assert len(loaded.notes) == ("guidance_scale" in theirs)
    written = write_generation(GenerationConfig(**loaded.generation), loaded.task.target_tokenizer)
    assert {name: written[name] for name in theirs} == theirs


def test_texts_of_forbidden_ids_and_weights_that_are_not_supported(tmp_path: Path) -> None:
    folder = huggingface_t5.tiny_folder(tmp_path / "theirs", "t5")
    ids = tiny_tokenizer()("dog", add_special_tokens=False).input_ids
    change_config(folder, "generation_config.json", bad_words_ids=[ids, [0, 0]], sequence_bias=[[ids, -2.5]])
    change_config(folder, torch_dtype="float8_e4m3fn", quantization_config={"load_in_8bit": True})
    loaded = load_model(folder)
    assert loaded.generation["bad_words"] == ["dog", "ids:0 0"]
    assert loaded.generation["sequence_bias"] == ["dog=-2.5"]
    quantized, dtype = loaded.notes
    assert "quantization_config={'load_in_8bit': True} is unknown and is ignored" in quantized
    assert "has the dtype float8_e4m3fn, which is not supported; the weights become float32" in dtype


@pytest.mark.parametrize("kind", KINDS)
def test_old_folders_say_how_to_decode_in_their_config(kind: str, tmp_path: Path) -> None:
    """Keys that the file lacks have the original's defaults, such as the last token, which BART forces."""
    folder = write_folder(tmp_path / "theirs", lively_model(kind, 1))
    (folder / "generation_config.json").unlink()
    own = {"num_beams": 3, "max_length": 8, "forced_eos_token_id": "absent", "decoder_start_token_id": "absent"}
    original = tiny_model(kind)
    pad, eos = original.config.pad_token_id, original.config.eos_token_id
    change_config(folder, **own, bos_token_id=0, force_bos_token_to_be_generated=kind == "bart")
    change_config(folder, bad_words_ids=[[pad], [eos]])
    if kind == "marian":  # whose default is outside this vocabulary
        change_config(folder, decoder_start_token_id=VOCAB - 1)
    loaded, model = load_model(folder), reread(folder)
    assert loaded.notes == []
    forced = ("forced_last" in loaded.generation, "forced_first" in loaded.generation)
    assert forced == (kind != "m2m_100", kind == "bart")
    sources = ("w8 w9 w20 w25", "w7", "w9 w6 w30 w16 w17 w8 w11")
    for source, found in zip(sources, Translator(loaded).translate(sources), strict=True):
        ids = torch.tensor([[*(int(word[1:]) for word in source.split()), eos]])
        out = model.generate(ids, return_dict_in_generate=True, output_scores=True)
        (row,) = out.sequences[:, 1:].tolist()
        row = row[: row.index(eos) + 1] if eos in row else row
        assert_same(pairs(found.hypotheses[:1]), [(tuple(row), float(out.sequences_scores[0]))])


def test_an_untied_projection_of_an_umt5_is_scaled_once(tmp_path: Path) -> None:
    """Its features are scaled, not its projection, when it is written and read again."""
    model = huggingface_t5.seqgen_model(huggingface_t5.tiny_model("umt5_tied"))
    ARCHITECTURE.untie(model, {HEAD: model.decoder.output_projection.weight.detach() * 1.5})
    save_pretrained(model, tmp_path / "umt5")
    tokens, lengths = torch.tensor([[8, 9, 7, 1]]), torch.tensor([4])
    loaded = load_model(tmp_path / "umt5", reading=ReadingConfig(tokenizer="ids")).model
    with torch.no_grad():
        one, two = (each(tokens, lengths, torch.tensor([[0, 5, 6]])).logits for each in (model, loaded))
    torch.testing.assert_close(one, two)
