"""Folders in Hugging Face's layout are written, and converted both ways by the command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import load_model
from seqgen.config import GenerationConfig
from seqgen.core.errors import ConfigError
from seqgen.models.huggingface.checkpoint import save_pretrained
from tests.commands import command, corpus
from tests.huggingface_t5 import (
    VARIANTS,
    VOCAB,
    assert_near,
    logits,
    original_logits,
    seqgen_model,
    tiny_folder,
    tiny_model,
    tiny_tokenizer,
)
from tests.model_zoo import build

every_variant = pytest.mark.parametrize("variant", list(VARIANTS))


@every_variant
def test_transformers_reads_what_is_written(variant: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    original = tiny_model(variant)
    folder = tmp_path / "ours"
    save_pretrained(seqgen_model(original), folder)
    again, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    assert torch.equal(original_logits(again.eval()), original_logits(original))
    assert again.generation_config.decoder_start_token_id == 0


def test_the_tokenizer_is_written_as_well(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    loaded = load_model(tiny_folder(tmp_path / "theirs", "t5"))
    save_pretrained(loaded.model, tmp_path / "ours", loaded.task.target_tokenizer)
    text = "the dog <extra_id_1> sees a tree"
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours", use_fast=False)
    assert again(text).input_ids == tiny_tokenizer()(text).input_ids
    assert_near(logits(load_model(tmp_path / "ours").model), logits(loaded.model))


def test_half_precision_is_written(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = seqgen_model(tiny_model("t5_v1_1")).to(torch.bfloat16)
    save_pretrained(model, tmp_path / "ours")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours", torch_dtype="auto")
    assert again.dtype == torch.bfloat16
    assert_near(original_logits(again.float()), logits(model.float()))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    model = seqgen_model(tiny_model("t5"))
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        save_pretrained(model, tmp_path / "there")
    with pytest.raises(ConfigError, match="a FConvModel cannot be written in Hugging Face's layout"):
        save_pretrained(build("fconv_tiny"), tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


# --- by command


def converted(tmp_path: Path, **changes: Any) -> tuple[Path, Path]:
    """A folder of the original, and the run made from it."""
    folder = tiny_folder(tmp_path / "theirs", "t5_v1_1", **changes)
    outcome = command("convert", f"path={folder}", f"output={tmp_path / 'run'}")
    assert outcome.code == 0, outcome.err
    assert f"checkpoint.finetune_from={tmp_path / 'run'}" in outcome.out
    return folder, tmp_path / "run"


def same(a: LoadedModel, b: LoadedModel) -> None:
    assert torch.equal(logits(a.model), logits(b.model))
    assert GenerationConfig(**a.generation) == GenerationConfig(**b.generation)
    assert a.task.target_dictionary == b.task.target_dictionary
    assert a.model.start_token(1) == b.model.start_token(1)


def test_a_folder_becomes_a_run_and_a_folder_again(tmp_path: Path) -> None:
    folder, run = converted(tmp_path, generation={"num_beams": 3, "max_length": 9})
    same(load_model(folder), load_model(run))
    run.rename(tmp_path / "moved")
    outcome = command("convert", "format=huggingface", f"path={tmp_path / 'moved'}", f"output={tmp_path / 'again'}")
    assert outcome.code == 0, outcome.err
    same(load_model(folder), load_model(tmp_path / "again"))
    transformers = pytest.importorskip("transformers")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again")
    assert torch.equal(original_logits(again), original_logits(tiny_model("t5_v1_1")))
    assert (again.generation_config.num_beams, again.generation_config.max_new_tokens) == (3, 8)


def test_the_run_is_fine_tuned_by_the_command_that_is_printed(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "t5_v1_1")
    outcome = command("convert", f"path={folder}", f"output={tmp_path / 'run'}")
    printed = next(line for line in outcome.out.splitlines() if line.startswith("fine-tune: "))
    program, *words = shlex.split(printed.removeprefix("fine-tune: "))
    assert program == "seqgen-train"
    corpus(tmp_path / "data")
    source = {"train": f"{tmp_path}/data/train", "valid": f"{tmp_path}/data/val", "input": "to German: {source}"}
    source |= {"source_lang": "en", "target_lang": "de"}
    (tmp_path / "mixture.yaml").write_text(yaml.safe_dump({"sources": {"translate": source}}))
    changes = {"run_dir": str(tmp_path / "new"), "task.mixture": str(tmp_path / "mixture.yaml")}
    arguments = [f"{key}={changes.get(key, value)}" for key, _, value in (word.partition("=") for word in words)]
    few = ["optimization.max_update=2", "common.log_format=lines", "common.threads=1", "task.workers=1"]
    trained = command("train", *arguments, *few)
    assert trained.code == 0, trained.err
    assert "starting from the weights of" in trained.err + trained.out
    new, old = load_model(tmp_path / "new").model, load_model(folder).model
    assert new.cfg.vocab_size == VOCAB
    moved = (new.encoder.embed_tokens.weight - old.encoder.embed_tokens.weight).abs().max()
    assert 0 < moved < 0.1, "trained from elsewhere"
    decoded = command("generate", f"path={tmp_path / 'new'}", "input=-", "generation.max_len=5", stdin=b"the dog\n")
    assert decoded.code == 0, decoded.err
