"""GPT-2 folders: read, written, converted, and refused where they are damaged or not supported."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.checkpoints.loading import load_model
from seqgen.core.errors import ConfigError, DataError
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer, save_pretrained_tokenizer
from seqgen.models.huggingface.architecture import JSONConfig
from seqgen.models.huggingface.checkpoint import save_pretrained
from seqgen.models.huggingface.gpt2 import ARCHITECTURE
from seqgen.models.transformer_lm import TransformerLanguageModel
from seqgen.text.translator import Translator
from tests.commands import command
from tests.huggingface_gpt2 import END_OF_TEXT, VOCAB, tiny_folder, tiny_model, tiny_tokenizer
from tests.huggingface_t5 import assert_near, change_config, refusal
from tests.model_zoo import build

TOKENS = torch.tensor([[5, 9, 20, 299, 44, 7, 8], [299, 299, 7, 1, 250, 2, 299]])
LENGTHS = torch.tensor([5, 3])


def logits(model: Any) -> Tensor:
    """Logits here after the prompts, which are padded on the left, and two further tokens."""
    further = torch.cat([TOKENS[:, :1], TOKENS[:, 5:]], dim=1)
    with torch.no_grad():
        out: Tensor = model(TOKENS[:, :5], LENGTHS, further).logits
    return out


def original_logits(model: Any) -> Tensor:
    """The original's logits for the same tokens."""
    mask = (torch.arange(7) >= (5 - LENGTHS).unsqueeze(1)).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        out: Tensor = model(input_ids=TOKENS, attention_mask=mask, position_ids=positions).logits
    return out[:, 4:]


# --- reading


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_logits_are_the_originals(tied: bool, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", tie_word_embeddings=tied, max_shard_size="20KB")
    loaded = load_model(folder)
    assert isinstance(loaded.model, TransformerLanguageModel)
    assert loaded.notes == []
    decoder = loaded.model.decoder
    assert (decoder.output_projection.weight is decoder.embed_tokens.weight) == tied
    assert_near(logits(loaded.model), original_logits(tiny_model(tie_word_embeddings=tied)))


@pytest.mark.parametrize(
    "values",
    [
        {"n_inner": 40},
        {"layer_norm_epsilon": 0.3},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"reorder_and_upcast_attn": True},
        *({"activation_function": name} for name in ("relu", "gelu", "silu", "tanh", "gelu_pytorch_tanh")),
        {"activation_function": "gelu_fast"},
        {"n_head": 4, "n_layer": 3, "n_embd": 16},
    ],
    ids=str,
)
def test_values_of_the_config_are_honoured(values: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model(**values)
    got = logits(load_model(tiny_folder(tmp_path / "theirs", **values)).model)
    assert_near(got, original_logits(model))


def test_dtypes(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in load_model(folder).model.parameters()} == {torch.bfloat16}
    wide = load_model(folder, dtype=torch.float32).model
    assert_near(logits(wide), original_logits(tiny_model(dtype=torch.bfloat16).float()))


def test_names_of_the_published_files(tmp_path: Path) -> None:
    """GPT-2's own files lack the prefix and have causal masks; other files repeat the tied embedding."""
    folder = tiny_folder(tmp_path / "theirs")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    bare |= {f"h.{index}.attn.bias": torch.ones(1, 1, 48, 48).tril() for index in range(2)}
    safetensors.torch.save_file(bare, folder / "model.safetensors", {"format": "pt"})
    assert_near(logits(load_model(folder).model), original_logits(tiny_model()))
    weights["lm_head.weight"] = weights["transformer.wte.weight"].clone()
    weights["transformer.h.1.attn.masked_bias"] = torch.tensor(-1e4)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert_near(logits(load_model(folder).model), original_logits(tiny_model()))


def test_defaults_and_general_names(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    cfg, original = ARCHITECTURE.read_config(JSONConfig(tmp_path, {"model_type": "gpt2"})), transformers.GPT2Config()
    assert cfg.decoder_embed_dim == original.n_embd
    assert (cfg.decoder_layers, cfg.decoder_attention_heads) == (original.n_layer, original.n_head)
    assert (cfg.max_target_positions, cfg.decoder_ffn_embed_dim) == (original.n_positions, 4 * original.n_embd)
    assert (cfg.dropout, cfg.embedding_dropout) == (original.resid_pdrop, original.embd_pdrop)
    assert (cfg.attention_dropout, cfg.layer_norm_epsilon) == (original.attn_pdrop, original.layer_norm_epsilon)
    general = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": 9}
    cfg = ARCHITECTURE.read_config(JSONConfig(tmp_path, general))
    assert (cfg.decoder_embed_dim, cfg.decoder_layers, cfg.decoder_attention_heads) == (12, 3, 2)
    assert cfg.max_target_positions == 9


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"add_cross_attention": True}, "add_cross_attention=True is not supported for a GPT-2"),
        ({"activation_function": "mish"}, "activation_function='mish' is not supported"),
        ({"n_head": 5}, "the hidden size 24 is not a multiple of the 5 attention heads"),
    ],
    ids=str,
)
def test_what_is_refused(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs")
    change_config(folder, **values)
    assert words in refusal(folder)


# --- how to decode


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {"max_len": 20, "min_len": 0, "max_len_a": 0.0}),
        ({"max_new_tokens": 7, "max_length": 30}, {"max_len": 7, "max_len_a": 0.0}),
        ({"max_length": 30}, {"max_len_a": -1.0, "max_len_b": 29}),
        ({"min_new_tokens": 4}, {"min_len": 4}),
        ({"min_length": 5}, {"min_len": 0, "min_total_len": 5}),
        ({"do_sample": True, "top_k": 9}, {"sampling": True, "top_k": 9}),
    ],
    ids=str,
)
def test_lengths_count_the_prompt(theirs: dict[str, Any], ours: dict[str, Any], tmp_path: Path) -> None:
    loaded = load_model(tiny_folder(tmp_path / "theirs", generation=theirs))
    assert {name: loaded.generation[name] for name in ours} == ours


