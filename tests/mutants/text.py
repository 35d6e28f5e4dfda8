"""Faults in ``seqgen/text``."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "seqgen/text/input_line.py",
        "torch.cat([ids[: longest - tail], ids[-tail:]])",
        "torch.cat([ids[: longest - 1], ids[-1:]])",
        "a long source loses end-of-sentence before the token of its language",
        ("tests/data/test_languages.py::test_long_sources_keep_the_language",),
    ),
    Fault(
        "seqgen/text/input_line.py",
        "(room - 1 for room in rooms",
        "(room for room in rooms",
        "the longest output of a prompt leaves no room for end-of-sentence",
        ("tests/models/test_language_models.py",),
    ),
    Fault(
        "seqgen/text/languages.py",
        'fields, codes = line.split("\\t"), dict(self._codes)',
        'fields, codes = line.split("\\t"), {}',
        "the source language is forgotten where the target language is a field of the line",
        ("tests/data/test_languages.py::test_each_line_has_its_target_language",),
    ),
    Fault(
        "seqgen/text/languages.py",
        "rest = [field for index, field in enumerate(fields) if index not in self._fields.values()]",
        "rest = fields[: min(self._fields.values())]",
        "fields after that of the language are dropped",
        ("tests/data/test_languages.py",),
    ),
    Fault(
        "seqgen/text/languages.py",
        "self.languages.code(fields[index].strip(), where)",
        "self.languages.code(fields[index], where)",
        "spaces around the code of a language are part of it",
        ("tests/data/test_languages.py",),
    ),
    Fault(
        "seqgen/text/output_formats.py",
        'positional = " ".join(f"{value / math.log(2):.4f}"',
        'positional = " ".join(f"{value:.4f}"',
        "the scores of tokens are in nats where fairseq has bits",
        ("tests/text/test_output_formats.py",),
    ),
    Fault(
        "seqgen/text/output_formats.py",
        "for token in item.tokens.tolist() if token != dictionary.eos()]",
        "for token in item.tokens.tolist()[:-1]]",
        "a hypothesis that was cut off loses its last token",
        ("tests/text/test_output_formats.py",),
    ),
    Fault(
        "seqgen/text/output_formats.py",
        "if item.member_scores is not None and members > 1:",
        "if item.member_scores is not None:",
        "a single model is written as an ensemble",
        (
            "tests/text/test_output_formats.py",
            "tests/cli/test_generate_options.py::test_json_tells_how_and_what_each_member_says",
        ),
    ),
    Fault(
        "seqgen/text/settings.py",
        "if KEYS_BY_ARGUMENT[name] not in settings}",
        "if name not in settings}",
        "an object of the constructor is used although the call names another component",
        ("tests/text/test_translator_members.py", "tests/text/test_rerank.py"),
    ),
    Fault(
        "seqgen/text/settings.py",
        'prefixes = ("combination.", "inner_combination.", "source.")',
        'prefixes = ("combination.",)',
        "a reranker scores with the default settings of the sources and combinations inside",
        ("tests/text/test_rerank.py",),
    ),
    Fault(
        "seqgen/text/settings.py",
        "{**self.debug, **call.debug}",
        "{**call.debug, **self.debug}",
        "debug keys of a call do not override those of the constructor",
        ("tests/text/test_translator_members.py",),
    ),
    Fault(
        "seqgen/text/text_decoding.py",
        "rows = [line.prefix + [pad] * (longest - len(line.prefix)) for line in lines]",
        "rows = [[pad] * (longest - len(line.prefix)) + line.prefix for line in lines]",
        "shorter prefixes are padded on the wrong side",
        ("tests/text/test_translator.py", "tests/data/test_languages.py::test_the_prefix_follows_the_language"),
    ),
    Fault(
        "seqgen/text/text_decoding.py",
        "in by_expected_utility(utilities)]",
        "in by_expected_utility(utilities[: self.cfg.nbest])]",
        "only the first n hypotheses of the search are ranked by their utility",
        ("tests/text/test_mbr.py",),
    ),
    Fault(
        "seqgen/text/results.py",
        "attention[:, : max(1, length - 1)].argmax(-1)",
        "attention.argmax(-1)",
        "words are aligned with end-of-sentence",
        ("tests/text/test_translator_unknown_words.py",),
    ),
    Fault(
        "seqgen/text/text_scoring.py",
        "found[block.start - block.first :]",
        "found[: block.stop - block.start]",
        "tokens of a text get the scores of the context before them",
        ("tests/models/test_language_models.py",),
    ),
    Fault(
        "seqgen/text/text_scoring.py",
        "ids = [numbers[i] for i in rows]",
        "ids = list(rows)",
        "a member with sources of its own reads those of other lines",
        ("tests/text/test_translator_members.py", "tests/text/test_rerank.py"),
    ),
    Fault(
        "seqgen/text/text_scoring.py",
        "room = longest[1] if rooms is None else int(rooms[index])",
        "room = longest[1] if rooms is None else int(rooms[0])",
        "each target is measured by the room of the first line",
        ("tests/models/test_language_models.py",),
    ),
    Fault(
        "seqgen/text/translator.py",
        'cfg.guidance_scale if "guidance_scale" in call.given else 1.0',
        "cfg.guidance_scale",
        "known targets are scored with the guidance of the model's own settings",
        ("tests/text/test_rerank.py",),
    ),
    Fault(
        "seqgen/text/vocabularies.py",
        '{"semantics": "fairseq", **given}',
        '{**given, "semantics": "fairseq"}',
        "the rules that the user gives are ignored by models with different vocabularies",
        ("tests/text/test_translator_agreement.py",),
    ),
]
