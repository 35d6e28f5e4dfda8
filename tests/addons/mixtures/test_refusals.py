"""What a user is told of the text, the mixtures and the keys of the tasks denoising and text_to_text."""

from pathlib import Path
from typing import Any

import numpy as np

from seqgen.addons.mixtures import DenoisingConfig, DenoisingTask, NoiseTokens, SpanCorruption
from seqgen.addons.mixtures.text_to_text import TextToTextConfig, TextToTextTask
from tests.addons.mixtures import test_denoising as denoising, test_text_to_text as text_to_text
from tests.refusals import Row, refusals

run, data = denoising.run, text_to_text.data  # fixtures


def raw(lines: list[str] | None, *words: str, name: str = "a.jsonl", **settings: Any) -> Row:
    """A denoising task whose training data has these lines."""

    def load(run: Path, tmp_path: Path) -> None:
        if lines is not None:
            settings["train"] = [denoising.write(tmp_path / name, lines)]
        denoising.task(run, cache_dir=str(tmp_path / "cache"), **settings).load_dataset("train")

    return load, *words


def both_forms(run: Path, tmp_path: Path) -> None:
    paths = [denoising.write(tmp_path / name, ['{"text": "a"}']) for name in ("a.txt", "b.jsonl")]
    denoising.task(run, train=paths).load_dataset("train")


def no_sentinels(tmp_path: Path) -> None:
    text = denoising.write(tmp_path / "text.txt", denoising.TEXT)
    cfg = DenoisingConfig(train=[text], tokenizer="whitespace", workers=1)
    DenoisingTask.setup_task(cfg, tmp_path / "run").load_dataset("train")


def too_few_positions(run: Path) -> None:
    dataset = denoising.task(run, train=[str(run / "text.txt")], input_length=100).load_dataset("train")
    assert dataset.limited(100, 100) is dataset
    dataset.limited(99, None)


FEW = NoiseTokens(1, np.arange(2999, 2996, -1))
test_denoising = refusals(
    raw(['{"text": "a dog"}', '{"text": '], "a.jsonl, line 2: the line is not JSON"),
    raw(['{"body": "a dog"}'], "a.jsonl, line 1: there is no field 'text'; the line has: body"),
    raw(['{"text": "a"}', '{"text": " "}'], "line 2: the document has no tokens;", "on_empty"),
    raw(["", "  "], "train: a.txt contains no token", name="a.txt"),
    raw(["the dog sees a ball"] * 50, "but", "has 40;", "task.input_length", name="a.txt", mean_span_length=1.0),
    raw(None, "task.train is missing"),
    raw(None, "there is no such file", train=["nowhere.txt"]),
    raw(None, "joined_dictionary=true", joined_dictionary=False),
    (both_forms, "b.jsonl contains JSON lines and", "a.txt plain text"),
    (no_sentinels, "no <extra_id_0>", "task.tokenizer=t5"),
    (lambda: SpanCorruption()(np.zeros(568, int), FEW, np.random.default_rng(0)), "needs 28 sentinels, but the token"),
    (too_few_positions, "makes examples of up to 100 source tokens, but the model has only 99 positions"),
)


def mixture(of: str, values: dict[str, Any], *words: str) -> Row:
    """A mixture of one source, some of whose keys are changed."""

    def load(data: Path, tmp_path: Path) -> None:
        content = {of: {**text_to_text.sources(data)[of], **values}}
        text_to_text.task(data, tmp_path / "run", content).load_dataset("train")

    return load, *words


def one_rate(data: Path, tmp_path: Path) -> None:
    content = text_to_text.sources(data)
    content["de"]["rate"] = 3
    text_to_text.task(data, tmp_path / "run", content)


test_mixtures = refusals(
    mixture("de", {"input": "{sorce}"}, "mixture.yaml: sources.de.input: ", "'sorce' (did you mean 'source'?), but"),
    mixture("count", {"input": "{word}"}, "sources.count.input: ", "'word'", "the fields are: text, count"),
    mixture("pairs", {"target": "{third}"}, "sources.pairs.target: ", "'third'", "are: first, second, long"),
    mixture("de", {"input": "{source"}, "sources.de.input: the template '{source' cannot be read"),
    mixture("de", {"target_lang": ""}, "sources.de: parallel text needs both"),
    mixture("de", {"train": "nowhere"}, "sources.de.train=nowhere: there is neither nowhere.en"),
    mixture("count", {"train": "nowhere.tsv"}, "sources.count.train=nowhere.tsv: there is no such file"),
    mixture("de", {"train": ""}, "no source has the split 'train'"),
    mixture("de", {"rate": 0.0}, "sources.de: rate=0.0 is below its minimum"),
    mixture("de", {"rate": float("nan")}, "rate=nan is not a finite number"),
    (one_rate, "sources.count has no rate, but other sources have one"),
)


def file(text: str, *words: str) -> Row:
    def load(tmp_path: Path) -> None:
        (tmp_path / "m.yaml").write_text(text)
        TextToTextTask.setup_task(TextToTextConfig(mixture=str(tmp_path / "m.yaml")), tmp_path / "run")

    return load, *words


test_files = refusals(
    file("sources: {de: {input: a: b}}", "is not valid YAML: ", "in quotes"),
    file("a: 1", "must have one key, sources"),
    file("sources: {}", "has no source"),
    file("sources: {de: !!python/object/apply:os.system [true]}", "is not valid YAML"),
)


def lines(name: str, content: str, *words: str) -> Row:
    """Training data with these lines, of a run whose vocabulary exists."""

    def load(data: Path, tmp_path: Path) -> None:
        source = text_to_text.sources(data)["pairs"]
        good = text_to_text.task(data, tmp_path / "run", {"pairs": source})
        (tmp_path / name).write_text(content)
        bad = text_to_text.task(data, tmp_path / "run", {"pairs": {**source, "train": str(tmp_path / name)}})
        assert bad.source_tokenizer.fingerprint() == good.source_tokenizer.fingerprint()
        bad.load_dataset("train")

    return load, *words


GOOD = '{"first": "a", "second": "b", "long": "c"}\n'

test_lines = refusals(
    lines("a.jsonl", f"{GOOD}no JSON\n", "a.jsonl, line 2: the line is not JSON"),
    lines("a.jsonl", GOOD + '{"first": "a"}\n', "line 2: there is no field 'second'"),
    lines("a.tsv", "first\tsecond\tlong\na\tb\tc\na\tb\n", "a.tsv, line 3: the line has 2 columns instead of 3"),
    lines("a.tsv", "first\tsecond\tlong\n", "a.tsv has no lines after its header"),
)
