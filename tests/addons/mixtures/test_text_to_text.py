"""The text-to-text task: sources of every kind, their templates, and what bad input gets."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqgen.addons.mixtures.text_to_text import TextToTextConfig, TextToTextTask
from seqgen.core.errors import ConfigError
from tests.addons.mixtures import training_keys
from tests.commands import command, corpus, done, refused, sentences
from tests.training_runs import assert_identical, everything, records

PAIRS = sentences(0, 60)
SETTINGS = {"vocab_size": 80, "hard_vocab_limit": False, "extra_ids": 2, "workers": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parallel text, TSV and JSON lines."""
    folder = corpus(tmp_path_factory.mktemp("data"))
    table = [f"{english}\t{len(english.split())}\n" for english, _ in PAIRS]
    (folder / "words.tsv").write_text("text\tcount\n" + "".join(table))
    lines = "".join(json.dumps({"first": e, "second": d, "long": len(d) > 30}) + "\n" for e, d in PAIRS)
    (folder / "pairs.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def sources(data: Path) -> dict[str, dict[str, Any]]:
    splits = {"train": f"{data}/train", "valid": f"{data}/val", "test": f"{data}/test"}
    words, pairs = f"{data}/words.tsv", f"{data}/pairs.jsonl.gz"
    text = "{{is it long?}} first: {first} second: {second}"
    return {
        "de": {**splits, "source_lang": "en", "target_lang": "de", "input": "translate English to German: {source}"},
        "count": {"train": words, "valid": [words], "input": "count: {text}", "target": "{count} words"},
        "pairs": {"train": f"{data}/pairs*.jsonl.gz", "valid": pairs, "input": text, "target": "{long}"},
    }


def mixture(folder: Path, content: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mixture.yaml"
    path.write_text(yaml.safe_dump({"sources": content}, sort_keys=False))
    return str(path)


def task(data: Path, run: Path, content: dict[str, Any] | None = None, **settings: Any) -> TextToTextTask:
    path = mixture(run.parent / "files", content or sources(data))
    return TextToTextTask.setup_task(TextToTextConfig(mixture=path, **{**SETTINGS, **settings}), run)


def test_inputs_and_targets_follow_the_templates_and_are_encoded(data: Path, tmp_path: Path) -> None:
    ours = task(data, tmp_path / "run")
    assert ours.splits() == ["train", "valid", "test"]
    lines, references = list(ours.source_lines("train")), list(ours.references("train"))
    wanted = sentences(0, 300)
    assert lines[:300] == [f"translate English to German: {english}" for english, _ in wanted]
    assert references[:300] == [german for _, german in wanted]
    assert lines[300:360] == [f"count: {english}" for english, _ in PAIRS]
    assert references[300:360] == [f"{len(english.split())} words" for english, _ in PAIRS]
    assert lines[360:] == [f"{{is it long?}} first: {english} second: {german}" for english, german in PAIRS]
    assert references[360:] == [str(len(german) > 30).lower() for _, german in PAIRS]
    assert list(ours.source_lines("test")) == [f"translate English to German: {e}" for e, _ in sentences(400, 20)]
    assert list(ours.part("count").source_lines("valid")) == lines[300:360]

    dataset = ours.load_dataset("valid")
    lines, references = list(ours.source_lines("valid")), list(ours.references("valid"))
    assert len(dataset) == len(lines) == 30 + 60 + 60
    for position, (line, reference) in enumerate(zip(lines, references, strict=True)):
        example = dataset.example(position, epoch=1, seed=1)
        assert example.source.tolist() == ours.encode_source(line).tolist()
        assert example.target.tolist() == ours.encode_target(reference).tolist()


def test_rates(data: Path, tmp_path: Path) -> None:
    plain = task(data, tmp_path / "run").load_dataset("train")
    assert plain.rates == pytest.approx([300 / 420, 60 / 420, 60 / 420])
    assert len(plain) == 420
    limited = task(data, tmp_path / "run", size_limit=120, epoch_size=50).load_dataset("train")
    assert limited.rates == pytest.approx([0.5, 0.25, 0.25])
    assert len(limited) == 50
    weights = [300**0.5, 60**0.5, 60**0.5]
    warm = task(data, tmp_path / "run", temperature=2.0).load_dataset("train")
    assert warm.rates == pytest.approx([weight / sum(weights) for weight in weights])
    given = sources(data)
    for source, rate in zip(given.values(), (3, 1, 1), strict=True):
        source["rate"] = rate
    assert task(data, tmp_path / "c" / "run", given).load_dataset("train").rates == [0.6, 0.2, 0.2]


def test_a_run_decodes_without_its_data(data: Path, tmp_path: Path) -> None:
    ours = task(data, tmp_path / "run")
    ids = ours.encode_source("count: the dog").tolist()
    (tmp_path / "run").rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "files")
    moved = TextToTextTask.setup_task(TextToTextConfig(mixture="gone.yaml", **SETTINGS), tmp_path / "moved")
    assert moved.encode_source("count: the dog").tolist() == ids
    assert moved.part("de").input_of("a {dog}: x") == "translate English to German: a {dog}: x"


def test_another_mixture_does_not_continue_a_run(data: Path, tmp_path: Path) -> None:
    task(data, tmp_path / "run")
    changed = sources(data)
    changed["de"]["input"] = "English to German: {source}"
    del changed["pairs"]
    not_begun = task(data, tmp_path / "run", changed)
    assert not_begun.part("de").input_of("a") == "English to German: a"
    (tmp_path / "run" / "checkpoints" / "last").mkdir(parents=True)
    begun = task(data, tmp_path / "run", sources(data))
    assert begun.part("de").input_of("a") == "English to German: a", "decoding uses the mixture of training"
    with pytest.raises(ConfigError) as error:
        begun.load_dataset("train")
    assert "in which these sources differ: de, pairs; restore that version" in str(error.value)


def test_templates_must_not_change_after_training_and_files_may(data: Path, tmp_path: Path) -> None:
    before = task(data, tmp_path / "before" / "run").fixed_values()
    for key, value, fixed in (("input", "{text}", True), ("target", "{count}", True), ("valid", "", False)):
        content = sources(data)
        content["count"][key] = value
        assert (task(data, tmp_path / key / "run", content).fixed_values() != before) is fixed


SHORT = ["generation.beam=1", "generation.max_len_b=4", "common.threads=1"]
TRAINING = [
    *(*training_keys("text_to_text", SETTINGS), "dataset.max_tokens=600", "dataset.validate_interval_updates=10"),
    *("dataset.validate_decode=8", "generation.beam=1", "generation.max_len_b=4"),
]


@pytest.mark.slow
def test_training_on_several_tasks_at_once(data: Path, tmp_path: Path) -> None:
    """Scores for each source; a run that was stopped ends like one that was not; decoding by the commands."""
    path = mixture(tmp_path, sources(data))

    once, twice = tmp_path / "once", tmp_path / "twice"
    for run, updates in ((once, 25), (twice, 12), (twice, 25)):
        keys = (f"run_dir={run}", f"task.mixture={path}", f"optimization.max_update={updates}")
        done("train", *keys, *TRAINING, "checkpoint.best_checkpoint_metric=de.loss")
    assert_identical(everything(twice), everything(once))
    scores = records(once, "valid")[-1]
    assert {"bleu", "exact_match", "de.bleu", "count.chrf", "pairs.ppl"} <= scores.keys()
    losses = [scores[f"{source}.loss"] for source in ("de", "count", "pairs")]
    assert min(losses) < scores["loss"] < max(losses)

    lines = [*(english for english, _ in sentences(400, 3)), ""]
    whole = "".join(f"translate English to German: {line}\n" if line else "\n" for line in lines)
    plain = command("generate", f"path={once}", *SHORT, "input=-", stdin=whole.encode())
    text = "".join(f"{line}\n" for line in lines).encode()
    filled = command("generate", f"path={once}", *SHORT, "input=-", "dataset.gen_source=de", stdin=text)
    assert plain.code == filled.code == 0, plain.err + filled.err
    assert plain.out == filled.out
    assert plain.out.endswith("\n\n"), "an empty line has an empty answer"
    subset = command("generate", f"path={once}", *SHORT, "dataset.gen_subset=valid", "dataset.gen_source=count")
    assert len(subset.out.splitlines()) == 60, subset.err
    for source, words in (("counts", "there is no source 'counts' (did you mean 'count'?)"), ("pairs", "has 2 fields")):
        refused(command("generate", f"path={once}", "input=-", f"dataset.gen_source={source}", stdin=b"a\n"), words)

    copy = once / "mixture.yaml"
    copy.write_text(copy.read_text().replace("English to German", "English to Danish"))
    changed = command("generate", f"path={once}", "input=-", "dataset.gen_source=de", stdin=b"a\n")
    refused(changed, "mixture.yaml: sources.de.input is")


def test_a_score_that_needs_decoding(data: Path, tmp_path: Path) -> None:
    keys = (f"run_dir={tmp_path / 'run'}", f"task.mixture={mixture(tmp_path, sources(data))}")
    score = ("dataset.validate_decode=0", "checkpoint.best_checkpoint_metric=de.bleu")
    refused(command("train", *keys, *TRAINING, *score), "dataset.validate_decode")
