"""Text, compressed text, records, mixtures and vocabularies."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from pathlib import Path
from typing import Any

import yaml

from seqgen.data.dictionary import FAIRSEQ_SPECIALS, OVERWRITE_FLAG, Dictionary
from seqgen.data.record_lines import JsonFormat, Template, TsvFormat, read_rendered
from seqgen.data.text import count_lines, read_lines
from seqgen.errors import DataError
from seqgen.tasks.mixture_file import read_mixture
from tests.fuzzing.mutation import VALUES, change, change_bytes
from tests.fuzzing.reader import Reader
from tests.fuzzing.sandbox import Wrong
from tests.hostile import JSON, YAML

_BITS = [
    *(
        "the dog",
        "sees",
        " ",
        "  ",
        "\t",
        "\r",
        "\x85",
        "\u2028",
        "\x0b",
        "\x0c",
        "\x1c",
        "\0",
        "é",
        "e\u0301",
        "😀",
        "\ufeff",
    ),
    *("\u200b", "\u202e", "a" * 3000, "{source}", "</s>", "<pad>", "▁", '"', "\\", "\x1b[31m", "ﷺ" * 50, "\U0010ffff"),
]


def random_text(rng: random.Random) -> str:
    """A line of ordinary and odd characters."""
    return "".join(rng.choice(_BITS) for _ in range(rng.choice([0, 1, 3, 10])))


def random_lines(rng: random.Random) -> bytes:
    """Some lines, most of them valid UTF-8."""
    lines = "\n".join(random_text(rng) for _ in range(rng.choice([0, 1, 2, 20])))
    content = rng.choice([b"", b"", b"\xef\xbb\xbf"]) + lines.encode() + rng.choice([b"", b"\n", b"\r\n"])
    return change_bytes(content, rng) if rng.random() < 0.4 else content


def lines_of(content: bytes) -> list[str]:
    """The lines of a file, by another way than seqgen's.

    Raises:
        ValueError: they are not UTF-8.
    """
    text = content.removeprefix(b"\xef\xbb\xbf").decode()
    return text.removesuffix("\n").split("\n") if text else [""] if content else []


class Text(Reader):
    name = "text"
    file = "input.txt"

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        (folder / self.file).write_bytes(random_lines(rng))

    def content(self, path: Path) -> bytes:
        return path.read_bytes()

    def read(self, folder: Path) -> None:
        path = folder / self.file
        try:
            wanted = lines_of(self.content(path))
        except (ValueError, EOFError, OSError, zlib.error):
            wanted = None
        found = list(read_lines(path))
        if found != wanted:
            raise Wrong(f"read {found!r:.300}, expected {wanted!r:.300}")
        if count_lines(path) != len(found):
            raise Wrong("the number of lines is not that of the lines")


class Gzip(Text):
    name = "gz"
    fast_cases = 60
    file = "input.txt.gz"

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        parts = [gzip.compress(random_lines(rng), rng.choice([0, 1, 9])) for _ in range(rng.choice([1, 1, 3]))]
        if rng.random() < 0.02:  # a gigabyte or more in one line
            parts.insert(0, _bomb() * rng.choice([1, 20]))
        content = b"".join(parts) + rng.choice([b"", b"", b"\0" * 10, b"garbage"])
        (folder / self.file).write_bytes(change_bytes(content, rng) if rng.random() < 0.6 else content)

    def content(self, path: Path) -> bytes:
        return gzip.decompress(path.read_bytes()) if path.stat().st_size < 100_000 else b"\xff"


def _bomb(known: list[bytes] = []) -> bytes:  # noqa: B006  # made once
    """A gzip file of 80 kB with 80 MiB of one letter."""
    if not known:
        packer = zlib.compressobj(9, wbits=31)
        known.append(b"".join([*(packer.compress(b"x" * (1 << 20)) for _ in range(80)), packer.flush()]))
    return known[0]


class JsonLines(Reader):
    name = "jsonl"
    fields = ("source", "target")

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        lines = [self._line(rng) for _ in range(rng.choice([1, 1, 3]))]
        content = "\n".join(lines).encode(errors="surrogatepass")
        (folder / "input.jsonl").write_bytes(change_bytes(content, rng) if rng.random() < 0.4 else content)

    def _line(self, rng: random.Random) -> str:
        record: Any = {field: rng.choice([random_text(rng), rng.choice(VALUES), 12, True, 1.50]) for field in "ab"}
        record = dict(zip(self.fields, record.values(), strict=True)) | {"other": [1, {"x": None}]}
        if rng.random() < 0.2:
            record = change(record, rng)
        if rng.random() < 0.03:
            return rng.choice([sample for sample in JSON.values() if len(sample) < 300_000])
        return json.dumps(record, ensure_ascii=rng.random() < 0.5)

    def _wanted(self, content: bytes) -> list[str] | None:
        """Each field as text between brackets; ``None`` if a line must be refused."""
        wanted = []
        try:
            for line in lines_of(content):
                record = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
                values = [
                    str(record[key]).lower() if isinstance(record[key], bool) else record[key] for key in self.fields
                ]
                wanted.append("[" + "|".join(values) + "]")
                wanted[-1].encode()
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return wanted

    def read(self, folder: Path) -> None:
        path = folder / "input.jsonl"
        found = list(read_rendered([path], JsonFormat(self.fields), Template("[{source}|{target}]", "template")))
        if found != (wanted := self._wanted(path.read_bytes())):
            raise Wrong(f"read {found!r:.300}, expected {wanted!r:.300}")


class Tsv(Reader):
    name = "tsv"

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        rows = [
            "\t".join(random_text(rng).replace("\t", "") for _ in range(rng.choice([2] * 9 + [1, 3]))) for _ in "abc"
        ]
        content = rng.choice(["\n", "\n", "\r\n"]).join(rows).encode()
        (folder / "input.tsv").write_bytes(change_bytes(content, rng) if rng.random() < 0.4 else content)

    def read(self, folder: Path) -> None:
        path = folder / "input.tsv"
        found = list(read_rendered([path], TsvFormat(("a", "b")), Template("{b}|{a}", "template")))
        rows = [line.removesuffix("\r").split("\t") for line in lines_of(path.read_bytes())]
        if any(len(row) != 2 for row in rows) or found != [f"{row[1]}|{row[0]}" for row in rows]:
            raise Wrong(f"read {found!r:.300} of {rows!r:.300}")


class Mixture(Reader):
    name = "mixture"
    fast_cases = 40
    values = [
        *VALUES,
        "*",
        "[ab]*",
        "{a}",
        "{b} {a}",
        "{",
        "}}",
        "{0}",
        "{a.__class__}",
        "{a!r}",
        "{a:999999999}",
        ["a"],
    ]

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        (folder / "one.jsonl").write_text('{"a": "x", "b": 2}\n')
        (folder / "two.tsv").write_text("a\tb\nx\ty\n")
        for ending in ("en", "de"):
            (folder / f"text.{ending}").write_text("x\n")
        tree: Any = {
            "sources": {
                "first": {"train": "one.jsonl", "input": "say {a}: {{", "target": "{b}", "rate": 0.5},
                "second": {"train": ["two.tsv"], "columns": ["a", "b"], "input": "{a}{b}", "target": "{b}"},
                "third": {"train": "text", "source_lang": "en", "target_lang": "de", "input": "{source}"},
            }
        }
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            tree = change(tree, rng, self.values)
        content = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode(errors="surrogatepass")
        if rng.random() < 0.3:
            content = change_bytes(content, rng)
        if rng.random() < 0.05:
            content = rng.choice(list(YAML.values())).encode(errors="surrogateescape")
        if rng.random() < 0.1:
            code = f"!!python/object/apply:os.system ['touch {canary}']"
            content = content.replace(b"one.jsonl", code.encode())
        (folder / "mixture.yaml").write_bytes(content)

    def read(self, folder: Path) -> None:
        content = (folder / "mixture.yaml").read_bytes()
        sources = read_mixture(content, "mixture.yaml")
        plain = yaml.safe_load(content)["sources"]
        for source, (name, values) in zip(sources, plain.items(), strict=True):
            for key, value in values.items():
                if source.name != name or getattr(source.cfg, key) != value:
                    raise Wrong(f"sources.{name}.{key} is {getattr(source.cfg, key)!r}, and in the file {value!r}")
            patterns = values.get("train") or []
            for pattern in [patterns] if isinstance(patterns, str) else patterns:
                if pattern.startswith("/") or "*" in pattern:
                    raise DataError("this test reads no files outside of the folder")
            source.cfg.train = [str(folder / one) for one in ([patterns] if isinstance(patterns, str) else patterns)]
            for records in source.records("train") if patterns else ():
                list(read_rendered(records.files, records.record_format, records.template, records.skip_lines))


class DictTxt(Reader):
    name = "dict.txt"

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        odd = [*(f"w{i}" for i in range(5)), *FAIRSEQ_SPECIALS, "w1 w2", "w7#7"]
        tokens = [rng.choice([f"v{i}"] * 30 + [rng.choice(odd), random_text(rng)]) for i in range(20)]
        counts = ["1", "7", "0", "-1", "1.5", "9" * 500, "９", "x", "", "1 " + OVERWRITE_FLAG]
        rows = [
            f"{token} {rng.choice(counts[:2] if rng.random() < 0.97 else counts)}" for token in dict.fromkeys(tokens)
        ]
        content = "\n".join(rows[: rng.choice([1, 3, 20])]).encode() + b"\n"
        (folder / "dict.txt").write_bytes(change_bytes(content, rng) if rng.random() < 0.4 else content)

    def read(self, folder: Path) -> None:
        path = folder / "dict.txt"
        dictionary = Dictionary.load(path)
        rows = [line.rstrip() for line in lines_of(path.read_bytes())]
        tokens = [row.removesuffix(OVERWRITE_FLAG).rstrip().rsplit(" ", 1) for row in rows]
        if len(dictionary) != len(FAIRSEQ_SPECIALS) + len(rows):
            raise Wrong(f"{len(dictionary)} tokens from {len(rows)} lines")
        last = {token: 4 + number for number, (token, _) in enumerate(tokens)}
        for token, index in last.items():
            if dictionary.index(token) != index or dictionary.counts[index] != int(tokens[index - 4][1]):
                raise Wrong(f"{token!r} has the id {dictionary.index(token)} instead of {index}")


class VocabularyJson(Reader):
    """The vocabulary of a run."""

    name = "vocabulary.json"
    fast_cases = 60

    def write(self, folder: Path, canary: Path, rng: random.Random) -> None:
        symbols = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(rng.choice([0, 9])))]
        tree: Any = {"pad": 1, "eos": 2, "unk": 3, "bos": 0, "symbols": symbols, "counts": [1] * len(symbols)}
        for _ in range(rng.choice([0, 1, 1, 2])):
            tree = change(tree, rng)
        content = json.dumps(tree).encode()
        if rng.random() < 0.1:
            content = rng.choice(list(JSON.values())).encode()
        (folder / "vocabulary.json").write_bytes(change_bytes(content, rng) if rng.random() < 0.3 else content)

    def read(self, folder: Path) -> None:
        path = folder / "vocabulary.json"
        dictionary = Dictionary.load(path)
        tree = json.loads(path.read_bytes())
        if dictionary.symbols != tree["symbols"] or dictionary.counts != tree["counts"]:
            raise Wrong("other tokens than in the file")
        if any(not 0 <= dictionary.index(token) < len(dictionary) for token in [*dictionary.symbols, "unknown"]):
            raise Wrong("an id is outside the vocabulary")
        copy = folder / "copy.json"
        dictionary.save(copy)
        if Dictionary.load(copy) != dictionary:
            raise Wrong("saved and loaded, it differs")


READERS: list[type[Reader]] = [Text, Gzip, JsonLines, Tsv, Mixture, DictTxt, VocabularyJson]
