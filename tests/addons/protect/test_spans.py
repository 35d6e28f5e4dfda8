"""Spans, numbers, signs and capitals of lines, and checks of outputs, without a model."""

import time

import pytest
from hypothesis import given, strategies as st

from seqgen.addons.protect.checks import suspicious
from seqgen.addons.protect.form import STAND_INS, Form, stand_ins
from seqgen.addons.protect.spans import KINDS, Span, faults, find_spans, missing, pattern_of

PATTERN = pattern_of(KINDS)


def form_of(text: str, spans: list[Span], marks: list[str] | None = None, cased: bool = True) -> Form:
    """A form for a vocabulary that has only ASCII."""
    return Form(text, spans, marks or [span.text for span in spans], lambda sign: not sign.isascii(), cased)


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("%(count)d of %s, %1$s and %5.2f%%", "%(count)d %s %1$s %5.2f%%"),
        ("100% sure, 5% in all; {name}, {0:.2f}, {{a}}, ${x}", "100% 5% {name} {0:.2f} {{a}} ${x}"),
        ('a <a\thref="x">b</a><br/> 1 < 2 &nbsp;c', '<a\thref="x"> </a><br/> 1 2 &nbsp;'),
        ("See https://a.b/c?d=1&e, me@x.org. Or (www.a.b).", "https://a.b/c?d=1&e me@x.org www.a.b"),
        ("run `ab` in ~/c/d.e, C:\\x\\y or and/or --f=g h_i(), jK", "`ab` ~/c/d.e C:\\x\\y --f=g h_i() jK"),
        ("the 1st of 1,234.5 cost £12 in v2, 3.5", "1,234.5 £12 3.5"),
    ],
)
def test_spans(text: str, spans: str) -> None:
    assert [span.text for span in find_spans(PATTERN, text)] == spans.split(" ")
    assert [span.text for span in find_spans(pattern_of(["A[BC]", "numbers"]), f"ABAC {{x}} 1 {text}")][:2] == [
        "ABAC",
        "1",
    ]


@pytest.mark.parametrize(
    ("source", "output", "lost"),
    [
        *(("1,234.5", f"é {same}.", "") for same in ("1.234,5", "1,234.5", "1'234.5", "1\u202f234,5")),
        ("1,234.5 and 12 and 12", "12345 12", "1,234.5 12"),
        ("£12, 30 and 12:30", "12 euros, 30, 12h30", "£12"),
        ("{a} {a} {b}", "{a} {b} {b}", "{a} {a} {b}"),
    ],
)
def test_numbers_are_equal_in_every_convention(source: str, output: str, lost: str) -> None:
    assert [span.text for span in missing(find_spans(PATTERN, source), source, output)] == lost.split()


def test_notes_say_what_is_lost() -> None:
    notes = [faults(find_spans(PATTERN, "(30)"), "(30)", text) for text in ("(trinta)", "(2.000", "30")]
    wanted = ["the output lacks numbers, or has them in words: 30"], ["the output lacks numbers, but has 2.000: 30"], []
    wanted[1].append("brackets of the output do not match: ()")
    assert notes == list(wanted)


WORDS = st.lists(
    st.sampled_from(["w", "7391", "[1]", "Zorblax", "(", '"', "“x”", " - ", "é", "?", "8264."]), max_size=4
)
KEPT = st.sampled_from(["{a}", "%s", "<b>", "</b>", "a@b.org", "9", "`c d`", "1,5", "x_y"])


@given(st.lists(st.tuples(WORDS, KEPT, st.sampled_from(["", " "])), min_size=1, max_size=6), st.data())
def test_spans_are_restored_in_any_order(pieces: list[tuple[list[str], str, str]], data: st.DataObject) -> None:
    """Whatever a model does with the rest, stand-ins that it copies become the spans, and none is left."""
    source = "".join(f"{space}{' '.join(words)} {span}{space}" for words, span, space in pieces)
    spans, kind = find_spans(PATTERN, source), data.draw(st.integers(1, STAND_INS))
    form = form_of(source, spans, [mark for mark, _ in zip(stand_ins(kind, source), spans, strict=False)], cased=False)
    assert form.restored(form.text).split() == source.split() or " - " in source
    output = "".join(
        f"é{gap}{mark}{gap}"
        for mark, gap in zip(data.draw(st.permutations(form.marks)), [" ", ", "] * 99, strict=False)
    )
    assert [form.holds(text) for text in (output, output * 2, output.replace(form.marks[0], ""))] == [
        True,
        False,
        False,
    ]
    restored = form.restored(output)
    assert missing(spans, "".join(f" {span.text} " for span in spans), restored) == []
    assert not any(mark in restored or mark in source for mark in form.marks)


@pytest.mark.parametrize(
    ("text", "read", "output", "wanted"),
    [
        ("“Yes” – don’t—go", '"Yes" - don\'t - go', '"Sim" - não - "vá" pré-x', "“Sim” – não — “vá” pré-x"),
        ("YOU HAVE %s NEW", "You have %s new", "Você tem %s novas", "VOCÊ TEM %s NOVAS"),
        ("How To Install Your Printer", "How to install your printer", "como instalar", "Como Instalar"),
        *((text, text, "x", "x") for text in ("NASA", "A b", "Mr. John Smith met", "plain - 'text'")),
    ],
)
def test_signs_and_capitals_come_back(text: str, read: str, output: str, wanted: str) -> None:
    form = form_of(text, find_spans(PATTERN, text))
    assert (form.text, form.restored(output)) == (read, wanted)


UNITS = ["a", "1,", "a.", "a_", "www.", "<a ", "{", "%(", "`", "/a", "--a", "a@", "A:\\", "é!", "{#} #{#} "]


@pytest.mark.parametrize("unit", UNITS)
def test_a_line_costs_in_proportion_to_its_length(unit: str) -> None:
    text, start = "".join(unit.replace("#", str(i)) for i in range(20_000)), time.process_time()
    spans = find_spans(PATTERN, text)
    form = form_of(text, spans)
    assert form.restored(form.text).lower() == text.lower()
    assert (missing(spans, text, text), suspicious(text, text)[1:]) == ([], [])
    assert time.process_time() - start < 2


def test_outputs_that_good_translations_are_not_like() -> None:
    source = "Two dogs are running through the tall grass of a garden."
    good = "Dois cães estão correndo pela grama alta de um jardim."
    wanted = {good: "", "Hunde im Gras": "lack a part", good + " um jardim" * 3: "repeats itself: um jardim"}
    wanted |= {"Two dogs are running durch the tall garden.": "nearly a copy", "狗在花园的高草丛中奔跑，两只。": ""}
    for output, words in wanted.items():
        assert [words in note for note in suspicious(source, output)] == [True] * bool(words)
    assert suspicious("no no no!", "não não não!") == [], "the source repeats itself, too"
