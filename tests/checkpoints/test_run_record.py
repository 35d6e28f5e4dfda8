"""Files and keys that a run's outputs depend on: if one is missing or has changed, no output is written."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import seqgen
from seqgen.checkpoints.loading import base_digest, load_models
from seqgen.checkpoints.run_config import RUN_CHECKSUMS, save_generation
from seqgen.extend import GenerationConfig, UserError
from tests.commands import SMALL_TRANSFORMER, command, done, refused, sentences, training_arguments
from tests.huggingface_t5 import change_config, tiny_folder

LINES = [source for source, _ in sentences(400, 4)]
UPDATES = "optimization.max_update=6"


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(data, tmp_path_factory.mktemp("runs") / "trained")


def train(data: Path, run: Path, *arguments: str) -> Path:
    limits = ("checkpoint.keep_last_epochs=2", "generation.max_len=12", "optimization.lr=[5e-3]")
    done("train", *training_arguments(data, run), *SMALL_TRANSFORMER, UPDATES, *limits, *arguments)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def outputs(run: Path) -> tuple[list[Any], list[str]]:
    """The exact output of a run, and its notes."""
    loaded = load_models([str(run)])
    translations = seqgen.Translator(loaded).translate(LINES)
    best = [(found.text, found.hypotheses[0].score) for found in translations]
    return best, [note for member in loaded for note in member.notes]


def change(run: Path, **values: Any) -> None:
    """Edit keys ``group__key`` of a run's configuration."""
    path = run / "config.yaml"
    content = yaml.safe_load(path.read_text())
    for name, value in values.items():
        group, _, key = name.partition("__")
        assert content[group][key] != value
        content[group][key] = value
    path.write_text(yaml.safe_dump(content, sort_keys=False))


# -- a tokenizer that is missing ----------------------------------------------------------------------------------


def commands_on(run: Path, data: Path) -> dict[str, tuple[str, ...]]:
    """Every command that reads a trained run."""
    return {
        "generate": ("generate", f"path={run}", f"input={data}/test.en"),
        "test split": ("generate", f"path={run}/checkpoints/last"),
        "score": ("score", f"path={run}", f"source={data}/test.en", f"reference={data}/test.de"),
        "average": ("convert", "format=average", f"path={run}/checkpoints/last", f"output={run.parent}/average"),
        "convert": ("convert", "format=huggingface", f"path={run}", f"output={run.parent}/converted"),
        "resume": ("train", *training_arguments(data, run), *SMALL_TRANSFORMER, "optimization.max_update=9",
                   "optimization.lr=[5e-3]"),
        "prepare": ("train", "prepare_only=true", *training_arguments(data, run), *SMALL_TRANSFORMER,
                    "optimization.lr=[5e-3]", "optimization.max_update=9"),
    }  # fmt: skip


@pytest.mark.parametrize("state", ["missing", "missing from an older run", "damaged"])
def test_a_tokenizer_is_not_made_again(run: Path, data: Path, state: str) -> None:
    path, words = run / "tokenizer", ("is missing", "copy")
    if state == "damaged":
        path, words = path / "sentencepiece.model", ("checksum differs", "copy it again")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    else:
        shutil.rmtree(path)
    if "older" in state:
        (run / RUN_CHECKSUMS).unlink()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    for name, arguments in commands_on(run, data).items():
        if "older" in state and name == "average":
            continue  # it does not use the tokenizer, and no record shows that one is missing
        refused(command(*arguments), str(path), *words)
        after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
        assert after == before, name


def test_before_training_a_tokenizer_may_be_made_again(data: Path, tmp_path: Path) -> None:
    arguments = (*training_arguments(data, tmp_path / "run"), *SMALL_TRANSFORMER, UPDATES)
    assert command("train", "prepare_only=true", *arguments).code == 0
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    assert command("train", "prepare_only=true", *arguments).code == 0
    model = tmp_path / "run" / "tokenizer" / "sentencepiece.model"
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    refused(command("train", *arguments), str(model), "checksum")


# -- what was changed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("model__encoder_attention_heads", 4), ("model__activation_fn", "gelu"), ("model__dropout", 0.5)),
        *(("task__max_source_positions", 7), ("task__joined_dictionary", False), ("task__tokenizer", "whitespace")),
    ],
)
def test_what_says_how_the_model_computes_stays(run: Path, data: Path, key: str, value: Any) -> None:
    change(run, **{key: value})
    for name in ("generate", "score", "average", "convert"):
        refused(command(*commands_on(run, data)[name]), "config.yaml", key.replace("__", "."), "set it back")


