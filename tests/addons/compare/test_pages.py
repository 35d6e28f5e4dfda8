"""The pages: of outputs for reviewers, of compared systems, and of runs; in a headless Chromium where there is one."""

import json
import re
import time
from itertools import product
from pathlib import Path
from typing import Any

import lxml.html
import pytest

from tests.addons.compare.test_runs import make_run
from tests.commands import done
from tests.refusals import refusals

TEXTS = ["</script><script>alert(1)</script><i>&amp;", "x" * 400, "مرحبا بالعالم 123", "日本語です", "a\r\x01\u2028b"]
TEXTS += ["", "{{ 7 * 7 }} {% raw %}", 'a red "house"', "a\nblue house", "the red house"]
OTHER = [*TEXTS[:8], "a green house", "the red house"]
KNOWN: dict[str, Any] = {"confidence": 0.25, "review": True, "notes": ["<i>a note</i>", "another"]}
KNOWN["terms"] = [{"source": "house", "targets": ["Haus", "<Heim>"], "met": False}]


def write(folder: Path) -> list[Path]:
    """The pages of the same texts, and of two runs with a third one that failed."""
    for name, texts in (("a", TEXTS), ("b", OTHER)):
        best = [[{"text": text, "score": -n / 8}] if text else [] for n, text in enumerate(texts)]
        records = [{"id": n, "source": f"<{n}>", "hypotheses": one} for n, one in enumerate(best)]
        records[7], records[9] = {**records[7], **KNOWN}, {**records[9], "confidence": 0.125, "review": "tags"}
        (folder / f"{name}.json").write_text("".join(json.dumps(one) + "\n" for one in records))
        (folder / f"{name}.txt").write_text("".join(text.replace("\n", " ") + "\n" for text in texts), newline="\n")
    (folder / "c.txt").write_bytes((folder / "b.txt").read_bytes().replace(b"green", b"big"))
    for name, curve in (("<i>", "a"), ("y", "b"), ("z", "b")):
        with (make_run(folder / "runs" / name, curve=curve) / "log.jsonl").open("a") as file:
            file.write('{"event": "valid", "update": 2, "samples": [{"source": "<u>one", "hypothesis": ""}, 3]}')
    (folder / "runs/z/log.jsonl").write_text('{"event": "start", "update": 0}\n')
    done("show", f"{folder}/a.json", f"{folder}/b.json", f"reference={folder}/c.txt", f"page={folder}/outputs.html")
    systems = f"hypothesis=[{folder}/a.txt,{folder}/b.txt]"
    done("score", systems, f"reference={folder}/b.txt", f"source={folder}/a.txt", f"page={folder}/systems.html")
    assert "left out" in done("show", f"{folder}/runs", "sort=loss", f"page={folder}/runs.html").err
    return [folder / f"{name}.html" for name in ("outputs", "systems", "runs")]


def read(file: Path) -> tuple[list[list[str]], dict[str, Any]]:
    """The rows of a page's table and the JSON of its scripts; texts make no tags, and no other file is named."""
    text = file.read_text(encoding="utf-8")
    assert not re.search(r'(src|href)=(?!"(#|data:,"|runs/))|@import|url\(', text)
    page = lxml.html.document_fromstring(text.encode())
    data = {one.get("id"): json.loads(one.text) for one in page.xpath("//script[@type]")}
    assert page.xpath("count(//script) + count(//i) + count(//u)") == 1 + len(data)
    rows = page.xpath("//table[contains(@class, 'sortable')]//tr")
    return [[" ".join(cell.text_content().split()) for cell in row] for row in rows], data


