"""The kinds of components that ``seqgen-check`` checks: the configuration of each check, and what it builds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from seqgen import load_models
from seqgen.addons.checks.checking import Invariants, Raised
from seqgen.addons.checks.components import COMBINATION, OBSERVER, PROCESSOR, SHARED
from seqgen.addons.checks.criteria import Training, invariants_of
from seqgen.addons.checks.models import PASSES, SEARCH, STEPPING, WEIGHTS
from seqgen.addons.checks.strategies import STRATEGY
from seqgen.addons.checks.subject import Decoding, Ids, Subject, randomize_, task_of, tiny_dictionary
from seqgen.addons.checks.tasks import TASK, Prepared
from seqgen.config import CommonConfig, GenerationConfig, ReadingConfig, option
from seqgen.extend import (
    DECODING_COMPONENTS,
    GROUPS,
    MODELS,
    Combination,
    Component,
    ConfigError,
    DecodingTask,
    Dictionary,
    EncoderDecoderModel,
    KeyValueCache,
    LoadedModel,
    MultiheadAttention,
    PromptTask,
    Search,
    Task,
    UserError,
    log,
    nearest,
    read_lines,
)

_WIDTHS = {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 2}
SMALL = {
    **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in _WIDTHS.items()},
    **{"encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0},
}


@contextmanager
def _building(what: str, otherwise: str) -> Iterator[None]:
    """Turn an error of the user's component, which may raise anything, into a ``ConfigError``.

    Args:
        what: what is built, and from what.
        otherwise: what to do if that fails.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(f"the {what}: {Raised(error).what}; {otherwise}") from error


class Vocabularies:
    """The vocabularies, all that a model needs of its task; one for both sides unless the source has another."""

    def __init__(self, words: Dictionary, source: Dictionary | None = None):
        self.source_dictionary, self.target_dictionary = source or words, words


def small_transformer(name: str = "transformer") -> Any:
    """The configuration of a transformer with 16 features, without dropout."""
    config = MODELS.config(name)
    return replace(config, **{key: value for key, value in SMALL.items() if hasattr(config, key)})


def new_model(config: Any, words: Dictionary, seed: int = 0) -> EncoderDecoderModel:
    """Build a model in float64 with newly initialized weights.

    Args:
        config: the configuration of a registered model.
        words: its vocabulary.
        seed: seed of the weights.

    Raises:
        UserError: it cannot be built.
    """
    component: Any = MODELS.of(config).component
    torch.manual_seed(seed)
    what = "model cannot be built from its keys and the dictionaries of a task"
    with _building(what, "correct build_model, or check a trained run with path=RUN"):
        model: EncoderDecoderModel = component.build_model(config, Vocabularies(words))
    return model.double()


MOST = 12
"""The most lines of a file that are sources."""

SHORTEST = 40
"""The number of positions that the checks need."""


