"""What the commands refuse: keys, files that are not there or not what they should be, and places of outputs."""

import gzip
from pathlib import Path

import pytest

from tests.refusals import Row, refusals


@pytest.fixture(scope="session")
def fconv(runs: Path) -> Path:
    return runs / "fconv"


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that are not what a command needs."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "bad.en").write_bytes(b"good\nb\xffd\n")
    (folder / "gzip.en").write_bytes(gzip.compress(b"a dog\n"))
    (folder / "picture.en").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    (folder / "model.ende.intgemm.bin").write_bytes(bytes(20))
    for name, text in (
        ("bad.de", "gut\nschlecht\n"),
        ("empty.en", ""),
        ("empty.de", ""),
        ("one.en", "a dog\n"),
        ("short.en", "a\na\na\n"),
        ("short.de", "a\na\n"),
        ("long.en", "a dog\n" + "dog " * 2000 + "\n"),
        ("tab.yaml", "generation:\n\tbeam: 4\n"),
        ("broken.py", "import no_such_module\n"),
        *((f"a.{form}", "the dog\n") for form in ("jsonl", "tsv", "parquet", "json", "csv")),
    ):
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="session")
def same_data(data: Path) -> Path:
    return data / ".." / data.name


def generate(arguments: str, *words: str) -> Row:
    return f"generate path={{fconv}} {arguments}", *words


test_keys = refusals(
    ("generate", "path is missing"),
    generate("generation.beam=0", "generation.beam=0 is below its minimum"),
    generate("lenpen=1.2", "did you mean 'generation.length_penalty'?"),
    generate("generation.lenpen=1.2", "did you mean 'generation.length_penalty'?"),
    generate("common.fp16=true", "did you mean 'generation.dtype=float16'?"),
    generate("dataset.max_tokens=9", "dataset.max_tokens"),
    generate("task.test=x", "which is a key of seqgen-train only; a trained model keeps its value"),
    generate("optimization.clip_norm=1", "which is a key of seqgen-train only"),
    generate("optimization.nothing=1", "unknown key 'optimization.nothing'; --help lists"),
    generate("path = x", "'=' is not of the form key=value (no spaces, except in quotes)"),
    generate("input=- hello", "there are words without KEY=, or lines=, and input=-; remove one of them"),
    generate("path=[a", "the bracket is not closed; write path=[A,B] without spaces"),
    generate("format=onnx", "format=onnx must be one of: text, json, fairseq, tsv"),
    generate("input=- stream=true generation.beam=3", "generation.beam=3 cannot be streamed"),
    generate("input=- stream=true format=json", "stream=true", "format=json"),
    generate("input=- print_alignment=true", "print_alignment=true", "format=fairseq"),
    generate("input=- dataset.gen_subset=valid", "dataset.gen_subset=valid", "input=-"),
    generate("input=- remove_bpe=subword_nmt", "remove_bpe=subword_nmt has no effect", "@@"),
    generate("input=- remove_bpe=sentencepiece", "remove_bpe=sentencepiece has no effect", "▁"),
    generate("input=- reading.sentencepiece=none", "applies only to checkpoints of other toolkits"),
    ("convert format=hf", "average, trie (did you mean 'huggingface'?)"),
    ("convert format=onnx", "average, trie (did you mean 'export'?)"),
    ("convert output=y", "path is missing: set path=MODEL, or path=[A,B] with format=average"),
    ("convert path=x", "output is missing: set output=FOLDER, the run folder to write"),
    ("convert path=[x,y] format=average", "output is missing: set output=FOLDER, the average folder to write"),
    ("convert path=x output=y last=5", "last has no effect with format=run; remove it, or set format=average"),
    ("convert path=x format=average opset=18", "opset has no effect with format=average"),
    ("convert path=x format=export output=y target_lang=de", "target_lang has no effect with format=export"),
    ("convert path=x format=average output=y reading.dictionary=z", "reading has no effect with format=average"),
    ("convert path=x output=y reading.dictionry=x", "did you mean 'reading.dictionary'"),
    ("convert path=[a,b] output=y", "path names 2 models, and only format=average takes several; give one"),
    ("convert path=[a,b] format=average output=y last=2", "last=2 needs one run folder, but path names 2"),
    ("score hypothesis=h reference=r source=s", "source has no effect: it is for metrics that read it"),
    ("score hypothesis=h reference=r output=out", "output is for scoring with path="),
    ("score hypothesis=h reference=r generation.normalize_scores=false", "generation is for scoring with path="),
    ("score hypothesis=h reference=r reading.dictionary=x", "reading is for scoring with path="),
    ("score path=m source=s reference=r lowercase=true", "lowercase is for scoring with hypothesis="),
    ("score path=m source=s reference=r tokenize=char", "tokenize is for scoring with hypothesis="),
    ("convert format=average path={fconv} output={tmp_path}/x last=50", "50", "keep_last_epochs"),
    ("train prepare_only=true", "run_dir is missing: set run_dir=FOLDER"),
    ("train config={files}/tab.yaml", "there is a tab, in whose place YAML needs"),
    # options as other toolkits spell them
    ("generate --beam 4", "write key=value instead: generation.beam=4"),
    ("train -a x", "model=x"),
    ("train --lr 0.1 --fp16", "optimization.lr=0.1"),
    ("train --max-tokens 4096", "dataset.max_tokens=4096 or generation.max_tokens=4096"),
    ("train --cpu", "common.device=cpu"),
    ("train --frobnicate", "--help lists the keys"),
    ("train --model_name_or_path=t5", "checkpoint.finetune_from=t5"),
    ("score -s=A", "source=A"),
    ("score -r=B", "reference=B"),
    ("train --help lerning_rate", "no such group, component or key"),
    ("generate --help diverse", "did you mean 'diverse_beam'"),
    ("convert --completion zsh", "there is a script for bash only"),
    ("convert --completion", "bash"),
)

