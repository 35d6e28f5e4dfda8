"""PO, XLIFF and TMX: what is kept byte for byte, what is written, jobs, and what a damaged or hostile file says."""

import gzip
import io
from pathlib import Path
from typing import Any

import pytest

from seqgen.addons.translation_files.command import decode, open_units
from seqgen.config import GenerateConfig
from seqgen.data.records import find_table
from tests.commands import done
from tests.refusals import Row, refusals

convertpo = pytest.importorskip("translate.convert.po2xliff").convertpo
multistring = pytest.importorskip("translate.misc.multistring").multistring
xlifffile = pytest.importorskip("translate.storage.xliff").xlifffile

PO = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\nPlural-Forms: nplurals=3; plural=0;\\n"

# mine
#. for developers
#: a.py:1
#, fuzzy, python-format
#| msgid "the cat"
msgctxt "menu"
msgid "the dog"
msgstr "die Katze"

# seqgen: old
msgid "a tree"
msgid_plural "\\ntrees \\nand boats"
msgstr[0] ""
msgstr[1] ""

msgid "the man"
msgstr "der Mann"

#~ msgid "gone"
#~ msgstr "weg"
"""
XLIFF = """<?xml version='1.0' encoding="utf-8" ?>
<!-- <trans-unit id="0"><source>x</source></trans-unit> -->
<x:xliff version='1.2' xmlns:x="urn:oasis:names:tc:xliff:document:1.2"><x:file original="a" ><x:body>
  <x:trans-unit id='1' resname="a > b">
    <x:source>the <x:g id="1" ctype="a > b">dog</x:g> &amp; <x:x
      id='2'/>a tree</x:source>
    <x:note>keep</x:note>
    <x:alt-trans><x:source>q</x:source><x:target>w</x:target></x:alt-trans>
  </x:trans-unit>
  <x:trans-unit id="2"><x:source>the man</x:source><x:target>der Mann</x:target></x:trans-unit>
  <x:group translate='no'><x:trans-unit id="3"><x:source>no</x:source></x:trans-unit></x:group>
  <x:trans-unit id="4" approved="no"><x:source><![CDATA[a <b>]]></x:source><x:target state='new' xml:lang="de"/>
    <x:note from="seqgen">old</x:note></x:trans-unit>
</x:body></x:file></x:xliff>
"""
XLIFF2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en"><file id="f">
  <unit id="u"><segment><source>the dog</source><target>der Hund</target></segment>
    <segment id="s" state="initial" subState="a:b"><source>a tree</source><target>alt</target></segment>
    <segment><source>a man</source></segment></unit>
</file></xliff>
"""


def filled(path: Path, content: str, *answers: Any, every: bool = False) -> str:
    """A file whose units have these outputs: a text, what ``format=json`` has besides it, or ``None``."""
    path.write_text(content, encoding="utf-8", newline="")
    records = [answer if isinstance(answer, dict) else {"text": answer} for answer in answers]
    found = ({"hypotheses": [record] if record["text"] else [], **record} for record in records)
    return open_units(path, every).filled(found).decode()


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for before, after in pairs:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_po(tmp_path: Path, end: str) -> None:
    """All but the units with outputs is kept byte for byte; the white space around a text, too."""
    text, path = PO.replace("\n", end), tmp_path / "a.po"
    assert filled(path, text, None, "ein Baum", None) == text
    assert open_units(path, False).texts == ["the dog", "a tree", "trees  and boats"]
    plural = {"text": "Bäume", "review": ["a", "b"], "notes": ["<c>"], "confidence": 0.5}
    wanted = replaced(
        PO,
        ('#, fuzzy, python-format\n#| msgid "the cat"\n', "#, python-format\n"),
        ("die Katze", "der Hund"),
        ("old\n", "probability 0.50; the line breaks are lost; a; b; <c>\n#, fuzzy\n"),
        ('[0] ""\nmsgstr[1] ""', '[0] "ein Baum"' + "".join(f'\nmsgstr[{form}] ""\n"\\n"\n"Bäume"' for form in (1, 2))),
    )
    found = filled(path, text, {"text": " der  Hund", "confidence": 0.4}, "ein Baum", plural)
    assert found == wanted.replace("\n", end)
    assert len(open_units(path, True).texts) == 4


