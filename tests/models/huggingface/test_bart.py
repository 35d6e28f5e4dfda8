"""Folders of BART, mBART, Pegasus, Marian and M2M-100 in Hugging Face's layout: read, decoded and written."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import seqgen.models  # noqa: F401  # declares the checkpoint loader
from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import load_model
from seqgen.config import GenerationConfig
from seqgen.core.errors import CheckpointError, ConfigError, DataError
from seqgen.core.sequence_generator import SequenceGenerator
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer
from seqgen.decoding.options import build_setup
from seqgen.models.huggingface.architecture import JSONConfig
from seqgen.models.huggingface.bart import ARCHITECTURE
from seqgen.models.huggingface.checkpoint import save_pretrained
from seqgen.models.transformer import TransformerModel
from tests.commands import command
from tests.huggingface_bart import KINDS, VARIANTS, VOCAB, tiny_folder, tiny_model, write_tokenizer
from tests.huggingface_decoding import Pair, assert_same, pairs
from tests.huggingface_t5 import assert_near, change_config, refusal
from tests.model_zoo import _NARROW, registered
from tests.pretrained_folders import write_folder
from tests.scripted_model import batch_of

transformers = pytest.importorskip("transformers")

FEW = ("mbart", "marian")
"""The variants that the fast tests try where a test is expensive."""

every_variant = pytest.mark.parametrize("variant", list(VARIANTS))
every_kind = pytest.mark.parametrize("kind", KINDS)
few_kinds = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in FEW else [pytest.mark.slow]) for kind in KINDS]
)


def inputs(config: Any) -> tuple[Tensor, Tensor]:
    """Sources of unequal lengths, and target prefixes."""
    pad, eos = config.pad_token_id, config.eos_token_id
    start = config.decoder_start_token_id or 0
    sources = [[8, 9, 20, 25, 6, eos], [7, eos, *[pad] * 4], [9, 6, 30, eos, pad, pad]]
    return torch.tensor(sources), torch.tensor([[start, 8, 6, 11], [start, 28, 31, 20], [start, eos, 7, 7]])


def original_logits(model: Any) -> Tensor:
    sources, prefixes = inputs(model.config)
    mask = sources.ne(model.config.pad_token_id).long()
    with torch.no_grad():
        logits: Tensor = model.eval()(input_ids=sources, attention_mask=mask, decoder_input_ids=prefixes).logits
    return logits


def logits(model: Any, config: Any) -> Tensor:
    sources, prefixes = inputs(config)
    with torch.no_grad():
        out: Tensor = model(sources, sources.ne(config.pad_token_id).sum(1), prefixes).logits
    return out


def reread(folder: Path, **options: Any) -> Any:
    """The original's own reading of a folder."""
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, **options).eval()


def change_weights(folder: Path, **changes: Tensor | None) -> None:
    """Add, change and remove weights; ``__`` in a name stands for a dot."""
    path = folder / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    weights |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    kept = {name: tensor for name, tensor in weights.items() if tensor is not None}
    safetensors.torch.save_file(kept, path, {"format": "pt"})


# --- reading


@every_kind
@pytest.mark.slow
def test_gradients_are_the_originals(kind: str, tmp_path: Path) -> None:
    original = tiny_model(kind)
    model = load_model(tiny_folder(tmp_path / "theirs", kind, model=original)).model
    sources, prefixes = inputs(original.config)
    mask = sources.ne(original.config.pad_token_id)
    theirs = original(input_ids=sources, attention_mask=mask.long(), decoder_input_ids=prefixes).logits
    ours = model(sources, mask.sum(1), prefixes).logits
    for logits_ in (theirs, ours):
        logits_.log_softmax(-1)[..., 7].sum().backward()
    parameters, compared = dict(model.named_parameters(remove_duplicate=False)), 0
    wanted = dict(original.named_parameters())
    for name, piece in ARCHITECTURE.layout(model.cfg).pieces.items():
        if name in wanted and wanted[name].grad is not None:
            grad = parameters[piece.parameter].grad
            assert grad is not None
            assert_near(piece.of(grad), wanted[name].grad)
            compared += 1
    assert compared > 55


