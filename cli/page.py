"""The pages of the commands: one style, one mechanism of templates, and nothing from elsewhere."""

from __future__ import annotations

from typing import Any


def render_template(package: str, template: str, **values: Any) -> str:
    """Make an HTML page, which is one file that needs no network, or a text.

    Args:
        package: the package whose folder has the template; those of pages extend ``base.html``.
        template: its name; in all but ``.txt`` files values are escaped.
        values: what it shows.
    """
    import jinja2  # slow to import

    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(name, "") for name in (package, __package__)])
    kept: dict[str, Any] = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    templates = jinja2.Environment(loader=loader, autoescape=not template.endswith(".txt"), **kept)
    return templates.get_template(template).render(values)