def test_the_rest_may_be_edited(run: Path) -> None:
    expected = outputs(run)
    assert expected[1] == []
    change(run, task__train="moved/train", task__test="elsewhere", task__source_lang="english", task__workers=3,
           task__cache_dir="/cache", task__spm_model="own.model", optimization__lr=[0.1], optimization__max_epoch=3,
           common__seed=9, checkpoint__patience=2, dataset__max_tokens=77)  # fmt: skip
    assert outputs(run) == expected


def test_saved_settings_keep_the_rules_of_the_run(run: Path) -> None:
    change(run, generation__semantics="huggingface")
    for semantics, kept in (("", "huggingface"), ("fairseq", "fairseq")):
        save_generation(run, GenerationConfig(beam=3, semantics=semantics))
        generation = yaml.safe_load((run / "config.yaml").read_text())["generation"]
        assert (generation["beam"], generation["semantics"]) == (3, kept)
    assert outputs(run)[1] == [], "what was saved is no edit"


def test_an_older_run_is_read_and_gets_checksums_when_it_is_continued(run: Path, data: Path) -> None:
    expected = outputs(run)
    content = (run / RUN_CHECKSUMS).read_bytes()
    (run / RUN_CHECKSUMS).unlink()
    assert outputs(run) == expected
    seqgen.save_generation(run, seqgen.GenerationConfig(beam=5, max_len=12))
    assert not (run / RUN_CHECKSUMS).exists(), "the state at training is unknown"
    train(data, run, "optimization.max_epoch=7")
    assert (run / RUN_CHECKSUMS).read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"files": []}', b"\xff", b"[" * 100_000])
def test_damaged_checksums(run: Path, content: bytes) -> None:
    (run / RUN_CHECKSUMS).write_bytes(content)
    with pytest.raises(UserError, match=rf"{RUN_CHECKSUMS} is damaged; copy"):
        load_models([str(run)])


def test_a_converted_run_has_checksums(tmp_path: Path, data: Path) -> None:
    small = ("model=t5_tiny", "model.num_layers=1", "model.d_model=16", "task.tokenizer=t5", "task.vocab_size=40")
    assert command("train", *training_arguments(data, tmp_path / "t5"), *small, "optimization.max_update=1").code == 0
    assert command("convert", "format=huggingface", f"path={tmp_path}/t5", f"output={tmp_path}/folder").code == 0
    assert command("convert", f"path={tmp_path}/folder", f"output={tmp_path}/again").code == 0
    files = json.loads((tmp_path / "again" / RUN_CHECKSUMS).read_text())["files"]
    assert "tokenizer/pretrained/tokenizer_config.json" in files
    change(tmp_path / "again", model__num_heads=1)
    refused(command("generate", f"path={tmp_path}/again", "input=-"), "model.num_heads")


# -- bits that flip -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [8, pytest.param(500, marks=pytest.mark.nightly)])
def test_a_flipped_bit_changes_nothing_or_is_an_error(run: Path, count: int) -> None:
    expected, _ = outputs(run)
    files = [run / "config.yaml", run / RUN_CHECKSUMS, *(run / "tokenizer").iterdir()]
    files += [run / "checkpoints" / "best" / name for name in ("SHA256SUMS", "model.safetensors")]
    for path in files:
        intact, errors = path.read_bytes(), 0
        for bit in random.Random(path.name).sample(range(8 * len(intact)), min(count, 8 * len(intact))):
            damaged = bytearray(intact)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            try:
                got, notes = outputs(run)
                assert got == expected or any("generation." in note for note in notes), damaged
            except UserError:
                errors += 1
        path.write_bytes(intact)
        assert errors > count / 5, (path, errors)
    assert outputs(run)[0] == expected


def test_the_checksum_of_a_base_is_of_its_weights_and_its_config(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "t5", "t5")
    before = base_digest(str(folder))
    (folder / "README.md").write_text("another file")
    assert base_digest(str(folder)) == before
    change_config(folder, layer_norm_epsilon=1e-3)
    assert base_digest(str(folder)) != before
