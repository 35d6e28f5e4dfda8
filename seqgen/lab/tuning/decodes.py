"""Decodes of ``seqgen-tune``: each setting is decoded once, and its outputs are kept in a file."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqgen.checkpoints.run_record import flatten
from seqgen.checkpoints.serialization import digest, fingerprint
from seqgen.config import GenerationConfig
from seqgen.config.values import to_dict
from seqgen.errors import ConfigError, DataError
from seqgen.system.files import disk_errors
from seqgen.system.reading import open_regular, parse_json
from seqgen.text.reranking import Reranker, Utility, by_expected_utility, expected_utilities
from seqgen.text.results import TextHypothesis, Translation, on_one_line
from seqgen.text.text_decoding import TextDecoding
from seqgen.text.translator import Translator

logger = logging.getLogger(__name__)

RANKING = ("utility", "reranker")
"""Groups whose keys are read only after the search: they rank finished n-best lists."""


class OutputsFile:
    """The outputs of decoded settings, one JSON object per line: ``{"key": ..., "setting": [...], "outputs": [...]}``.

    A line is written as soon as a setting is decoded. A last line that is incomplete, because the process was killed
    while writing it, is removed.

    Args:
        path: the file; it need not exist.

    Raises:
        DataError: the file is damaged.
    """

    def __init__(self, path: Path):
        self.path = path
        self.outputs: dict[str, list[str]] = {}
        complete = 0
        if path.exists():
            with disk_errors(path), open_regular(path) as file:
                for number, line in enumerate(file, start=1):
                    if not line.endswith(b"\n"):
                        break
                    self._read(line, number)
                    complete += len(line)
            with disk_errors(path), open(path, "r+b") as file:
                file.truncate(complete)

    def _read(self, line: bytes, number: int) -> None:
        try:
            record = parse_json(line)
            outputs = record["outputs"]
            if not isinstance(outputs, list) or not all(isinstance(text, str) for text in outputs):
                raise ValueError
            self.outputs[str(record["key"])] = outputs
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{self.path}, line {number} is damaged; delete the line, and its setting is decoded again"
            ) from None

    def add(self, key: str, setting: Sequence[str], outputs: list[str]) -> None:
        """Write the outputs of a setting.

        Args:
            key: names the setting, the models and the input.
            setting: the setting's arguments, for people who read the file.
            outputs: one line each.

        Raises:
            UserError: the file cannot be written.
        """
        record = {"key": key, "setting": list(setting), "outputs": outputs}
        with disk_errors(self.path), open(self.path, "ab") as file:
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self.outputs[key] = outputs


NbestList = tuple[Translation, list[TextHypothesis]]
"""The n-best list of a line as the search returned it: what a utility or reranker is given."""


class RecordingReranker(Reranker):
    """Ranks as a decode's own utility or reranker does, and keeps the n-best lists.

    Args:
        utility: the utility, or ``None``.
        reranker: the reranker, if there is no utility.
    """

    def __init__(self, utility: Utility | None, reranker: Reranker | None):
        self.utility, self.reranker = utility, reranker
        self.lists: dict[int, NbestList] = {}

    def __call__(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> Sequence[float]:
        """See ``Reranker``."""
        as_given = replace(translation, hypotheses=list(translation.hypotheses), notes=list(translation.notes))
        self.lists[translation.id] = as_given, list(hypotheses)
        return self.scores(translation, hypotheses)

    def scores(self, translation: Translation, hypotheses: Sequence[TextHypothesis]) -> Sequence[float]:
        """The scores of a line's hypotheses."""
        if self.utility is not None:
            return expected_utilities([item.text for item in hypotheses], self.utility)
        assert self.reranker is not None
        return self.reranker(translation, hypotheses)


