"""XLIFF 1.2 and 2, changed as text, so that all but the targets, states and comments stays as it is, byte for byte."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from seqgen.addons.translation_files.units import MARK, Unit, UnitFile
from seqgen.extend import DataError, shown

_VALUE = r"""(?:"[^"]*"|'[^']*')"""
_TAG = re.compile(rf"""(<(?:[^<>"']|{_VALUE})*>)""")
_COMMENT, _CDATA = r"<!--.*?-->|<\?.*?\?>", r"<!\[CDATA\[(.*?)\]\]>"
_OWN_NOTE = re.compile(rf"""(?<!\s)\s*<([^\s<>]*note) from="{MARK}">[^<]*</\1>""")
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def element(name: str) -> re.Pattern[str]:
    """An element: its name with the prefix, its attributes as one text, and its content."""
    attributes = rf"(?:\s+[^\s=<>]+\s*=\s*{_VALUE})*"
    return re.compile(rf"<((?:[^\s<>:/]+:)?(?:{name}))({attributes})\s*(?:/>|>(.*?)</\1\s*>)", re.DOTALL)


_SEGMENT, _ALTERNATIVE, _SPLIT = element("trans-unit|segment"), element("alt-trans"), element("seg-source")
_SOURCE, _TARGET = element("source"), element("target")


def attributes_of(found: re.Match[str] | None) -> dict[str, str]:
    """The attributes of an element, with their quotation marks."""
    return dict(re.findall(rf"([^\s=<>]+)\s*=\s*({_VALUE})", found[2])) if found else {}


def inside(text: str, found: re.Match[str] | None) -> str:
    """The content of an element; empty if it is white space."""
    content = text[slice(*found.span(3))] if found else ""
    return content if content.strip() else ""


class Segment(Unit):
    """A unit of version 1.2, or a segment of version 2.

    Args:
        text: the file.
        plain: the same with blanks for all that could be taken for elements of the unit.
        place: where the segment is.
        source: where its source is.
    """

    def __init__(self, text: str, plain: str, place: re.Match[str], source: re.Match[str]):
        self.text, self.place, self.source, self.filled = text, place, source, ""
        self.target = _TARGET.search(plain, *place.span(3))
        end = (_SPLIT.search(plain, *place.span(3)) or source).end()
        self.span = self.target.span() if self.target else (end, end)
        raw = re.sub(_COMMENT, "", inside(text, source), flags=re.DOTALL).replace("\r\n", "\n")
        parts = _TAG.split(re.sub(_CDATA, lambda found: escape(found[1]), raw, flags=re.DOTALL))
        self.tags = parts[1::2] = [" ".join(tag.split()) for tag in parts[1::2]]
        parts[::2] = map(html.unescape, parts[::2])
        self.is_part = place[1].endswith("segment")  # version 2
        state = attributes_of(place if self.is_part else self.target).get("state", '""')[1:-1]
        approved = attributes_of(place).get("approved", '""')[1:-1]
        again = state in ("new", "initial") or state.startswith("needs-") or (approved == "no" and not state)
        super().__init__(["".join(parts)], bool(inside(text, self.target)) and (not again or approved == "yes"))

    def fill(self, texts: Sequence[str], review: bool, why: list[str]) -> None:
        """See ``Unit``; without all tags of the source, the target has none."""
        known = "|".join(map(re.escape, sorted(self.tags, key=len, reverse=True))) or "(?!)"
        parts = re.split(f"({known})", _NOT_XML.sub("", texts[0]))
        whole, parts[::2] = sorted(parts[1::2]) == sorted(self.tags), map(escape, parts[::2])
        try:
            expat.ParserCreate().Parse(f"<x>{''.join(parts)}</x>", True)
        except expat.ExpatError:
            whole = False
        if not whole:
            parts, review, why = [" ".join(" ".join(parts[::2]).split())], True, [*why, "the tags are lost"]
        unit, target = attributes_of(self.place), attributes_of(self.target)
        before, after = self.text[self.place.start(3) : self.span[0]], self.text[self.span[1] : self.place.end()]
        blank, prefix = before[: len(before) - len(before.lstrip())], self.source[1].removesuffix("source")
        note, comment = "", _NOT_XML.sub("", "; ".join(why))
        if self.is_part:
            unit |= {"state": '"initial"' if review else '"translated"', "subState": quoteattr(f"{MARK}:{comment}")}
            unit["subState"] *= bool(comment)
        else:
            target |= {"state": '"needs-review-translation"' if review else '"translated"', "state-qualifier": ""}
            unit |= {"approved": '"no"'} if "approved" in unit else {}
            note = f'{blank}<{prefix}note from="{MARK}">{escape(comment)}</{prefix}note>' if comment else ""
        begin, inner = (
            "".join(f" {name}={value}" for name, value in values.items() if value) for values in (unit, target)
        )
        before += "" if self.target else blank
        name, after = self.target[1] if self.target else f"{prefix}target", _OWN_NOTE.sub("", after)
        self.filled = f"<{self.place[1]}{begin}>{before}<{name}{inner}>{''.join(parts)}</{name}>{note}{after}"


class XliffFile(UnitFile):
    """An XLIFF file."""

    def read(self) -> Iterable[Unit]:
        """The units and segments that may be translated; see ``UnitFile``."""
        parser, ids, here, translated = expat.ParserCreate("utf-8"), set[tuple[int, str]](), [(0, "yes")], list[bool]()

        def begin(name: str, attributes: dict[str, str]) -> None:
            local, (file, translate) = name.rpartition(":")[2], here[-1]
            here.append((parser.CurrentByteIndex if local == "file" else file, attributes.get("translate", translate)))
            if local in ("trans-unit", "segment"):
                translated.append(here[-1][1] != "no")
            if local in ("trans-unit", "unit") and "id" in attributes:
                if (file, attributes["id"]) in ids:
                    raise DataError(f"{self.path} has the unit {shown(attributes['id'])} twice; rename one of them")
                ids.add((file, attributes["id"]))

        def refuse(name: str, *rest: object) -> None:
            raise DataError(f"{self.path} declares the entity {shown(name)}; remove the declaration")

        parser.StartElementHandler, parser.EndElementHandler = begin, lambda name: here.pop()
        parser.EntityDeclHandler = refuse
        parser.Parse(self.content, True)
        plain = self.text = self.content.decode()
        for pattern in (re.compile(f"{_COMMENT}|{_CDATA}", re.DOTALL), _ALTERNATIVE):
            plain = pattern.sub(lambda found: " " * len(found[0]), plain)
        places = list(_SEGMENT.finditer(plain))
        encoding = re.match(rb"""\s*<\?xml[^>]*encoding\s*=\s*["'](?!utf-8|us-ascii)""", self.content, re.IGNORECASE)
        if encoding or len(places) != len(translated):
            raise DataError(f"{self.path} is not in UTF-8, or has units in units; correct it")
        self.segments = [
            Segment(self.text, plain, place, source)
            for place, is_translated in zip(places, translated, strict=True)
            if is_translated and (source := _SOURCE.search(plain, *place.span(3))) and inside(self.text, source)
        ]
        return self.segments

    def written(self) -> bytes:
        """See ``UnitFile``."""
        parts, at = list[str](), 0
        for segment in self.segments:
            if segment.filled:
                parts += [self.text[at : segment.place.start()], segment.filled]
                at = segment.place.end()
        return "".join([*parts, self.text[at:]]).encode()
