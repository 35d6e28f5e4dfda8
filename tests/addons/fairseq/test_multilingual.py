"""Models that fairseq trained and transformers has: logits and outputs are equal with the same weights and ids."""

from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen import Translator
from seqgen.addons.fairseq.loader import FairseqLanguages
from seqgen.extend import Dictionary, LoadedModel, ReadingConfig, load_model
from tests.fairseq_checkpoints import CODES, as_fairseq, dictionary, multilingual

pytest.importorskip("transformers")


@pytest.mark.parametrize("kind", ["bart", "mbart", "m2m_100"])
def test_logits_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    original, path = as_fairseq(tmp_path, kind)
    sources, prefixes = torch.tensor([[8, 9, 20, 2], [7, 2, 1, 1]]), torch.tensor([[2, 8, 6], [2, 11, 5]])
    mask = sources.ne(1)
    with torch.no_grad():
        wanted = original(input_ids=sources, attention_mask=mask.long(), decoder_input_ids=prefixes).logits
        got = load_model(path).model(sources, mask.sum(1), prefixes).logits
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


def test_languages_are_those_of_transformers(tmp_path: Path) -> None:
    original, path = as_fairseq(tmp_path, "m2m_100")
    loaded = load_model(path)
    assert (loaded.config.model.encoder_layerdrop, loaded.config.model.encoder_normalize_before) == (0.05, True)
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
    assert convention(load_model(as_fairseq(tmp_path, "m2m_100", **changes)[1])) == wanted


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
    whole = multilingual(order, "[{}]", ["<mask>"])
    path = as_fairseq(tmp_path, "m2m_100", whole, langs=order, lang_dict=None, lang_tok_style="mbart")[1]
    dictionary().save(tmp_path / "model_dict.128k.txt")
    loaded = load_model(path)
    assert loaded.task.source_dictionary.symbols == whole.symbols
    assert convention(loaded) == ([25, 5, 2], [24, 6, 2])
    # the options name a file, which is beside the checkpoint
    path = as_fairseq(tmp_path, "m2m_100", multilingual(order, last=[]))[1]
    dictionary().save(tmp_path / "model_dict.128k.txt")
    (tmp_path / "langs.txt").write_text("fr\nde\nen\n")
    assert convention(load_model(path)) == ([25, 5, 2], [24, 6, 2])
    (tmp_path / "langs.txt").rename(tmp_path / "other")
    given = load_model(path, reading=ReadingConfig(lang_dict=f"{tmp_path}/other"))
    assert convention(given) == ([25, 5, 2], [24, 6, 2])
    assert convention(load_model(path)) == ([24, 5, 2], [26, 6, 2]), "sorted, as fairseq does without a list"
