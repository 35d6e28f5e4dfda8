"""Out of memory: one sentence names the settings that need less memory, and no result is lost."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqgen.extend import Batch, DataError, ResourceError, Task, TextDecoding
from seqgen.system.devices import keep_freed_memory, memory_errors, out_of_memory
from seqgen.text import batching, text_scoring
from seqgen.text.batching import Batcher
from seqgen.text.translator import Translator
from seqgen.training.trainer import Trainer
from seqgen.training.validation import Validator
from tests.commands import SMALL_FCONV, Outcome, command, corpus, done, refused, training_arguments
from tests.text_models import TEXTS, text_model
from tests.training_runs import Lab, assert_identical, everything, records


def run_out(*_: Any, **__: Any) -> None:
    torch.empty(2**46)  # larger than the address space, so the allocator fails at once


@pytest.mark.parametrize("allocate", [run_out, lambda: np.zeros(2**50), lambda: bytearray(2**62)])
def test_what_the_allocators_raise(allocate: Callable[[], Any]) -> None:
    with pytest.raises(ResourceError, match=r"^memory ran out here$"), memory_errors(lambda: "here"):
        allocate()


def test_other_errors_stay_what_they_are() -> None:
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    for error in (RuntimeError("shape '[2]' is invalid for input of size 3"), ValueError("out of memory"), KeyError()):
        assert not out_of_memory(error)
        with pytest.raises(type(error)), memory_errors(lambda: "here"):
            raise error


def ended(outcome: Outcome, *phrases: str) -> None:
    refused(outcome, "memory ran out", *phrases)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("memory")
    trained = [*training_arguments(corpus(folder / "data"), folder / "run"), *SMALL_FCONV, "common.tensorboard=false"]
    done("train", *trained, "optimization.max_update=2")
    return trained


@pytest.fixture(scope="module")
def run(arguments: list[str]) -> Path:
    return Path(arguments[0].removeprefix("run_dir="))


def test_a_beam_that_does_not_fit_into_memory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextDecoding, "_decoded", lambda *_: run_out())
    outcome = command("generate", f"path={run}", "input=-", stdin=b"the dog\n")
    ended(outcome, "seqgen-generate: ", "after 0 lines", "a smaller generation.beam, generation.batch_size")


def test_what_was_decoded_is_kept(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All earlier buffers are written, and of the failing buffer the lines before the first unfinished one."""
    lines = ["the dog sees a man", "the man has a tree", "", "the tree has a ball", "the boat", "the man and the dog"]
    source, wanted, output = (tmp_path / name for name in ("source", "wanted", "output"))
    source.write_text("".join(line + "\n" for line in lines))
    options = [f"path={run}", f"input={source}", "generation.batch_size=1", "fast.continuous_batching=false"]
    assert command("generate", *options, f"output={wanted}").code == 0
    original, calls = Task.inference_step, list[int]()
    cases: list[tuple[list[str], Callable[[list[int]], bool], int]] = [
        (["generation.buffer_size=5"], lambda ids: len(calls) > 4, 5),
        ([], lambda ids: ids == [4], 4),
    ]
    for more, fails, written in cases:
        calls.clear()

        def decode(task: Task, generator: Any, models: Any, batch: Batch, fails: Any = fails) -> Any:
            calls.extend(ids := batch.ids.tolist())
            return run_out() if fails(ids) else original(task, generator, models, batch)

        with monkeypatch.context() as patch:
            patch.setattr(Task, "inference_step", decode)
            ended(command("generate", *options, *more, f"output={output}"), f"after {written} lines")
        assert output.read_text() == "".join(wanted.read_text().splitlines(keepends=True)[:written])