def test_new_tokens_override_a_minimum_that_counts_the_prompt(tmp_path: Path) -> None:
    loaded = load_model(tiny_folder(tmp_path / "theirs", generation={"min_length": 5, "min_new_tokens": 3}))
    assert (loaded.generation["min_len"], loaded.generation["min_total_len"]) == (3, 0)


# --- the tokenizer

HOSTILE = (
    "",
    " ",
    "the dog",
    "  two  spaces ",
    "tabs\tand\r\nlines\n\n",
    "don't we'll I'M it's",
    "\u00a0\u2003\u3000x\u200b\ufeff",
    "\x00\x01\x1c\x1f\x7f\x85",
    "日本語 ελληνικά العربية 👩‍👩‍👧 e\u0301 ﬁ ½ ²",
    f"a{END_OF_TEXT}b {END_OF_TEXT} {END_OF_TEXT}",
    "<|endoftext| >",
    "Ġthe Ċ",
    "12345 1,000.00 !!??--",
    "\ufffd\U0010ffff",
    "a" * 500,
)


def hostile_texts() -> list[str]:
    """The texts above, and random ones of characters from several ranges."""
    chosen = random.Random(1)
    ranges = [(32, 127), (0, 32), (127, 700), (0x2000, 0x206F), (0x3040, 0x3100), (0x1F300, 0x1F700)]
    drawn = [
        "".join(chr(chosen.randrange(*chosen.choice(ranges))) for _ in range(chosen.randrange(1, 30)))
        for _ in range(200)
    ]
    return [*HOSTILE, *drawn]