def test_xliff(tmp_path: Path) -> None:
    """Tags of a source are tags of its target; translate-toolkit reads the texts."""
    path, tagged = tmp_path / "a.xlf", '<x:x id=\'2\'/>ein Baum & der <x:g id="1" ctype="a > b">Hund</x:g>'
    assert filled(path, XLIFF, None, None) == XLIFF
    assert open_units(path, False).texts == ['the <x:g id="1" ctype="a > b">dog</x:g> & <x:x id=\'2\'/>a tree', "a <b>"]
    wanted = replaced(
        XLIFF,
        ("a tree</x:source>",
         f'a tree</x:source>\n    <x:target state="translated">{tagged.replace("&", "&amp;")}</x:target>'),
        ("<x:target state='new' xml:lang=\"de\"/>\n    <x:note from=\"seqgen\">old</x:note>",
         '<x:target state="needs-review-translation" xml:lang="de">ein &lt;b&gt;</x:target>'
         '<x:note from="seqgen">probability 0.25; &lt;a&gt;</x:note>'),
    )  # fmt: skip
    marked = {"text": "ein\x07 <b>", "review": "<a>", "confidence": 0.25}
    assert filled(path, XLIFF, tagged, marked) == wanted
    assert [unit.target for unit in xlifffile.parsestring(wanted.encode()).units][3] == "ein <b>"
    for lost in ("ein <x:x id='2'/>Hund", '</x:g> <x:g id="1" ctype="a > b"><x:x id=\'2\'/>ein Hund'):
        found = filled(path, XLIFF, lost, None)
        assert '<x:target state="needs-review-translation">ein Hund</x:target>' in found
        assert '<x:note from="seqgen">the tags are lost</x:note>' in found
    wanted = replaced(
        XLIFF2,
        ('"initial" subState="a:b"', '"initial" subState="seqgen:probability 0.25; &lt;a&gt;"'),
        ("alt", "ein &lt;b&gt;"),
        ("<segment><source>a man</source>", '<segment state="translated"><source>a man</source><target>Mann</target>'),
    )
    assert filled(path, XLIFF2, marked, "Mann") == wanted
    converted = io.BytesIO()
    convertpo(io.BytesIO(PO.encode()), converted, None)
    text = converted.getvalue().decode()
    assert filled(path, text, None) == text
    units = xlifffile.parsestring(filled(path, text, "A", "B", "C").encode()).units
    assert [unit.target for unit in units[1:4]] == ["A", multistring(["B", "\nC"]), "der Mann"]


def test_a_tab_within_a_text_is_lost(tmp_path: Path) -> None:
    found = filled(tmp_path / "a.PO", 'msgid "a\\tdog\\n"\nmsgstr ""\n', "Hund")
    assert found == '# seqgen: the tabs are lost\n#, fuzzy\nmsgid "a\\tdog\\n"\nmsgstr "Hund\\n"\n'


@pytest.mark.slow
def test_command_and_job(runs: Path, tmp_path: Path) -> None:
    """A job that is continued writes what the command writes; an interrupted one nothing."""
    keys = [f"path={runs}/transformer", f"input={tmp_path}/a.po", "generation.max_len_b=9"]
    (tmp_path / "a.po").write_text(PO, encoding="utf-8")
    done("generate", *keys, f"output={tmp_path}/b.po")
    text = (tmp_path / "b.po").read_text(encoding="utf-8")
    assert "seqgen: the output has the maximum length" in text
    assert 'msgstr[1] ""\n"\\n"' in text
    job = [*keys, f"output={tmp_path}/c.po", "job.part_lines=1"]
    done("generate", *job)
    (tmp_path / "c.po").unlink()
    (tmp_path / "c.po.parts" / "parts" / "part-00000001.jsonl").unlink()
    assert "2 of 3 lines were decoded before" in done("generate", *job).err
    assert (tmp_path / "c.po").read_text(encoding="utf-8") == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.po", "b.po", "c.po", "c.po.parts"]
    outcome = done("generate", *keys, f"output={tmp_path}/d.po", "units=all", f"input={tmp_path}/b.po")
    assert "4 sentences" in outcome.out


def test_an_interrupted_decode(tmp_path: Path) -> None:
    (tmp_path / "a.po").write_text(PO, encoding="utf-8")
    cfg = GenerateConfig(input=f"{tmp_path}/a.po", output=f"{tmp_path}/b.po")

    def run() -> int:
        Path(cfg.output).write_text('{"hypotheses": [{"text": "der Hund"}]}\n{"hypo')
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(cfg, run)
    assert '\nmsgstr "der Hund"\n' in (tmp_path / "b.po").read_text(encoding="utf-8")


