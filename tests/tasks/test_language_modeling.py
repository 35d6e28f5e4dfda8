"""The task of language modeling, through the commands: training, validation, prompts and perplexity."""

import json
import math
from pathlib import Path

import pytest

from seqgen import Translator, load_model
from tests.commands import command, done, refused
from tests.training_runs import records

KEYS = """
task=language_modeling task.vocab_size=30 task.workers=1 task.sample_break_mode=eos dataset.max_tokens=1000
optimization.max_update=60 lr_scheduler.warmup_updates=10 common.threads=1 common.tensorboard=false
common.log_interval=5 model=transformer_lm model.decoder_embed_dim=16 model.decoder_ffn_embed_dim=32
model.decoder_layers=1 model.decoder_attention_heads=2
"""


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    folder = data / "lm"
    files = (f"run_dir={folder}", f"task.train=[{data}/train.de]", f"task.valid=[{data}/val.de.gz]")
    done("train", *KEYS.split(), *files)
    return folder


def test_the_perplexity_of_the_validation_text_is_that_of_training(data: Path, run: Path, tmp_path: Path) -> None:
    losses = [row["nll_loss"] for row in records(run)]
    assert losses[-1] < losses[0] - 1, "it learns"
    output = tmp_path / "scores.json"
    outcome = done("score", f"path={run}/checkpoints/last", f"reference={data}/val.de.gz", f"output={output}")
    scores = [json.loads(line) for line in output.read_text().splitlines()]
    nats = -sum(sum(row["positional_scores"]) for row in scores)
    tokens, words, decode = sum(len(row["tokens"]) for row in scores), 0, load_model(run).task.target_tokenizer.decode
    for row in scores:
        assert row["perplexity"] == pytest.approx(math.exp(-row["score"]), rel=1e-5)
        words += len(decode(row["tokens"]).split()) + 1
    trained = records(run, "valid")[-1]
    assert math.exp(nats / tokens) == pytest.approx(trained["ppl"], rel=1e-4)
    assert outcome.out.strip() == (
        f"{len(scores)} sentences, {tokens} tokens: {-nats / tokens:.4f} nats per token (cross-entropy "
        f"{nats / tokens / math.log(2):.4f} bits), perplexity {math.exp(nats / tokens):.2f} per token and "
        f"{math.exp(nats / words):.2f} per word"
    )


def test_perplexity_in_blocks_with_context(data: Path, run: Path) -> None:
    keys = ("tokens_per_sample=40", "context_window=30")
    outcome = command("score", f"path={run}", f"reference={data}/test.de", *keys)
    found = [json.loads(line)["positional_scores"] for line in outcome.out.splitlines()]
    lines = (data / "test.de").read_text().splitlines()
    wanted = Translator(str(run)).score_text(lines, tokens_per_sample=40, context_window=30)
    assert found == [pytest.approx(scored.positional_scores.tolist(), abs=1e-5) for scored in wanted]


def test_prompts_are_continued(run: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.write_text("der Hund sieht\n\nder Ka\n")
    keys = (f"path={run}", f"input={prompts}", "generation.max_len_b=12", "generation.beam=2")
    plain, as_json, fairseq = (command("generate", *keys, f"format={name}") for name in ("text", "json", "fairseq"))
    assert plain.code == as_json.code == fairseq.code == 0, plain.err
    rows = [json.loads(line) for line in as_json.out.splitlines()]
    assert plain.out.split("\n")[:-1] == [row["hypotheses"][0]["text"] for row in rows]
    assert rows[1]["hypotheses"]  # the empty prompt
    pieces = [line.split("\t")[1].replace(" ", "") for line in fairseq.out.splitlines() if line.startswith("S-")]
    assert pieces == ["▁der▁Hund▁sieht", "", "▁der▁Ka"]
    # a split has no prompts
    refused(command("generate", f"path={run}", "dataset.gen_subset=valid"), "give prompts with input=FILE")