def test_training(arguments: list[str], run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Trainer.train_update

    def update(self: Trainer, *args: Any) -> Any:
        return run_out() if self.update == 4 else original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_update", update)
        outcome = command("train", *arguments, "optimization.max_update=6", "checkpoint.save_interval_updates=1")
    ended(outcome, "in update 5", "a smaller dataset.max_tokens", f"checkpoint.finetune_from={run}")
    assert everything(run)["state"]["update"] == 4
    assert command("train", *arguments, "optimization.max_update=6").code == 0


def test_a_model_that_does_not_fit(arguments: list[str], tmp_path: Path) -> None:
    outcome = command("train", *arguments, f"run_dir={tmp_path}", f"model.encoder_layers=[({2**44}, 3)]")
    ended(outcome, "on this machine")


def test_validation(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier updates are saved, and the validation takes place when the run is resumed."""
    options = ["optimization.max_update=4", "dataset.validate_interval_updates=2", "dataset.validate_interval=0"]
    once = lab.train("once", *options)
    with monkeypatch.context() as patch:
        patch.setattr(Validator, "validate", run_out)
        with pytest.raises(ResourceError, match=r"in the validation at update 2.*dataset\.max_tokens_valid"):
            lab.train("twice", *options)
    twice = lab.root / "twice"
    assert everything(twice)["state"]["update"] == 2
    lab.train("twice", *options)
    assert_identical(everything(twice), everything(once))
    assert records(twice, "valid") == records(once, "valid")


@pytest.mark.parametrize("continuous", [True, False])
def test_a_sentence_of_a_wide_beam_counts_as_several(continuous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    original, sizes = Batcher.collate, list[int]()

    def collate(self: Batcher, rows: Any, models: Any = None) -> Any:
        sizes.append(len(rows))
        return original(self, rows, models)

    monkeypatch.setattr(Batcher, "collate", collate)
    translator = Translator(text_model(), max_len_b=1, max_len_a=0, **{"fast.continuous_batching": continuous})
    for beam, wanted in ((16, 64), (200, 5)):
        assert translator.prepare(beam=beam).batcher.sentences_of(20) == wanted
    alone = translator.translate(TEXTS, beam=6, batch_size=1)
    monkeypatch.setattr(batching, "COUNTED_VOCABULARY", 2**18)
    for beam, wanted in ((4, 4), (6, 2)):
        sizes.clear()
        together = translator.translate(TEXTS, beam=beam, batch_size=4)
        assert (max(sizes), sum(sizes)) == (wanted, 5)
    assert [one.text for one in together] == [one.text for one in alone]


@pytest.mark.parametrize("name", ["transformer_tiny", "fconv_tiny", "t5_tiny"])
def test_a_line_has_a_limit_in_tokens(name: str) -> None:
    """T5 could read any number of tokens, in memory that grows with the square of their number."""
    translator, line = Translator(text_model(name)), "w1 " * 20_000
    encoder = translator.prepare().input_encoder
    encoded = encoder.encode(encoder.read(0, line))
    assert encoded.length <= 4096
    assert encoded.notes == [f"of 20001 source tokens only the first {encoded.length - 1} were read"]
    for pair in ((line, "w1"), ("w1", line)):
        with pytest.raises(DataError, match=r"line 1: 20001 tokens are more than the \d+ that the model can process"):
            list(translator.score(*([text] for text in pair)))


def test_scores_of_a_batch_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = list(Translator(text_model()).score(TEXTS, TEXTS))
    monkeypatch.setattr(text_scoring, "_SCORES", 16 * 23)  # of two targets of 8 tokens
    scoring, shapes = Translator(text_model()), list[torch.Size]()
    scoring.models[0].register_forward_hook(lambda *call: shapes.append(call[2][0].shape))
    found = list(scoring.score(TEXTS, TEXTS))
    assert [one.score for one in found] == pytest.approx([one.score for one in wanted])
    assert [shape[0] for shape in shapes] == [2, 2, 1]


def page_faults(keep: bool) -> int:
    """Page faults of a process that makes and drops tensors of 38 MiB."""
    program = (
        "import resource, torch\nfrom seqgen.system.devices import keep_freed_memory\n"
        f"if {keep}: assert keep_freed_memory()\n"
        "for _ in range(20): torch.ones(10_000_000)\nbefore = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(10): torch.ones(10_000_000)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
@pytest.mark.slow
def test_freed_memory_is_kept() -> None:
    kept, returned = page_faults(True), page_faults(False)
    assert returned > 50_000
    assert kept < returned / 10


def test_freed_memory_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
