"""The language codes of multilingual models, in the order of their ids, and the languages of a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib import resources
from typing import NamedTuple, Self

from seqgen.core.errors import ConfigError, nearest


def _codes(text: str) -> list[str]:
    return text.split()


MBART = _codes("""
ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX
ro_RO ru_RU si_LK tr_TR vi_VN zh_CN
""")

MBART50 = [
    *MBART,
    *_codes("""
af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN
te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
"""),
]

M2M100 = _codes("""
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig
ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl
so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
""")

WMT21 = _codes("en ha is ja cs ru zh de")

NLLB = _codes("""
ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab arb_Arab ars_Arab ary_Arab
arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn ben_Beng
bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn
cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn ewe_Latn fao_Latn
pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn
hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn
jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn kea_Latn
khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn lao_Laoo lvs_Latn lij_Latn lim_Latn lin_Latn
lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn
mkd_Cyrl plt_Latn mlt_Latn mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva
nso_Latn nus_Latn nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn por_Latn prs_Arab pbt_Arab
quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn
sna_Latn snd_Arab som_Latn sot_Latn spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn
tam_Taml tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn tso_Latn tuk_Latn
tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn
xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans zho_Hant zul_Latn
""")


def _language(code: str) -> str:
    """The language of a code, without script and country: ``deu`` for ``deu_Latn``."""
    return re.split("[-_]", code.lower())[0]


class AddedTokens(NamedTuple):
    """The tokens that are added to the ids of a text.

    Attributes:
        before: ids before the text.
        after: ids after the text, usually end-of-sentence.
    """

    before: Sequence[int]
    after: Sequence[int]

    def around(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text with the added tokens.

        Args:
            ids: the ids of the text.
        """
        return [*self.before, *ids, *self.after]


class TargetLanguage(Enum):
    """The place of the token of the output's language."""

    FIRST = "first"
    """The language's token is the first token of the output (M2M-100, NLLB, mBART-50)."""
    START = "start"
    """It is the start token of the decoder (mBART)."""
    SOURCE = "source"
    """It is the first token of the source (Marian)."""


@dataclass(frozen=True)
class Languages:
    """The languages of a multilingual tokenizer.

    Attributes:
        ids: the id of each language's token, by the language's code.
        target: how the language of the output is chosen.
        source_lang: code of the source language if the user names none; empty if sources have no token of their
            language.
        follows_eos: whether the token of the source language follows end-of-sentence, or is the first one.
        target_lang: code of the target language of references if the user names none; empty for none.
        token_format: the token of a language, such as ``__{}__``.
        in_text: whether a line of text can begin with the token of its target language.
    """

    ids: Mapping[str, int]
    target: TargetLanguage
    source_lang: str = ""
    follows_eos: bool = False
    target_lang: str = ""
    token_format: str = "{}"
    in_text: bool = False

    def code(self, name: str, key: str) -> str:
        """Check the name of a language.

        Args:
            name: a code such as ``de``, or the token of the language, such as ``__de__``.
            key: where the name comes from, for messages.

        Returns:
            The code.

        Raises:
            ConfigError: there is no such language.
        """
        before, after = self.token_format.split("{}")
        code = name.removeprefix(before).removesuffix(after)
        if not self.ids:
            raise ConfigError(f"{key}: the tokenizer has no token for {name!r}, nor for any other language")
        if code not in self.ids:
            raise ConfigError(
                f"{key}: the model has no language {name!r}{self._nearest(code)}; seqgen-show path=MODEL "
                f"languages=true lists its {len(self.ids)} languages"
            )
        return code

    def _nearest(self, code: str) -> str:
        """A phrase with the codes of the language with this English name or ISO code, or else with a similar code."""
        rows = map(str.split, resources.files(__package__).joinpath("languages.txt").read_text("utf-8").splitlines())
        wanted = _language(code)
        same = {wanted}.union(*(row for row in rows if wanted in row))
        found = [known for known in self.ids if _language(known) in same]
        return nearest(code, self.ids) if not found else f" (did you mean {' or '.join(map(repr, found[:3]))}?)"

    def source_tokens(self, eos: int, source_lang: str, target_lang: str) -> AddedTokens:
        """The tokens of a source besides its text: end-of-sentence, and the token of a language.

        Args:
            eos: id of end-of-sentence.
            source_lang: code of the source language; empty for the default.
            target_lang: code of the target language; empty for none.
        """
        if self.target is TargetLanguage.SOURCE:
            return AddedTokens([self.ids[target_lang]] if target_lang else [], [eos])
        language = [self.ids[source_lang or self.source_lang]] if self.source_lang else []
        return AddedTokens([], [eos, *language]) if self.follows_eos else AddedTokens(language, [eos])

    def beginning(self, target_lang: str) -> list[int]:
        """The token of the target language, if outputs begin with it.

        Args:
            target_lang: code of the target language; empty for none.
        """
        return [self.ids[target_lang]] if target_lang and self.target is TargetLanguage.FIRST else []

    def checked(self, location: str) -> Self:
        """The same languages, after a check that the default languages exist.

        Args:
            location: the tokenizer's file, for messages.

        Raises:
            ConfigError: one does not exist.
        """
        source, target = self.source_lang, self.target_lang
        return replace(
            self,
            source_lang=self.code(source, f"{location}: src_lang") if source else "",
            target_lang=self.code(target, f"{location}: tgt_lang") if target else "",
        )
