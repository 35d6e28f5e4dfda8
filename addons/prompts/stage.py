"""The line stage of ``generation.prompt`` and ``generation.chat``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import torch

import seqgen.extend as api


@api.register_line_stage("prompts")
class PromptStage(api.LineStage):
    """Gives language models a prompt in place of a line; other models read it only if there is no language model.

    Args:
        cfg: the decoding settings.
        models: the models.

    Raises:
        ConfigError: the template has no ``{source}``, or a field without a value.
        DataError: the examples cannot be read.
    """

    reads_empty = True
    sandbox: Any = None  # the process that renders chats, which ends when its input is closed

    def __init__(self, cfg: api.GenerationConfig, models: list[api.TextModel]):
        self.template = api.Template(cfg.prompt.replace(r"\n", "\n") or "{source}", "generation.prompt")
        self.template.check(("source", *(key for key in ("source_lang", "target_lang") if getattr(cfg, key))))
        if "source" not in self.template.fields:
            raise api.ConfigError(f"generation.prompt={cfg.prompt} has no {{source}} for the line; add it")
        self.examples = [line.split("\t") for line in api.read_lines([Path(cfg.examples)] * bool(cfg.examples))]
        lines = enumerate(self.examples or [[]] * bool(cfg.examples), start=1)
        for number in (i for i, pair in lines if len(pair) != 2 or not pair[1].strip()):
            raise api.DataError(f"generation.examples: {cfg.examples}, line {number} is not SOURCE<tab>TARGET")
        readers = [model for model in models if model.model.left_pad_source] or models
        self.cfg, self.tasks = cfg, [model.task if model in readers else None for model in [*models, models[0]]]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "sandbox": None}  # a process cannot be pickled

    @classmethod
    def build(cls, cfg: api.GenerationConfig, resources: api.Resources) -> PromptStage | None:
        """See ``LineStage``."""
        return cls(cfg, list(resources.models)) if cfg.prompt or cfg.chat else None

    def read(self, line: api.InputLine) -> api.InputLine:
        """Set the ids that each model reads, and then those for a draft model; see ``LineStage``."""
        text = ""
        for source, target in [*self.examples, (line.text, "")]:
            text += self.template.render({"source": source, **line.languages._asdict()})
            text += target and f"{'' if text[-1:].isspace() else ' '}{target}\n\n"
        ids = [torch.empty(0) if task is None else self._ids(task, text, line) for task in self.tasks]
        return replace(line, sources=ids)

    def _ids(self, task: Any, prompt: str, line: api.InputLine) -> torch.Tensor:
        """The ids of a prompt ``(S,)``; in a chat, those of transformers' ``apply_chat_template``."""
        if not self.cfg.chat:
            return api.encode_source(task, prompt, line.languages)
        if (files := getattr(tokenizer := task.source_tokenizer, "files", None)) is None:
            raise api.ConfigError("generation.chat=true needs a model with a chat template; use generation.prompt")
        template = files.contents.get("chat_template.jinja", b"").decode(errors="surrogateescape")
        template = template or tokenizer.special.config.get("chat_template", "{{ raise_exception('there is none') }}")
        roles = {"system": self.cfg.system_message, "user": prompt}
        values: dict[str, Any] = {name: str(token) for name, token in tokenizer.special.named.items() if token}
        values["messages"] = [{"role": role, "content": text} for role, text in roles.items() if text or role == "user"]
        if self.sandbox is None or self.sandbox.poll() is not None:  # also in a forked process, which has no child
            command = [sys.executable, "-P", str(Path(__file__).with_name("sandbox.py"))]
            self.sandbox = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True, start_new_session=True)
        print(json.dumps([template, values]), file=self.sandbox.stdin, flush=True)
        answer = self.sandbox.stdout.readline() or (self.sandbox.wait() and "")
        text, error = json.loads(answer or '["", "it needs more than 10 s or 1 GiB, or jinja2 is not installed"]')
        if error or not 0 < len(text) < 2**20:
            where = f"line {line.number + 1}: the chat template of {files.location}"
            raise api.DataError(f"{where} fails: {error or 'its text is empty or too long'}; use generation.prompt")
        return torch.tensor(tokenizer.encode(text))
