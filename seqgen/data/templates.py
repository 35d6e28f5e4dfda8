"""Templates: how the fields of a record become one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter

from seqgen.errors import ConfigError, nearest


class Template:
    """A text with fields in braces, such as ``translate English to German: {source}``.

    A brace that is no field is doubled: ``{{``. Nothing but the name of a field stands between braces; a template is
    never evaluated.

    Args:
        text: the template.
        where: what it belongs to, for messages.

    Raises:
        ConfigError: the braces do not match, or hold something other than a name.
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
        """The template that is one field, whatever characters its name has."""
        template = cls("", "")
        template.text, template.parts = f"{{{name}}}", [("", name)]
        return template

    @property
    def fields(self) -> list[str]:
        """The names of its fields, each once, in order."""
        return list(dict.fromkeys(field for _, field in self.parts if field is not None))

    def check(self, known: Sequence[str]) -> None:
        """Check that a record has all the fields.

        Args:
            known: the names of the record's fields.

        Raises:
            ConfigError: a field is not among them.
        """
        for field in self.fields:
            if field not in known:
                raise ConfigError(
                    f"{self.where}: the template {self.text!r} names the field {field!r}{nearest(field, known)}, but "
                    f"the fields are: {', '.join(known)}"
                )

    def render(self, record: Mapping[str, str]) -> str:
        """Fill the fields in.

        Args:
            record: a text for each field.

        Raises:
            KeyError: a field is missing.
        """
        return "".join(text + ("" if field is None else record[field]) for text, field in self.parts)