def _folders(tmp_path: Path) -> dict[str, Path]:
    """The same tokenizer as ``tokenizer.json`` alone, as the two older files alone, and with settings."""
    whole = tmp_path / "whole"
    tiny_tokenizer().save_pretrained(whole)
    old = tmp_path / "old"
    old.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (old / name).write_bytes((whole / name).read_bytes())
    (old / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": VOCAB + 3}))
    prefix = tmp_path / "prefix"
    tiny_tokenizer().save_pretrained(prefix)
    change_config(
        prefix, "tokenizer_config.json", add_prefix_space=True, pad_token="!", tokenizer_class="GPT2Tokenizer"
    )
    cleaned = tmp_path / "cleaned"
    tiny_tokenizer().save_pretrained(cleaned)
    change_config(cleaned, "tokenizer_config.json", clean_up_tokenization_spaces=True)
    return {"whole": whole, "old": old, "prefix": prefix, "cleaned": cleaned}


@pytest.mark.parametrize("kind", ["whole", "old", "prefix", "cleaned"])
def test_ids_and_texts_are_the_originals(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = _folders(tmp_path)[kind]
    original, ours = transformers.AutoTokenizer.from_pretrained(folder), load_pretrained_tokenizer(folder)
    for text in hostile_texts():
        ids = original(text).input_ids
        assert ours.encode(text) == ids, repr(text)
        assert ours.decode(ids) == original.decode(ids, skip_special_tokens=True), repr(text)
        assert ours.decode(ids, skip_special_tokens=False) == original.decode(ids), repr(text)
    chosen = random.Random(2)
    for _ in range(100):
        ids = [chosen.randrange(VOCAB) for _ in range(12)]
        assert ours.decode(ids) == original.decode(ids, skip_special_tokens=True)
    words = ours.dictionary
    assert (words.eos(), words.bos(), words.unk()) == (original.eos_token_id,) * 3
    assert words.pad() == (original.eos_token_id if original.pad_token_id is None else original.pad_token_id)
    save_pretrained_tokenizer(ours, tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert [again(text).input_ids for text in HOSTILE] == [original(text).input_ids for text in HOSTILE]


def test_prompts_begin_as_the_tokenizer_says(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs")
    ids = tiny_tokenizer()("the dog").input_ids
    assert load_model(folder).task.encode_source("the dog").tolist() == ids
    assert load_model(folder).task.encode_source("").tolist() == [VOCAB - 1]
    (folder / "tokenizer.json").unlink()
    change_config(folder, "tokenizer_config.json", add_bos_token=True)
    assert load_model(folder).task.encode_source("the dog").tolist() == [VOCAB - 1, *ids]
    change_config(folder, "tokenizer_config.json", bos_token="!")
    with pytest.raises(DataError, match="adds tokens other than end-of-sentence to each text"):
        load_model(folder)


def test_damaged_tokenizers(tmp_path: Path) -> None:
    folder = _folders(tmp_path)["old"]
    merges = (folder / "merges.txt").read_text()
    for content, words in (
        (merges + "a\n", "each line after the first must have two parts"),
        (merges + "zz yy\n", "are not a byte-pair encoding, or damaged"),
        (None, "has no merges.txt; copy the files that it was saved with"),
    ):
        (folder / "merges.txt").unlink()
        if content is not None:
            (folder / "merges.txt").write_text(content)
        with pytest.raises(DataError, match=words):
            load_pretrained_tokenizer(folder)
        (folder / "merges.txt").touch()
    (folder / "merges.txt").write_bytes(b"#\n\xff \xfe\n")
    with pytest.raises(DataError, match="is not UTF-8"):
        load_pretrained_tokenizer(folder)


# --- converting


def test_folders_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a TransformerLanguageModel cannot be written in Hugging Face's layout"):
        save_pretrained(build("transformer_lm_tiny"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_the_run_is_fine_tuned_by_the_command_that_is_printed(tmp_path: Path) -> None:
    """Padding is end-of-sentence, which counts in the loss nevertheless, and is learned."""
    folder = tiny_folder(tmp_path / "theirs")
    outcome = command("convert", f"path={folder}", f"output={tmp_path / 'run'}")
    printed = next(line for line in outcome.out.splitlines() if line.startswith("fine-tune: "))
    words = shlex.split(printed.removeprefix("fine-tune: "))[1:]
    (tmp_path / "text").write_text("the dog\nno\n" * 20)
    changes = {"run_dir": f"{tmp_path}/new", "task.train": f"{tmp_path}/text", "task.valid": f"{tmp_path}/text"}
    arguments = [f"{key}={changes.get(key, value)}" for key, _, value in (word.partition("=") for word in words)]
    few = [
        "optimization.max_update=60",
        "optimization.lr=0.005",
        "lr_scheduler.warmup_updates=4",
        "task.sample_break_mode=eos",
    ]
    trained = command("train", *arguments, *few, "common.log_format=lines", "common.threads=1", "task.workers=1")
    assert trained.code == 0, trained.err
    settings = ["generation.max_len=8", "generation.min_len=0"]
    decoded = command("generate", f"path={tmp_path / 'new'}", "input=-", *settings, stdin=b"the\nno\n")
    assert decoded.out.splitlines() == [" dog", ""], decoded.err


def test_scores_count_the_end_of_sentence(tmp_path: Path) -> None:
    """The score of a known continuation is the mean over its tokens and end-of-sentence, also in a padded batch."""
    translator = Translator(load_model(tiny_folder(tmp_path / "theirs")))
    texts = [" sees a boat", " x"]
    scored = translator.score(["the dog", "no"], texts)
    for prompt, text, hypothesis in zip(["the dog", "no"], texts, scored, strict=True):
        before, after = (tiny_tokenizer()(part).input_ids for part in (prompt, text))
        ids = torch.tensor([[*before, *after, VOCAB - 1]])
        with torch.no_grad():
            lprobs = tiny_model()(ids).logits.log_softmax(-1)[0, len(before) - 1 : -1]
        wanted = lprobs.gather(1, ids[0, len(before) :].unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(hypothesis.positional_scores, wanted, rtol=0, atol=1e-4)