LAYOUTS = {"whole": {}, "shards": {"max_shard_size": "4KB"}, "bin": {"safe_serialization": False}}


@pytest.mark.parametrize(
    ("variant", "layout"),
    [
        pytest.param(variant, layout, marks=[pytest.mark.slow] if name != "whole" and variant not in FEW else [])
        for variant in VARIANTS
        for name, layout in LAYOUTS.items()
    ],
)
def test_logits_are_the_originals(variant: str, layout: dict[str, Any], tmp_path: Path) -> None:
    original = tiny_model(variant)
    loaded = load_model(tiny_folder(tmp_path / "theirs", variant, model=original, **layout))
    assert isinstance(loaded.model, TransformerModel)
    assert loaded.notes == []
    wanted = original_logits(original)
    assert wanted.std() > 0.5
    assert_near(logits(loaded.model, original.config), wanted)


@every_variant
def test_dtypes(variant: str, tmp_path: Path) -> None:
    """Weights in bfloat16, computed with in float32: also the table of positions has bfloat16's values, where saved."""
    folder = tiny_folder(tmp_path / "theirs", variant, dtype=torch.bfloat16)
    original = reread(folder, torch_dtype=torch.float32)
    wide = load_model(folder, dtype=torch.float32).model
    assert_near(logits(wide, original.config), original_logits(original))
    narrow = load_model(folder).model
    assert {parameter.dtype for parameter in narrow.parameters()} == {torch.bfloat16}
    difference = logits(narrow, original.config).float() - original_logits(original)
    assert difference.abs().max() < 0.2
    for name in ("torch_dtype", "dtype"):  # version 5 of transformers has the second name
        change_config(folder, torch_dtype="absent", dtype="absent")
        change_config(folder, **{name: "float64"})
        assert {parameter.dtype for parameter in load_model(folder).model.parameters()} == {torch.float64}


@few_kinds
def test_resized_embeddings(kind: str, tmp_path: Path) -> None:
    original = tiny_model(kind)
    original.resize_token_embeddings(VOCAB + 8)
    loaded = load_model(tiny_folder(tmp_path / "theirs", kind, model=original))
    assert len(loaded.task.target_dictionary) == VOCAB + 8
    assert_near(logits(loaded.model, original.config), original_logits(original))


@few_kinds
def test_other_names_of_weights(kind: str, tmp_path: Path) -> None:
    """Of a model without its output projection, and names of old versions: copies of tied weights."""
    original = tiny_model(kind)
    if hasattr(original, "final_logits_bias"):
        original.final_logits_bias.zero_()
    folder = tiny_folder(tmp_path / "theirs", kind, model=original)
    shared = original.get_input_embeddings().weight.detach()
    copies = {f"model__{side}__embed_tokens__weight": shared.clone() for side in ("encoder", "decoder")}
    change_weights(folder, **copies, lm_head__weight=shared.clone(), final_logits_bias=None)
    if kind == "m2m_100":
        change_weights(folder, model__encoder__embed_positions__weights=torch.zeros(2, 2))
    loaded = load_model(folder)
    assert loaded.notes == []
    assert_near(logits(loaded.model, original.config), original_logits(original))
    change_weights(folder, model__encoder__embed_tokens__weight=shared + 1)
    assert "should be tied: model.encoder.embed_tokens.weight" in refusal(folder)
    original.model.save_pretrained(folder)
    assert_near(logits(load_model(folder).model, original.config), original_logits(original))


