"""What is checked before a run starts, and what is said then."""

from pathlib import Path

import pytest

from tests.commands import NOUNS, Outcome, command, refused


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Text whose German side has fewer different characters than its English side."""
    folder = tmp_path / "data"
    folder.mkdir()
    for split, nouns in (("train", list(NOUNS)), ("valid", list(NOUNS)[1:])):
        lines = [f"the {one} sees the {two}" for one in nouns for two in nouns]
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{split}.de").write_text("aba\n" * len(lines))
    return folder


def prepare(data: Path, run: Path, *further: str) -> Outcome:
    arguments = ("task=translation", "task.source_lang=en", "task.target_lang=de", "task.vocab_size=24")
    files = (f"task.train={data}/train", f"task.valid={data}/valid")
    return command("train", f"run_dir={run}", *arguments, *files, "prepare_only=true", *further)


def test_a_vocabulary_of_other_text_or_of_unknown_origin_is_refused(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert prepare(data, run).code == 0
    assert prepare(data, run).code == 0
    trained = (run / "tokenizer" / "tokenizer.json").read_bytes()
    assert "task.vocab_size: 24 -> 23" in prepare(data, run, "task.vocab_size=23").err
    with (data / "train.en").open("a") as file, (data / "train.de").open("a") as other:
        file.write("xylophones\n")
        other.write("aba\n")
    refused(prepare(data, run), "was trained on other text")
    (run / "config.yaml").unlink()
    refused(prepare(data, run), f"delete {run / 'tokenizer'}")
    assert (run / "tokenizer" / "tokenizer.json").read_bytes() == trained


def test_a_failed_start_does_not_refuse_the_corrected_command(data: Path, tmp_path: Path) -> None:
    """The new run is the one that it would be in an empty folder; a command that only repeats makes no tokenizer."""
    small = ("model=transformer_tiny", "common.tensorboard=false", "optimization.max_update=1")
    wrong = ("checkpoint.best_checkpoint_metric=foo", "task.source_lang=de", "task.target_lang=en")
    (data / "uneven.en").write_text("the dog\n")
    (data / "uneven.de").write_text("aba\naba\n")
    for name, *mistake in (
        ("train", "prepare_only=false", *wrong),
        ("text", "prepare_only=false", wrong[0], f"task.train={data}/valid", "task.vocab_size=22"),
        ("prepare", f"task.valid={data}/uneven", "task.vocab_size=23"),
    ):
        run = tmp_path / name
        assert prepare(data, run, *small, *mistake).code == 2
        made = (run / "tokenizer").stat().st_ino
        assert prepare(data, run, *small, *mistake).code == 2
        assert (run / "tokenizer").stat().st_ino == made
        corrected = prepare(data, run, *small, "prepare_only=false")
        assert corrected.code == 0, corrected.err
        assert corrected.err.count(f"{run} is left from a start that failed, with another task or text") == 1
        assert prepare(data, tmp_path / "clean" / name).code == 0
        clean = tmp_path / "clean" / name / "tokenizer" / "tokenizer.json"
        assert (run / "tokenizer" / "tokenizer.json").read_bytes() == clean.read_bytes()


def test_a_run_is_not_continued_with_other_text(data: Path, tmp_path: Path) -> None:
    """Not even with text of the same lengths, and its record still names the text that it was trained on."""
    run = tmp_path / "run"
    model = ("model=transformer_tiny", "prepare_only=false", "common.tensorboard=false", "dataset.max_tokens=400")
    assert prepare(data, run, *model, "optimization.max_update=1").code == 0
    record = (run / "provenance.json").read_bytes()
    text = (data / "train.en").read_text().splitlines()
    (data / "train.en").write_text("".join(f"{line}\n" for line in [*text[1:], text[0]]))
    refused(prepare(data, run, *model, "optimization.max_update=2"), "the text of train has changed")
    assert (run / "provenance.json").read_bytes() == record
