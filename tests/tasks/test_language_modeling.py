"""The task of language modeling, through the commands: training, resuming, validation, prompts and perplexity."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from seqgen.checkpoints.loading import load_model
from tests.commands import command, corpus, training_arguments
from tests.training_runs import assert_identical, everything, records

SMALL_LM = (
    "model=transformer_lm",
    "model.decoder_embed_dim=16",
    "model.decoder_ffn_embed_dim=32",
    "model.decoder_layers=1",
    "model.decoder_attention_heads=2",
)


def arguments(data: Path, run: Path, *further: str) -> list[str]:
    return [
        f"run_dir={run}",
        "task=language_modeling",
        f"task.train=[{data}/train.de]",
        f"task.valid=[{data}/val.de.gz]",
        "task.vocab_size=30",
        "task.workers=1",
        "task.sample_break_mode=eos",
        "dataset.max_tokens=1000",
        "optimization.max_update=60",
        "lr_scheduler.warmup_updates=10",
        "common.threads=1",
        "common.tensorboard=false",
        "common.log_interval=5",
        *SMALL_LM,
        *further,
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "lm"
    outcome = command("train", *arguments(data, folder))
    assert outcome.code == 0, outcome.err
    return folder


@pytest.mark.slow
def test_training_learns_and_resumes_bit_identically(data: Path, run: Path, tmp_path: Path) -> None:
    losses = [row["nll_loss"] for row in records(run)]
    assert losses[-1] < losses[0] - 1
    for updates in (23, 60):
        outcome = command("train", *arguments(data, tmp_path / "lm", f"optimization.max_update={updates}"))
        assert outcome.code == 0, outcome.err
    assert_identical(everything(tmp_path / "lm"), everything(run))


def test_the_perplexity_of_the_validation_text_is_that_of_training(data: Path, run: Path, tmp_path: Path) -> None:
    output = tmp_path / "scores.json"
    outcome = command("score", f"path={run}/checkpoints/last", f"reference={data}/val.de.gz", f"output={output}")
    assert outcome.code == 0, outcome.err
    scores = [json.loads(line) for line in output.read_text().splitlines()]
    nats = -sum(sum(row["positional_scores"]) for row in scores)
    tokens, words = sum(len(row["tokens"]) for row in scores), 0
    for row in scores:
        assert row["perplexity"] == pytest.approx(math.exp(-row["score"]), rel=1e-5)
    model = load_model(run)
    for row in scores:
        words += len(model.task.target_tokenizer.decode(row["tokens"]).split()) + 1
    trained = records(run, "valid")[-1]
    assert math.exp(nats / tokens) == pytest.approx(trained["ppl"], rel=1e-4)
    assert outcome.out.strip() == (
        f"{len(scores)} sentences, {tokens} tokens: {-nats / tokens:.4f} nats per token (cross-entropy "
        f"{nats / tokens / math.log(2):.4f} bits), perplexity {math.exp(nats / tokens):.2f} per token and "
        f"{math.exp(nats / words):.2f} per word"
    )


def test_perplexity_in_blocks_with_context(data: Path, run: Path, tmp_path: Path) -> None:
    """More context cannot be the same as less; each line has the scores of all its tokens."""
    means = []
    for keys in (["tokens_per_sample=40"], ["tokens_per_sample=40", "context_window=30"], []):
        output = tmp_path / "scores.json"
        outcome = command("score", f"path={run}", f"reference={data}/test.de", f"output={output}", *keys)
        assert outcome.code == 0, outcome.err
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        assert len(rows) == 20
        assert all(len(row["tokens"]) == len(row["positional_scores"]) for row in rows)
        assert all(row["tokens"][-1] == 2 for row in rows)
        means.append(sum(sum(row["positional_scores"]) for row in rows))
    assert len(set(means)) == 3


def test_prompts_are_continued(run: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.write_text("der Hund sieht\n\nder Ka\n")
    keys = (f"path={run}", f"input={prompts}", "generation.max_len_b=12", "generation.beam=2")
    plain, as_json, fairseq = (command("generate", *keys, f"format={name}") for name in ("text", "json", "fairseq"))
    assert plain.code == as_json.code == fairseq.code == 0, plain.err
    rows = [json.loads(line) for line in as_json.out.splitlines()]
    assert plain.out.split("\n")[:-1] == [row["hypotheses"][0]["text"] for row in rows]
    task = load_model(run).task
    for row in rows:
        tokens = [*task.source_tokenizer.encode(row["source"]), *row["hypotheses"][0]["tokens"]]
        assert row["source"] + row["hypotheses"][0]["text"] == task.target_tokenizer.decode(tokens)
    assert rows[1]["hypotheses"]  # the empty prompt
    pieces = [line.split("\t")[1].replace(" ", "") for line in fairseq.out.splitlines() if line.startswith("S-")]
    assert pieces == ["▁der▁Hund▁sieht", "", "▁der▁Ka"]


@pytest.mark.slow
def test_the_vocabulary_of_a_translation_model(data: Path, tmp_path: Path) -> None:
    """With the same vocabulary, a language model is fused with a translation model; with another one, they agree."""
    translation, lm, other = tmp_path / "a", tmp_path / "lm", tmp_path / "other"
    small = [f"model.{side}_embed_dim=16" for side in ("encoder", "decoder")]
    quick = ["optimization.max_update=2", "common.tensorboard=false"]
    training = [*training_arguments(data, translation), "model=transformer_tiny", *small, *quick]
    assert command("train", *training).code == 0
    tokenizer = translation / "tokenizer"
    given = (f"task.spm_model={tokenizer}/sentencepiece.model",)
    assert command("train", *arguments(data, lm, *quick, *given)).code == 0
    assert command("train", *arguments(data, other, *quick)).code == 0
    assert load_model(lm).task.target_dictionary == load_model(translation).task.target_dictionary
    keys = (f"input={data}/test.en", "generation.member_sources=[input,empty]", "generation.combination=fusion")
    outcome = command("generate", f"path=[{translation},{lm}]", *keys, "generation.max_len_b=5")
    assert outcome.code == 0, outcome.err
    assert len(outcome.out.splitlines()) == 20
    outcome = command("generate", f"path=[{translation},{other}]", *keys)
    assert outcome.code == 2
    assert "generation.combination=fusion is not possible with members that have different target" in outcome.err
    outcome = command("generate", f"path=[{translation},{other}]", *keys[:2], "generation.max_len_b=5")
    assert outcome.code == 0, outcome.err
    assert len(outcome.out.splitlines()) == 20


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("dataset.validate_decode=3", "no source lines to decode"),
        ("task.joined_dictionary=false", "one vocabulary"),
        ("task.valid=[]", "task.valid is missing"),
        ("task.train=[none.de]", "none.de"),
    ],
)
def test_what_training_refuses_before_it_begins(key: str, message: str, data: Path, tmp_path: Path) -> None:
    outcome = command("train", *arguments(data, tmp_path / "run", "optimization.max_update=1", key))
    assert outcome.code == 2
    assert message in outcome.err
    assert not (tmp_path / "run" / "checkpoints").exists() or not list((tmp_path / "run" / "checkpoints").iterdir())


def test_a_split_has_no_prompts(run: Path) -> None:
    outcome = command("generate", f"path={run}", "dataset.gen_subset=valid")
    assert outcome.code == 2
    assert "give prompts with input=FILE" in outcome.err