@pytest.mark.parametrize("kind", [pytest.param("bart", marks=pytest.mark.slow), "mbart", "m2m_100"])
def test_untied_embeddings(kind: str, tmp_path: Path) -> None:
    """The matrices of source, target and output may all differ; the original saves one of the first two only."""
    original = tiny_model(kind, tie_word_embeddings=False)
    folder = tiny_folder(tmp_path / "theirs", kind, model=original)
    model = load_model(folder).model
    assert_near(logits(model, original.config), original_logits(original))
    assert (model.cfg.share_encoder_decoder_embed, model.cfg.share_all_embeddings) == (True, False)
    save_pretrained(model, tmp_path / "again")
    assert_near(original_logits(reread(tmp_path / "again")), original_logits(original))
    own = {f"model__{side}__embed_tokens__weight": torch.randn(VOCAB, 12) for side in ("encoder", "decoder")}
    change_weights(folder, **own)
    loaded, original = load_model(folder), reread(folder)
    assert loaded.notes == []
    assert_near(logits(loaded.model, original.config), original_logits(original))
    assert not loaded.model.cfg.share_encoder_decoder_embed
    save_pretrained(loaded.model, tmp_path / "third")
    assert_near(original_logits(reread(tmp_path / "third")), original_logits(original))
    assert_near(logits(loaded.model, original.config), original_logits(original))


def test_a_marian_with_two_vocabularies_is_converted_and_fine_tuned(tmp_path: Path) -> None:
    """Both sides have more rows than tokens; the run keeps the number of rows of each."""
    folder = write_folder(tmp_path / "theirs", "MarianTokenizer", {"separate_vocabs": True}, separate=True)
    tokenizer = load_pretrained_tokenizer(folder)
    source, target = len(tokenizer.dictionary) + 2, len(tokenizer.target_side.dictionary) + 5
    assert source != target
    pad, eos = tokenizer.dictionary.pad(), tokenizer.dictionary.eos()
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": eos, "forced_eos_token_id": eos}
    original = tiny_model("marian_separate", vocab_size=source, decoder_vocab_size=source, max_length=8, **ids)
    original.resize_decoder_token_embeddings(target)
    original.save_pretrained(folder)
    run, new = tmp_path / "run", tmp_path / "new"
    converted = command("convert", f"path={folder}", f"output={run}")
    assert converted.code == 0, converted.err
    outputs = [command("generate", f"path={path}", "input=-", stdin=b"two dog\n").out for path in (folder, run)]
    assert outputs[0] == outputs[1]
    printed = next(line for line in converted.out.splitlines() if line.startswith("fine-tune: "))
    text = {"en": "a dog runs\ntwo dog\n", "fr": "deux chien\nchien\n"}
    for language, lines in text.items():
        (tmp_path / f"text.{language}").write_text(lines)
    names = {"run_dir": str(new), "task.source_lang": "en", "task.target_lang": "fr"}
    names |= dict.fromkeys(("task.train", "task.valid"), str(tmp_path / "text"))
    words = [word.partition("=") for word in shlex.split(printed.removeprefix("fine-tune: "))[1:]]
    arguments = [f"{key}={names.get(key, value)}" for key, _, value in words]
    trained = command("train", *arguments, "optimization.max_update=1", "task.workers=1", "common.threads=1")
    assert trained.code == 0, trained.err
    loaded = load_model(new)
    assert [len(loaded.task.source_dictionary), len(loaded.task.target_dictionary)] == [source, target]
    assert loaded.model.decoder.embed_tokens.num_embeddings == target


RECORDED = Path(__file__).parent.parent.parent / "recorded" / "transformers5_bart"


@pytest.mark.parametrize("name", json.loads((RECORDED / "logits.json").read_text()))
def test_folders_of_version_5(name: str, tmp_path: Path) -> None:
    """They have ``dtype`` for ``torch_dtype``, and all embeddings of an untied model; see transformers5_bart.py."""
    folder = tmp_path / name
    shutil.copytree(RECORDED / name, folder)
    config = json.loads((folder / "config.json").read_text())
    write_tokenizer(folder, config["vocab_size"], config["pad_token_id"], config["eos_token_id"])
    recorded = json.loads((RECORDED / "logits.json").read_text())[name]
    sources, prefixes = torch.tensor(recorded["sources"]), torch.tensor(recorded["prefixes"])
    loaded = load_model(folder)
    assert loaded.notes == []
    assert loaded.model.start_token(config["eos_token_id"]) == config["decoder_start_token_id"]
    with torch.no_grad():
        got = loaded.model(sources, sources.ne(config["pad_token_id"]).sum(1), prefixes).logits
    assert_near(got, torch.tensor(recorded["logits"]))


# --- the configuration


