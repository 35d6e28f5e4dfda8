"""``seqgen-generate``: prefixes, streams, what JSON and fairseq's format show, and a model's own settings."""

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import seqgen
from seqgen.extend import ConfigError, GenerationConfig
from tests.commands import Outcome, command, refused

SOURCES = ["the dog sees a man", "the tree has a ball and the man finds a boat", "", "the man has a dog"]
STDIN = "".join(line + "\n" for line in SOURCES).encode()


def generate(path: object, *arguments: str, stdin: bytes = STDIN) -> Outcome:
    outcome = command("generate", f"path={path}", "input=-", "generation.max_len_b=12", *arguments, stdin=stdin)
    assert "Traceback" not in outcome.err, outcome.err
    return outcome


def records(outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_prefixes(runs: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix.de"
    prefix.write_text("einen Hund\n\n\nder Mann\n", encoding="utf-8")
    found = records(generate(runs / "fconv", f"prefix={prefix}", "format=json", "generation.nbest=2"))
    free = records(generate(runs / "fconv", "format=json", "generation.nbest=2"))
    assert found[1]["hypotheses"] == free[1]["hypotheses"], "an empty one asks for nothing"
    assert [record.get("prefix", "") for record in found] == ["einen Hund", "", "", "der Mann"]
    assert all(h["text"].startswith(record.get("prefix", "")) for record in found for h in record["hypotheses"])


def test_a_stream_is_the_text(runs: Path) -> None:
    plain = generate(runs / "transformer", "generation.beam=1", "generation.sampling=true")
    streamed = generate(runs / "transformer", "stream=true", "generation.sampling=true")
    assert (streamed.code, streamed.out) == (0, plain.out)
    assert "line 3: the line is empty" in streamed.err


def test_words_are_lines(runs: Path, tmp_path: Path) -> None:
    words = [*SOURCES, "2 + 2 = 4", "'a', [b]"]
    plain = generate(runs / "fconv", stdin="".join(f"{word}\n" for word in words).encode())
    arguments = (f"path={runs}/fconv", "generation.max_len_b=12", f"record={tmp_path}/record.json")
    assert command("generate", *words[:2], *arguments, *words[2:]).out == plain.out
    assert command("generate", f"config={tmp_path}/record.json").out == plain.out


def test_json_tells_how_and_what_each_member_says(runs: Path) -> None:
    members = f"[{runs}/fconv,{runs}/transformer]"
    found = records(generate(members, "format=json", "generation.nbest=3"))
    assert [(record["id"], len(record["hypotheses"])) for record in found] == [(0, 3), (1, 3), (2, 0), (3, 3)]
    assert found[0]["semantics"] == "fairseq"
    assert "seed" not in found[0]
    best = found[0]["hypotheses"][0]
    assert best["score"] == pytest.approx(sum(best["positional_scores"]) / len(best["tokens"]), abs=1e-5)
    assert [len(scores) for scores in best["member_scores"]] == [len(best["tokens"])] * 2
    assert best["model_score"] == pytest.approx(best["score"], abs=1e-5)
    sampled = records(generate(runs / "fconv", "format=json", "generation.sampling=true", "generation.seed=7"))[0]
    assert sampled["seed"] == 7
    assert "member_scores" not in sampled["hypotheses"][0]
    plain = records(generate(runs / "fconv", "format=json"))[0]["hypotheses"][0]
    assert not {"model_score", "member_scores", "utility"} & set(plain), "they would say nothing new"
    sharp = records(generate(runs / "fconv", "format=json", "generation.temperature=0.5"))[0]["hypotheses"][0]
    assert abs(sharp["model_score"] - sharp["score"]) > 1e-3


def test_a_program_that_waits_for_each_output_gets_it(runs: Path, tmp_path: Path) -> None:
    """The output of a line is in the file before the next line is read."""
    written: list[int] = []

    class Waiting(io.BytesIO):
        def readline(self, *size: Any) -> bytes:
            written.append((tmp_path / "out").read_text().count("\n") if (tmp_path / "out").exists() else 0)
            return super().readline(*size)

    keys = (f"path={runs}/fconv", "input=-", f"output={tmp_path}/out", "generation.buffer_size=1")
    assert command("generate", *keys, stdin=Waiting(b"the dog\na man\na ball\n")).code == 0
    assert written[:4] == [0, 1, 2, 3]


def test_alignments(runs: Path) -> None:
    plain = generate(runs / "fconv", "format=fairseq").out.splitlines()
    with_them = generate(runs / "fconv", "format=fairseq", "print_alignment=true").out.splitlines()
    assert [line for line in with_them if not line.startswith("A-")] == plain
    record = records(generate(runs / "fconv", "format=json"))[0]
    aligned = next(line for line in with_them if line.startswith("A-0")).split("\t")[1]
    wanted = [f"{source}-{target}" for target, source in enumerate(record["hypotheses"][0]["alignment"][:-1])]
    assert aligned.split() == wanted
    pieces = next(line for line in plain if line.startswith("S-0")).split("\t")[1].split()
    assert all(0 <= int(pair.split("-")[0]) < len(pieces) for pair in aligned.split())


def test_a_run_says_how_it_is_decoded(runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "fconv", tmp_path / "run"))
    seqgen.save_generation(run, GenerationConfig(beam=2, length_penalty=0.3, max_tokens=50))
    loaded = seqgen.load_model(run)
    assert loaded.generation == {"beam": 2, "length_penalty": 0.3}, "how many tokens in a batch is nothing to the model"
    own = generate(run)
    assert "settings of its own, which your keys override: generation.beam=2, length_penalty=0.3" in own.err
    asked = ("generation.beam=2", "generation.length_penalty=0.3")
    assert own.out == generate(runs / "fconv", *asked).out
    plain = generate(run, "generation.beam=5", "generation.length_penalty=1.0")
    assert "decoded as" not in plain.err
    assert plain.out == generate(runs / "fconv").out, "what is given counts, also where it is the default"
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("  length_penalty:", "  length_penaltz:"))
    refused(generate(run), "length_penaltz", "did you mean 'length_penalty'")


def test_what_a_run_cannot_be_decoded_by_is_not_saved(runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "fconv", tmp_path / "run"))
    before = (run / "config.yaml").read_text()
    for cfg, message in (
        (GenerationConfig(nbest=9), "nbest=9 is more than"),
        (GenerationConfig(early_stopping="never"), "belongs to Hugging Face's rules"),
    ):
        with pytest.raises(ConfigError, match=message):
            seqgen.save_generation(run, cfg)
    assert (run / "config.yaml").read_text() == before
    seqgen.save_generation(run, GenerationConfig(semantics="huggingface"))
    seqgen.save_generation(run, GenerationConfig(early_stopping="never"))
    assert seqgen.load_model(run).generation == {"semantics": "huggingface", "early_stopping": "never"}
    seqgen.save_generation(run, GenerationConfig(semantics="fairseq"))
    assert seqgen.load_model(run).generation == {"semantics": "fairseq"}


def test_the_python_that_the_documentation_shows_runs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, run in (("a", "fconv"), ("b", "transformer")):
        shutil.copytree(runs / run, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parent.parent.parent / "docs" / "python.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    exec(compile("".join(blocks), str(page), "exec"), {})
    assert "beam=4, nbest=1" in capsys.readouterr().out
