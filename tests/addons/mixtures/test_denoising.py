"""The denoising task: raw text of any form in, noisy examples out, and what bad input gets."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from seqgen.addons.mixtures.denoising import DenoisingConfig, DenoisingTask
from tests.commands import sentences

TEXT = [english for english, _ in sentences(0, 200)]
VOCABULARY = {"vocab_size": 60, "hard_vocab_limit": False, "extra_ids": 40, "workers": 1}


def write(path: Path, lines: list[str]) -> str:
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a tokenizer."""
    folder = tmp_path_factory.mktemp("run")
    text = write(folder / "text.txt", TEXT)
    DenoisingTask.setup_task(DenoisingConfig(train=[text], **VOCABULARY), folder)
    return folder


def task(run: Path, **settings: Any) -> DenoisingTask:
    return DenoisingTask.setup_task(DenoisingConfig(**{**VOCABULARY, **settings}), run)


def raw(task: DenoisingTask, split: str = "train") -> list[int]:
    dataset = task.load_dataset(split)
    return [token for position in range(len(dataset)) for token in dataset.text(position).tolist()]


def encoded(task: DenoisingTask, lines: list[str]) -> list[int]:
    return [token for line in lines for token in task.source_tokenizer.encode(line)]


def test_every_token_occurs_once_in_order_for_any_files(run: Path, tmp_path: Path) -> None:
    """Plain and compressed files, wildcards and JSON lines all are the same text; blank lines are none."""
    parts = [TEXT[:70], TEXT[70:71], TEXT[71:]]
    plain = [write(tmp_path / f"part{i}.txt{'.gz' * (i == 1)}", ["", *part, "  "]) for i, part in enumerate(parts)]
    records = [json.dumps({"id": i, "body": line}) for i, line in enumerate(TEXT)]
    in_json = write(tmp_path / "all.jsonl.gz", records)
    wanted = encoded(task(run), TEXT)
    assert raw(task(run, train=plain)) == wanted
    assert raw(task(run, train=[f"{tmp_path}/part*.txt"])) == wanted
    assert raw(task(run, train=[in_json], text_field="body")) == wanted
    path = write(tmp_path / "empty.jsonl", ['{"text": ""}', '{"text": "the dog"}'])
    assert raw(task(run, train=[path], on_empty="skip")) == encoded(task(run), ["the dog"])


def test_pieces_fill_the_input(run: Path) -> None:
    dataset = task(run, train=[str(run / "text.txt")], input_length=64).load_dataset("train")
    example = dataset.example(0, epoch=1, seed=1)
    assert len(dataset.text(0)) == 70  # 10 hidden (70 * 0.15 = 10.5, to the even) in 3 spans: 60 + 3 + 1
    assert dataset.lengths()[0].tolist() == [len(example.source), len(example.target)] == [64, 14]
    assert (dataset.lengths()[:-1] == dataset.lengths()[0]).all()


def test_documents_can_be_cut_separately(run: Path) -> None:
    apart = task(run, train=[str(run / "text.txt")], input_length=16, concatenate=False)
    dataset = apart.load_dataset("train")
    longest = dataset.objective.raw_length(16)
    lines = map(apart.source_tokenizer.encode, TEXT)
    pieces = [ids[i : i + longest] for ids in lines for i in range(0, len(ids), longest)]
    assert [dataset.text(position).tolist() for position in range(len(dataset))] == pieces


def test_examples_depend_only_on_seed_epoch_and_position(run: Path) -> None:
    one, two = (task(run, train=[str(run / "text.txt")], input_length=40).load_dataset("train") for _ in range(2))
    for epoch, seed in ((1, 1), (2, 1), (1, 2)):
        for position in (0, len(one) - 1):
            first, second = (d.example(position, epoch=epoch, seed=seed) for d in (one, two))
            assert torch.equal(first.source, second.source)
            assert torch.equal(first.target, second.target)
            assert [len(first.source), len(first.target)] <= one.lengths()[position].tolist()
    valid = task(run, valid=[str(run / "text.txt")]).load_dataset("valid")
    noise, of_validation = (
        {tuple(data.example(0, epoch=e, seed=s).source.tolist()) for e in range(3) for s in range(3)}
        for data in (one, valid)
    )
    assert len(noise) > 5, "each epoch draws new noise"
    assert len(of_validation) == 1


def test_text_with_sentinels_can_be_read_and_is_encoded_as_it_was(run: Path) -> None:
    denoising = task(run, test=[str(run / "text.txt")], input_length=40)
    dataset = denoising.load_dataset("test")
    lines, references = list(denoising.source_lines("test")), list(denoising.references("test"))
    assert len(lines) == len(references) == len(dataset)
    assert "<extra_id_0>" in lines[0]
    assert references[0].startswith("<extra_id_0>")
    ids = denoising.encode_source(lines[0]).tolist()
    sentinels = [denoising.source_tokenizer.sentinel(i) for i in range(40)]
    wanted = dataset.example(0, epoch=1, seed=0).source.tolist()
    assert [i for i in ids if i in sentinels] == [i for i in wanted if i in sentinels]
    assert ids[-1] == wanted[-1] == denoising.source_dictionary.eos()