@dataclass
class ModelCheckConfig:
    """The configuration of the check of a model."""

    model: Any = None
    path: str = option("", "run, or model of another toolkit, in place of model=NAME", role="input_path")
    input: str = option("", "file whose first lines are the sources, in place of random ones", role="input_path")
    cache: str = option("", "where self-attention keeps keys and values: the name of a class in common.user_dir")
    tolerance: float = option(
        1e-10, "largest difference of logits and scores that counts as equal, relative if they are above 1", minimum=0
    )
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def model_subject(cfg: ModelCheckConfig) -> Subject:
    """A random model, or a trained one.

    Args:
        cfg: the configuration.

    Raises:
        UserError: the model cannot be built or loaded, or is too short for the checks.
    """
    if (cfg.model is not None) == bool(cfg.path):
        raise ConfigError(
            "set either model=NAME for a random model or path=RUN for a trained one, or another component, such as "
            "search=NAME"
        )
    if cfg.model is not None and cfg.reading != ReadingConfig():
        raise ConfigError("reading.KEY applies only to path=CHECKPOINT of another toolkit; remove the key")
    if cfg.path:
        loaded, *others = load_models([cfg.path], "cpu", cfg.reading, torch.float64, log)
        if others:
            raise ConfigError(f"path={cfg.path} names {len(others) + 1} models; check them one at a time")
        sides = loaded.task.target_dictionary, len(loaded.task.source_dictionary)
        lines = _lines(cfg.input, loaded.task, loaded.model)
        subject = searched = Subject(loaded.model, *sides, tolerance=cfg.tolerance, lines=lines)
    else:
        words = tiny_dictionary(texts=_texts(cfg.input))
        build = partial(new_model, cfg.model, words, 1)
        # the invariants of search need peaked distributions
        models = [randomize_(new_model(cfg.model, words), factor=factor) for factor in (1.0, 1.5)]
        lines = _lines(cfg.input, task_of(words), models[0])
        given: Any = {"tolerance": cfg.tolerance, "lines": lines}
        subject, searched = (Subject(one, words, len(words), build, **given) for one in models)
    modules = (subject.model.decoder, subject.model.encoder, *subject.model.modules())
    subject.owners = searched.owners = [*dict.fromkeys(map(type, modules))]
    if cfg.cache:  # all else is about the model, or its values are exact
        _use_cache(subject.model.decoder, cfg.cache)
        cause = f"{cfg.cache} does not return the keys and values that it was given, in their rows and at their "
        cause += "positions; if it rounds them on purpose, give a larger tolerance"
        subject.invariants, subject.advice = STEPPING, {"": cause}
    else:
        subject.invariants, subject.then = PASSES | STEPPING | WEIGHTS, replace(searched, invariants=SEARCH)
    Ids.of(subject.model, subject.dictionary, subject.source_size)  # refuses an encoder that reads columns
    positions = subject.model.max_positions()
    if min(positions) < SHORTEST:
        raise ConfigError(
            f"the model has {positions[0]} source and {positions[1]} target positions, but the checks need {SHORTEST}; "
            "set the model's maximum lengths to at least that"
        )
    return subject


def _texts(path: str) -> list[str]:
    """The first lines of the file with sources; none without a file."""
    texts = list(itertools.islice(read_lines(Path(path)), MOST)) if path else []
    if path and not texts:
        raise ConfigError(f"input={path}: the file has no line; write one source in each line")
    return texts


def _lines(path: str, task: Task, model: EncoderDecoderModel) -> list[tuple[str, list[int]]]:
    """The sources and their ids; none without a file.

    Raises:
        UserError: the file cannot be read, or has no lines, or one that is too long for the model.
    """
    lines = [(text, task.encode_source(task.input_of(text)).tolist()) for text in _texts(path)]
    longest = max((len(ids) for _, ids in lines), default=0)
    if longest > model.max_positions()[0]:
        raise ConfigError(f"input={path}: a line has {longest} tokens, but the model reads {model.max_positions()[0]}")
    return lines


def _use_cache(decoder: nn.Module, name: str) -> None:
    found, unread = dict[str, type[KeyValueCache]](), KeyValueCache.__subclasses__()
    while unread:
        cache = unread.pop()
        found[cache.__name__] = cache
        unread += cache.__subclasses__()
    layers = [one for one in decoder.modules() if isinstance(one, MultiheadAttention) and not one.encoder_decoder]
    if name not in found or not layers:
        wrong = f"the name is unknown{nearest(name, found)}" if layers else "the decoder has no attention"
        raise ConfigError(f"cache={name}: {wrong}; name a subclass of KeyValueCache, and a transformer")
    for layer in layers:
        layer.cache = found[name]


WORDS = 9
"""Words of the vocabulary, besides its four special tokens: an odd number of tokens, and few, so that ties occur."""


FEWEST = 4
"""The smallest number of words with which a component can be checked."""