test_models = refusals(
    ("generate path={runs}/fcomv input=-", "no such file or folder (did you mean 'fconv'?)"),
    ("generate path=/ input=-", "/: neither a run folder nor a checkpoint"),
    ("show {runs}/fcomv", "did you mean 'fconv'?"),
    generate("input=- generation.draft=nothere", "nothere"),
    ("train common.user_dir=/no/such.py", "/no/such.py"),
    ("train common.user_dir={files}/broken.py", "broken.py", "no_such_module"),
    ("convert path={files}/model.ende.intgemm.bin output={files}/new", "is not a model in Marian's binary format"),
)

test_texts = refusals(
    generate("input=nothere.en", "nothere.en"),
    generate("input={data}/tset.en", "did you mean 'test.en'?"),
    generate("input={data}", "it is a folder"),
    generate("input={files}/gzip.en", "give a gzip file a name that ends in .gz"),
    generate("input={files}/picture.en", "convert the file to UTF-8 if it is text"),
    generate("input={data}/test.en reference={data}/val.de.gz", "20 lines", "30"),
    generate("input={files}/one.en prefix={data}/test.de", "has 20"),
    generate("input=- prefix={files}/nothere", "nothere"),
    generate("input=- prefix={files}/empty.de", "line 1 has no prefix"),
    generate("input=- generation.replace_unknown=nothere.tsv", "nothere.tsv"),
    generate("input=- generation.shortlist={fconv}/tokenizer/sentencepiece.model", "is not a shortlist; give a lex.*"),
    *(generate(f"input={{files}}/a.{form}", "has the name of a table", "job.column=FIELD")
      for form in ("jsonl", "parquet", "json", "csv")),
    generate("input={files}/one.en reference={files}/a.jsonl", "reference=", "a.jsonl"),
    ("diff path={fconv} input={files}/a.csv other.generation.beam=2", "a.csv"),
    ("score hypothesis={files}/a.tsv reference={files}/one.en", "hypothesis=", "a.tsv"),
    ("score hypothesis=[{files}/one.en,{files}/one.en] reference={files}/a.tsv", "reference=", "a.tsv"),
    ("score hypothesis={files}/short.en reference={files}/short.de", "3 lines", "2"),
    ("score path={fconv} source={files}/short.en reference={files}/empty.de", "3 lines", "has 0"),
    ("score path={fconv} source={files}/long.en reference={files}/bad.de", "source, line 2"),
    ("score path={fconv} source={files}/short.en reference={files}/short.en tokens_per_sample=8",
     "tokens_per_sample and context_window are for text without"),
    # before the models are loaded
    ("generate path=nowhere input={files}/bad.en", "bad.en", "line 2", "UTF-8"),
    ("tune path=nowhere input={files}/bad.en reference={data}/test.de tune.generation.beam=1,2", "line 2", "UTF-8"),
    ("diff path=nowhere input={files}/bad.en other=nowhere", "line 2", "UTF-8"),
)  # fmt: skip


