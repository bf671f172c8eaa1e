"""Makes cases.jsonl beside it: small tokenizers of every kind, and what Hugging Face's `tokenizers` (0.23.3) does with
awkward texts. One line a tokenizer: {"name", "tokenizer", "cases": [{"text", "special", "ids", "spans", "decoded",
"skipped"}]}; spans are bytes [begin, end), null for tokens that the post-processor adds."""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = pathlib.Path(__file__).parent
corpus = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't care about the fox at all.",
    "In the beginning there was nothing but 12345 words; then there were 67890 of them!",
    "We'll see whether they've got the other ones. I'm sure you're there, aren't you?",
    "从前有一只敏捷的狐狸，它跳过了懒狗。天气很好，我们去公园玩。天气不好，我们在家。",
    "Où est la bibliothèque? L'été dernier, nous étions à la plage près de l'hôtel.",
] * 3
texts = [
    "", " ", "  ", "a", " the", "the dog", "The quick  brown   fox\n\njumps\t over\r\n the  lazy dog. ",
    "  leading and trailing  ", "don't they're we'LL I'M 'Ll 'S", "1 12 123 1234 12345 1234567890 ¹²³ ½ Ⅳ ٣",
    "天气很好，我们去公园玩。hello世界", "été e\u0301te\u0301 \u1e9b\u0323 ﬁ Å \u212b 각 \u1100\u1161\u11a8 か\u3099",
    "😀 👩\u200d👩\u200d👧 🇩🇪 ❤\ufe0f", "a\u00a0b\u2003c\u3000d\u2028e\u0085f\u180eg\u200bh\ufeffi", "<s>the</s> <mask>x", "dog <mask> fox\u3000<mask>\n</s> \n x", "  <mask>  dog<mask>",
    "a<0x0A>b ▁c ▁▁ Ġd", "\x00\x01\x1f\x7f", "word words sword word", "x\u0323\u0301\u0307y\u0301\u0323", "İSTANBUL ΣΑΣ ß ẞ K ſ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "thethethethethethethethethethetheth" * 8, "!!! ... ,,, ?!? -- ((x)) [y] {z} \"q\" 'r' `s` ~t~ @u #v $w %x ^y &z *a +b =c |d \\e /f",
    "The dog. " * 40 + "从前有一只狐狸。" * 20,
]
special = ["<unk>", "<s>", "</s>", "<mask>"]


def trained(model, trainer, pre=None, norm=None, decoder=None, post=None):
    t = Tokenizer(model)
    if pre: t.pre_tokenizer = pre
    if norm: t.normalizer = norm
    t.train_from_iterator(corpus, trainer)
    if decoder: t.decoder = decoder
    if post: t.post_processor = post
    return t


def bpe(size=260, pre=None, norm=None, decoder=None, post=None, **options):
    affix = {k: options[k] for k in ("continuing_subword_prefix", "end_of_word_suffix") if k in options}
    return trained(models.BPE(unk_token="<unk>", **options), trainers.BpeTrainer(vocab_size=size, special_tokens=special, **affix),
                   pre, norm, decoder, post)


def fallback(t, model):
    d = json.loads(t.to_str())
    d["model"]["byte_fallback"] = True
    for b in range(256):
        if model == "BPE": d["model"]["vocab"]["<0x%02X>" % b] = len(d["model"]["vocab"])
        else: d["model"]["vocab"].append(["<0x%02X>" % b, -20.0])
    return Tokenizer.from_str(json.dumps(d))


def byte_level(pre, norm=None, post=None, **options):
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return trained(models.BPE(**options), trainer, pre, norm, decoders.ByteLevel(), post)


def unigram(pre=None, norm=None, decoder=None, post=None):
    trainer = trainers.UnigramTrainer(vocab_size=260, special_tokens=special, unk_token="<unk>")
    return trained(models.Unigram(), trainer, pre, norm, decoder, post)


N, P, D, X = normalizers, pre_tokenizers, decoders, processors
llama = dict(norm=N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]),
             decoder=D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]),
             post=X.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]))
cl100k = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
o200k = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
odd = r"\p{Han}{1,2}+|\w+\b|\h\H|^\s|\u5929|\x{6c14}|[^\s]\S|\s$|\W"


def regex(pattern, **options):
    return P.Sequence([P.Split(Regex(pattern), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)])


