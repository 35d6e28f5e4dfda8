"""The page for users of transformers: each row of its tables gives the same texts in transformers and in seqgen."""

import json
import logging
import re
import shlex
import subprocess
from collections import namedtuple
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen import Translator
from seqgen.extend import Translation, UserError
from tests import huggingface_bart
from tests.commands import done
from tests.huggingface_decoding import sharp_model
from tests.huggingface_t5 import change_config, tiny_tokenizer
from tests.pretrained_folders import write_folder

transformers = pytest.importorskip("transformers")

PAGE = Path(__file__).parent.parent.parent / "docs" / "from-transformers.md"
TEXT = PAGE.read_text(encoding="utf-8")

LINES = ["the dog sees a man", "a man has a ball and the dog finds a tree"]
LINES += ["the boat", "a tree sees the man and a boat"]
Texts = list[list[str]]
"""For each line the texts of its hypotheses."""

ONE_BY_ONE = ("assistant_model", "prompt_lookup_num_tokens")
"""Arguments with which transformers decodes one sentence at a time."""

SAME_OUTPUT = ("draft", "draft_tokens", "prompt_lookup", "nbest")
"""Keys that do not change the best output."""


Row = namedtuple("Row", "theirs ours shell")
"""A row of a table: code for transformers, code for seqgen, and a command."""


