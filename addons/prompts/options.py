"""The keys of prompts, see ``stage``."""

from __future__ import annotations

from dataclasses import dataclass

from seqgen.config import FILES, INPUT, KEEPS_SCORES, NOT_IN_TRAINING, Requirement, decoding_key

_FACTS = KEEPS_SCORES | NOT_IN_TRAINING
_ALONE = Requirement(lambda cfg: not cfg.member_sources, "and generation.member_sources both say what models read")
_GIVEN = Requirement(lambda cfg: cfg.prompt or cfg.chat, "needs generation.prompt or generation.chat=true; set one")
_CHAT = Requirement(lambda cfg: cfg.chat, "is part of a chat; set generation.chat=true, or remove it")
_TEMPLATE = "what language models read: {source} stands for the line, \\n for a line break"


@dataclass
class PromptOptions:
    """What language models read in place of a line."""

    prompt: str = decoding_key("", _TEMPLATE, INPUT | _FACTS, _ALONE)
    examples: str = decoding_key("", "file with SOURCE<tab>TARGET", FILES | _FACTS, _GIVEN, role="input_path")
    chat: bool = decoding_key(False, "put lines or prompts into the model's chat template", INPUT | _FACTS, _ALONE)
    system_message: str = decoding_key("", "message before the prompt in a chat", INPUT | _FACTS, _CHAT)