class Kind(NamedTuple):
    """A kind of component.

    Attributes:
        what: what its check is about.
        invariants: its invariants.
        base: its base class, if the rules may replace a component by a variant.
    """

    what: str
    invariants: Invariants[Decoding]
    base: type[Component] | None = None


KINDS = {
    "search": Kind("a search strategy", STRATEGY, Search),
    "processor": Kind("a logits processor", PROCESSOR),
    "combination": Kind("a combination of an ensemble's members, with two models", COMBINATION, Combination),
    "stopping": Kind("a stopping rule", SHARED),
    "observer": Kind("an observer of the search", OBSERVER),
}
"""The kinds of decoding components that can be checked, by the prefix of their keys."""


@dataclass
class DecodingCheckConfig:
    """The configuration of the check of a decoding component."""

    model: Any = None
    path: list[str] = option(
        [], "run or checkpoint that decodes, in place of a random model; several for an ensemble", role="input_path"
    )
    input: str = option("", "file whose first lines are the sources, in place of random ones", role="input_path")
    beam: int = option(4, "beam size of the decodes; a strategy that refuses it is checked with 1", minimum=1)
    semantics: str = option(
        "both", "rules of which toolkit the component is checked under", choices=("both", "fairseq", "huggingface")
    )
    tolerance: float = option(
        1e-9, "largest difference of scores that counts as equal, relative if they are above 1", minimum=0
    )
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    reading: ReadingConfig = field(default_factory=ReadingConfig)
    common: CommonConfig = field(default_factory=CommonConfig)


def component_subject(group: str, cfg: DecodingCheckConfig) -> Decoding:
    """The subject of a check: the component, and small random models or trained ones.

    Args:
        group: the kind of component.
        cfg: the configuration; ``generation`` names the component.

    Raises:
        UserError: the component or the models cannot be built, or do not fit.
    """
    registry, chooser = DECODING_COMPONENTS[group]
    chosen = getattr(cfg.generation, chooser)
    component = registry.entry(chosen if isinstance(chosen, str) else chosen[-1]).component
    build = None
    if cfg.path:
        loaded = _load_members(group, cfg)
        task, models = loaded[0].task, [one.model for one in loaded]
    else:
        words = tiny_dictionary(WORDS, _texts(cfg.input))
        task = task_of(words)
        build = partial(_peaked_model, cfg.model or small_transformer())
        models = [build(words, seed) for seed in range(2 if group == "combination" else 1)]
    rules = ["fairseq", "huggingface"] if cfg.semantics == "both" else [cfg.semantics]
    generation, kind = replace(cfg.generation, beam=cfg.beam), KINDS[group].base or component
    further: dict[str, Any] = {"tolerance": cfg.tolerance, "invariants": KINDS[group].invariants}
    further.update(lines=_lines(cfg.input, task, models[0]), owners=[component], variants=rules)
    subject = Decoding(generation, group, build, task, kind, models, **further)
    begin, end = subject.ids.words
    if end - begin < FEWEST:
        raise ConfigError(f"the vocabulary has at most {end - begin} words in a row, but the checks need {FEWEST}")
    return _accepted(subject)


def _peaked_model(config: Any, words: Dictionary, seed: int) -> EncoderDecoderModel:
    return randomize_(new_model(config, words, seed), seed, factor=1.6)


def _load_members(group: str, cfg: DecodingCheckConfig) -> list[LoadedModel]:
    """Load trained models.

    Raises:
        UserError: one cannot be loaded, ``model`` is given as well, or the number or vocabularies do not fit.
    """
    if cfg.model is not None:
        raise ConfigError("set either model=NAME for a random model or path=RUN for a trained one")
    loaded = load_models(cfg.path, "cpu", cfg.reading, torch.float64, log)
    if group == "combination" and len(loaded) < 2:
        raise ConfigError("path names 1 model; a combination is checked with two or more: path=[RUN,RUN]")
    vocabularies = [(one.task.target_dictionary, one.task.source_dictionary) for one in loaded]
    if any(pair != vocabularies[0] for pair in vocabularies):
        raise ConfigError("the models of path have different vocabularies; give models with the same")
    return loaded


