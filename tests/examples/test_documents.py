"""Documents in waves (examples/documents.py) against each document alone, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.documents import Compose, DocumentsConfig, decode_documents, fields, forced, main
from examples.papers.context_aware import ContextAware
from seqgen.cli.command import run
from seqgen.text.translator import Translator
from tests.commands import SMALL_TRANSFORMER, command, corpus, training_arguments
from tests.text_models import text_model

DOCUMENTS = [["w1 w2 w3", "w4", "w5 w6"], ["w7 w8"], ["w9 w1 w2 w3", "w2", "w6 w5 w4", "w8"]]
CONTRAST: dict[str, Any] = {"member_sources": ["field1", "field2"], "combination": ContextAware(0.5)}


def plain(translator: Translator, document: list[str], context: int, settings: dict[str, Any]) -> list[str]:
    """A document alone, line by line, with the earlier outputs as a prefix or the earlier sources as a context."""
    outputs: list[str] = []
    for place, line in enumerate(document):
        first = max(0, place - context)
        read = " ".join(document[first : place + 1])
        if settings:
            (found,) = translator.translate([f"{read}\t{line}"], **settings)
            outputs.append(found.text)
        else:
            before = " ".join(text for text in outputs[first:place] if text)
            (found,) = translator.translate([read], prefixes=[before])
            assert found.text.startswith(before)
            outputs.append(found.text[len(before) :].strip())
    return outputs


@pytest.mark.parametrize("context", [0, 1, 2])
@pytest.mark.parametrize(("compose", "settings"), [(forced, {}), (fields, CONTRAST)], ids=["forced", "fields"])
def test_documents_together_equal_each_alone(compose: Any, context: int, settings: dict[str, Any]) -> None:
    model = text_model()
    translator = Translator([model, model] if settings else model, beam=3, max_len_a=2, max_len_b=4)
    batches = []
    whole = translator.translate

    def counted(texts: Any, **given: Any) -> Any:
        batches.append(len(texts))
        return whole(texts, **given)

    translator.translate = counted  # type: ignore[method-assign]
    together = decode_documents(translator, DOCUMENTS, compose(context), **settings)
    assert batches == [3, 2, 2, 1]
    translator.translate = whole  # type: ignore[method-assign]
    assert together == [plain(translator, document, context, settings) for document in DOCUMENTS]
    without: Compose = compose(0)
    assert context == 0 or together != decode_documents(translator, DOCUMENTS, without, **settings)


@pytest.mark.slow
def test_command(tmp_path: Path) -> None:
    data, model = corpus(tmp_path / "DATA"), tmp_path / "run"
    arguments = [*training_arguments(data, model), *SMALL_TRANSFORMER, "optimization.max_update=1"]
    assert command("train", *arguments).code == 0
    first, second, third = (data / "test.en").read_text().splitlines()[:3]
    (tmp_path / "documents").write_text(f"{first}\n{second}\n\n\n{third}\n")
    files = [f"input={tmp_path}/documents", f"output={tmp_path}/out", "common.threads=1"]
    with pytest.raises(SystemExit) as exit_:
        run(DocumentsConfig, main, "", [f"path=[{model}]", *files])
    assert exit_.value.code == 0
    assert [bool(line) for line in (tmp_path / "out").read_text().splitlines()].index(False) == 2
