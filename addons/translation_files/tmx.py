"""TMX files: the pairs of two languages, in constant memory."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

from seqgen.extend import ConfigError, DataError, library_errors, open_regular, reading_errors, shown

_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_TEXT = "*[name()='seg']//text()[not(ancestor::bpt or ancestor::ept or ancestor::it or ancestor::ph)]"
"""XPath of the text of a variant, without the codes of its format."""


def read_pairs(path: Path, languages: Sequence[str]) -> Iterator[list[str]]:
    """Read the units that have two languages; of several texts of a language, the first.

    Args:
        path: the file, plain or ``.gz``.
        languages: the two languages; ``en`` is also ``en-GB``.

    Raises:
        ConfigError: a package is missing.
        DataError: the file cannot be read, declares entities, whose text can be endless, or has no such unit.
    """
    try:
        from lxml import etree
    except ImportError:
        raise ConfigError("TMX files need a package: pip install lxml") from None
    read_text = etree.XPath(_TEXT)
    wanted, known, found = [name.lower() for name in languages], set[str](), False
    with reading_errors(path, DataError), library_errors(f"{path} cannot be read"), open_regular(path) as file:
        content = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        for _, unit in etree.iterparse(content, tag="tu", resolve_entities=False, no_network=True):
            doctype, texts = unit.getroottree().docinfo.internalDTD, dict[str, str]()
            if doctype is not None and any(doctype.iterentities()):
                raise DataError(f"{path} declares entities; remove the declarations")
            for variant in unit.iterchildren("tuv"):
                name = (variant.get(_LANGUAGE) or variant.get("lang") or "").lower()
                text = " ".join("".join(read_text(variant)).split("\n"))
                texts = {name: text, name.partition("-")[0]: text} | texts
            known |= {*texts}
            if texts.keys() >= {*wanted}:
                found = True
                yield [texts[name] for name in wanted]
            unit.clear()
            while unit.getprevious() is not None:
                del unit.getparent()[0]
    if not found:
        raise DataError(f"{path} has no unit in {' and '.join(languages)}; its languages are {shown(sorted(known))}")
