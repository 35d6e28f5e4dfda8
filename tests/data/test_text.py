"""Reading text: what a line is, and what bad files get."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

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
    (tmp_path / "empty").touch()
    assert count_lines(tmp_path / "empty") == 0
    assert list(read_lines(tmp_path / "text")) == ["a", "\ufeffb"]


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
    assert find_parallel(prefix, "en", "fr", key="task.test", optional=True).target is None