@every_kind
def test_what_a_config_does_not_say(kind: str, tmp_path: Path) -> None:
    """The defaults are those of the original's class."""
    config = JSONConfig(tmp_path / "config.json", {"model_type": kind})
    cfg = ARCHITECTURE.read_config(config)
    original = transformers.AutoConfig.for_model(kind)
    same = {
        "encoder_embed_dim": "d_model",
        "max_source_positions": "max_position_embeddings",
        "encoder_ffn_embed_dim": "encoder_ffn_dim",
        "decoder_ffn_embed_dim": "decoder_ffn_dim",
        "activation_fn": "activation_function",
        **{key: key for key in ("dropout", "attention_dropout", "activation_dropout")},
        **{f"{side}_{key}": f"{side}_{key}" for side in ("encoder", "decoder") for key in ("layers", "layerdrop")},
        **{f"{side}_attention_heads": f"{side}_attention_heads" for side in ("encoder", "decoder")},
    }
    for ours, theirs in same.items():
        assert getattr(cfg, ours) == getattr(original, theirs), ours
    assert cfg.no_scale_embedding != original.scale_embedding
    assert ARCHITECTURE.vocab_size(cfg, config) == original.vocab_size
    names = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "forced_eos_token_id")
    known = {name: getattr(original, name) for name in names}
    assert ARCHITECTURE.generation_defaults(config) == {
        name: value for name, value in known.items() if value is not None
    }


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "swish"])
def test_activations_and_general_names(activation: str, tmp_path: Path) -> None:
    """Of two names for a size, transformers prefers the general one."""
    original = tiny_model("mbart", activation_function=activation, encoder_attention_heads=2, decoder_attention_heads=2)
    folder = tiny_folder(tmp_path / "theirs", "mbart", model=original)
    change_config(folder, hidden_size=12, d_model=99, num_attention_heads=2, encoder_attention_heads=7)
    assert_near(logits(load_model(folder).model, original.config), original_logits(original))
    assert_near(original_logits(reread(folder)), original_logits(original))


@pytest.mark.slow
@every_kind
def test_the_start_token_is_the_originals(kind: str, tmp_path: Path) -> None:
    """Each file may have ``decoder_start_token_id`` and ``bos_token_id``, say that there is none, or be silent."""
    folder = tiny_folder(tmp_path / "theirs", kind)
    said: list[dict[str, Any]] = [{}, {"bos_token_id": 6}, {"decoder_start_token_id": 5}]
    said += [{"decoder_start_token_id": None}, {"decoder_start_token_id": None, "bos_token_id": 6}]
    text = (folder / "config.json").read_text()
    eos = json.loads(text)["eos_token_id"]
    compared = 0
    for in_config, in_generation in itertools.product(said, [None, *said]):
        (folder / "config.json").write_text(text)
        ids = {"decoder_start_token_id": "absent", "bos_token_id": "absent"}
        change_config(folder, **{**ids, **in_config})
        (folder / "generation_config.json").unlink(missing_ok=True)
        if in_generation is not None:
            (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos, **in_generation}))
        try:
            start = reread(folder).generate(torch.tensor([[5, 9, eos]]), max_new_tokens=1)[0, 0].item()
        except (ValueError, IndexError):  # it has none, or one outside the vocabulary
            continue
        assert load_model(folder).model.start_token(eos) == start, (in_config, in_generation)
        compared += 1
    assert compared >= 12


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"is_decoder": True}, "is_decoder=True is not supported for a marian"),
        ({"activation_function": "quick_gelu"}, "activation_function='quick_gelu' is not supported, only gelu or "),
        ({"encoder_attention_heads": 5}, "the hidden size 12 is not a multiple of the 5 attention heads"),
        ({"max_position_embeddings": 2**31 - 1}, "the model would need 191 GiB for buffers, more than 4 GiB"),
        ({"pad_token_id": 2**31 - 1}, "pad_token_id=2147483647 is outside the vocabulary of 33 tokens"),
    ],
)
def test_what_is_refused(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "theirs", "marian")
    (folder / "generation_config.json").unlink()
    change_config(folder, **values)
    with pytest.raises((CheckpointError, DataError)) as caught:
        load_model(folder)
    assert words in str(caught.value)


