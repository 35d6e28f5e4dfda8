"""The page to play with a model: what it shows, forces and refuses, and how it is used in a browser."""

import json
import re
from typing import Any

import pytest

from examples.playground import TOKENS, Playground
from seqgen import Translator
from tests.commands import command, refused
from tests.text_models import text_model

LINE = "w1 w5 w8"
REFUSED = {
    "generation.beem=4": "did you mean &#x27;generation.beam&#x27;",
    "generation.beam=0": "below its minimum, 1",
    "generation.beam='<b>": "No closing quotation",
    "path=<b>": "path cannot be set on the page",
}


@pytest.fixture(scope="module")
def play() -> Playground:
    return Playground(Translator([text_model(seed=0), text_model(seed=1)], max_len_a=0, max_len_b=8), ["a<b>", "b"])


def test_a_forced_token_begins_the_output_and_keeps_what_was_probable_before(play: Playground) -> None:
    first, attention, search = play.decode("w1 w5\nw8", "", "generation.beam=4", "generation.beam=2")
    (expected,) = play.translator.translate([LINE], beam=4, nbest=4)
    found = [json.loads(ids) for ids in re.findall("data-tokens='(.*?)'", first)]
    assert found[:4] == [item.tokens.tolist() for item in expected.hypotheses]
    assert (len(found), attention.count("<iframe"), search.count("<iframe")) == (6, 2, 2)
    for place in range(4):
        tokens = rf"data-place={place} data-token=(\d+)>.*?<small>(.*?)<"
        beginning = [*found[0][:place], int(re.findall(tokens, first)[3][0])]
        outputs, *_ = play.decode(LINE, play.beginning(beginning)[0], "generation.beam=4")
        assert all(json.loads(ids)[: place + 1] == beginning for ids in re.findall("data-tokens='(.*?)'", outputs))
        # all but end-of-sentence, which is forbidden at first
        assert len({*re.findall(tokens, first)[:TOKENS]} & {*re.findall(tokens, outputs)[:TOKENS]}) >= TOKENS - 1


def test_refusals(play: Playground) -> None:
    for settings, words in REFUSED.items():
        parts = play.decode(LINE, "", "", settings)
        assert all(part.count("class=problem") == 1 and words in part and "<b>" not in part for part in parts), settings
    assert "no text yet" in play.decode(" \n", "", "")[0]
    refused(command("examples.playground"), "path is missing", "firefox:en-pt")


@pytest.mark.slow
def test_in_a_browser(browser: Any, play: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gradio", reason="gradio is not installed")
    from selenium.webdriver.support.expected_conditions import visibility_of_element_located
    from selenium.webdriver.support.wait import WebDriverWait

    wait = WebDriverWait(browser, 60).until

    def find(selector: str) -> Any:
        return wait(visibility_of_element_located(("css selector", selector)))

    monkeypatch.setattr("examples.playground.load_models", lambda *_, **__: play.translator.members)
    monkeypatch.setattr("gradio.Blocks.block_thread", lambda _: None)
    started = command("examples.playground", "a", "b", "generation.beam=3")
    browser.set_window_size(600, 1000)
    browser.get(started.err.split("open ")[1].split()[0])
    find("textarea").send_keys(LINE)
    find("button.primary").click()
    find(".alternative .token").click()
    choice = find(".panel:not([hidden]) button:not(.chosen)")
    token = choice.text.split()[0]
    choice.click()
    wait(lambda page: page.find_elements("css selector", "textarea")[1].get_property("value"))
    assert find(".alternative .token").text.split()[0] == token
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
