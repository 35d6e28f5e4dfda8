"""Messages about keys that have no effect, and about empty input."""

import gzip
from pathlib import Path

import pytest

from seqgen.cli.generate import summary
from seqgen.text.input_line import UNKNOWN
from tests.commands import SMALL_FCONV, Outcome, command, corpus, done, training_arguments


@pytest.fixture
def run(runs: Path) -> Path:
    return runs / "fconv"


def generate(run: Path, *arguments: str, stdin: bytes = b"the dog\nthe man\n") -> Outcome:
    source = () if any(argument.startswith("input=") for argument in arguments) else ("input=-",)
    return command("generate", f"path={run}", *source, "generation.max_len_b=9", *arguments, stdin=stdin)


def test_notes_that_say_the_same_are_on_one_line() -> None:
    notes = [(1, "cut"), (2, "empty"), (3, "cut"), *((i, "long") for i in range(4, 12)), (12, "lacks \x1b[2J\n é")]
    assert summary(notes) == [
        "lines 1, 3: cut",
        "line 2: empty",
        "lines 4, 5, 6, 7, 8 and 3 others: long",
        r"line 12: lacks \x1b[2J\n é",
    ]
    unknown = [(i, f"{UNKNOWN}{letter} {{") for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz", start=1)]
    assert summary(unknown) == [
        f"lines 1, 2, 3, 4, 5 and 21 others: {UNKNOWN}a {{ b c d e f g h i j k l m n o p q r s t u v w x y z"
    ]
    many = summary([(i, f"note {i}") for i in range(1, 24)])
    assert (many[19], many[20:]) == ("line 20: note 20", ["... and 3 further notes; format=json writes all of them"])


NBEST, TOKENS = "generation.nbest=3", "generation.top_tokens=2"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([NBEST], "nbest=3: format=text writes only the best hypothesis of each line"),
        ([NBEST, "format=json"], ""),
        ([NBEST, "format=fairseq"], ""),
        ([NBEST, "trace={tmp_path}/t.jsonl"], ""),
        ([], ""),
        ([NBEST, "format=tsv"], "nbest=3: format=tsv writes only the best hypothesis of each line"),
        ([TOKENS], "top_tokens=2: format=text writes no probable tokens; choose format=json"),
        ([TOKENS, "format=tsv"], "top_tokens=2: format=tsv writes no probable tokens"),
        ([TOKENS, "format=json"], ""),
        ([TOKENS, "format=tsv", "generation.quality_features=[boosted_lprob]"], "writes no features"),
    ],
)
def test_what_a_format_does_not_write(run: Path, keys: list[str], said: str, tmp_path: Path) -> None:
    outcome = generate(run, *(key.format(tmp_path=tmp_path) for key in keys))
    assert outcome.code == 0
    assert said in outcome.err
    assert outcome.err.count("; choose format=") == bool(said)


def test_names_that_mean_a_format(run: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("the dog\n")
    assert generate(run, f"input={tmp_path / 'a.tsv'}").code == 0, "its lines can have fields"
    for name, form in (("o.json", "json"), ("o.jsonl", "json"), ("o.tsv", "tsv")):
        assert generate(run, f"output={tmp_path / name}", f"format={form}").code == 0


EMPTY = "the input has no lines, so the output is empty"


@pytest.mark.parametrize("form", ["text", "json", "fairseq"])
def test_an_empty_input_has_an_empty_output(run: Path, tmp_path: Path, form: str) -> None:
    (tmp_path / "none.en").write_bytes(b"")
    (tmp_path / "none.en.gz").write_bytes(gzip.compress(b""))
    for source in ("-", f"{tmp_path}/none.en", f"{tmp_path}/none.en.gz")[: 3 if form == "text" else 1]:
        outcome = generate(run, f"input={source}", f"format={form}", stdin=b"")
        assert (outcome.code, outcome.out) == (0, "")
        assert EMPTY in outcome.err
        assert "0 sentences" in outcome.err
    outcome = generate(run, f"input={tmp_path}/none.en", f"output={tmp_path}/out", f"format={form}")
    assert outcome.code == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_scoring_nothing(run: Path, data: Path, tmp_path: Path) -> None:
    none, out = tmp_path / "none", tmp_path / "scores.json"
    none.write_bytes(b"")
    for arguments in ((f"hypothesis={none}",), (f"path={run}", f"source={none}", f"output={out}")):
        outcome = done("score", f"reference={none}", *arguments)
        assert "have no lines; there is nothing to score" in outcome.err
        assert "BLEU" not in outcome.out
    assert out.read_bytes() == b""


def test_an_empty_split_can_be_decoded_but_not_trained_on(data: Path, tmp_path: Path) -> None:
    folder = corpus(tmp_path / "data")
    for language in ("en", "de"):
        (folder / f"test.{language}").write_bytes(b"")
        (folder / f"none.{language}").write_bytes(b"")
    arguments = (*training_arguments(folder, tmp_path / "run"), *SMALL_FCONV, "optimization.max_update=2")
    assert command("train", *arguments).code == 0
    outcome = command("generate", f"path={tmp_path}/run")
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert EMPTY in outcome.err


def test_a_byte_order_mark_is_no_text_in_standard_input_either(run: Path, tmp_path: Path) -> None:
    text = b"\xef\xbb\xbfthe dog\nthe man\n"
    (tmp_path / "source").write_bytes(text)
    plain = generate(run).out
    assert generate(run, stdin=text).out == generate(run, f"input={tmp_path}/source").out == plain
    assert "not in its vocabulary" not in generate(run, stdin=text).err