# --- decoding

SOURCES = [(8, 9, 20, 25), (7,), (9, 6, 30, 16, 17, 8, 11), ()]


def decoding_folder(folder: Path, variant: str, seed: int, **generation: Any) -> Path:
    """A folder of a model in which some hypotheses end early."""
    original = tiny_model(variant, seed)
    eos = original.config.eos_token_id
    if hasattr(original, "final_logits_bias"):
        original.final_logits_bias[0, eos] = 2.5
    bad = [[original.config.pad_token_id], [eos]]
    return tiny_folder(folder, variant, model=original, generation={"bad_words_ids": bad, **generation})


def originals(folder: Path, sources: Sequence[Sequence[int]], **options: Any) -> list[list[Pair]]:
    """Hypotheses by ``generate`` of each source alone, with the folder's own settings."""
    model = reread(folder)
    eos, found = model.config.eos_token_id, []
    for source in sources:
        out = model.generate(torch.tensor([source]), return_dict_in_generate=True, output_scores=True, **options)
        rows = [row[1:] for row in out.sequences.tolist()]
        rows = [row[: row.index(eos) + 1] if eos in row else row for row in rows]
        scores = getattr(out, "sequences_scores", None)
        if scores is None:
            steps = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
            scores = torch.stack([own[: len(row)].mean() for own, row in zip(steps, rows, strict=True)])
        found.append(list(zip(map(tuple, rows), scores.tolist(), strict=True)))
    return found


def decoded(loaded: LoadedModel, sources: Sequence[Sequence[int]]) -> list[list[Pair]]:
    """Hypotheses of all sources in one batch, with the folder's own settings."""
    dictionary = loaded.task.target_dictionary
    cfg = GenerationConfig(**loaded.generation)
    found = SequenceGenerator(build_setup([loaded.model], dictionary, cfg)).generate(
        batch_of(sources, pad=dictionary.pad())
    )
    return [pairs(hypotheses) for hypotheses in found]


