"""The page of a trace, in a headless Chromium; skipped where there is none."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from seqgen.addons.traces import Trace, TraceWriter
from seqgen.addons.traces.page import Fate, page_of, reference_path
from seqgen.config import TraceConfig
from seqgen.text.results import Details
from seqgen.text.translator import Translator
from tests.text_models import TEXTS, text_model

EXOTIC = ["w1 </script><b>x</b> <!-- w3", "w2 \u2028 \"'\\ 日本 \U0001f600"]


def make_trace(path: Path) -> Trace:
    """An ensemble's trace with references, attention and a rule."""
    models = Translator([text_model(seed=seed) for seed in (0, 1)], max_len_b=7, max_len_a=0)
    lines = [*TEXTS, *EXOTIC]
    wide = models.translate(lines, beam=8, nbest=8, no_repeat_ngram_size=1)
    references = [item.hypotheses[min(n, len(item.hypotheses) - 1)].text for n, item in enumerate(wide)]
    settings = {"beam": 3, "nbest": 3, "no_repeat_ngram_size": 1}
    decoding = models.prepare(Details(attention=True), **settings)
    options = TraceConfig(reference_scores=True)
    with TraceWriter(path, decoding, options, references, ["runs/a", "runs/b"]) as writer:
        for translation in decoding.translate(writer.lines(lines)):
            writer.add(translation)
    return Trace(path)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Trace, Path]:
    """A trace and its page."""
    trace, page = make_trace(tmp_path / "t.jsonl"), tmp_path / "t.html"
    page.write_text(page_of(trace), encoding="utf-8")
    return trace, page


def show(browser: Any, page: Path, link: str = "") -> None:
    browser.get("about:blank")
    browser.get(f"{page.as_uri()}{link}")
    end = time.monotonic() + 30
    while browser.execute_script("return document.documentElement.dataset.ready") != "true":
        assert time.monotonic() < end, browser.get_log("browser")
        time.sleep(0.02)


