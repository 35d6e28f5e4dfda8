"""Renders chat templates, which are strangers' programs, in a process of its own with little time and memory.

It reads a template and values from each line of its standard input, and answers with a text and an error; as JSON.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from datetime import datetime
from functools import cache, partial
from typing import NoReturn

from jinja2 import TemplateError, ext, nodes, parser, sandbox


class Answer(ext.Extension):
    """The tag ``generation`` of transformers, which marks the answers of a model; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: parser.Parser) -> nodes.Node:
        """See ``Extension``."""
        return nodes.Scope(next(parser.stream) and parser.parse_statements(("name:endgeneration",), drop_needle=True))


def raise_exception(message: str) -> NoReturn:
    """Refuse the messages; templates call it."""
    raise TemplateError(message)


# as in transformers
env = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Answer, ext.loopcontrols])
env.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
env.globals |= {"raise_exception": raise_exception, "strftime_now": lambda form: datetime.now().strftime(form)}

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))  # bytes of memory
    compiled = cache(env.from_string)
    for request in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, 10)  # seconds of CPU time, after which the signal ends the process
        try:
            found, values = json.loads(request)
            if isinstance(found, list):  # of several templates, the one for messages without tools
                named = {each["name"]: each["template"] for each in found}
                found = named.get("default") or raise_exception(f"none of {', '.join(named)} is named default")
            render = partial(compiled(found).render, tools=None, documents=None, add_generation_prompt=True)
            (first, *others), text = values["messages"], render(values)
            if others and first["content"].strip() not in text == render(values | {"messages": others}):
                raise_exception("it leaves the system message out; remove generation.system_message")
            answer = text, ""
        except Exception as error:
            answer = "", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(json.dumps(answer), flush=True)
