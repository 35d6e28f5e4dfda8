"""Languages of multilingual models: each line's output equals that of transformers with this target language.

The models are T5s with the tokenizers of multilingual models.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen import Translator
from seqgen.checkpoints.loading import load_model
from seqgen.config import GenerationConfig
from seqgen.core.errors import ConfigError
from seqgen.data.tokenizers.languages import M2M100, MBART50, NLLB, Languages, TargetLanguage
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer
from seqgen.text.languages import LanguageReader, LineLanguages
from tests.commands import Outcome, command
from tests.huggingface_t5 import tiny_folder
from tests.pretrained_folders import write_folder

transformers = pytest.importorskip("transformers")

KINDS: dict[str, tuple[str, list[str]]] = {
    "MBartTokenizer": ("de_DE", ["de_DE", "fr_XX", "de_DE", "zh_CN", "en_XX"]),
    "MBart50Tokenizer": ("sl_SI", ["de_DE", "sl_SI", "fr_XX", "de_DE", "en_XX"]),
    "NllbTokenizer": ("zul_Latn", ["deu_Latn", "zul_Latn", "fra_Latn", "deu_Latn", "eng_Latn"]),
    "M2M100Tokenizer": ("zu", ["de", "zu", "fr", "de", "en"]),
    "MarianTokenizer": ("", ["fra", "cmn_Hans", "fra", "fra", "cmn_Hans"]),
}
LINES = ["a dog runs", "two people watch .", "a", "it 's Hund , and a dog runs and two people watch", "läuft !"]
SIZE = 300


def fresh(folder: Path, name: str) -> Path:
    """A folder with a T5 and the tokenizer of another model."""
    write_folder(folder, name, {"additional_special_tokens": None} if name.startswith("Nllb") else {})
    ids = getattr(transformers, name).from_pretrained(folder)
    special = {"pad_token_id": ids.pad_token_id, "eos_token_id": ids.eos_token_id}
    start = ids.pad_token_id if name == "MarianTokenizer" else ids.eos_token_id
    generation = {"max_length": 9, **special, "decoder_start_token_id": start}
    tiny_folder(folder / "model", "t5", 3, vocab_size=SIZE, tokenizer=False, generation=generation, **special)
    config = json.loads((folder / "model" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "decoder_start_token_id": start}))
    for file in ("generation_config.json", "model.safetensors"):
        shutil.copy(folder / "model" / file, folder / file)
    shutil.rmtree(folder / "model")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("languages")
    return {name: fresh(root / name, name) for name in KINDS}


def by_transformers(folder: Path, name: str, source: str, target: str, beam: int) -> list[tuple[list[int], float]]:
    """The hypotheses of one line after another, by ``forced_bos_token_id``, the start token, or the source."""
    ids = getattr(transformers, name).from_pretrained(folder, **({"src_lang": source} if source else {}))
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    texts = [line.split("\t") for line in target.split("\n")]
    found = []
    for text, language in texts:
        options: dict[str, Any] = {"num_beams": beam, "num_return_sequences": beam}
        if name == "MarianTokenizer":
            text = f">>{language}<< {text}"
        else:
            token = ids.convert_tokens_to_ids(f"__{language}__" if name == "M2M100Tokenizer" else language)
            options["decoder_start_token_id" if name == "MBartTokenizer" else "forced_bos_token_id"] = token
        out = model.generate(
            torch.tensor([ids(text).input_ids]),
            return_dict_in_generate=True,
            output_scores=True,
            do_sample=False,
            **options,
        )
        eos = ids.eos_token_id
        for row, score in zip(out.sequences[:, 1:].tolist(), out.sequences_scores.tolist(), strict=True):
            found.append((row[: row.index(eos) + 1] if eos in row else row, score))
    return found


@pytest.mark.parametrize("name", KINDS)
def test_each_line_has_its_target_language(folders: dict[str, Path], name: str) -> None:
    source, targets = KINDS[name]
    lines = [f"{text}\t{target}" for text, target in zip(LINES, targets, strict=True)]
    wanted = by_transformers(folders[name], name, source, "\n".join(lines), beam=3)
    translator = Translator(str(folders[name]))
    keys = {"source_lang": source} if source else {}
    settings = {"beam": 3, "nbest": 3, "target_lang": "field2", **keys}
    for further in ({}, {"batch_size": 1}, {"batch_size": 2}, {"batch_size": 2, "fast.continuous_batching": False}):
        translations = translator.translate(lines, **settings, **further)
        assert [t.source for t in translations] == LINES
        got = [hypothesis for translation in translations for hypothesis in translation.hypotheses]
        assert [(h.tokens.tolist(), pytest.approx(h.score, abs=1e-4)) for h in got] == wanted
    one = translator.translate(LINES[:2], **{**settings, "target_lang": targets[0]})
    assert [h.tokens.tolist() for h in one[0].hypotheses] == [tokens for tokens, _ in wanted[:3]]
    assert [h.tokens.tolist() for h in one[1].hypotheses] != [tokens for tokens, _ in wanted[3:6]]
    if name not in ("MBartTokenizer", "MarianTokenizer"):
        scores = translations[0].hypotheses[0].positional_scores
        assert scores[0] == 0.0  # the token of the language does not count


@pytest.mark.parametrize("name", KINDS)
def test_scores_of_known_targets(folders: dict[str, Path], name: str) -> None:
    """A target has the score that return_scores computes for the same tokens."""
    source, targets = KINDS[name]
    translator = Translator(str(folders[name]))
    keys = {"source_lang": source, "target_lang": targets[0]} if source else {"target_lang": targets[0]}
    best = translator.translate(LINES[:1], beam=2, return_scores=True, **keys)[0].hypotheses[0]
    assert best.member_scores is not None
    scored = next(translator.score(LINES[:1], [best.text], **keys))
    same = scored.tokens.tolist() == best.tokens.tolist()
    if same:
        assert torch.allclose(scored.positional_scores, best.member_scores[0], atol=1e-5)
    other = next(translator.score(LINES[:1], [best.text], **{**keys, "target_lang": targets[1]}))
    assert not torch.allclose(scored.positional_scores, other.positional_scores)
    first = translator.task.target_tokenizer.target_tokens(targets[0]).before
    assert scored.tokens.tolist()[: len(first)] == first


def test_fields_with_languages_are_taken_out_of_a_line(folders: dict[str, Path]) -> None:
    loaded = load_model(folders["NllbTokenizer"])
    reader = LanguageReader([loaded], GenerationConfig(target_lang="field2", source_lang="zul_Latn"))
    assert reader.read(0, "a\t deu_Latn \tb\tc") == ("a\tb\tc", LineLanguages("zul_Latn", "deu_Latn"))
    reader = LanguageReader([loaded], GenerationConfig(target_lang="field1", source_lang="field3"))
    assert reader.read(0, "deu_Latn\ta\tfra_Latn\tb") == ("a\tb", LineLanguages("fra_Latn", "deu_Latn"))


def test_the_prefix_follows_the_language(folders: dict[str, Path]) -> None:
    translator = Translator(str(folders["NllbTokenizer"]))
    target = translator.task.target_tokenizer
    keys = {"beam": 2, "target_lang": "field2"}
    texts, prefixes = ["a dog\tdeu_Latn", "a dog\tfra_Latn", "a dog\tfra_Latn"], ["a dog", "", "two"]
    found = translator.translate(texts, prefixes=prefixes, **keys)
    for translation, prefix, language in zip(found, prefixes, ("deu_Latn", "fra_Latn", "fra_Latn"), strict=True):
        beginning = target.encode_target(prefix, language)[:-1]
        assert translation.hypotheses[0].tokens.tolist()[: len(beginning)] == beginning


def test_long_sources_keep_the_language(folders: dict[str, Path]) -> None:
    translator = Translator(str(folders["MBartTokenizer"]))
    translator.models[0].max_positions = lambda: (6, 20)  # type: ignore[method-assign]
    translation = translator.translate(["a dog runs a dog runs"], target_lang="de_DE", source_lang="fr_XX", beam=1)[0]
    ids = translator.task.source_tokenizer.encode_source("a dog runs a dog runs", "fr_XX")
    assert translation.source_tokens.tolist() == [*ids[:4], *ids[-2:]]


@pytest.mark.parametrize(
    ("name", "codes", "meant"),
    [
        ("german", M2M100, "'de'"),
        ("deu", M2M100, "'de'"),
        ("de-AT", M2M100, "'de'"),
        ("German", MBART50, "'de_DE'"),
        ("ja", NLLB, "'jpn_Jpan'"),  # not jav_Latn
        ("es", NLLB, "'spa_Latn'"),  # not est_Latn
        ("chinese", NLLB, "'zho_Hans' or 'zho_Hant'"),
        ("deu_Latin", NLLB, "'deu_Latn'"),
        ("klingon", NLLB, ""),
        ("xx", M2M100, ""),
    ],
)
def test_a_language_is_found_by_its_name_and_by_its_iso_codes(name: str, codes: list[str], meant: str) -> None:
    languages = Languages({code: number for number, code in enumerate(codes)}, TargetLanguage.FIRST)
    hint = f" (did you mean {meant}?)" if meant else ""
    with pytest.raises(ConfigError, match=re.escape(f"has no language '{name}'{hint}; seqgen-show")):
        languages.code(name, "generation.target_lang")


@pytest.mark.slow
def test_languages_by_the_command(folders: dict[str, Path]) -> None:
    def decode(*arguments: str, text: str = "a dog\n\ntwo\n") -> Outcome:
        return command("generate", f"path={folders['M2M100Tokenizer']}", "input=-", *arguments, stdin=text.encode())

    german = decode("generation.target_lang=de")
    assert german.code == 0
    assert german.out == decode("generation.target_lang=__de__").out != decode("generation.target_lang=fr").out
    assert german.out != decode("generation.target_lang=de", "generation.source_lang=fr").out
    by_line = decode("generation.target_lang=field2", text="a dog\tde\n\ntwo\t de\n")
    assert by_line.out == german.out
    both = decode(
        "generation.target_lang=field1", "generation.source_lang=field2", text="de\ten\ta dog\n\nde\ten\ttwo\n"
    )
    assert both.out == german.out
    assert "has 100 languages; it chooses that of the output itself" in decode().err
    wrong = decode("generation.target_lang=German")
    assert wrong.code == 2
    assert "generation.target_lang: the model has no language 'German' (did you mean 'de'?)" in wrong.err
    assert "seqgen-show path=MODEL languages=true lists its 100 languages" in wrong.err
    missing = decode("generation.target_lang=field2")
    assert (missing.code, "line 1, generation.target_lang=field2: the line has only 1 field;" in missing.err) == (
        2,
        True,
    )
    twice = decode("generation.target_lang=de", "generation.forced_first=</s>")
    assert (twice.code, "both determine the first token" in twice.err) == (2, True)


def test_the_language_replaces_the_models_own_first_token(folders: dict[str, Path]) -> None:
    loaded = load_model(folders["NllbTokenizer"])
    plain = Translator(loaded).translate(LINES[:1], beam=1, target_lang="deu_Latn")[0]
    own = replace(loaded, generation={**loaded.generation, "forced_first": "fra_Latn"})
    assert Translator(own).translate(LINES[:1], beam=1, target_lang="deu_Latn")[0].text == plain.text
    assert not any("chooses that of the output itself" in note for note in Translator(own).prepare(beam=1).notes)
    assert any("chooses that of the output itself" in note for note in Translator(loaded).prepare(beam=1).notes)
    both = replace(own, generation={**own.generation, "target_lang": "deu_Latn"})
    assert Translator(both).translate(LINES[:1], beam=1)[0].text == plain.text


def test_list_of_languages(folders: dict[str, Path], tmp_path: Path) -> None:
    listed = command("show", f"path={folders['M2M100Tokenizer']}", "languages=true")
    assert (listed.code, len(listed.out.split()), listed.out.split()[:2]) == (0, 100, ["af", "am"])
    assert "generation.source_lang is en by default" in listed.err
    assert command("show", f"path={folders['MarianTokenizer']}", "languages=true").out == "fra\ncmn_Hans\n"
    assert command("convert", f"path={folders['NllbTokenizer']}", f"output={tmp_path / 'run'}").code == 0
    assert command("show", f"path={tmp_path / 'run'}", "languages=true").out.split()[-1] == "zul_Latn"
    plain = tiny_folder(tmp_path / "t5", "t5")
    for arguments in ((f"path={plain}",), (), (f"path={tmp_path / 'nowhere'}",)):
        outcome = command("show", *arguments, "languages=true")
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1


def test_a_shortlist_has_no_tokens_of_languages(folders: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("a dog runs\ntwo people watch\n")
    keys = (f"path={folders['NllbTokenizer']}", f"source={text}", f"target={text}")
    assert command("examples.shortlist", *keys, f"output={tmp_path}/list").code == 0
    assert "Latn" not in (tmp_path / "list").read_text()
    keys = (keys[0], f"input={text}", "generation.target_lang=deu_Latn", f"generation.shortlist={tmp_path}/list")
    outcome = command("generate", *keys, "generation.beam=2", "format=json")
    first = [json.loads(line)["hypotheses"][0]["tokens"][0] for line in outcome.out.splitlines()]
    words = load_pretrained_tokenizer(folders["NllbTokenizer"]).dictionary
    assert first == [words.index("deu_Latn")] * 2, "the language belongs to every shortlist"


def test_models_without_languages(folders: dict[str, Path], tmp_path: Path) -> None:
    translator = Translator(str(tiny_folder(tmp_path / "t5", "t5")))
    for key in ("source_lang", "target_lang"):
        with pytest.raises(
            ConfigError, match=f"generation.{key}=de chooses a language, but the model has no languages"
        ):
            translator.translate(["a"], **{key: "de"})
        with pytest.raises(ConfigError, match="the model has no languages"):
            next(translator.score(["a"], ["b"], **{key: "de"}))
    marian = Translator(str(folders["MarianTokenizer"]))
    with pytest.raises(ConfigError, match="the model is not told the language of its source"):
        marian.translate(["a"], source_lang="fra")


def test_runs_keep_the_languages(folders: dict[str, Path], tmp_path: Path) -> None:
    for name in ("NllbTokenizer", "MBartTokenizer"):
        source, targets = KINDS[name]
        run = tmp_path / name
        assert command("convert", f"path={folders[name]}", f"output={run}").code == 0
        assert command("convert", "format=huggingface", f"path={run}", f"output={run}-back").code == 0
        keys = {"beam": 2, "source_lang": source, "target_lang": targets[1]}
        texts = [
            [t.text for t in Translator(str(p)).translate(LINES, **keys)] for p in (folders[name], run, f"{run}-back")
        ]
        assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("name", ["NllbTokenizer", "MBartTokenizer"])
def test_lines_with_several_languages_are_decoded_as_if_alone(folders: dict[str, Path], name: str) -> None:
    translator = Translator(str(folders[name]))
    languages = KINDS[name][1][:3]
    lines = [f"{text}\t{language}" for text, language in zip(LINES, languages, strict=False)]
    strategies: list[dict[str, Any]] = [
        {"beam": 1, "prompt_lookup": 2},
        {"beam": 1, "draft": str(folders[name])},
        {"beam": 4, "search": "diverse_beam", "search.groups": 2},
        {"beam": 1, "search": "contrastive"},
        {"beam": 2, "semantics": "fairseq", "fast.use_cache": False},
    ]
    for strategy in strategies:
        keys = {"max_len": 6, "max_len_b": 6, **strategy}
        together = translator.translate(lines, target_lang="field2", **keys)
        for text, language, found in zip(LINES, languages, together, strict=False):
            (alone,) = translator.translate([text], target_lang=language, **keys)
            assert found.hypotheses[0].tokens.tolist() == alone.hypotheses[0].tokens.tolist(), strategy


@pytest.mark.slow
def test_languages_in_other_commands(folders: dict[str, Path], tmp_path: Path) -> None:
    path = f"path={folders['NllbTokenizer']}"
    (tmp_path / "text").write_text("a dog\ttwo\ntwo people\ta dog\n")
    keys = [f"input={tmp_path / 'text'}", "generation.target_lang=deu_Latn"]
    same = command("diff", path, *keys)
    assert same.code == 0, same.err
    differing = command("diff", path, *keys, "other.generation.target_lang=fra_Latn")
    assert differing.code == 1
    assert "deu_Latn" in differing.out
    streamed = command("generate", path, *keys, "stream=true")
    assert streamed.out == command("generate", path, *keys, "generation.beam=1").out
    (tmp_path / "lines").write_text("a dog\n")
    scored = command("score", path, f"source={tmp_path / 'lines'}", f"reference={tmp_path / 'lines'}", keys[1])
    assert scored.code == 0
    ids = load_pretrained_tokenizer(folders["NllbTokenizer"]).encode_target("a dog", "deu_Latn")
    assert json.loads(scored.out.splitlines()[0])["tokens"] == ids