TMX = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4"><body>
<tu><tuv xml:lang="EN-us"><seg>the <bpt i="1">&lt;b></bpt>dog</seg></tuv><tuv xml:lang="de"><seg>der
Hund</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu>
<tu><tuv lang="en"><seg>a <hi>tree</hi></seg></tuv><tuv lang="fr"/><tuv lang="de-AT"><seg>Baum</seg></tuv></tu>
</body></tmx>"""


@pytest.mark.parametrize("name", ["a.tmx", "a.tmx.gz"])
def test_tmx(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(TMX.encode()) if name.endswith("gz") else TMX.encode())
    table = find_table(f"{tmp_path}/{name}", ("", ""), ("en", "de"), "task.train", {})
    assert [list(table.lines(side)) for side in (0, 1)] == [["the dog", "a tree"], ["der Hund", "Baum"]]
    other = find_table(f"{tmp_path}/{name}", ("", "fr"), ("en", "de"), "task.train", {})
    assert list(other.lines(0)) == ["a tree"], "which texts there are depends on both languages"
    formats = [repr(one.sides[0].record_format) for one in (table, other)]
    assert formats[0] != formats[1], "so does the name of the cache"


def file(name: str, content: str | bytes, *words: str) -> Row:
    def read(tmp_path: Path) -> None:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if "tmx" in name:
            list(find_table(str(path), ("", ""), ("en", "de"), "task.train", {}).lines(0))
        open_units(path, False)

    return read, name, *words


BOMB = "".join(f'<!ENTITY {a} "{f"&{b};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True))
ENTITIES = (f'{BOMB}<!ENTITY i "x">', '<!ENTITY a SYSTEM "file:///etc/passwd">')
HOSTILE = [f"<!DOCTYPE x [{entity}]><x><tu>&a;</tu></x>" for entity in ENTITIES]
GENERATE = "generate path={runs}/fconv input={tmp_path}/a.po "


@pytest.fixture
def po(tmp_path: Path) -> Path:
    (tmp_path / "a.po").write_text(PO, encoding="utf-8")
    return tmp_path / "a.po"


test_refusals = refusals(
    *(file(name, text, "entit") for name in ("a.xlf", "a.tmx") for text in HOSTILE),
    file("a.po", PO.replace("weg", "w\n"), "cannot be read"),
    file("a.po", PO.encode() + b'#~ "\xff"', "cannot be read"),
    file("a.po", PO.replace("msgid ", "msgid  "), "would change", "msgcat"),
    file("a.po", PO + '\nmsgid "the man"\nmsgstr ""\n', "has the message 'the man' 2 times"),
    (lambda: open_units(Path("nothere.po"), False), "there is no file nothere.po"),
    file("a.po", "", "has no units"),
    file("a.po", 'msgid ""\nmsgstr "a: b\\n"\n', "has no units"),
    file("a.xlf", "", "cannot be read"),
    file("a.xlf", XLIFF.encode().replace(b"keep", b"\xff"), "cannot be read"),
    file("a.xlf", XLIFF.replace("utf-8", "latin-1"), "is not in UTF-8"),
    file("a.xlf", XLIFF.replace('id="4"', 'id="1"'), "has the unit '1' twice"),
    file("a.xlf", XLIFF2.replace("segment", "x"), "has no units"),
    file("a.tmx", TMX[:-9], "cannot be read"),
    file("a.tmx", TMX.replace("de", "da"), "no unit in en and de", "da-at"),
    (GENERATE + "output={po}", "would overwrite the input"),
    (GENERATE + "output={tmp_path}/b.xlf", "must both be PO"),
    (GENERATE + "output={tmp_path}/b.XLF", "must both be PO"),
    ("generate path={runs}/fconv input={tmp_path}/A.PO output={tmp_path}/B.PO", "there is no file", "A.PO"),
    (GENERATE + "output={tmp_path}/b.po format=json", "remove format"),
    (GENERATE + "output={po}2.po generation.nbest=2", "one output each", "generation.nbest"),
    (GENERATE + "output={po}2.po job.column=x", "remove", "job.column"),
    ("generate path={runs}/fconv input={data}/test.en units=all", "must both be PO"),
    ("generate path={runs}/fconv input={data}/test.en output={tmp_path}/b.po", "must both be PO"),
)