class Decodes:
    """Decodes the same lines with one setting after the other.

    Args:
        translator: the models.
        lines: the lines.
        prefixes: the forced beginnings of the outputs, or ``None``.
        file: the outputs of earlier decodes.
        inputs: a digest of the models and of everything else that is the same for all settings.
        keep_lists: whether n-best lists are kept, because keys of ``RANKING`` are tuned.
    """

    def __init__(
        self,
        translator: Translator,
        lines: Sequence[str],
        prefixes: Sequence[str] | None,
        file: OutputsFile,
        inputs: str,
        keep_lists: bool = False,
    ):
        self.translator, self.lines, self.prefixes, self.file = translator, lines, prefixes, file
        self.inputs, self.keep_lists = inputs, keep_lists
        # the outputs of each search, and its n-best lists by line number; lines that were not ranked have none
        self.searches: dict[str, tuple[list[str], Mapping[int, NbestList]]] = {}
        self.notes: set[str] = set()

    def key(self, given: Mapping[str, Any]) -> str:
        """A digest of all settings, and of what else determines the outputs.

        Args:
            given: the settings, as for ``Translator.prepare``.

        Raises:
            ConfigError: a setting cannot be used.
        """
        return self._key(self.translator.settings(**given), given)

    def _key(self, cfg: GenerationConfig, given: Mapping[str, Any]) -> str:
        values = dict(flatten(to_dict(cfg)))
        debug = {name: value for name, value in given.items() if name.startswith("debug.")}
        return fingerprint([self.inputs, values, debug, _files_named(values)])

    def outputs(self, given: Mapping[str, Any], setting: Sequence[str]) -> tuple[list[str], str]:
        """The outputs of a setting.

        Args:
            given: the settings, as for ``Translator.prepare``.
            setting: their arguments, for people who read the file.

        Returns:
            One output for each line, and how they were obtained: ``"decoded"``, ``"reranked"`` or ``"known"``.

        Raises:
            ConfigError: a setting cannot be used.
        """
        key = self.key(given)
        if key in self.file.outputs:
            return self.file.outputs[key], "known"
        decoding = self.translator.prepare(**given)
        for note in decoding.notes:
            if note not in self.notes:
                self.notes.add(note)
                logger.info(note)
        if self.keep_lists and decoding.splitter is not None:
            raise ConfigError(
                "keys that rank cannot be tuned with generation.input_split=sentences; give sentences as lines"
            )
        outputs, how = self._ranked(decoding, given) if self.keep_lists else (self._texts(decoding), "decoded")
        self.file.add(key, setting, outputs)
        return outputs, how

    def _texts(self, decoding: TextDecoding) -> list[str]:
        return [translation.text for translation in decoding.translate(self.lines, self.prefixes)]

    def _ranked(self, decoding: TextDecoding, given: Mapping[str, Any]) -> tuple[list[str], str]:
        """Rank the n-best lists of the search; the search is run only if it was not run before.

        A search does not depend on the keys of ``RANKING``. Its n-best lists are therefore those of any setting that
        differs only in these keys.
        """
        ranking = RecordingReranker(decoding.utility, decoding.reranker)
        of_search = {k: v for k, v in decoding.cfg.components.items() if k.partition(".")[0] not in RANKING}
        key = self._key(replace(decoding.cfg, components=of_search), given)
        if key not in self.searches:
            decoding.utility, decoding.reranker = None, ranking
            outputs = self._texts(decoding)
            self.searches[key] = outputs, ranking.lists
            return outputs, "decoded"
        outputs, lists = self.searches[key]
        outputs = list(outputs)
        for number, (translation, hypotheses) in lists.items():
            scores = list(ranking.scores(translation, hypotheses))
            outputs[number] = on_one_line(hypotheses[by_expected_utility(scores)[0]].text)
        return outputs, "reranked"


def _files_named(values: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of the files, and the state of the folders, that settings name."""
    items = (item for value in values.values() for item in (value if isinstance(value, list) else [value]))
    return {item: state for item in items if isinstance(item, str) and item and (state := state_of(Path(item)))}


def state_of(path: Path) -> Any:
    """The digest of a file; of a folder, the names, sizes and times of its files; ``None`` if there is neither."""
    try:
        if path.is_file():
            return digest(path)
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc")
            states = [(file, file.stat()) for file in files]
            return [[file.relative_to(path).as_posix(), state.st_size, state.st_mtime_ns] for file, state in states]
    except (OSError, ValueError):  # a text that cannot be a path
        pass
    return None