def rows(section: str) -> list[Row]:
    """The rows of a section whose three cells are code."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
    found = []
    for line in re.findall(r"^\| `.*\|$", text, flags=re.MULTILINE):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and "…" not in line:
            assert all(cell[0] == cell[-1] == "`" for cell in cells), line
            found.append(Row(*(cell[1:-1].replace(r"\|", "|") for cell in cells)))
    return found


PIPELINES = rows("Pipelines")
ARGUMENTS = rows("model.generate") + rows("Modes that version 5 no longer has")


def write_t5(folder: Path, seed: int) -> None:
    sharp_model("t5", seed, vocab_size=40).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    change_config(folder, task_specific_params={"translation_en_to_de": {"prefix": "translate English to German: "}})


def write_bart(folder: Path, kind: str, tokenizer: str, seed: int, **generation: Any) -> None:
    """A model of BART's family whose outputs depend on the source, and consist of letters."""
    write_folder(folder, tokenizer, {"additional_special_tokens": None} if kind == "m2m_100" else {})
    words = transformers.AutoTokenizer.from_pretrained(folder)
    ids = {"pad_token_id": words.pad_token_id, "eos_token_id": words.eos_token_id, "vocab_size": len(words)}
    if kind == "marian":
        ids["decoder_start_token_id"] = words.pad_token_id
    model = huggingface_bart.tiny_model(kind, seed, max_position_embeddings=64, **ids)
    texts = words.batch_decode([[index] for index in range(len(words))])
    others = [i for i, text in enumerate(texts) if not re.fullmatch(r"[ -~ä-ü]{1,7}", text) or text.startswith("<")]
    with torch.no_grad():
        last = model.model.decoder.layer_norm if kind == "m2m_100" else model.model.decoder.layers[0].final_layer_norm
        last.weight.mul_(-2)  # as of sharp_model
        if kind == "m2m_100":
            model.model.shared.weight[others] *= 0.3
        else:
            model.final_logits_bias[0, others] = -8
            model.final_logits_bias[0, words.eos_token_id] = 2
    model.generation_config.update(**generation)
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A folder with everything that the page names, as the working folder; the names that its first code defines."""
    folder = tmp_path_factory.mktemp("from-transformers")
    write_t5(folder / "T5", 3)
    write_t5(folder / "DRAFT", 4)
    own: dict[str, Any] = {"num_beams": 4, "max_length": 18, "min_length": 8, "no_repeat_ngram_size": 3}
    write_bart(folder / "BART", "bart", "BartTokenizer", 0, length_penalty=2.0, early_stopping=True, **own)
    write_bart(folder / "MARIAN", "marian", "MarianTokenizer", 2, max_length=24, num_beams=6)
    write_bart(folder / "NLLB", "m2m_100", "NllbTokenizer", 5, max_length=22)
    (folder / "test.en").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    for line in re.findall(r"^sed .*$", TEXT, flags=re.MULTILINE):
        subprocess.run(line, shell=True, check=True, cwd=folder)
    names: dict[str, Any] = {}
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
        exec(compile(code, "docs/from-transformers.md", "exec"), names)
        yield names


# Texts are compared without spaces at the end, which only the fast class of T5's tokenizer keeps.


def texts_of(translations: Iterable[Translation]) -> Texts:
    return [[hypothesis.text.rstrip(" ") for hypothesis in found.hypotheses] for found in translations]


def by_command(shell: str) -> Texts:
    """The texts that a command writes."""
    words = shlex.split(shell)
    outcome = done("generate", *words)
    lines = outcome.out.splitlines()
    if "format=json" not in words:
        return [[line.rstrip(" ")] for line in lines]
    return [[hypothesis["text"].rstrip(" ") for hypothesis in json.loads(line)["hypotheses"]] for line in lines]


def by_seqgen(code: str, names: dict[str, Any]) -> Texts:
    """The texts of a call, or of ``translator.translate(lines, ...)`` with arguments."""
    call = code if "translate(" in code else f"translator.translate(lines, {code})"
    return texts_of(eval(call, names))


def by_transformers(arguments: str, names: dict[str, Any]) -> Texts:
    """The texts of ``model.generate(**inputs, ...)`` with arguments."""
    if any(name in arguments for name in ONE_BY_ONE) and len(names["lines"]) > 1:
        return [by_transformers(arguments, of_lines([line], names))[0] for line in names["lines"]]
    tokens = eval(f"model.generate(**inputs, {arguments})", names)
    texts = [text.rstrip(" ") for text in names["tokenizer"].batch_decode(tokens, skip_special_tokens=True)]
    count = len(texts) // len(names["lines"])
    return [texts[start : start + count] for start in range(0, len(texts), count)]


def of_lines(lines: list[str], names: dict[str, Any]) -> dict[str, Any]:
    return {**names, "lines": lines, "inputs": names["tokenizer"](lines, return_tensors="pt", padding=True)}


@pytest.mark.slow
@pytest.mark.parametrize("row", PIPELINES, ids=[row.theirs for row in PIPELINES])
def test_pipelines(row: Row, place: dict[str, Any]) -> None:
    results = [found if isinstance(found, list) else [found] for found in eval(row.theirs, place)]
    wanted = [[text.rstrip(" ") for result in found for text in result.values()] for found in results]
    assert len({texts[0] for texts in wanted}) > 1
    assert all(texts[0] for texts in wanted)
    assert by_seqgen(row.ours, place) == wanted
    assert row.shell.startswith("seqgen-generate ")
    assert by_command(row.shell.removeprefix("seqgen-generate ")) == wanted


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.theirs, marks=pytest.mark.slow if i % 4 else ()) for i, row in enumerate(ARGUMENTS)],
)
def test_arguments_of_generate(row: Row, place: dict[str, Any]) -> None:
    """Each key changes the outputs, so that a key without an effect would be noticed."""
    wanted = by_transformers(row.theirs, place)
    assert by_seqgen(row.ours, place) == wanted
    assert by_command(f"path=T5 {'' if 'input=' in row.shell else 'input=test.en'} {row.shell}") == wanted
    arguments = re.sub(r"^translator.translate\(\[.*?for line in lines\], (.*)\)$", r"\1", row.ours)
    keys = eval(f"dict({arguments})", place)
    lines = place["lines"] if "constraints" not in keys else [f"{line}\tdog" for line in place["lines"]]
    for key in keys.keys() - {*SAME_OUTPUT}:
        others = {name: value for name, value in keys.items() if name != key}
        try:
            found = place["translator"].translate(lines, **others)
        except UserError:  # the other keys need this one
            continue
        assert texts_of(found) != wanted, key


@pytest.mark.slow
def test_what_a_pipeline_uses(place: dict[str, Any]) -> None:
    """Its beams and its limit, which are not those of the folder, and ``max_length``, which it ignores."""
    for name, limit in (("MARIAN", None), ("BART", None), ("T5", 256)):  # only T5 has no max_length
        pipeline = transformers.pipeline("text2text-generation", model=name)
        assert (pipeline.generation_config.num_beams, pipeline.generation_config.max_new_tokens) == (4, limit)
    line = place["lines"][2]
    assert pipeline(line, max_length=9) == pipeline(line) != pipeline(line, max_new_tokens=9)
    settings = [Translator(name).settings() for name in ("MARIAN", "T5")]
    assert [(one.beam, one.max_len) for one in settings] == [(6, 23), (1, 20)]


@pytest.mark.slow
def test_sentences_of_a_batch(place: dict[str, Any]) -> None:
    """In transformers, an n-best list can depend on the other sentences of the batch."""
    arguments = "num_beams=4, num_return_sequences=4, max_new_tokens=40"
    alone = [by_transformers(arguments, of_lines([line], place))[0] for line in LINES]
    assert by_seqgen("beam=4, nbest=4, max_len=40", place) == alone
    assert by_transformers(arguments, place) != alone


@pytest.mark.slow
def test_empty_and_long_lines(place: dict[str, Any]) -> None:
    summarize = transformers.pipeline("summarization", model="BART")
    assert summarize([""])[0]["summary_text"] != ""
    translator = Translator("BART")
    assert [translation.text != "" for translation in translator.translate(["", "a dog"])] == [False, True]
    long = "the dog " * 80
    with pytest.raises(IndexError):
        summarize([long])
    assert any("only the first" in note for note in translator.translate([long])[0].notes)


def test_phrases_that_are_lacking(place: dict[str, Any]) -> None:
    """With few beams, transformers returns an output without the phrases, and seqgen none."""
    phrases = 'num_beams=4, force_words_ids=[tokenizer(["dog", "boat"], add_special_tokens=False).input_ids]'
    wanted = by_transformers(phrases, place)
    lacking = [number for number, (text,) in enumerate(wanted) if not re.search("dog|boat", text)]
    assert lacking
    lines = [f"{line}\tdog|boat" for line in LINES]
    translations = place["translator"].translate(lines, beam=4, constraints="unordered")
    assert texts_of(translations) == [[] if number in lacking else found for number, found in enumerate(wanted)]
    assert all(translations[number].notes for number in lacking)