made = {
    "llama": fallback(bpe(fuse_unk=True, **llama), "BPE"),
    "gemma": fallback(bpe(norm=N.Replace(" ", "▁"), pre=P.Split(" ", "merged_with_previous"), fuse_unk=True,
                          decoder=D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse()])), "BPE"),
    "mistral": bpe(pre=P.Metaspace(prepend_scheme="first", split=False), decoder=D.Metaspace(prepend_scheme="first")),
    "gpt2": byte_level(P.ByteLevel(add_prefix_space=False), post=X.ByteLevel(trim_offsets=False)),
    "gpt2-prefix": byte_level(P.ByteLevel(add_prefix_space=True), post=X.ByteLevel(trim_offsets=True)),
    "cl100k": byte_level(regex(cl100k), N.NFC(), ignore_merges=True,
                         post=X.Sequence([X.ByteLevel(trim_offsets=True), X.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])])),
    "o200k": byte_level(regex(o200k), N.NFKC()),
    "odd-regex": byte_level(regex(odd)),
    "deepseek": byte_level(P.Sequence([P.Split(Regex(r"\p{N}{1,3}"), "isolated"), P.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                                       P.Split(Regex(r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
                                       P.ByteLevel(add_prefix_space=False, use_regex=False)])),
    "falcon": byte_level(P.Sequence([P.Punctuation("contiguous"), P.ByteLevel(add_prefix_space=False), P.Digits(), P.Split(Regex("[0-9][0-9][0-9]"), "isolated")])),
    "normalizer-bytes": bpe(norm=N.Sequence([N.NFD(), N.ByteLevel()]), decoder=D.ByteLevel()),
    "bert": bpe(pre=P.BertPreTokenizer(), norm=N.BertNormalizer(), continuing_subword_prefix="##", decoder=D.WordPiece("##", True)),
    "clip": bpe(pre=P.Whitespace(), norm=N.Lowercase(), end_of_word_suffix="</w>", decoder=D.BPEDecoder("</w>")),
    "splits-removed": bpe(pre=P.Sequence([P.Split(Regex(r"[,.!?]+"), "removed"), P.Split(" ", "merged_with_next"), P.Digits(True)])),
    "splits-inverted": bpe(pre=P.Sequence([P.Split(Regex(r"\w+"), "merged_with_previous", True), P.Split(Regex("[aeiou]"), "contiguous")]), fuse_unk=True),
    "delimiter": bpe(pre=P.Sequence([P.WhitespaceSplit(), P.CharDelimiterSplit("e"), P.FixedLength(3), P.Punctuation("removed")])),
    "unigram": unigram(P.Metaspace(), N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")]), D.Metaspace(),
                       X.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])),
    "unigram-fallback": fallback(unigram(norm=N.Sequence([N.Strip(right=False), N.Prepend("▁"), N.Replace(" ", "▁")]), decoder=llama["decoder"]), "Unigram"),
    "unigram-accents": unigram(P.Sequence([P.WhitespaceSplit(), P.Metaspace(prepend_scheme="first")]), N.Sequence([N.NFKD(), N.StripAccents(), N.Lowercase()])),
    "wordpiece": trained(models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer(vocab_size=200, special_tokens=special), P.BertPreTokenizer(),
                         N.BertNormalizer(), D.WordPiece(), X.BertProcessing(("</s>", 2), ("<s>", 1))),
    "wordlevel": trained(models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(special_tokens=special), P.Whitespace()),
}
roberta = byte_level(P.ByteLevel(add_prefix_space=True), post=X.RobertaProcessing(("</s>", 2), ("<s>", 1)))
roberta.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("</s>", rstrip=True, normalized=False)])
roberta.add_tokens([AddedToken("word", single_word=True), AddedToken("\n", normalized=False), AddedToken("  ", normalized=False)])
made["roberta"] = roberta
lower = bpe(pre=P.Metaspace(), norm=N.Lowercase())
lower.add_tokens([AddedToken("quick", normalized=True), AddedToken("FOX", normalized=False)])
made["added"] = lower

with open(here / "cases.jsonl", "w", encoding="utf-8") as out:
    for name, t in made.items():
        t = Tokenizer.from_str(t.to_str())
        cases = []
        for i, text in enumerate(texts):
            e = t.encode(text, add_special_tokens=i % 3 != 0)
            at = [len(text[:k].encode()) for k in range(len(text) + 1)]
            spans = [None if mask else [at[a], at[b]] for (a, b), mask in zip(e.offsets, e.special_tokens_mask)]
            cases.append({"text": text, "special": i % 3 != 0, "ids": e.ids, "spans": spans,
                          "decoded": t.decode(e.ids, skip_special_tokens=False), "skipped": t.decode(e.ids, skip_special_tokens=True)})
        definition = json.loads(t.to_str())
        out.write(json.dumps({"name": name, "tokenizer": definition, "cases": cases}, ensure_ascii=False, separators=(",", ":")) + "\n")
