"""Languages of multilingual models: each line's output equals that of transformers with this target language.

The models are T5s with the tokenizers of multilingual models.
"""

import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import examples.pool  # noqa: F401  # registers a rewriter
import tests.text.test_rerank  # noqa: F401  # registers a reranker
from seqgen import TextStreamer, Translator
from seqgen.extend import GenerationConfig, Reranker, load_model, load_pretrained_tokenizer
from seqgen.text.languages import LanguageReader, LineLanguages
from seqgen.text.results import Details, TextHypothesis, Translation
from tests.commands import command, done
from tests.covering import covering
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


def fresh(folder: Path, name: str) -> Path:
    """A folder with a T5 and the tokenizer of another model."""
    write_folder(folder, name, {"additional_special_tokens": None} if name.startswith("Nllb") else {})
    ids = getattr(transformers, name).from_pretrained(folder)
    special = {"pad_token_id": ids.pad_token_id, "eos_token_id": ids.eos_token_id}
    start = ids.pad_token_id if name == "MarianTokenizer" else ids.eos_token_id
    generation = {"max_length": 9, **special, "decoder_start_token_id": start}
    sizes = {"vocab_size": 300 if name == "M2M100Tokenizer" else len(ids), "tie_word_embeddings": False}
    tiny_folder(folder / "model", "t5", 3, tokenizer=False, generation=generation, **sizes, **special)
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


@pytest.fixture(scope="module")
def translators(folders: dict[str, Path]) -> dict[str, Translator]:
    return {name: Translator(str(folder)) for name, folder in folders.items()}


class Original:
    """The original of a folder, which gets a language by ``forced_bos_token_id``, the start token, or the source."""

    def __init__(self, folder: Path, name: str):
        self.name = name
        source = KINDS[name][0]
        self.ids = getattr(transformers, name).from_pretrained(folder, **({"src_lang": source} if source else {}))
        self.model = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()

    def given(self, text: str, language: str) -> tuple[torch.Tensor, dict[str, int]]:
        """The ids of a source, and options."""
        if self.name == "MarianTokenizer":
            return torch.tensor([self.ids(f">>{language}<< {text}").input_ids]), {}
        token = self.ids.convert_tokens_to_ids(f"__{language}__" if self.name == "M2M100Tokenizer" else language)
        option = "decoder_start_token_id" if self.name == "MBartTokenizer" else "forced_bos_token_id"
        return torch.tensor([self.ids(text).input_ids]), {option: token}

    def hypotheses(self, text: str, language: str, beam: int) -> list[tuple[list[int], float]]:
        source, options = self.given(text, language)
        options |= {"num_beams": beam, "num_return_sequences": beam}
        out = self.model.generate(source, return_dict_in_generate=True, output_scores=True, do_sample=False, **options)
        eos, rows = self.ids.eos_token_id, out.sequences[:, 1:].tolist()
        cut = [row[: row.index(eos) + 1] if eos in row else row for row in rows]
        return list(zip(cut, out.sequences_scores.tolist(), strict=True))

    @torch.no_grad()
    def log_probabilities(self, text: str, language: str, target: torch.Tensor) -> torch.Tensor:
        source, options = self.given(text, language)
        start = options.get("decoder_start_token_id", self.model.config.decoder_start_token_id)
        previous = torch.cat([torch.tensor([start]), target[:-1]])
        logits = self.model(input_ids=source, decoder_input_ids=previous.unsqueeze(0)).logits[0]
        found: torch.Tensor = logits.log_softmax(-1).gather(1, target.unsqueeze(1)).squeeze(1)
        return found


@pytest.mark.parametrize("name", KINDS)
def test_each_line_has_its_target_language(
    folders: dict[str, Path], translators: dict[str, Translator], name: str
) -> None:
    source, targets = KINDS[name]
    lines = [f"{text}\t{target}" for text, target in zip(LINES, targets, strict=True)]
    original, translator = Original(folders[name], name), translators[name]
    wanted = [original.hypotheses(text, target, 3) for text, target in zip(LINES, targets, strict=True)]
    keys = {"source_lang": source} if source else {}
    settings = {"beam": 3, "nbest": 3, "target_lang": "field2", **keys}
    for further in ({}, {"batch_size": 2}, {"batch_size": 2, "fast.continuous_batching": False}):
        translations = translator.translate(lines, **settings, **further)
        assert [t.source for t in translations] == LINES
        found = [[(h.tokens.tolist(), pytest.approx(h.score, abs=1e-4)) for h in t.hypotheses] for t in translations]
        assert found == wanted
    for line, ranked in zip(lines, translator.translate(lines, rerank="test_rescoring", **settings), strict=True):
        texts, options = [item.text for item in ranked.hypotheses], {"target_lang": "field2", **keys}
        again = translator.score([line] * 3, texts, normalize_scores=False, **options)
        assert [item.rerank_score for item in ranked.hypotheses] == pytest.approx([item.score for item in again])
    one = translator.translate(LINES[:2], **{**settings, "target_lang": targets[0]})
    assert [h.tokens.tolist() for h in one[0].hypotheses] == [tokens for tokens, _ in wanted[0]]
    assert [h.tokens.tolist() for h in one[1].hypotheses] != [tokens for tokens, _ in wanted[1]]
    if name not in ("MBartTokenizer", "MarianTokenizer"):
        scores = translations[0].hypotheses[0].positional_scores
        assert scores[0] == 0.0  # the token of the language does not count
    # known targets
    scored = list(
        translator.score(lines, LINES[::-1], batch_size=2, normalize_scores=False, target_lang="field2", **keys)
    )
    for text, target, reference, hypothesis in zip(LINES, targets, LINES[::-1], scored, strict=True):
        tokens = translator.task.target_tokenizer.encode_target(reference, target)
        assert hypothesis.tokens.tolist() == tokens
        known = original.log_probabilities(text, target, hypothesis.tokens)
        torch.testing.assert_close(hypothesis.positional_scores, known, atol=1e-4, rtol=0)
        assert hypothesis.score == pytest.approx(float(known.sum()), abs=1e-3)


