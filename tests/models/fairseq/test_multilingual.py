"""fairseq's multilingual checkpoints (M2M-100): logits and outputs of transformers with the same weights and ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen import Translator
from seqgen.checkpoints.loaders import LoadedModel
from seqgen.checkpoints.loading import load_model
from seqgen.config import ReadingConfig
from seqgen.core.errors import CheckpointError, ConfigError, DataError
from seqgen.data.dictionary import Dictionary
from seqgen.models.fairseq import FairseqLanguages
from tests.commands import command
from tests.fairseq_checkpoints import COMMON, dictionary, in_args
from tests.huggingface_bart import tiny_model

CODES = ["de", "en", "fr"]
TASK: dict[str, Any] = {
    **{"task": "translation_multi_simple_epoch", "arch": "transformer_wmt_en_de_big", "source_lang": None},
    **{"target_lang": None, "lang_pairs": ["de-en", "en-fr"], "langs": None, "lang_dict": "/x/langs.txt"},
    **{"lang_tok_style": "multilingual", "encoder_langtok": "src", "decoder_langtok": True, "langtoks_specs": ["main"]},
    **{"langtoks": {"main": ("src", "tgt")}, "sampling_method": "temperature", "sampling_temperature": 5.0},
    **{"virtual_epoch_size": None, "fixed_dictionary": None, "extra_data": None, "enable_lang_ids": False},
}


def words(codes: list[str] = CODES, frame: str = "__{}__", last: list[str] | None = None) -> Dictionary:
    """The vocabulary of the model: that of the file, the tokens of languages, and further ones."""
    made = dictionary()
    for token in [*(frame.format(code) for code in codes), *(["madeupword0", "madeupword1"] if last is None else last)]:
        made.add_symbol(token, 0)
    return made


def write(folder: Path, options: dict[str, Any], weights: dict[str, torch.Tensor], saved: Dictionary) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.pt"
    torch.save({**in_args({**COMMON, **options}), "model": weights}, path)
    saved.save(folder / "model_dict.128k.txt")
    return path


def m2m(folder: Path, saved: Dictionary | None = None, **changes: Any) -> tuple[Any, Path]:
    """An M2M-100 of transformers, and the same one as fairseq saves it."""
    pytest.importorskip("transformers")
    original = tiny_model("m2m_100", vocab_size=len(saved or words()), encoder_attention_heads=2)
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in original.state_dict().items()
        if "shared" not in name and name != "lm_head.weight"
    }
    weights |= {f"{side}.embed_positions._float_tensor": torch.zeros(1) for side in ("encoder", "decoder")}
    config = original.config
    options = {
        **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in (("embed_dim", 12),
           ("attention_heads", 2), ("normalize_before", True), ("layerdrop", 0.05), ("learned_pos", False))},
        **{f"{side}_layers": getattr(config, f"{side}_layers") for side in ("encoder", "decoder")},
        **{f"{side}_ffn_embed_dim": getattr(config, f"{side}_ffn_dim") for side in ("encoder", "decoder")},
        **{"share_all_embeddings": True, "max_source_positions": 26, "max_target_positions": 26},
        **{**TASK, **changes},
    }  # fmt: skip
    return original, write(folder, options, weights, saved or words())


def test_m2m_computes_what_transformers_computes(tmp_path: Path) -> None:
    original, path = m2m(tmp_path)
    loaded = load_model(path)
    assert (loaded.config.model.encoder_layerdrop, loaded.config.model.encoder_normalize_before) == (0.05, True)
    sources, prefixes = torch.tensor([[24, 9, 20, 2], [25, 2, 1, 1]]), torch.tensor([[2, 25, 6], [2, 24, 5]])
    mask = sources.ne(1)
    with torch.no_grad():
        wanted = original(input_ids=sources, attention_mask=mask.long(), decoder_input_ids=prefixes).logits
        got = loaded.model(sources, mask.sum(1), prefixes).logits
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    ids = {code: 24 + index for index, code in enumerate(CODES)}
    tokenizer = loaded.task.source_tokenizer
    assert tokenizer.languages is not None
    assert tokenizer.languages.ids == ids
    assert tokenizer.encode_source("w1 w2", "de", "fr") == [ids["de"], 5, 6, 2]
    assert tokenizer.encode_source("w1")[0] == ids["en"], "English is the default"
    lines = ["w1 w2 w3\tde", "w4\tfr", "w5 w6\ten"]
    settings = {"beam": 2, "max_len": 8, "semantics": "huggingface", "target_lang": "field2", "source_lang": "fr"}
    for line, found in zip(lines, Translator(loaded).translate(lines, **settings), strict=True):
        text, target = line.split("\t")
        source = torch.tensor([tokenizer.encode_source(text, "fr")])
        out = original.generate(source, forced_bos_token_id=ids[target], num_beams=2, max_new_tokens=8, eos_token_id=2)
        row = out[0, 1:].tolist()
        assert found.hypotheses[0].tokens.tolist() == (row[: row.index(2) + 1] if 2 in row else row)


def convention(loaded: LoadedModel) -> tuple[list[int], list[int]]:
    """The source and the target of one pair of words."""
    source, target = loaded.task.source_tokenizer, loaded.task.target_tokenizer
    return source.encode_source("w1", "de", "fr"), target.encode_target("w2", "fr")


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"langtoks": None}, ([24, 5, 2], [26, 6, 2])),
        ({"langtoks": {"main": (None, "tgt")}}, ([5, 2], [26, 6, 2])),
        ({"langtoks": {"main": ("tgt", None)}}, ([26, 5, 2], [6, 2])),
        ({"langtoks": None, "encoder_langtok": "tgt", "decoder_langtok": False}, ([26, 5, 2], [6, 2])),
    ],
)
def test_where_the_tokens_of_languages_are(
    changes: dict[str, Any], wanted: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    assert convention(load_model(m2m(tmp_path, **changes)[1])) == wanted


def test_each_kind_of_data_has_tokens_of_languages_of_its_own() -> None:
    options = {"decoder_langtok": True, "langs": ["fr", "de"], "langtoks_specs": ["main", "mono_dae", "bt_mined"]}
    languages = FairseqLanguages({**options, "extra_data": {"mono_dae": "x"}}, Path("x.pt"))
    words = Dictionary()
    languages.add_tokens(words, languages.codes)
    added = ["__fr__", "__de__", "__fr_dae__", "__de_dae__", "__fr_mined__", "__de_mined__", "<mask>"]
    assert words.symbols[4:] == added
    assert languages.find_codes(Path("x.pt"), words, "") == ["fr", "de"]
    languages.codes = []
    assert languages.find_codes(Path("x.pt"), words, "") == ["fr", "de"], "the kinds are no languages"


def test_tokens_that_the_file_lacks(tmp_path: Path) -> None:
    """fairseq appends them, in the order of its list of languages; the file has only the ordinary tokens."""
    order = ["fr", "de", "en"]
    whole = words(order, "[{}]", ["<mask>"])
    path = m2m(tmp_path, whole, langs=order, lang_dict=None, lang_tok_style="mbart")[1]
    dictionary().save(tmp_path / "model_dict.128k.txt")
    loaded = load_model(path)
    assert loaded.task.source_dictionary.symbols == whole.symbols
    assert convention(loaded) == ([25, 5, 2], [24, 6, 2])
    path = m2m(tmp_path, words(order, last=[]))[1]  # the options name a file, which is beside the checkpoint
    dictionary().save(tmp_path / "model_dict.128k.txt")
    (tmp_path / "langs.txt").write_text("fr\nde\nen\n")
    assert convention(load_model(path)) == ([25, 5, 2], [24, 6, 2])
    (tmp_path / "langs.txt").rename(tmp_path / "other")
    assert convention(load_model(path, reading=ReadingConfig(lang_dict=f"{tmp_path}/other"))) == (
        [25, 5, 2],
        [24, 6, 2],
    )
    assert convention(load_model(path)) == ([24, 5, 2], [26, 6, 2]), "sorted, as fairseq does without a list"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lang_tok_replacing_bos_eos": True}, "lang_tok_replacing_bos_eos"),
        ({"langtoks": None, "decoder_langtok": False}, "encoder_langtok=src and decoder_langtok=False"),
        ({"lang_tok_style": "new"}, "lang_tok_style=new; seqgen supports: multilingual, mbart"),
    ],
)
def test_unsupported_options(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_model(m2m(tmp_path, **changes)[1])


def test_languages_that_are_nowhere(tmp_path: Path) -> None:
    path = m2m(tmp_path, lang_pairs=[])[1]
    dictionary(25).save(tmp_path / "model_dict.128k.txt")
    with pytest.raises(DataError, match=r"does not list its languages; set reading.lang_dict=FILE"):
        load_model(path)
    with pytest.raises(DataError, match="cannot read the languages in nowhere"):
        load_model(path, reading=ReadingConfig(lang_dict="nowhere"))
    single = m2m(tmp_path / "single", task="translation")[1]
    with pytest.raises(ConfigError, match=r"reading.lang_dict=langs: .* is not a multilingual checkpoint; remove it"):
        load_model(single, reading=ReadingConfig(lang_dict="langs"))
    dictionary(7).save(tmp_path / "model_dict.128k.txt")
    (tmp_path / "langs.txt").write_text("fr de")
    with pytest.raises(DataError, match="and those of languages it has 13 tokens, but the encoder was trained with 29"):
        load_model(path)


@pytest.mark.slow
def test_conversion_keeps_the_languages(tmp_path: Path) -> None:
    path = m2m(tmp_path)[1]
    converted = command("convert", f"path={path}", f"output={tmp_path}/run")
    assert converted.code == 0, converted.err
    assert "task=multilingual_translation 'task.pairs=[SOURCE-TARGET]'" in converted.out
    assert command("show", f"path={tmp_path}/run", "languages=true").out.split() == CODES
    keys = {"beam": 2, "max_len_b": 6, "target_lang": "fr"}
    texts = [Translator(str(one)).translate(["w1 w2"], **keys)[0].text for one in (path, tmp_path / "run")]
    assert texts[0] == texts[1]
