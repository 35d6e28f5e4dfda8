"""Faults in ``seqgen/lab``."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "seqgen/lab/compare/comparison.py",
        "key=lambda change: -abs(change.difference)",
        "key=lambda change: -change.difference",
        "only improvements are among the sentences that changed most",
        ("tests/lab/test_comparison.py",),
    ),
    Fault(
        "seqgen/lab/compare/comparison.py",
        '!= (metric in self.lower_is_better) else "worse"',
        'else "worse"',
        "a lower error rate is worse",
        ("tests/lab/test_comparison.py",),
    ),
    Fault(
        "seqgen/lab/compare/significance.py",
        "            os.environ[SEED] = before\n",
        "            pass\n",
        "the tests remove the seed of the environment",
        ("tests/lab/test_comparison.py",),
    ),
    Fault(
        "seqgen/lab/compare/run.py",
        "choose = min if lower_is_better(run.metric) else max",
        "choose = min",
        "the best checkpoint by BLEU is the worst one",
        ("tests/lab/test_runs.py",),
    ),
    Fault(
        "seqgen/lab/compare/run.py",
        "(max(times) - min(times)).total_seconds()",
        "(max(times) - min(times)).seconds",
        "a training of several days took only hours",
        ("tests/lab/test_runs.py",),
    ),
    Fault(
        "seqgen/lab/compare/provenance.py",
        "found = {**origins, **kept}",
        "found = {**kept, **origins}",
        "a value that was not changed loses its origin when the run is continued",
        ("tests/lab/test_runs.py",),
    ),
    Fault(
        "seqgen/lab/compare/provenance.py",
        'if entry.get("value") == value else EDITED',
        'if entry.get("value") == value else RECORDED',
        "a value that was edited seems recorded",
        ("tests/lab/test_runs.py",),
    ),
    Fault(
        "seqgen/config/compose.py",
        "for index in range(int(steps) + 1))",
        "for index in range(int(steps)))",
        "a range lacks its last value",
        ("tests/lab/test_tune.py",),
    ),
    Fault(
        "seqgen/lab/tuning.py",
        "if (found := score(tuple(changed.values()))) > highest:",
        "if (found := score(tuple(changed.values()))) >= highest:",
        "of equal settings the last one is the best",
        ("tests/lab/test_tune.py",),
    ),
    Fault(
        "seqgen/lab/traces/difference.py",
        "size <= tolerance and one.may_hold(other, at, tolerance) and",
        "size <= tolerance and",
        "a candidate that one decode cannot have is a tie",
        ("tests/cli/test_diff.py",),
    ),
    Fault(
        "seqgen/lab/traces/line_trace.py",
        "ranks[pair].pop(0) if ranks.get(pair)",
        "ranks[pair][0] if ranks.get(pair)",
        "two groups of beams with the same token continue one candidate",
        ("tests/lab/test_trace.py",),
    ),
    Fault(
        "seqgen/lab/traces/step.py",
        "return found[::-1]",
        "return found",
        "the tokens of a path are in reverse order",
        ("tests/lab/test_trace.py",),
    ),
    Fault(
        "seqgen/lab/traces/page.py",
        "else step.scores[worst] - score\n            return",
        "else score - step.scores[worst]\n            return",
        "how far the reference was below the beam has the wrong sign",
        ("tests/lab/test_trace.py",),
    ),
    Fault(
        "seqgen/lab/traces/line_trace.py",
        "sentence - self.first < self.limit",
        "sentence < self.limit",
        "lines of a decode that begins later are not traced",
        ("tests/lab/test_trace.py",),
    ),
    Fault(
        "seqgen/lab/traces/writer.py",
        "self.options.max_megabytes * 1e6",
        "self.options.max_megabytes * 1e3",
        "the limit of a trace is in kilobytes",
        ("tests/lab/test_trace.py",),
    ),
]