class Longest(Reranker):
    """Ranks by the length of the text, and knows the line without its language."""

    def __call__(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> list[float]:
        return [len(item.text) + len(translation.source) / 100 for item in hypotheses]


FEATURES: dict[str, dict[str, Any]] = {
    "lookup": {"prompt_lookup": 2},
    "draft": {"draft": "{folder}"},
    "groups": {"beam": 4, "search": "diverse_beam", "search.groups": 2},
    "contrastive": {"search": "contrastive"},
    "whole passes": {"beam": 2, "semantics": "fairseq", "fast.use_cache": False},
    "samples": {"beam": 3, "sampling": True},
    "phrases": {"beam": 4, "constraints": "ordered"},
    "prefixes": {"beam": 2, "nbest": 2},
    "guidance": {"beam": 2, "guidance_scale": 1.5},
    "mbr": {"beam": 4, "nbest": 2, "mbr": "chrf"},
    "rerank": {"beam": 4, "nbest": 2, "rerank": Longest()},
    "pool": {"beam": 2, "nbest": 2, "rewriters": ["pool"], "rewriter.pool.decodes": {"wide": {"beam": 5}}},
}


def without_scores(line: Translation) -> tuple[Any, ...]:
    """All of a translation that does not depend on its number, besides its scores."""
    hypotheses = [(h.tokens.tolist(), h.text, h.utility, h.rerank_score) for h in line.hypotheses]
    return line.source, line.prefix, line.constraints, line.notes, hypotheses


def scores(line: Translation) -> list[Any]:
    return [score for h in line.hypotheses for score in (h.score, h.model_score)]


@pytest.mark.parametrize(("feature", "name"), covering([*FEATURES], ["NllbTokenizer", "MBartTokenizer"]))
def test_lines_with_several_languages_are_decoded_as_if_alone(
    translators: dict[str, Translator], folders: dict[str, Path], name: str, feature: str
) -> None:
    languages = [*KINDS[name][1][:3], KINDS[name][1][0]]
    texts = [LINES[0], LINES[1], LINES[3], LINES[1]]
    keys = {"beam": 1, "max_len": 7, "max_len_b": 7, "batch_size": 3, **FEATURES[feature]}
    if name == "MBartTokenizer":
        keys["suppress"] = [*translators[name].task.target_tokenizer.languages.ids]
    keys |= {"draft": str(folders[name])} if feature == "draft" else {}
    phrases = ["\ttwo", "", "\tdog\ta", ""] if feature == "phrases" else [""] * 4
    prefixes = ["a dog", "", "two", "Hund"] if feature == "prefixes" else [""] * 4
    rows = list(zip(texts, languages, phrases, prefixes, strict=True))
    details = Details(False, True, False, False)
    lines = [f"{text}\t{language}{phrase}" for text, language, phrase, _ in rows]
    together = list(translators[name].prepare(details, target_lang="field2", **keys).translate(lines, prefixes))
    for number, ((text, language, phrase, prefix), found) in enumerate(zip(rows, together, strict=True)):
        decoding = translators[name].prepare(details, target_lang=language, **keys)
        (alone,) = decoding.translate([text + phrase], [prefix], numbers=[number])
        assert without_scores(found) == without_scores(alone)
        assert scores(found) == pytest.approx(scores(alone), abs=1e-4)
        beginning = translators[name].task.target_tokenizer.encode_target(prefix, language)[:-1] if prefix else []
        assert all(h.tokens.tolist()[: len(beginning)] == beginning for h in found.hypotheses)
    assert together[1].hypotheses[0].tokens.tolist() != together[3].hypotheses[0].tokens.tolist(), "another language"


@pytest.mark.parametrize("name", ["NllbTokenizer", "MBartTokenizer"])
def test_lines_with_several_languages_are_streamed(translators: dict[str, Translator], name: str) -> None:
    lines = [f"{text}\t{language}" for text, language in zip(LINES, KINDS[name][1], strict=True)]
    streamer = TextStreamer(io.StringIO())
    keys = {"target_lang": "field2", "max_len": 7, "batch_size": 2}
    found = translators[name].translate(lines, streamer=streamer, **keys)
    assert streamer.file.getvalue() == "".join(f"{line.text}\n" for line in found)  # type: ignore[attr-defined]
    assert [line.text for line in found] == [line.text for line in translators[name].translate(lines, beam=1, **keys)]


def test_fields_with_languages_are_taken_out_of_a_line(folders: dict[str, Path]) -> None:
    loaded = load_model(folders["NllbTokenizer"])
    reader = LanguageReader([loaded], GenerationConfig(target_lang="field2", source_lang="zul_Latn"))
    assert reader.read(0, "a\t deu_Latn \tb\tc") == ("a\tb\tc", LineLanguages("zul_Latn", "deu_Latn"))
    reader = LanguageReader([loaded], GenerationConfig(target_lang="field1", source_lang="field3"))
    assert reader.read(0, "deu_Latn\ta\tfra_Latn\tb") == ("a\tb", LineLanguages("fra_Latn", "deu_Latn"))


def test_long_sources_keep_the_language(folders: dict[str, Path]) -> None:
    translator = Translator(str(folders["MBartTokenizer"]))
    translator.models[0].max_positions = lambda: (6, 20)  # type: ignore[method-assign]
    translation = translator.translate(["a dog runs a dog runs"], target_lang="de_DE", source_lang="fr_XX", beam=1)[0]
    ids = translator.task.source_tokenizer.encode_source("a dog runs a dog runs", "fr_XX")
    assert translation.source_tokens.tolist() == [*ids[:4], *ids[-2:]]


def test_where_the_languages_of_a_line_stand(translators: dict[str, Translator]) -> None:
    def decode(*lines: str, **keys: str) -> list[str]:
        return [line.text for line in translators["M2M100Tokenizer"].translate(lines, max_len=7, **keys)]

    german = decode("a dog", "", "two", target_lang="de")
    assert german == decode("a dog", "", "two", target_lang="__de__")
    assert german == decode("a dog\tde", "", "two\t de", target_lang="field2")
    assert german == decode("de\ten\ta dog", "", "de\ten\ttwo", target_lang="field1", source_lang="field2")
    assert german != decode("a dog", "", "two", target_lang="fr")
    assert german != decode("a dog", "", "two", target_lang="de", source_lang="fr")


def test_the_language_replaces_the_models_own_first_token(folders: dict[str, Path]) -> None:
    loaded = load_model(folders["NllbTokenizer"])
    plain = Translator(loaded).translate(LINES[:1], beam=1, target_lang="deu_Latn")[0]
    own = replace(loaded, generation={**loaded.generation, "forced_first": "fra_Latn"})
    assert Translator(own).translate(LINES[:1], beam=1, target_lang="deu_Latn")[0].text == plain.text
    for model, keys, count in ((own, {}, 0), (loaded, {}, 1), (loaded, {"target_lang": "field2"}, 0)):
        notes = Translator(model).prepare(beam=1, **keys).notes
        assert sum("languages; it chooses that of the output itself" in note for note in notes) == count
    both = replace(own, generation={**own.generation, "target_lang": "deu_Latn"})
    assert Translator(both).translate(LINES[:1], beam=1)[0].text == plain.text


def test_list_of_languages(folders: dict[str, Path], tmp_path: Path) -> None:
    listed = command("show", f"path={folders['M2M100Tokenizer']}", "languages=true")
    assert (listed.code, len(listed.out.split()), listed.out.split()[:2]) == (0, 100, ["af", "am"])
    assert "generation.source_lang is en by default" in listed.err
    assert command("show", f"path={folders['MarianTokenizer']}", "languages=true").out == "fra\ncmn_Hans\n"
    assert command("convert", f"path={folders['NllbTokenizer']}", f"output={tmp_path / 'run'}").code == 0
    assert command("show", f"path={tmp_path / 'run'}", "languages=true").out.split()[-1] == "zul_Latn"


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


@pytest.mark.slow
def test_outputs_in_two_languages_are_compared_by_the_command(folders: dict[str, Path], tmp_path: Path) -> None:
    path = f"path={folders['NllbTokenizer']}"
    (tmp_path / "text").write_text("a dog\ntwo people\n")
    keys = [f"input={tmp_path / 'text'}", "generation.target_lang=deu_Latn"]
    done("diff", path, *keys)
    differing = command("diff", path, *keys, "other.generation.target_lang=fra_Latn")
    assert differing.code == 1
    assert "deu_Latn" in differing.out