def training(split: str, *words: str) -> Row:
    lines = "task=translation task.source_lang=en task.target_lang=de task.valid={data}/val"
    return f"train run_dir={{tmp_path}}/run {lines} {split}", *words


test_texts_to_train_on = refusals(
    training("task.train={files}/empty", "empty.en", "is empty"),
    training("task.train={data}/train task.vocab_size=44 task.valid={files}/empty prepare_only=true", "is empty"),
    training("task.train={files}/bad", "bad.en", "line 2", "UTF-8"),
    ("train run_dir={data}/test.en", "test.en is a file; give a folder"),
)

test_outputs = refusals(
    generate("input={data}/test.en output={data}/no/such/out", "the folder ", "no/such does not exist", "create it"),
    ("score path={fconv} source={data}/test.en reference={data}/test.de output={data}/no/out", "does not exist"),
    ("convert format=huggingface path={fconv} output={data}/no/out", "output=", "/no does not exist"),
    ("convert path={fconv} output={data}", "already exists"),
    generate("input={data}/test.en output={data}", "is a folder"),
    generate("input={data}/test.en output=/dev/full", "cannot write /dev/full: No space left", "free some space"),
    *(generate(f"input=- output={{tmp_path}}/o.{end}", "would have format=text", f"set format={wanted}")
      for end, wanted in (("json", "json"), ("jsonl", "json"), ("tsv", "tsv"))),
    # what is read is not overwritten, also under another name
    generate("input={data}/test.en output={data}/test.en", "would overwrite the input"),
    generate("input={data}/test.en reference={data}/test.de output={same_data}/test.de", "overwrite"),
    generate("input={data}/test.en prefix={data}/test.de output={data}/test.de", "overwrite"),
    ("score path={fconv} source={data}/test.en reference={data}/test.de output={data}/test.de", "overwrite"),
)  # fmt: skip

_TEXTS = "path=nowhere input={data}/test.en reference={data}/test.de"

test_places_that_cannot_be_written = refusals(  # found before the models are loaded
    ("generate path=nowhere input={data}/test.en output=/proc/o", "cannot write output=/proc/o:"),
    ("generate path=nowhere input={data}/test.en trace=/proc/o.jsonl", "cannot write trace=/proc/o.jsonl:"),
    ("generate path=nowhere input={data}/test.en record=/proc/o.json", "cannot write record=/proc/o.json:"),
    (f"calibrate {_TEXTS} output=/proc/o.json", "cannot write output=/proc/o.json:"),
    (f"calibrate {_TEXTS} picture=/proc/o.svg generation.confidence=x", "cannot write picture=/proc/o.svg:"),
    (f"calibrate {_TEXTS} json=/proc/o output=made.json", "cannot write json=/proc/o:"),
    (f"tune {_TEXTS} json=/proc/o tune.generation.beam=1,2", "cannot write json=/proc/o:"),
    ("score path=nowhere source={data}/test.en reference={data}/test.de output=/proc/o", "cannot write output=/proc"),
    ("score hypothesis={data}/test.de reference={data}/test.de json=/proc/o", "cannot write json=/proc/o:"),
)
