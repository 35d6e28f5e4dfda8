"""The prompts of language models: templates, examples, and chat templates, whose ids are those of transformers."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import jinja2
import pytest
import torch

from seqgen.addons.prompts.stage import PromptStage
from seqgen.data.tokenizers.pretrained import load_pretrained_tokenizer, save_pretrained_tokenizer
from seqgen.extend import DataError, GenerationConfig, InputLine, ModelInMemory, PromptDecodingTask
from seqgen.text.translator import Translator
from tests.addons.huggingface.test_llama import TEXTS, TOKENIZERS, llama_folder
from tests.language_models import language_model
from tests.refusals import Row, refusals
from tests.text_models import text_model

transformers = pytest.importorskip("transformers")

_TURN = "{{ '<|im_start|>' + message.role + '\\n' + message['content'] + '<|im_end|>\\n' }}"
_END = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n"
_LLAMA = """{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system') }}{% endif %}
{% for message in messages %}{% set content = '<|' + message['role'] + '|>
' + message['content'] | trim %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
{{ content }}{% endfor %}"""
_QWEN = """{%- if messages[0]['role'] != 'system' %}\n    {{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}
{%- endif %}\n{%- for message in messages %}\n   """
_SMOLLM = """{% set ns = namespace(n=0) %}{%- for message in messages -%}\n{% generation %}{% set ns.n = ns.n + 1 %}
{% endgeneration %}\n  {% if ns.n > 9 %}{% break %}{% endif %}{%- endfor %}{{ strftime_now('%d %b %Y') }}
    {{ messages | tojson(indent=1) }}{{ eos_token }}{% if tools is none and documents is none %}<s></s>{% endif %}"""
# by where they are
TEMPLATES = {"file": _LLAMA + _END, "config": _QWEN + _TURN + "\n{%- endfor %}\n" + _END, "named": _SMOLLM + _END}


@pytest.fixture(autouse=True)
def _sandboxes_end_with_their_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    started: list[Popen] = []
    begin = "seqgen.addons.prompts.stage.Popen"
    monkeypatch.setattr(begin, lambda *args, **keys: started.append(Popen(*args, **keys)) or started[-1])
    yield
    for sandbox in started:
        sandbox.communicate()


def stage_of(folder: Path, **keys: Any) -> PromptStage:
    """The stage of a model with the tokenizer of a folder."""
    task = PromptDecodingTask.of(load_pretrained_tokenizer(folder), False)
    return PromptStage(GenerationConfig(**keys), [ModelInMemory(task, language_model().model)])


def ids_of(stage: PromptStage, text: str) -> Any:
    return stage.read(InputLine(0, text)).sources[0].tolist()


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_chats_have_the_ids_of_transformers(kind: str, step: int, tmp_path: Path) -> None:
    """Also for texts with special tokens, which both read as such, and with code of templates, which is not run."""
    for name, template in TEMPLATES.items():
        original, folder, again = TOKENIZERS[kind](), tmp_path / name, tmp_path / f"{name} again"
        original.chat_template = {"default": template, "tool_use": "x"} if name == "named" else template
        original.save_pretrained(folder, save_jinja_files=name == "file")
        save_pretrained_tokenizer(load_pretrained_tokenizer(folder), again)
        original = transformers.AutoTokenizer.from_pretrained(again)
        for system in ([], [{"role": "system", "content": "Be ü <s> {{ x }}"}]):
            stage = stage_of(again, chat=True, system_message="".join(each["content"] for each in system))
            for text in [*TEXTS[::step], "{{ bos_token }}{% for", "<|im_end|>system<s>"]:
                messages = [*system, {"role": "user", "content": text}]
                try:
                    expected = original.apply_chat_template(messages, add_generation_prompt=True)
                except jinja2.TemplateError as error:
                    with pytest.raises(DataError, match=str(error)):
                        ids_of(stage, text)
                else:
                    assert ids_of(stage, text) == expected, (name, text)


def test_answers_to_chats_are_those_of_transformers(tmp_path: Path) -> None:
    """Lines are decoded together; the draft model reads the same prompt; a sandbox that ended is replaced."""
    folder, lines = llama_folder(tmp_path / "model", "llama 3", max_position_embeddings=300), ["the dog", "a man sees"]
    (folder / "chat_template.jinja").write_text(TEMPLATES["file"])
    original, expected = transformers.AutoModelForCausalLM.from_pretrained(folder), []
    stage = stage_of(folder, chat=True, prompt="Say \n {source}!")
    for line in lines:
        ids = torch.tensor([ids_of(stage, line)])
        expected.append(original.generate(ids, max_new_tokens=8)[0, ids.size(1) :].tolist())
        stage.sandbox.communicate()
        stage = pickle.loads(pickle.dumps(stage))
    for draft in ("", str(folder)):
        found = Translator(folder, max_len=8, chat=True, prompt=r"Say \n {source}!", draft=draft).translate(lines)
        assert [each.hypotheses[0].tokens.tolist() for each in found] == expected


def test_templates_and_examples(tmp_path: Path) -> None:
    examples, one = tmp_path / "examples.tsv", language_model(max_target_positions=60)
    examples.write_text("w1 w2\tw3\nw4\tw5\n")
    keys = {"prompt": r"w0 {source} {target_lang}\nw6:", "target_lang": "field2", "examples": str(examples)}
    (found,) = Translator(one, **keys).translate(["w9\tw8"], max_len_b=4)
    text = "w0 w1 w2 w8\nw6: w3\n\nw0 w4 w8\nw6: w5\n\nw0 w9 w8\nw6:"
    assert found.source_tokens.tolist() == one.task.encode_source(text).tolist()
    assert (found.text, found.source) == (Translator(one).translate([text], max_len_b=4)[0].text, "w9")


def test_in_an_ensemble_language_models_read_prompts() -> None:
    both = [text_model(), language_model()]
    encoder = Translator(both, prompt="w1 {source}").prepare().input_encoder
    read = encoder.encode(encoder.read(0, "w2")).sources
    expected = [model.task.encode_source(text) for model, text in zip(both, ("w2", "w1 w2"), strict=True)]
    assert [ids.tolist() for ids in read] == [ids.tolist() for ids in expected]


def settings(words: str, **keys: Any) -> Row:
    return lambda: Translator([language_model()] * 2).translate(["w1"], **keys), words


def template(content: Any, *words: str, system: str = "") -> Row:
    def read(tmp_path: Path) -> None:
        original = TOKENIZERS["llama 3"]()
        original.chat_template = content
        original.save_pretrained(tmp_path, save_jinja_files=False)
        ids_of(stage_of(tmp_path, chat=True, system_message=system), "a dog")

    return read, "line 1: the chat template of", *words


def examples(text: str, number: int) -> Row:
    def read(tmp_path: Path) -> None:
        (tmp_path / "examples.tsv").write_text(text)
        Translator(language_model(), prompt="{source}", examples=str(tmp_path / "examples.tsv")).translate(["a"])

    return read, f"line {number} is not SOURCE<tab>TARGET"


test_refusals = refusals(
    settings("the field 'sorce' (did you mean 'source'?)", prompt="{sorce}"),
    settings("has no {source} for the line; add it", prompt="Translate this:"),
    settings("names the field 'source.__class__'", prompt="{source.__class__}"),
    settings("the field 'target_lang', but the fields are: source", prompt="{source} {target_lang}"),
    settings("generation.target_lang=de chooses a language", prompt="{source}", target_lang="de"),
    settings("needs generation.prompt or generation.chat=true", examples="nothere"),
    settings("set generation.chat=true, or remove it", prompt="{source}", system_message="x"),
    settings("both say what models read", prompt="{source}", member_sources=["input", "empty"]),
    settings("needs a model with a chat template", chat=True),
    *(examples(text, number) for text, number in (("a\tb\na b\n", 2), ("", 1), ("a\t\n", 1))),
    template(None, "there is none"),
    template({"other": "x"}, "none of other is named default"),
    template("{{ messages[-1].content }}", "it leaves the system message out; remove generation.", system="Be brief"),
    template("{% for", "TemplateSyntaxError: unexpected 'end of template'"),
    template("{{ raise_exception('a\nb') }}", "TemplateError: a b"),
    template("{{ messages.__class__.__mro__ }}", "SecurityError: access to attribute '__class__'"),
    template("{{ 'a' * 10**11 }}", "MemoryError"),
    template("{{ 'a' * 3000000 }}", "its text is empty or too long"),
)


@pytest.mark.slow
def test_a_template_has_little_time(tmp_path: Path) -> None:
    loop = "{% for i in range(99999) %}"
    with pytest.raises(DataError, match="it needs more than 10 s"):
        template(loop + loop + "{% endfor %}{% endfor %}")[0](tmp_path)


def test_the_prompt_of_an_empty_line_is_answered() -> None:
    model = language_model()
    found, expected = (
        Translator(model, prompt="w1 {source}w2").translate(["", "w3"]),
        Translator(model).translate(["w1 w2"]),
    )
    assert found[0].text == expected[0].text != ""
