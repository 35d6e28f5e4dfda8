"""Texts that are hard for tokenizers, and ids that no text gives."""

import random

WORDS = ["a", "dog", "runs", ",", "and", "two", "people", "watch", ".", "it", "'s", "Hund", "läuft", "!", "<_>"]
WORDS += ["ab cd"]
TEXT = [" ".join(random.Random(i).choices(WORDS, k=8)) for i in range(300)]
SENTINELS = [f"<extra_id_{i}>" for i in range(100)]
HARD = [
    *("", " ", "    ", "a", " a", "a ", "  two   dogs  ", "tab\there\t", "\ta", "line\nbreak", "\n", "x\r\ny"),
    *("😀", "a 😀 b😀😀c", "e\u0301 cafe\u0301", "\u0301", "ＦＵＬＬ ｗｉｄｔｈ", "ﬁ ½ ① ㈱", "中文 汉字"),
    *("\x00", "a\x00b\x01\x7f", "\u200b a\u200bb \ufeff", "\u00a0nbsp\u00a0", "\u2028 \u2029 \x85", "\u3000a"),
    *("▁under ▁▁ x▁", "▁", "▁ a", "▁<extra_id_0>", "▁▁ <extra_id_0>", " \u3000 <extra_id_0>\u3000x"),
    *("<extra_id_0>", " <extra_id_0>", "<extra_id_0> ", "  <extra_id_0>  ", "a dog <extra_id_0>.", "dog<extra_id_0>."),
    *("a <extra_id_0> .", "<extra_id_0> a <extra_id_1> dog", "<extra_id_0><extra_id_1>", "a<extra_id_0>b<extra_id_1>c"),
    *("<extra_id_0> <extra_id_1>  <extra_id_2>", "a <extra_id_99> b <extra_id_100> c", "<extra_id_0", "<extra_id_01>"),
    *("<<extra_id_1>>", "x <extra_id_5>\n\t y", "<extra_id_3>, and <extra_id_4>.", ",<extra_id_3>,"),
    *("<unk>", "a<unk>b"),
    *("</s>", "a </s>", "a</s> b", "</s></s>", "a </s> </s>", "</s> <pad>", "<pad>", "a <pad> b<pad>c", "a <unk> b"),
    *("<s> b", "<unk> <extra_id_0> </s>", "it 's , no . n't !"),
]
LONG = ["dog " * 2000, "x" * 4000, "<extra_id_1> w " * 400]
ATOMS = ["a", "dog", " ", "  ", "\t", *(f"<extra_id_{number}>" for number in (0, 1, 99)), "</s>", "<pad>", "<unk>"]
ATOMS += ["▁", ".", ",", "😀", "é", "e\u0301", "\n", "<", "_", ">", "中", "\u3000", "'", "Hund", "<new>"]
ATOMS += ["ab cd", "two people"]
RANDOM = random.Random(1)
HARD += ["".join(RANDOM.choices(ATOMS, k=RANDOM.randint(1, 9))) for _ in range(100)]


def random_ids(size: int) -> list[list[int]]:
    """Ids as no text gives them: special ones in the middle, pieces that do not belong together."""
    generator = random.Random(size)
    some = [0, 1, 2, size - 1, size - 2]
    return [[generator.choice([*some, *generator.choices(range(size), k=4)]) for _ in range(7)] for _ in range(60)]