def press(browser: Any, keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(keys).perform()


def text(browser: Any, selector: str) -> list[str]:
    return [element.text for element in browser.find_elements("css selector", selector)]


def heading(browser: Any) -> tuple[str, str]:
    """The number of the sentence, and the heading of the step."""
    return text(browser, "main .top h2")[0], text(browser, "section[aria-label^='Step'] h2")[0].split(" of")[0]


def test_the_page_is_one_file(tmp_path: Path) -> None:
    page = page_of(make_trace(tmp_path / "t.jsonl"))
    assert "src=" not in page
    assert "@import" not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert page == page_of(Trace(tmp_path / "t.jsonl")), "the same trace gives the same page"


@pytest.mark.slow
def test_the_numbers_of_every_sentence(browser: Any, made: tuple[Trace, Path]) -> None:
    trace, page = made
    fates = set()
    for sentence in trace:
        fate: Any = reference_path(sentence)
        fates.add(fate.fate)
        show(browser, page, f"#sentence={sentence.id + 1}&step=2")
        assert heading(browser) == (f"Sentence {sentence.id + 1}", "Step 2")
        assert text(browser, ".text dd")[:2] == [" ".join(sentence.source.split()), sentence.hypotheses[0].text]
        outputs: list[Any] = [*sentence.hypotheses, sentence.reference]
        assert text(browser, "#nbest td.score") == [nats(item.score) for item in outputs]
        step = sentence.steps[1]
        assert text(browser, "#step td.score") == [nats(score) for score in step.scores if score > float("-inf")]
        assert len(text(browser, "#step tr.forbidden")) == len(step.forbidden)
        shares = [float(one.strip("<%")) for one in text(browser, "#step tbody tr:first-child .percent")[1:]]
        assert shares == pytest.approx([100 * math.exp(member[0]) for member in step.members], abs=0.6)
        (verdict,) = text(browser, "#verdict")
        assert f"step {fate.step + 1}" in verdict or fate.fate is Fate.FOUND
        if fate.gap is not None:
            assert f"{fate.gap:.{2 if abs(fate.gap) >= 0.01 else 4}f} nats".replace("-", "−") in verdict
        possible = sum(score > float("-inf") for one in sentence.steps for score in one.scores)
        assert len(text(browser, "#tree g.candidate[data-at]")) == possible
        for table in ("#attention", "#members"):
            assert len(text(browser, f"{table} tbody tr")) == len(sentence.hypotheses[0].tokens)
    assert len(fates) > 1
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_keys_links_search_and_themes(browser: Any, made: tuple[Trace, Path]) -> None:
    _, page = made
    show(browser, page, "#sentence=3&step=1")
    press(browser, "\ue015")  # arrow down
    assert heading(browser)[0] == "Sentence 4"
    press(browser, "k")
    press(browser, "\ue011")  # home
    press(browser, "\ue014")  # arrow right
    assert heading(browser) == ("Sentence 3", "Step 2")
    assert browser.current_url.endswith("#sentence=3&step=2")
    browser.execute_script("location.hash = 'sentence=5&step=3'")
    time.sleep(0.2)
    assert heading(browser) == ("Sentence 5", "Step 3")
    browser.back()
    time.sleep(0.2)
    assert heading(browser)[0] == "Sentence 3", "going back returns to the sentence before"
    show(browser, page, "#sentence=9999")
    assert text(browser, "#message") == ["The trace has no sentence 9999; this is sentence 1."]
    press(browser, "/")
    press(browser, "日本")
    assert len(text(browser, "#list button")) == 1
    press(browser, "\ue007")  # enter
    assert heading(browser)[0] == f"Sentence {len(TEXTS) + 2}"
    paper = "return getComputedStyle(document.body).backgroundColor"
    themes = {browser.execute_script(paper)}
    press(browser, "t")
    themes.add(browser.execute_script(paper))
    assert len(themes) == 2
    assert browser.get_log("browser") == []


def nats(value: float) -> str:
    return f"{value:.4f}".replace("-", "−")


@pytest.mark.slow
def test_a_selected_hypothesis(browser: Any, made: tuple[Trace, Path]) -> None:
    trace, page = made
    losses: Any = ((sentence, reference_path(sentence)) for sentence in trace)
    sentence, fate = next((s, f) for s, f in losses if f.fate is Fate.BELOW_BEAM)
    reference = sentence.reference
    later = fate.step + 1
    assert later < min(len(reference.tokens), len(sentence.steps))
    show(browser, page, f"#sentence={sentence.id + 1}&step={later + 1}")
    (row,) = text(browser, "#step tr.lost")
    assert f"dropped at step {fate.step + 1}" in row
    kept = len(reference.search_scores)
    total = reference.search_scores[fate.step] if kept > fate.step else sum(reference.scores[: fate.step + 1])
    assert nats(total + reference.scores[later]) in row
    for key, name, output in (("2", "hypothesis 2", sentence.hypotheses[1]), ("0", "the reference", reference)):
        press(browser, key)
        press(browser, "\ue011")  # home
        press(browser, "\ue014")  # arrow right
        (line,) = text(browser, "#token")
        assert line.startswith(f"{name}, step 2: ")
        assert f"({nats(output.scores[1])} nats)" in line
        assert line.endswith(nats(sum(output.scores[:2])))
        assert name in text(browser, "section[aria-label=Members] h2 small")[0]
    assert text(browser, "section[aria-label=Attention] .empty") == ["The trace has no attention of the reference."]
    press(browser, "2")
    assert "hypothesis 2" in text(browser, "section[aria-label=Attention] h2 small")[0]
    assert len(browser.find_elements("css selector", "#attention tbody tr")) == len(sentence.hypotheses[1].tokens)
    assert browser.find_elements("css selector", "#tree .edge.marked")
    assert browser.get_log("browser") == []
