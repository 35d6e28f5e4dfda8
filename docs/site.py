"""Makes a site of the pages (``make docs``): files outside ``docs/`` that pages link to become pages of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def on_config(config: Any) -> Any:
    """Take the navigation from the tables of ``docs/README.md``."""
    sections: dict[str, list[str]] = {}
    for line in (ROOT / "docs" / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            sections[line[3:]] = []
        elif found := re.match(r"\| \[\w[\w-]*\.md\]\(([\w-]+\.md)\)", line):
            sections[list(sections)[-1]].append(found[1])
    parts = ({name: pages} for name, pages in sections.items() if pages)
    config["nav"] = ["README.md", {"seqgen": "source/README.md"}, *parts]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files and folders outside ``docs/`` that a page links to, and those that these link to."""
    waiting = [(ROOT / "docs", file.content_string) for file in files.documentation_pages()]
    seen = set()
    while waiting:
        folder, text = waiting.pop()
        for target in LINK.findall(text):
            path = (folder / target).resolve()
            if path in seen or path.is_relative_to(ROOT / "docs") or not path.is_relative_to(ROOT):
                continue
            seen.add(path)
            name = path.relative_to(ROOT).as_posix()
            if path.suffix == ".md":
                content = path.read_text(encoding="utf-8")
                waiting.append((path.parent, content))
            elif path.is_dir():
                content = f"# {name}\n\n" + "".join(
                    f"- {file.relative_to(path)}\n" for file in sorted(path.rglob("*.py"))
                )
            else:
                content = f"# {name}\n\n````{path.suffix[1:]}\n{path.read_text(encoding='utf-8')}````\n"
            files.append(File.generated(config, page_name(path), content=content))
    return files


def page_name(path: Path) -> str:
    """The page of a file or folder outside ``docs/``."""
    name = path.relative_to(ROOT).as_posix()
    return f"source/{name}" if path.suffix == ".md" else f"source/{name}.md"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links lead to the pages of the site."""
    is_source = page.file.src_uri.startswith("source/")
    folder = (ROOT / page.file.src_uri.removeprefix("source/")).parent if is_source else ROOT / "docs"

    def link(found: re.Match[str]) -> str:
        path = (folder / found[1]).resolve()
        up = "../" * page.file.src_uri.count("/")
        if path.is_relative_to(ROOT / "docs"):
            return f"]({up}{path.relative_to(ROOT / 'docs').as_posix()}"
        return f"]({up}{page_name(path)}"

    code = re.split(r"(^ *```.*?^ *```|^````.*?^````)", markdown, flags=re.M | re.S)
    return "".join(part if index % 2 else LINK.sub(link, part) for index, part in enumerate(code))