SETTINGS: list[dict[str, Any]] = [
    {"max_length": 14, "num_beams": 1, "forced_bos_token_id": 3, "bad_words_ids": [[3]]},
    {"max_length": 14, "num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.8, "no_repeat_ngram_size": 3},
    {"max_length": 9, "num_beams": 3, "num_return_sequences": 3, "early_stopping": True, "forced_bos_token_id": 11}
    | {"min_length": 4, "renormalize_logits": True, "repetition_penalty": 1.3},
]


@every_variant
@pytest.mark.parametrize("settings", SETTINGS, ids=["greedy", "beam", "forced"])
def test_decoding_is_the_originals(variant: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """The n-best lists, with scores, and the sentences of a batch as alone."""
    folder = decoding_folder(tmp_path / "theirs", variant, 1, **settings)
    loaded = load_model(folder)
    assert loaded.notes == []
    eos = loaded.task.target_dictionary.eos()
    sources = [(*source, eos) for source in SOURCES]
    for got, wanted in zip(decoded(loaded, sources), originals(folder, sources), strict=True):
        assert_same(got, wanted)


@every_kind
def test_old_folders_say_how_to_decode_in_their_config(kind: str, tmp_path: Path) -> None:
    """Keys that the file lacks have the original's defaults, such as the last token, which BART forces."""
    folder = decoding_folder(tmp_path / "theirs", kind, 1)
    (folder / "generation_config.json").unlink()
    own = {"num_beams": 3, "max_length": 8, "forced_eos_token_id": "absent", "decoder_start_token_id": "absent"}
    change_config(folder, **own, bos_token_id=0, force_bos_token_to_be_generated=kind == "bart")
    if kind == "marian":  # whose default is outside this vocabulary
        change_config(folder, decoder_start_token_id=VOCAB - 1)
    loaded = load_model(folder)
    assert loaded.notes == []
    assert ("forced_last" in loaded.generation, "forced_first" in loaded.generation) == (
        kind != "m2m_100",
        kind == "bart",
    )
    eos = loaded.task.target_dictionary.eos()
    sources = [(*source, eos) for source in SOURCES]
    for got, wanted in zip(decoded(loaded, sources), originals(folder, sources), strict=True):
        assert_same(got[:1], wanted)


# --- writing


@every_variant
def test_transformers_reads_what_is_written(variant: str, tmp_path: Path) -> None:
    folder = decoding_folder(tmp_path / "theirs", variant, 0, num_beams=3, max_length=9, forced_bos_token_id=11)
    original, loaded = reread(folder), load_model(folder)
    tokenizer, generation = loaded.task.target_tokenizer, GenerationConfig(**loaded.generation)
    assert save_pretrained(loaded.model, tmp_path / "ours", tokenizer, generation) == []
    again, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(again) is type(original)
    assert not any(report.values())
    assert torch.equal(original_logits(again), original_logits(original))
    eos = original.config.eos_token_id
    sources = [(*source, eos) for source in SOURCES]
    for got, wanted in zip(originals(tmp_path / "ours", sources), originals(folder, sources), strict=True):
        assert_same(got, wanted)
    assert load_model(tmp_path / "ours").generation == loaded.generation


@pytest.mark.parametrize("variant", [pytest.param("mbart", marks=pytest.mark.slow), "marian"])
def test_a_folder_becomes_a_run_and_a_folder_again(variant: str, tmp_path: Path) -> None:
    folder = decoding_folder(tmp_path / "theirs", variant, 0, num_beams=2, max_length=9)
    for arguments in (
        [f"path={folder}", f"output={tmp_path / 'run'}"],
        [f"path={tmp_path / 'run'}", "format=huggingface", f"output={tmp_path / 'again'}"],
    ):
        outcome = command("convert", *arguments)
        assert outcome.code == 0, outcome.err
    original = reread(folder)
    assert torch.equal(original_logits(reread(tmp_path / "again")), original_logits(original))
    lines = []
    for path in (folder, tmp_path / "run", tmp_path / "again"):
        loaded = load_model(path)
        assert_near(logits(loaded.model, original.config), original_logits(original))
        assert loaded.model.start_token(0) == original.config.decoder_start_token_id
        outcome = command("generate", f"path={path}", "input=-", stdin=b"w8 w9 w20\nw7\n\n")
        assert outcome.code == 0, outcome.err
        lines.append(outcome.out)
    assert lines[0] == lines[1] == lines[2]
    assert len(lines[0].split()) > 3


PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({**LEARNED, "layernorm_embedding": True}, "bart"),
        ({"sinusoids": "paper", "position_offset": 0, "share_encoder_decoder_embed": True}, "marian"),
        ({**PRE_NORM, **LEARNED, "layernorm_embedding": True, "share_all_embeddings": True}, "mbart"),
        ({**PRE_NORM, "sinusoids": "paper", "position_offset": 0, "share_encoder_decoder_embed": True}, "pegasus"),
        (PRE_NORM, "m2m_100"),
        ({}, "marian cannot"),
    ],
)
def test_models_of_seqgen_are_written(changes: dict[str, Any], kind: str, tmp_path: Path) -> None:
    """As the type whose structure they have, whatever they share."""
    torch.manual_seed(0)
    model = registered("transformer", joint=True, **_NARROW, **changes)().eval()
    if "cannot" in kind:
        words = r"a transformer with model.sinusoids=fairseq, model.position_offset=null cannot be written .* is marian"
        with pytest.raises(ConfigError, match=words):
            save_pretrained(model, tmp_path / "ours")
        return
    save_pretrained(model, tmp_path / "ours")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    assert config.model_type == kind
    sources, prefixes = torch.tensor([[8, 9, 20, 2], [7, 2, 1, 1]]), torch.tensor([[2, 8, 6], [2, 11, 5]])
    with torch.no_grad():
        wanted = model(sources, sources.ne(1).sum(1), prefixes).logits
        mask = sources.ne(1).long()
        got = reread(tmp_path / "ours")(input_ids=sources, attention_mask=mask, decoder_input_ids=prefixes).logits
    assert_near(got, wanted)
