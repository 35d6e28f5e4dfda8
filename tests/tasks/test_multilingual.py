"""The multilingual translation task: tokens of languages, sampling of pairs, scores of pairs, and decoding."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seqgen import Translator
from seqgen.extend import load_pretrained_tokenizer, load_tokenizer
from seqgen.tasks.multilingual_translation import MultilingualTranslationConfig, MultilingualTranslationTask
from tests.commands import SMALL_TRANSFORMER, corpus, done, sentences
from tests.pretrained_folders import write_folder

PAIRS = ["en-de", "de-en"]
SETTINGS = {"tokenizer": "whitespace", "workers": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """English and German, and a smaller pair of English and French in files of its own."""
    folder = corpus(tmp_path_factory.mktemp("data"))
    for split, start, count in (("train", 0, 300), ("val", 300, 30)):
        for language, lines in zip(("en", "de"), zip(*sentences(start, count), strict=True), strict=True):
            (folder / f"only.{split}.en-de.{language}").write_text("".join(f"{line}\n" for line in lines))
        for language in ("en", "fr"):
            text = "".join(f"{line.upper()} {language}\n" for line, _ in sentences(0, 40))
            (folder / f"only.{split}.en-fr.{language}").write_text(text)
    return folder


def task(data: Path, run: Path, **settings: Any) -> MultilingualTranslationTask:
    files = {"train": f"{data}/train", "valid": f"{data}/val", "test": f"{data}/test"}
    cfg = MultilingualTranslationConfig(**{"pairs": PAIRS, **files, **SETTINGS, **settings})
    return MultilingualTranslationTask.setup_task(cfg, run)


def first(ours: MultilingualTranslationTask, pair: str) -> tuple[list[str], list[str]]:
    """The tokens of the first example of a pair."""
    example = ours.dataset("valid").parts[pair].example(0, epoch=1, seed=1)
    source = [ours.source_dictionary[index] for index in example.source.tolist()]
    return source, [ours.target_dictionary[index] for index in example.target.tolist()]


ENGLISH, GERMAN = (text.split() for text in sentences(300, 1)[0])


def test_the_token_of_a_language_is_on_the_right_side(data: Path, tmp_path: Path) -> None:
    """In training, and where a line is decoded."""
    for side in ("", "source", "target"):
        ours = task(data, tmp_path / f"run-{side}", language_token=side)
        for pair, sources, targets in (("en-de", ENGLISH, GERMAN), ("de-en", GERMAN, ENGLISH)):
            own, other = (f"__{language}__" for language in pair.split("-"))
            wanted = [own, *sources] if side == "target" else [other, *sources]
            found = first(ours, pair)
            assert found == ([*wanted, "</s>"], [*([other] if side == "target" else []), *targets, "</s>"])
            part = ours.part(pair)
            languages = part.decoding_settings()
            line, reference = next(part.source_lines("valid")), next(iter(part.references("valid") or ()))
            example = part.dataset("valid").parts[pair].example(0, epoch=1, seed=1)
            source, target = languages.get("source_lang", ""), languages["target_lang"]
            assert torch.equal(example.source, ours.encode_source_in(line, source, target))
            assert example.target.tolist() == ours.target_tokenizer.encode_target(reference, target)
            assert list(part.dataset("valid").parts) == [pair], "the whole task and its parts have different datasets"
            assert ours.target_tokenizer.decode(example.target.tolist()) == " ".join(targets)


def test_pairs_are_sampled_by_temperature(data: Path, tmp_path: Path) -> None:
    """p_i is proportional to (n_i / N) ** (1 / T), and an epoch has these proportions."""
    pairs, files = ["en-de", "en-fr"], {"train": f"{data}/only.train.{{pair}}", "valid": f"{data}/only.val.{{pair}}"}
    sizes = {"en-de": 300, "en-fr": 40}
    for temperature in (1.0, 1.5, 5.0):
        ours = task(data, tmp_path / str(temperature), pairs=pairs, temperature=temperature, epoch_size=2000, **files)
        dataset = ours.dataset("train")
        weights = [(size / 340) ** (1 / temperature) for size in sizes.values()]
        wanted = [weight / sum(weights) for weight in weights]
        assert dataset.rates == pytest.approx(wanted)
        drawn = Counter(dataset.example(i, epoch=3, seed=1).id >= 300 for i in range(len(dataset)))
        assert [drawn[False], drawn[True]] == pytest.approx([2000 * rate for rate in wanted], abs=1)


def test_files_of_a_pair_serve_both_directions(data: Path, tmp_path: Path) -> None:
    files = {"train": f"{data}/only.train.{{pair}}", "valid": f"{data}/only.val.{{pair}}"}
    ours = task(data, tmp_path / "run", pairs=["en-de", "de-en", "fr-en"], **files)
    assert first(ours, "de-en") == (["__en__", *GERMAN, "</s>"], [*ENGLISH, "</s>"])
    assert [pair.name for pair in ours.part("fr-en").pairs] == ["fr-en"]
    assert len(ours.dataset("train").parts["fr-en"]) == 40
    stores = list((tmp_path / "run" / "cache").glob("train.de*"))
    assert len(stores) == 1, "both directions read the same encoded text"


NLLB = {"additional_special_tokens": None}
CODES = {"Nllb": ("eng_Latn", "deu_Latn"), "M2M100": ("en", "de"), "MBart50": ("en_XX", "de_DE")}
CODES["MBart"] = CODES["MBart50"]


@pytest.mark.parametrize("kind", CODES)
def test_pretrained_tokenizers_keep_their_convention(kind: str, data: Path, tmp_path: Path) -> None:
    """Sources and labels equal those of transformers; mBART's language is its first decoder input."""
    transformers = pytest.importorskip("transformers")
    codes, name = CODES[kind], f"{kind}Tokenizer"
    folder = write_folder(tmp_path / "tokenizer", name, NLLB if kind == "Nllb" else {})
    languages = [f"{ending}={code}" for ending, code in zip(("en", "de"), codes, strict=True)]
    ours = task(data, tmp_path / "run", tokenizer="pretrained", pretrained_tokenizer=str(folder), languages=languages)
    for pair, (source, target) in (("en-de", codes), ("de-en", codes[::-1])):
        original = getattr(transformers, name).from_pretrained(folder, src_lang=source, tgt_lang=target)
        part, dataset = ours.part(pair), ours.dataset("valid").parts[pair]
        rows = [dataset.example(row, epoch=1, seed=1) for row in (0, 1)]
        batch = ours.collate(rows, SimpleNamespace(left_pad_source=False, start_token=lambda eos: eos))  # type: ignore[arg-type]
        for row in (0, 1):
            line, reference = list(part.source_lines("valid"))[row], list(part.references("valid") or ())[row]
            wanted = original(line, text_target=reference)
            length = int(batch.source.src_lengths[row])
            assert batch.source.src_tokens[row, :length].tolist() == wanted.input_ids
            target_ids = batch.target[row][batch.target[row] != original.pad_token_id].tolist()
            start, *shifted = batch.prev_output_tokens[row, : len(target_ids)].tolist()
            assert [*target_ids, *([start] if kind == "MBart" else [])] == wanted.labels
            assert start == (original.convert_tokens_to_ids(target) if kind == "MBart" else original.eos_token_id)
            assert shifted == target_ids[:-1]


