"""Reading text: what a line is, and what bad files get."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from seqgen.core.errors import DataError
from seqgen.data.text import count_lines, expand, find_parallel, read_chunks, read_lines

HARD = ["a\rb", "a\x0bb\x0cc", "\x1c\x1d\x1e", "\x85", "\u2028\u2029", "", "  ", "\ufeff", "e\u0301 👩‍👩‍👧 ﷽", "\0"]
line_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=20)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_only_newline_ends_a_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"text{ending}"
    content = "".join(f"{line}\n" for line in ["first", *HARD]).encode()
    path.write_bytes(gzip.compress(content) if ending else content)
    assert list(read_lines(path)) == ["first", *HARD]
    assert count_lines(path) == 1 + len(HARD)


@given(lines=st.lists(line_texts, max_size=20), chunk=st.integers(1, 50), newline_at_end=st.booleans())
def test_lines_survive_any_chunking(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], chunk: int, newline_at_end: bool
) -> None:
    path = tmp_path_factory.mktemp("text") / "text"
    lines = ["first", *lines, "last"]
    path.write_bytes(("\n".join(lines) + "\n" * newline_at_end).encode())
    chunks = list(read_chunks(path, chunk))
    assert [line for part in chunks for line in part.decode()] == lines
    assert [part.first for part in chunks] == [1 + sum(len(p.lines) for p in chunks[:i]) for i in range(len(chunks))]


def test_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("\ufeffa\n\ufeffb\n".encode())
    assert list(read_lines(tmp_path / "text")) == ["a", "\ufeffb"]


def test_invalid_utf8_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"gut\n" * 100_000 + "für\n".encode("latin-1") + b"gut\n")
    with pytest.raises(DataError, match=r"text, line 100001: byte 2 \(0xfc\) is not valid UTF-8"):
        list(read_lines(path))


def test_damaged_gzip(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"line {i}\n" for i in range(100_000)).encode())
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "flipped.gz").write_bytes(whole[:5000] + bytes([whole[5000] ^ 255]) + whole[5001:])
    (tmp_path / "plain.gz").write_bytes(b"not compressed\n")
    for name in ("cut", "flipped", "plain"):
        with pytest.raises(DataError, match=rf"{name}\.gz is damaged"):
            list(read_lines(tmp_path / f"{name}.gz"))


def test_missing_empty_and_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match=r"there is no file .*missing"):
        list(read_lines(tmp_path / "missing"))
    (tmp_path / "x.en.gz").touch()
    with pytest.raises(DataError, match=r"there is no file .*x\.en; give .*x\.en\.gz"):
        list(read_lines(tmp_path / "x.en"))
    assert count_lines(tmp_path / "empty") == 0
    with pytest.raises(DataError, match="cannot read"):
        list(read_lines(tmp_path))


def test_expand(tmp_path: Path) -> None:
    for name in ("b.en", "a.en.gz", "a.de", "b.de.gz", "c[1].en", "c1.en", "both.en", "both.en.gz"):
        (tmp_path / name).touch()
    names = lambda pattern: [path.name for path in expand(str(tmp_path / pattern), ".en").values()]  # noqa: E731
    assert names("?") == ["a.en.gz", "b.en"]
    assert names("c[1]") == ["c[1].en"], "a file of exactly this name takes precedence"
    assert names("both") == names("bot*") == ["both.en"]
    assert names("nothing*") == []
    assert [path.name for path in expand(str(tmp_path / "*.de")).values()] == ["a.de", "b.de.gz"]


def test_pairs_of_files(tmp_path: Path) -> None:
    prefix = str(tmp_path / "part*")
    for name in ("part2.en", "part10.en", "part2.de", "part10.de"):
        (tmp_path / name).write_text("x\n")
    files = find_parallel(prefix, "en", "de", key="task.train")
    assert [path.name for path in files.source] == ["part10.en", "part2.en"]
    assert files.target is not None
    assert [path.name for path in files.target] == ["part10.de", "part2.de"]
    files.check()
    (tmp_path / "part2.de").write_text("x\ny\n")
    with pytest.raises(DataError, match=r"part2\.en has 1 lines but .*part2\.de has 2"):
        files.check()
    (tmp_path / "part2.de").unlink()
    with pytest.raises(DataError, match=r"task\.train=.*there is .*part2\.en but neither .*part2\.de nor"):
        find_parallel(prefix, "en", "de", key="task.train")


def test_missing_pair_names_key_and_nearest(tmp_path: Path) -> None:
    (tmp_path / "trian.en").write_text("x\n")
    with pytest.raises(
        DataError, match=r"task\.train=.*neither .*train\.en nor .*train\.en\.gz.*did you mean 'trian.en'"
    ):
        find_parallel(str(tmp_path / "train"), "en", "de", key="task.train")
    with pytest.raises(DataError, match="there is no folder"):
        find_parallel(str(tmp_path / "no" / "train"), "en", "de", key="task.train")
    with pytest.raises(DataError, match=r"neither .*trian\.de nor"):
        find_parallel(str(tmp_path / "trian"), "en", "de", key="task.train")
    for ending in ("en", "de", "de.gz"):
        with pytest.raises(DataError, match=r"remove the language: task\.train=.*/trian$"):
            find_parallel(str(tmp_path / f"trian.{ending}"), "en", "de", key="task.train")
    assert find_parallel(str(tmp_path / "trian"), "en", "de", key="task.test", optional_target=True).target is None
