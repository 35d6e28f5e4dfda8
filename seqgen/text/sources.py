"""Sources: what each member of an ensemble reads of an input line."""

from __future__ import annotations

from seqgen.config import GenerationConfig
from seqgen.core.component import Component
from seqgen.core.contract import check_returned
from seqgen.core.errors import DataError
from seqgen.core.member import EMPTY
from seqgen.decoding.building import Resources, build_component
from seqgen.decoding.member_sources import field_of
from seqgen.registry import MEMBER_SOURCES


class MemberSource(Component):
    """Gives a member of an ensemble a text to read in place of the input line; a subclass implements ``__call__``.

    A source registered with ``@register_member_source`` is selected by its name, for one member or several
    (``generation.member_sources=[input,NAME]``).
    """

    def __call__(self, line: str, number: int) -> str:
        """Find the text that the member reads.

        Args:
            line: the input line.
            number: number of the line, from 0. The text may depend on it, but not on the batch.

        Returns:
            The text, which the member's tokenizer encodes.
        """
        raise NotImplementedError


def sources_from_config(cfg: GenerationConfig, resources: Resources) -> list[str | MemberSource]:
    """The entries of ``generation.member_sources``, registered names replaced by their components.

    Raises:
        ConfigError: an entry is not a source.
    """
    return [
        build_component(MEMBER_SOURCES, name, MemberSource, cfg, resources) if MEMBER_SOURCES.find(name) else name
        for name in cfg.member_sources
    ]


def source_text(source: str | MemberSource, line: str, number: int) -> str:
    """The text that a member reads.

    Args:
        source: ``"input"``, ``"empty"``, ``"fieldN"`` or a component.
        line: the input line.
        number: number of the line, from 0.

    Raises:
        DataError: the line has too few fields.
    """
    if isinstance(source, MemberSource):
        return check_returned(source, "__call__", source(line, number), str)
    if source == EMPTY:
        return ""
    fields, wanted = line.split("\t"), field_of(source)
    if wanted > len(fields):
        raise DataError(
            f"line {number + 1} has {len(fields)} fields, and generation.member_sources names field {wanted}; separate "
            "fields by tabs"
        )
    return fields[wanted - 1] if wanted else line