def _accepted(subject: Decoding) -> Decoding:
    """The subject under the rules that accept the component, with a beam of 1 if the strategy has no beams.

    Raises:
        ConfigError: no rules accept it.
    """
    wanted, refusals = subject.generation.beam, list[ConfigError]()
    for beam in dict.fromkeys((wanted, 1)):
        subject.generation = replace(subject.generation, beam=beam)
        found = {rules: _refusal(subject, rules) for rules in subject.variants}
        refusals += filter(None, found.values())
        if accepted := [rules for rules, refusal in found.items() if refusal is None]:
            if beam != wanted:
                log(f"checked with beam=1: {refusals[0]}")
            subject.variants = accepted
            return subject
    raise refusals[len(subject.variants) - 1]  # with the beam of the user


def _refusal(subject: Decoding, rules: str) -> ConfigError | None:
    """The error with which a decode is refused; ``None`` if it is accepted."""
    subject.variant = rules
    with _building(f"{subject.group} cannot be built from its keys", "correct its build or __init__"):
        try:
            generator = subject.generator()
        except ConfigError as error:
            return error
    try:
        generator.generate(subject.batch([1]))
    except ConfigError as error:
        return error
    except Exception:  # of the component, which the checks report
        pass
    return None


@dataclass
class CriterionCheckConfig:
    """The configuration of the check of a criterion."""

    criterion: Any = None
    model: Any = None
    tolerance: float = option(
        1e-9, "largest difference of losses and gradients that counts as equal, relative if they are above 1", minimum=0
    )
    common: CommonConfig = field(default_factory=CommonConfig)


def criterion_subject(cfg: CriterionCheckConfig) -> Training:
    """A criterion with a random model.

    Raises:
        UserError: the criterion or the model cannot be built.
    """
    words = tiny_dictionary()
    model = randomize_(new_model(cfg.model or small_transformer(), words))
    component: Any = GROUPS["criterion"].of(cfg.criterion).component
    what = "criterion cannot be built from its keys and a task"
    with _building(what, "correct its __init__"):
        criterion = component(cfg.criterion, task_of(words))
        criterion.begin_training(model)
    randomize_(criterion.module.double())
    ids, invariants = Ids.of(model, words, len(words)), invariants_of(criterion)
    return Training(criterion, model, ids, tolerance=cfg.tolerance, invariants=invariants, owners=[component])


@dataclass
class TaskCheckConfig:
    """The configuration of the check of a task."""

    task: Any = None
    common: CommonConfig = field(default_factory=CommonConfig)


def task_subject(cfg: TaskCheckConfig, folder: Path) -> Prepared:
    """A task with a small random model.

    Args:
        cfg: the configuration.
        folder: the run folder.

    Raises:
        UserError: the task cannot be made, or its data cannot be read.
    """
    entry = GROUPS["task"].of(cfg.task)
    component: Any = entry.component
    if issubclass(component, DecodingTask):
        raise ConfigError(
            f"task={entry.name} is for decoding and has no data to check; choose another task, such as task=translation"
        )

    def make() -> Task:
        with _building("task cannot be made from its keys", "correct its setup_task"):
            task: Task = component.setup_task(cfg.task, folder)
        return task

    task = make()
    splits = task.splits()
    split = next((name for name in ("valid", "test", *splits) if name in splits), None)
    if split is None:
        raise ConfigError("the task has no data to check; set its keys, such as task.train and task.valid")
    config = small_transformer("transformer_lm" if isinstance(task, PromptTask) else "transformer")
    torch.manual_seed(0)
    model = randomize_(task.build_model(config).double())
    subject = Prepared(task, make, model, invariants=TASK, variants=[*dict.fromkeys((split, *({"train"} & {*splits})))])
    return replace(subject, owners=[*(type(task.dataset(name)) for name in subject.variants), component])