def test_marian(data: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tokenizer", "MarianTokenizer")
    keys = {"tokenizer": "pretrained", "pretrained_tokenizer": str(folder)}
    ours = task(data, tmp_path / "run", pairs=["de-en"], languages=["en=fra"], **keys)
    source, target = first(ours, "de-en")
    assert (source[0], source[-1], target[-1]) == (">>fra<<", "</s>", "</s>")
    assert ">>fra<<" not in target


def test_further_languages(data: Path, tmp_path: Path) -> None:
    """New tokens follow those of the tokenizer, which keep their ids; the tokenizer of a run can be extended again."""
    folder = write_folder(tmp_path / "tokenizer", "NllbTokenizer", NLLB)
    old = load_pretrained_tokenizer(folder)
    keys = {"tokenizer": "pretrained", "pretrained_tokenizer": str(folder)}
    ours = task(data, tmp_path / "run", **keys, languages=["en=eng_Latn", "de=gsw_Latn"])
    assert ours.source_dictionary.symbols == [*old.dictionary.symbols, "gsw_Latn"]
    loaded = load_tokenizer(tmp_path / "run" / "tokenizer")
    assert loaded.languages == ours.source_tokenizer.languages
    assert loaded.fingerprint() == ours.source_tokenizer.fingerprint()
    assert loaded.encode_source("a dog", "gsw_Latn", "eng_Latn")[0] == len(old.dictionary)
    assert loaded.encode_source("a dog", "gsw_Latn")[1:] == old.encode_source("a dog", "eng_Latn")[1:]
    keys["pretrained_tokenizer"] = f"{tmp_path}/run"
    again = task(data, tmp_path / "again", **keys, languages=["en=gsw_Latn", "de=bar_Latn"])
    assert again.source_dictionary.symbols[-2:] == ["gsw_Latn", "bar_Latn"]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["source", "target"])
def test_unknown_words_are_those_they_are_aligned_with(side: str, data: Path, tmp_path: Path) -> None:
    """Beside the token of a language, on either side."""
    files = (f"run_dir={tmp_path / 'run'}", f"task.train={data}/train", f"task.valid={data}/val")
    task = ("task=multilingual_translation", "task.pairs=[en-de,de-en]", "task.workers=1", "task.tokenizer=whitespace")
    done("train", *files, *task, f"task.language_token={side}", *SMALL_TRANSFORMER, "optimization.max_update=1")
    keys = {"target_lang": "de", "replace_unknown": "source", "unkpen": -99, "max_len_b": 6}
    hypothesis = Translator(str(tmp_path / "run")).translate(["the dog sees a yak"], **keys)[0].hypotheses[0]
    read = [f"__{'de' if side == 'source' else 'en'}__", *["the", "dog", "sees", "a", "yak", "yak"]]
    wanted = [read[max(1, int(position))] for position in hypothesis.alignment[:-1]]
    assert len(wanted) > 3
    assert hypothesis.text.split() == wanted[side == "target" :]
