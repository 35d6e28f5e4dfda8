"""The generator of members with different target vocabularies, and the settings that it supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seqgen.config import GenerationConfig
from seqgen.config.compose import component_config
from seqgen.config.generation import ACROSS_VOCABULARIES, keys_with
from seqgen.config.values import to_dict
from seqgen.errors import ConfigError
from seqgen.generation.agreement.session import Agreement, AgreementSession
from seqgen.generation.sequence_generator import SequenceGenerator
from seqgen.generation.setup import DecodingRequest, DecodingSetup
from seqgen.registry import COMBINATIONS
from seqgen.structures import Hypothesis

COMPONENT_KEYS = ("combination.weights", "utility.", "reranker.")
"""The beginnings of the components' own keys that can be used."""

OBJECTS = ("mbr", "rerank", "members")
"""The decoding components that can be given as objects."""

NOTE = (
    "the members have different target vocabularies, so that they are decoded by agreement on the text: each member "
    "generates its own tokens, and the score is the weighted mean of the members' scores"
)


class AgreementGenerator(SequenceGenerator):
    """Decodes by beam search over the tokens of several members that agree on the text (Wicks et al. 2025).

    Args:
        setup: how to decode.
        agreement: how the members agree.

    Attributes:
        steps: number of steps of all batches so far.
        calls: number of calls of each member's decoder so far.
    """

    def __init__(self, setup: DecodingSetup, agreement: Agreement):
        self.setup, self.agreement = setup, agreement
        self.steps, self.calls = 0, [0] * len(agreement.ends)

    @property
    def can_merge(self) -> bool:
        """No sentence may join a running batch."""
        return False

    def _run(self, request: DecodingRequest) -> list[list[Hypothesis]]:
        """Decode a request, which has no prefixes, constraints or streamer: these are not supported."""
        session = AgreementSession(self.setup, self.agreement, request)
        results = session.run()
        self.steps += session.num_steps
        self.calls = [total + member.calls for total, member in zip(self.calls, session.members, strict=True)]
        return results

    def summary(self) -> str:
        """See ``SequenceGenerator.summary``."""
        calls = " and ".join(map(str, self.calls))
        return f"agreement on the text: {self.steps} steps, in which the members' decoders were called {calls} times"


def check_supported(cfg: GenerationConfig, objects: Mapping[str, Any]) -> None:
    """Refuse settings that need one vocabulary, or another search.

    Args:
        cfg: the settings.
        objects: the decoding components that are given as objects, by key.

    Raises:
        ConfigError: names the first such setting.
    """
    neutral = to_dict(GenerationConfig())
    given = {key: value for key, value in to_dict(cfg).items() if value != neutral[key]}
    allowed = {"search": "beam", "combination": "log"}
    refused = {f"generation.{key}": value for key, value in given.items() if key not in keys_with(ACROSS_VOCABULARIES)}
    refused = {key: value for key, value in refused.items() if value != allowed.get(key.removeprefix("generation."))}
    refused |= {key: value for key, value in cfg.components.items() if not key.startswith(COMPONENT_KEYS)}
    refused |= {key: type(value).__name__ for key, value in objects.items() if key not in OBJECTS}
    if cfg.semantics != "fairseq":
        refused["generation.semantics"] = cfg.semantics
    for key, value in refused.items():
        raise _impossible(f"{key}={str(value).lower() if isinstance(value, bool) else value}")
    if 0 in component_config(COMBINATIONS, "log", cfg).weights:
        raise ConfigError(
            "a member with the weight 0 would still restrict the text on which members with different target "
            "vocabularies agree; leave its model out of path"
        )


def check_details(**wanted: bool) -> None:
    """Refuse what the generator does not compute.

    Args:
        wanted: what the user wants, by name.

    Raises:
        ConfigError: names the first.
    """
    for name, value in wanted.items():
        if value:
            raise _impossible(name)


def _impossible(what: str) -> ConfigError:
    return ConfigError(
        f"{what} is not possible with members that have different target vocabularies; leave it out, or give models "
        "with the same target vocabulary"
    )


def supported_settings(own: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Leave out the models' own settings that ``check_supported`` would refuse.

    Args:
        own: the own settings of each model.

    Returns:
        The other settings of each model, and the names of those of the first model that are left out.
    """
    wanted = set(keys_with(ACROSS_VOCABULARIES)) - {"semantics", "components"}
    kept = [{key: value for key, value in settings.items() if key in wanted} for settings in own]
    neutral = to_dict(GenerationConfig())
    ignored = [
        key
        for key, value in own[0].items()
        if key not in {*wanted, "forced_first"} and value not in (neutral[key], "fairseq", "beam")
    ]
    return kept, sorted(ignored)
