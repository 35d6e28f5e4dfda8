"""Runs commands in the process of the test; a small corpus, and runs that are trained on it, for them."""

import contextlib
import gzip
import importlib
import io
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from seqgen.cli.start import command_module
from seqgen.registry import MissingAddonError

MISSING = re.compile("unknown key .*; it belongs to the add-on [a-z0-9_]+, which is not installed")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def command(name: str, *arguments: str, stdin: bytes | io.BytesIO = b"") -> Outcome:
    """Run ``seqgen-NAME``, or the module of an example; standard output is a real file with a descriptor."""
    main = (importlib.import_module(name) if "." in name else command_module(name)).main
    err = io.StringIO()
    with tempfile.TemporaryFile("w+b") as file, contextlib.redirect_stderr(err):
        saved = os.dup(1)
        sys.stdout.flush()
        os.dup2(file.fileno(), 1)
        output = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        source = mock.Mock(buffer=io.BytesIO(stdin) if isinstance(stdin, bytes) else stdin, isatty=lambda: False)
        try:
            with mock.patch("sys.stdout", output), mock.patch("sys.stdin", source), mock.patch("sys.argv", [name]):
                main(list(arguments))
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        finally:
            output.flush()
            os.dup2(saved, 1)
            os.close(saved)
        if missing := MISSING.search(err.getvalue()):
            raise MissingAddonError(missing[0])
        file.seek(0)
        return Outcome(code, file.read().decode("utf-8"), err.getvalue())


def done(name: str, *arguments: str, stdin: bytes | io.BytesIO = b"") -> Outcome:
    """Run a command that must succeed."""
    outcome = command(name, *arguments, stdin=stdin)
    assert outcome.code == 0, outcome.err
    return outcome


def refused(outcome: Outcome, *words: str) -> None:
    """Check that a command has ended with exit code 2 and one sentence that has the words, without a traceback."""
    assert outcome.code == 2, (outcome.code, outcome.err)
    assert "Traceback" not in outcome.err
    message = outcome.err.strip().splitlines()[-1]
    for word in words:
        assert word in message, message


NOUNS = {"dog": "Hund", "man": "Mann", "tree": "Baum", "ball": "Ball", "boat": "Kahn"}
VERBS = {"sees": "sieht", "has": "hat", "finds": "findet"}


def sentences(start: int, count: int) -> list[tuple[str, str]]:
    """English and German sentences of one to three clauses."""
    pairs = []
    for number in range(start, start + count):
        clauses = []
        for part in range(1 + number % 3):
            key = number * 7 + part * 11
            first, second = (list(NOUNS.items())[(key // d) % len(NOUNS)] for d in (1, 5))
            verb = list(VERBS.items())[key % len(VERBS)]
            clauses.append((f"the {first[0]} {verb[0]} a {second[0]}", f"der {first[1]} {verb[1]} einen {second[1]}"))
        pairs.append((" and ".join(c[0] for c in clauses), " und ".join(c[1] for c in clauses)))
    return pairs


def corpus(folder: Path) -> Path:
    """Write ``train``, ``val`` (gzipped) and ``test`` in ``en`` and ``de``."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, start, count in (("train", 0, 300), ("val", 300, 30), ("test", 400, 20)):
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in sentences(start, count)).encode()
            if split == "val":
                (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(text))
            else:
                (folder / f"{split}.{language}").write_bytes(text)
    return folder


_NARROW = ("model.encoder_embed_dim=16", "model.decoder_embed_dim=16")
_LAYERS = [f"model.{side}_layers=[(16, 3)] * 2" for side in ("encoder", "decoder")]
SMALL_FCONV = ("model=fconv", *_NARROW, "model.decoder_out_embed_dim=16", *_LAYERS)
_SIZES = {"ffn_embed_dim": 32, "layers": 1, "attention_heads": 2}
SMALL_TRANSFORMER = ("model=transformer", *_NARROW, *(
    f"model.{side}_{key}={value}" for key, value in _SIZES.items() for side in ("encoder", "decoder")
))  # fmt: skip


def training_arguments(data: Path, run: Path) -> list[str]:
    """Arguments of ``seqgen-train`` for a run on the corpus; a model is to be added."""
    keys = [f"run_dir={run}", "task=translation", "task.source_lang=en", "task.target_lang=de"]
    keys += [f"task.{name}={data}/{file}" for name, file in (("train", "train"), ("valid", "val"), ("test", "test"))]
    return [*keys, "task.vocab_size=44", "task.workers=1", "dataset.max_tokens=1000", "common.threads=1"]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained runs, ``fconv`` and ``transformer``, over one vocabulary."""
    folder = tmp_path_factory.mktemp("runs")
    further = ("optimization.max_update=30", "optimization.lr=[5e-3]", "checkpoint.keep_last_epochs=3")
    further += ("generation.max_len_b=12",)  # so little trained, they would often write 200 tokens
    for name, model in (("fconv", SMALL_FCONV), ("transformer", SMALL_TRANSFORMER)):
        done("train", *training_arguments(data, folder / name), *model, *further)
    return folder
