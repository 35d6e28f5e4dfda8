"""All readers that are fuzzed, by name."""

from __future__ import annotations

from tests.fuzzing import folder_readers, generation, pickle_readers, run_readers, text_readers, tokenizer_readers
from tests.fuzzing.reader import Reader

MODULES = (text_readers, tokenizer_readers, folder_readers, pickle_readers, run_readers, generation)
READERS: dict[str, type[Reader]] = {kind.name: kind for module in MODULES for kind in module.READERS}
