"""Templates, which combine the fields of a record into one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter

from seqgen.errors import ConfigError, nearest


class Template:
    """A text with fields in braces, such as ``translate English to German: {source}``.

    Only the name of a field is allowed in braces; nothing is evaluated. A literal brace is doubled: ``{{``.

    Args:
        text: the template.
        where: the file and key of the template, for messages.

    Raises:
        ConfigError: the braces do not match, or contain something other than a name.
    """

    def __init__(self, text: str, where: str):
        self.text, self.where = text, where
        self.parts: list[tuple[str, str | None]] = []
        try:
            parsed = list(Formatter().parse(text))
        except ValueError as error:
            raise ConfigError(
                f"{where}: the template {text!r} cannot be read ({error}); write a field in braces, as in {{source}}, "
                "and a literal brace twice"
            ) from None
        for literal, field, spec, conversion in parsed:
            if field == "" or spec or conversion:
                raise ConfigError(
                    f"{where}: in the template {text!r} braces may contain only the name of a field; write "
                    "a literal brace twice"
                )
            self.parts.append((literal, field))

    @classmethod
    def of_field(cls, name: str) -> Template:
        """The template that consists of one field.

        Args:
            name: the field, which may contain any characters.
        """
        template = cls("", "")
        template.text, template.parts = f"{{{name}}}", [("", name)]
        return template

    @property
    def fields(self) -> list[str]:
        """The names of its fields, each once, in order."""
        return list(dict.fromkeys(field for _, field in self.parts if field is not None))

    def check(self, known: Sequence[str]) -> None:
        """Check that records have all fields of the template.

        Args:
            known: the names of the records' fields.

        Raises:
            ConfigError: a field of the template is not among them.
        """
        for field in self.fields:
            if field not in known:
                raise ConfigError(
                    f"{self.where}: the template {self.text!r} names the field {field!r}{nearest(field, known)}, but "
                    f"the fields are: {', '.join(known)}"
                )

    def render(self, record: Mapping[str, str]) -> str:
        """Insert the values of the fields.

        Args:
            record: a text for each field.

        Returns:
            The text.

        Raises:
            KeyError: a field is missing.
        """
        return "".join(text + ("" if field is None else record[field]) for text, field in self.parts)
