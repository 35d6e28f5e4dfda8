"""Cross-vocabulary ensembles: members with different target vocabularies generate one text; docs/ensembles.md

``ensemble.py`` has the settings, ``rule.py`` what a rule is, ``session.py`` the search of the rule ``agreement`` (Wicks
et al. 2025), ``member.py`` a member whose rows have different lengths, ``vocabulary_trie.py`` the texts of all tokens.
"""

from typing import TYPE_CHECKING

from seqgen.extend import lazy_names

if TYPE_CHECKING:
    from seqgen.addons.cross_vocabulary.ensemble import CrossVocabulary
    from seqgen.addons.cross_vocabulary.member import AgreementMember
    from seqgen.addons.cross_vocabulary.rule import TextRule
    from seqgen.addons.cross_vocabulary.vocabulary_trie import END, MemberTexts

__all__ = ["END", "AgreementMember", "CrossVocabulary", "MemberTexts", "TextRule"]

__getattr__, __dir__ = lazy_names(__name__)
