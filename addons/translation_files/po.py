"""PO files, which translate-toolkit reads and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from seqgen.addons.translation_files.units import MARK, Unit, UnitFile
from seqgen.extend import ConfigError, DataError, shown


class Message(Unit):
    """A message.

    Args:
        message: that of translate-toolkit.
        forms: number of plural forms of the target language; 0 for as many as the message has.
    """

    def __init__(self, message: Any, forms: int):
        self.message = message
        sources, targets = (list(getattr(text, "strings", [text])) for text in (message.source, message.target))
        super().__init__(sources, all(targets) and not message.isfuzzy())
        self.forms = (forms or len(targets)) if len(sources) > 1 else 1

    def fill(self, texts: Sequence[str], review: bool, why: list[str]) -> None:
        """See ``Unit``; forms after the second one are that of the plural, for a person to correct."""
        texts = texts[-1:] if self.forms == 1 else [texts[0], *[texts[-1]] * (self.forms - 1)]
        self.message.target = dict(enumerate(texts)) if len(self.sources) > 1 else texts[0]
        self.message.markfuzzy(review or self.forms > 2)
        for previous in ("prev_msgctxt", "prev_msgid", "prev_msgid_plural"):
            setattr(self.message, previous, [])
        comments = self.message.othercomments
        self.message.othercomments = [line for line in comments if not line.startswith(f"# {MARK}: ")]
        if why:
            self.message.addnote(" ".join(f"{MARK}: {'; '.join(why)}".split()), "translator")


class PoFile(UnitFile):
    """A PO file, or a template."""

    def read(self) -> Iterable[Unit]:
        """The messages, without obsolete ones; see ``UnitFile``."""
        try:
            from translate.storage.pypo import pofile
        except ImportError:
            raise ConfigError("PO files need a package: pip install translate-toolkit") from None
        self.store = pofile.parsestring(self.content)
        if self.written() != self.content:
            raise DataError(
                f"{self.path} has blanks, line ends or an encoding that would change when it is written; give the file "
                f"that msgcat --to-code=UTF-8 {self.path} prints"
            )
        forms = str((self.store.getheaderplural() or [""])[0])
        count = int(forms) if forms in {*"123456"} else 0
        messages = [message for message in self.store.units if message.istranslatable()]
        for (_, text), times in Counter((message.getcontext(), str(message.source)) for message in messages).items():
            if times > 1:
                raise DataError(f"{self.path} has the message {shown(text)} {times} times; join them with msguniq")
        return (Message(message, count) for message in messages)

    def written(self) -> bytes:
        """See ``UnitFile``."""
        return bytes(self.store)