def test_the_pages_have_the_texts(tmp_path: Path) -> None:
    (outputs, data), (systems, scores), (runs, charts) = map(read, write(tmp_path))
    plain = [" ".join(text.split()) for text in TEXTS]
    assert outputs[0] == ["line", "source", "output", "b.json", "c.txt", "confidence", "score", "notes"]
    notes = "review missing term house: Haus or <Heim> <i>a note</i> another"
    assert outputs[8][1:] == ["<7>", f"{plain[7]}EditUndo", plain[7], plain[7], "0.250", "-0.875", notes]
    assert (outputs[6][5:], outputs[10][7]) == (["", "", ""], "tags")
    assert (data["texts"], [row[3] for row in systems[7:]]) == (TEXTS, plain[6:])
    assert scores["scores"]["bleu"][1][9] == pytest.approx(100), "three words have no sequence of four"
    assert [row[0] for row in runs] == ["run", "y", "<i>"], "without the run that failed"
    assert charts["charts"]["train/loss"]["1"] == {"1": 6, "2": 4, "3": 5}


CONTRAST = (Path(__file__).parents[2] / "contrast.js").read_text()
ASKED = "return performance.getEntriesByType('resource').length + document.documentElement.scrollWidth"


@pytest.mark.slow
def test_pages_in_a_browser(browser: Any, tmp_path: Path) -> None:
    for page, width, theme in product(write(tmp_path), (420, 1400), ("light", "dark")):
        chosen = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", chosen)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.as_uri())
        assert browser.execute_script(ASKED) <= width, "no file was asked for, and nothing is too wide"
        assert (browser.execute_script(CONTRAST), browser.get_log("browser")) == ([], [])


@pytest.mark.slow
def test_sorting_filters_edits_and_export(browser: Any, tmp_path: Path) -> None:
    def shows(order: str) -> bool:
        rows = browser.find_elements("css selector", "#lines tbody tr:not([hidden])")
        return "".join(str(int(row.get_attribute("data-line")) - 1) for row in rows) == order

    outputs, systems, _ = write(tmp_path)
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    browser.get(outputs.as_uri())
    find, saved = browser.find_element, tmp_path / "a.edited.txt"
    for key, order in (("\n", "9701234568"), (" ", "7901234568")):
        find("xpath", "//thead//button[.='confidence']").send_keys(key)
        assert shows(order)
    assert find("xpath", "//th[@aria-sort='descending']").text.startswith("confidence")
    assert [one.text for one in browser.find_elements("css selector", "td ins, td del")] == ["blue", "green", "big"]
    for name, order in (("marked for review", "79"), ("with words that differ", "8"), ("all lines", "7901234568")):
        find("xpath", f"//option[.='{name}']").click()
        assert shows(order)
    find("id", "search").send_keys("HAUS")
    assert find("id", "count").text == "1 of 10 lines"
    find("css selector", "tr[data-line='8'] .edit").send_keys("\n")
    browser.switch_to.active_element.send_keys("s\n")
    for _ in range(2):  # the browser keeps the edits
        find("id", "save").click()
        end = time.monotonic() + 20
        while not saved.exists() and time.monotonic() < end:
            time.sleep(0.05)
        edited = [*TEXTS[:7], f"{TEXTS[7]}s", "a blue house", TEXTS[9], ""]
        assert saved.read_bytes().decode().split("\n") == edited
        saved.unlink()
        browser.get(outputs.as_uri())
    find("css selector", "tr.edited .undo").click()
    browser.get(systems.as_uri())
    find("xpath", "//option[@value='ter']").click()
    find("xpath", "//thead//button[.='b − a']").click()
    assert shows("8012345679"), "the other lines have equal scores"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Outputs of a line, in which different values are wrong."""
    for number, values in enumerate(({}, {"source": "c"}, {"hypotheses": 3}, {"notes": 3}, {"terms": [1]})):
        (tmp_path / f"{number}.json").write_text(json.dumps({"id": 0, "source": "a", "hypotheses": [], **values}))
    return tmp_path


test_refused = refusals(
    ("show {files}/0.json {files}/1.json", "line 1 of", "has different sources"),
    ("show {files}/0.json reference=/dev/null", "has 1 lines but"),
    ("show {files}/0.json sort=loss", "sort=loss has no effect on outputs"),
    ("show {files}/2.json", "line 1 of", "is not an output", "format=json"),
    ("show {files}/3.json", "3.json is damaged"),
    ("show {files}/4.json", "4.json is damaged"),
)
