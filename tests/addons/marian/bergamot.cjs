// Translates the lines of standard input by Bergamot: node bergamot.cjs PACKAGE MODEL SHORTLIST VOCABULARY PRECISION
const { readFileSync } = require("node:fs");
const [worker, model, shortlist, vocabulary, precision] = process.argv.slice(2);
const multiply = "int8_multiply_and_add_bias int8_prepare_a int8_prepare_b int8_prepare_b_from_quantized_transposed"
  + " int8_prepare_b_from_transposed int8_prepare_bias int8_select_columns_of_b";
const fallback = (name) => name.replace(/_./g, (part) => part[1].toUpperCase()) + "Fallback";

function memory(file, alignment) {
  const content = readFileSync(file);
  const made = new Module.AlignedMemory(content.length, alignment);
  made.getByteArrayView().set(content);
  return made;
}

function translate() {
  const vocabularies = new Module.AlignedMemoryList();
  vocabularies.push_back(memory(vocabulary, 64));
  const settings = "beam-size: 1\nnormalize: 1.0\nword-penalty: 0\ncpu-threads: 0\nskip-cost: true\nalignment: soft\n"
    + "quiet: true\nquiet-translation: true\nmax-length-break: 128\nmini-batch-words: 1024\nworkspace: 128\n"
    + `max-length-factor: 2.0\ngemm-precision: ${precision}\n`;
  const loaded = new Module.TranslationModel(settings, memory(model, 256), memory(shortlist, 64), vocabularies, null);
  const service = new Module.BlockingService({ cacheSize: 0 });
  const [lines, options] = [new Module.VectorString(), new Module.VectorResponseOptions()];
  for (const line of readFileSync(0, "utf8").trimEnd().split("\n")) {
    lines.push_back(line);
    options.push_back({ alignment: false, html: false, qualityScores: false });
  }
  const made = service.translate(loaded, lines, options);
  for (let i = 0; i < made.size(); i++) console.log(made.get(i).getTranslatedText());
}

globalThis.Module = {
  instantiateWasm(info, accept) {
    const linked = multiply.split(" ").map((name) => [name, (...given) => Module.asm[fallback(name)](...given)]);
    const imports = { ...info, wasm_gemm: Object.fromEntries(linked) };
    WebAssembly.instantiate(readFileSync(`${worker}.wasm`), imports).then((made) => accept(made.instance));
    return {};
  },
  onRuntimeInitialized: translate,
};
(0, eval)(readFileSync(`${worker}.js`, "utf8"));
