"""Texts in many scripts and shapes, all written for these tests."""

ENGLISH = """The miller's daughter didn't trust the new wheel. It had been carted up from the coast in three pieces, and \
whoever packed it hadn't thought about the rain. "We'll grease it," her father said, "and then we'll see." They'd \
greased it twice already; by noon the axle sang like a kettle. She walked down to the weir, counted the planks (there \
were forty-one, as there'd been the day before), and wondered why a river should care what anybody wanted.

In the evening the wind turned. Sacks that had stood dry for a week were wet at the seams, and the cat, who'd slept \
through two floods, moved to the loft. I've seen worse, said the old man. You've seen everything, she answered, \
and nobody's the wiser for it; he laughed, 'cause it was true.
"""

CHINESE = """清晨的集市还没有开张，卖豆腐的老人已经把木桶摆好了。他说，今年的雨水多，豆子发得慢，所以价钱要涨一点。\
旁边修鞋的师傅听了只是笑，低头继续敲他的钉子。“你去年也这么说！”他终于开口。两个人认识了三十年，吵了三十年，\
谁也没有搬走。孩子们从桥上跑过去，书包一颠一颠的；有一个停下来，问这条街为什么叫“静街”，明明从来没有安静过。\
老人想了想，答道：也许从前是安静的，也许取名字的人耳朵不好。

到了中午，太阳把石板晒得发白，狗都躲到屋檐下面去了。
"""

CHINESE_WITHOUT_PUNCTUATION = (
    "河边的旧磨坊已经很多年没有人住了门口的石阶长满青苔屋顶的瓦片也掉了一半村里的人说夜里能听见水车转动的声音"
    "可是水车早就烂在泥里了有一年春天来了两个画画的年轻人他们在院子里搭起帐篷每天从早画到晚谁也不知道他们画的是什么"
    "后来他们走了留下一面墙墙上画着满满的麦田风吹过的时候看的人都觉得麦子在动孩子们喜欢到那里去躺在草地上数云彩"
    "数着数着就睡着了醒来的时候天已经快黑了远处传来母亲叫吃饭的声音于是大家拍拍身上的土沿着田埂慢慢走回家"
)

JAPANESE = """駅前の古い喫茶店は、いつも少しだけ時計が遅れている。店主に聞くと「急いでいる人は来ないから」と言って笑った。\
窓際の席にはノートパソコンを開いた学生がいて、三時間前からカーソルが動いていない。コーヒーは冷めて、砂糖だけが減っていく。\
雨が降り出すと、ガラスの向こうの傘が一斉にひらいて、まるで花畑のようだった。ラジオからは知らない国の歌が流れている。\
「これ、どこの言葉ですか」「さあ、どこでしょうね」。だれも答えを知らないまま、カップが静かに下げられた。
"""

KOREAN = """할머니는 아침마다 마당에 나가 장독 뚜껑을 하나씩 열어 보셨다. 햇볕이 좋은 날에는 된장 냄새가 골목 끝까지 퍼졌고, \
지나가던 사람들이 걸음을 멈추곤 했다. "올해는 맛이 제대로 들었네." 할머니의 말씀은 언제나 짧았다. 나는 마루에 앉아 \
숙제를 하는 척하면서 고양이가 담을 넘는 모습을 지켜보았다. 비가 오면 뚜껑을 닫으라는 전화가 시장에서부터 걸려 왔다.
띄어쓰기없이길게이어진문장도가끔은필요하다왜냐하면자르는자리를찾기가어렵기때문이다
"""

THAI = (
    "ตลาดน้ำเล็กๆแห่งนี้เปิดเฉพาะวันเสาร์ พ่อค้าแม่ค้าพายเรือมาตั้งแต่ฟ้ายังไม่สว่าง บางคนขายขนมครกร้อนๆ บางคนขายดอกไม้ที่เพิ่งตัดจากสวน "
    "เด็กชายคนหนึ่งนั่งอยู่หัวเรือคอยนับเหรียญให้ยายแล้วก็หลับไปทั้งที่ยังนับไม่เสร็จลูกค้าก็หัวเราะแล้ววางเงินไว้ข้างๆโดยไม่ปลุกเขา "
    "พอสายหน่อยแดดก็แรงขึ้นทุกคนค่อยๆพายเรือกลับบ้านเหลือแต่กลิ่นกาแฟกับเสียงน้ำกระทบเสาไม้"
)

HINDI = """पहाड़ी के नीचे एक छोटा सा डाकघर है जहाँ अब कोई चिट्ठी नहीं आती। फिर भी डाकिया रोज़ सुबह साइकिल साफ़ करता है और टोपी पहनकर \
दरवाज़े पर बैठ जाता है। बच्चे पूछते हैं, "काका, आज किसकी चिट्ठी है?" वह मुस्कुराकर कहता है कि रास्ते में होगी, बरसात में देर हो ही जाती है। \
एक दिन सचमुच एक लिफ़ाफ़ा आया, जिस पर पता धुल चुका था। पूरे गाँव ने मिलकर अंदाज़ा लगाया कि वह किसके लिए हो सकता है।
"""

ARABIC = """كان صاحب الدكان يعرف زبائنه من صوت خطواتهم قبل أن يدخلوا. هذا يشتري الشاي، وذاك يسأل عن السعر ثم ينصرف، \
وتلك العجوز تشتري نصف ما تحتاج إليه حتى تعود غدًا. قال لي مرة: «التجارة صبر، والصبر تجارة». لم أفهم ما يقصده يومها، \
لكنني حفظت الجملة كما هي. وفي الشتاء، حين تنقطع الكهرباء، كان يشعل مصباحًا قديمًا ويواصل الحساب على الورق ١٢٣٤٥٦.
"""

RUSSIAN = """На краю посёлка стояла метеостанция, где жил человек по фамилии Ветров. Каждые три часа он выходил записывать \
температуру, и каждый раз собака провожала его до будки и обратно. «Минус двадцать семь», — говорил он в трубку, а на \
том конце кто-то отвечал: «Приняли». Зимой больше ничего не происходило. ВЕСНОЙ приезжал вездеход, привозил письма, \
крупу и новые карандаши; Ветров угощал водителя чаем, и они молча смотрели, как тает лёд.
"""

GERMAN = """Der Wärter des Brückenmuseums führte seit Jahren ein Verzeichnis der Besucher, die nach dem Weg zum Bahnhof \
fragten. »Siebzehn heute«, sagte er abends zu seiner Frau, »und keiner wollte die Zugbrückenkettenschmieröl­sammlung \
sehen.« Größere Gruppen kamen nur bei Regen. Übrigens hätte man das Dach längst ausbessern müssen, doch die Straße davor \
gehörte der Stadt, das Gerüst dem Land und die Leiter niemandem. So blieb's beim Eimer.
"""

PYTHON = '''\
class Sieve:
    """Counts grains; not thread-safe, on purpose."""

    MESH = {"fine": 0.25, "coarse": 2.0}

    def __init__(self, mesh="fine", *, limit=10_000):
        self.mesh = self.MESH[mesh]
        self._left, self._seen = limit, 0

    def push(self, grains):
        for i, g in enumerate(grains):
            if g >= self.mesh and not self._left <= 0:
                self._left -= 1
                yield i, g**2 // 3
\t\t# a comment behind tabs
        return self._seen != 0 or {"k": [1, 2, 3]}["k"][::-1]


if __name__ == "__main__":
    print(f"{sum(g for _, g in Sieve().push([0.1, 0.5, 3])):.3f}\\n", end="")
'''

C = """\
#include <stdint.h>
/* turns a crank; returns the number of teeth that passed */
static inline uint32_t crank_turn(struct crank *c, const int32_t *steps, size_t n)
{
\tuint32_t teeth = 0;
\tfor (size_t i = 0; i < n; ++i) {
\t\tif (steps[i] & 0x80000000u || !c->pawl)\t\t// slips
\t\t\tcontinue;
\t\tteeth += (uint32_t)(steps[i] << 2) ^ ~c->mask;
\t}
\treturn c->total = teeth % (c->wheel ? c->wheel : 1);   /* never 0/0 */
}


#define MAX(a,b) ((a)>(b)?(a):(b))
#define PATH "/usr/share//mill/"
"""

EMOJI = (
    "Harvest day 🌾🌾🌾! Everyone came: 👨‍👩‍👧‍👦, 👩🏽‍🌾 and even 🧑‍🚀. Flags 🇫🇷🇯🇵🇧🇷🇰🇪🇺🇳 on the barn, 🏴‍☠️ on the cart. "
    "😀😃😄😁😆😅🤣😂🙂🙃😉😊😇🥰😍🤩😘😗☺️😚😙🥲😋😛😜🤪😝🤑🤗🤭🫢🫣🤫🤔🫡🤐🤨😐😑😶🫥😶‍🌫️😏😒🙄😬😮‍💨🤥🫨 "
    "❤️‍🔥❤️‍🩹💔 1️⃣2️⃣3️⃣ ✅✔️☑️ →→⇒⇒ ©®™ ½¼¾ ★★★☆☆ ♠♥♦♣ 🪿🫎🪽🩷 👋🏻👋🏼👋🏽👋🏾👋🏿\n🎉🎉\n🎉"
)

CRLF = "First line of a letter.\r\nSecond line, shorter.\r\n\r\nA paragraph after a blank line;\r\nit goes on.\r\n\r\n\r\n  Indented\r\n\ttabbed\r\rlone returns\r\n"

WHITESPACE = (
    "one two  three   four    five\n\nsix\n\n\nseven \n eight  \n  nine\t\tten\t eleven \t twelve\n\n\n\n"
    "no\u00a0break\u00a0\u00a0here \u00a0there\u3000wide\u3000\u3000wider \u3000mixed\u3000 again\u2028line\u2028\u2028sep \u2028x\u2029para"
    "\u0085next\u0085\u0085line\n\u0085\n x\u2003em\u2009thin\u200ahair\u200bzero\u202fnarrow\u205fmath\u1680ogham\ufeffmark\x0b\x0cfeed\x1c\x1d\x1e\x1fend   \n   \n"
    "a \nb\n c \n d\n\te\n\n\tf\n \n \n g      \t\n"
    "nb \u00a0 \u00a0 \u00a0 \u00a0x \u00a0 \u00a0y"
)

CONTRACTIONS = (
    "I'm you're he's she'd they've we'll can't. I'M YOU'RE HE'S SHE'D THEY'VE WE'LL CAN'T. it'ſ IT'ſ x'ſt 'ſ 's 'S 'sx 'Sx "
    "'tis 'twas rock'n'roll o'clock d'être l'été 'll 'LLama 've're 're're ''s '''s!'s 1's 中's 中'S文 's中文字 's's 'd've "
    "don’t it’s ‘quoted’ x'lL 'vE 'rE 'Re y'all'd've 'l 'v 'r 'm'm \n's \n'S  's\t't"
)

DIGITS = (
    "3 14 159 2653 58979 323846 2643383 1234567890123456789012345678901234567890 1,000,000.00 12:34:56.789 1e10 0xDEADBEEF "
    "٣٤٥٦٧ ४५६७ 1²³ ⅣⅤ ①②③ 10⁻³ 1/2 3/4/5 1.2.3.4 +49-123-456 (555)0123 $9.99 99% #42 v2.0.1 x1y2z3 1a2b3c "
) + "7" * 120

BASE64 = (
    "c2hhcmRtaWxsIGdyaW5kcyB0ZXh0IGludG8gdG9rZW5zLCBhbmQgbm8gZ3JhaW4gaXMgbG9zdCBvbiB0aGUgd2F5IGZyb20gdGhlIHNhY2sgdG8gdGhlIGJpbi4"
    "QWxsIG9mIHRoaXMgd2FzIHdyaXR0ZW4gYnkgaGFuZCBmb3IgdGhlIHRlc3RzOyBub3RoaW5nIHdhcyBjb3BpZWQgZnJvbSBhbnl3aGVyZSBlbHNlLg+/+/=="
    "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0BBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZWltc"
)

MIXED_CASE = (
    "a中文Bc A中文Bc a中文bc a中文BC 中文Bc中文 中A文b字C 字字Ab字字aB字字 aBc aBCd ABcD camelCaseWord HTTPServerError XMLHttpRequest iPhone eBay "
    "McDonald ÄÖüß ÉcoleÀÉ ПриветМир ПРИВЕТмир ǅungla ǆaǅA ʰaʰAʰ ªº ˇa文ˇB 한글Abc한글 ไทยAไทยb かなKanaカナ ℌℑ ⅰⅱ文Ⅲ字Ab 中́文́Ab áB́ ñ Ñ ﬁﬂ "
    "x文y字Z文字z文字Z Ω文ω字 µ文字Μ"
)

SPECIALS = "<|endoftext|> a<|endoftext|>b <|endoftext|><|endoftext|>\n<|endoftext|>\n\n<|fim_prefix|>x<|fim_suffix|><|endofprompt|> <| endoftext |> <|endoftext|"

NUL = "a\0b \0 \0\0\0 \0\n\0\n\n\0x\0中\0文\0!\0!!\x01\x02\x7f\x80\x9f\x00end\x1b[0m\x00"

GUARDED = (
    "new \U0001e6c0\U0001e6c1 letters \U00010940\U00010941\U00010942 in\ua7cein \ua7ce's \ua7ceA a\ua7ceb \U000323b0\U000323b1字 \u088f\u0c5c\u0cdc x\ua7d2y "
    "'\U0001e6c0 1\U0001e6c01 !\U00010940! \U0001e6c0\n\n\U000323b0  \U000323b0 z\u0301\U0001e6c0\u0301 \U00011db0\U00011de0 \U00016ea0\U00016ebb\ua7d4 words and words after"
)

COMBINING = (
    "e\u0301 E\u0301 a\u0308\u0323b c\u0327a\u0301 \u0301lone \u0301\u0301 !\u0301 !!\u0301 1\u0301 \n\u0301x x\u0301's X\u0301'S y\u0301\u0301\u0301Z "
    "Ç\u0301 นี้ क्षि ষ্ণু ŷ\u20dd \u20e3 a\u200db a\u200cb \ufe0f\ufe0f x\ufe0f! מִקְרָא ـَـِـُ Zalgo: h\u0310\u0311e\u0312\u0313l\u0314\u0315p\u0316\u0317 中\u3099文\u309a"
)

PUNCTUATION = (
    "!!! ??? ... … --- — –– ### *** ///// //a /* */ \\\\ ((([[[{{{<<<>>>}}}]]])))) ,,;; :: ==>> && || ~~ `` ^^ @@ __ a/b/c /a/ !/\n/x ./\n\n/y "
    "。。。！！？？、、「」『』《》〈〉【】 ، ؛ ؟ । ॥ ¿¡ «» „“ ‚‘ †‡ §¶ a.b.c. a,b,c x=y+z; f(x)[i]{j} !a !!a a! a!! 'a' ''a'' !' '! !'! 。'。 !\n!\r\n!\n\n!\r/!"
)

SAMPLES = {
    "english": ENGLISH,
    "chinese": CHINESE,
    "chinese_without_punctuation": CHINESE_WITHOUT_PUNCTUATION,
    "japanese": JAPANESE,
    "korean": KOREAN,
    "thai": THAI,
    "hindi": HINDI,
    "arabic": ARABIC,
    "russian": RUSSIAN,
    "german": GERMAN,
    "python": PYTHON,
    "c": C,
    "emoji": EMOJI,
    "crlf": CRLF,
    "whitespace": WHITESPACE,
    "contractions": CONTRACTIONS,
    "digits": DIGITS,
    "base64": BASE64,
    "mixed_case": MIXED_CASE,
    "specials": SPECIALS,
    "nul": NUL,
    "guarded": GUARDED,
    "combining": COMBINING,
    "punctuation": PUNCTUATION,
}

# A line each in scripts that the others do not have.
SCRIPTS = [
    "Ο μυλωνάς μέτρησε τα σακιά δύο φορές, κι ύστερα τρίτη· κανείς δεν τον πίστεψε.\n",
    "הטחנה עמדה על הגבעה, והרוח באה רק בערב; „מחר“, אמר הזקן.\n",
    "ქარის წისქვილი ძველი იყო, მაგრამ ბორბალი კვლავ ბრუნავდა.\n",
    "Ջրաղացպանը ժպտաց ու ոչինչ չասաց։\n",
    "கடலோரத்தில் ஒரு பழைய ஆலை இருந்தது. யாரும் அங்கே போகவில்லை.\n",
    "নদীর ধারে পুরোনো কলটি আজও ঘোরে, কেউ জানে না কেন।\n",
    "Cối xay gió đứng trên đồi, và chẳng ai nhớ nó được dựng từ bao giờ.\n",
    "የወፍጮው ድምፅ ሌሊት ይሰማል።\n",
]

ALL = "\n".join(SAMPLES.values())

# Characters that stand at a turn of some pattern: one of each class, and each that a pattern names.
NASTY = [
    *"aBsStTlLvVeErR'’ſ \n\r\t/!.\"1²中文字あ한ไΩωǅʰª\u0301\u0308\u0e33\u093e",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u0085",
    "\u200b",
    "\u200d",
    "\ufe0f",
    "\0",
    "\x1c",
    "。",
    "😀",
    "🏽",
    "🇫",
    "\U0001e6c0",
    "\U00010940",
    "\ua7ce",
    "\U000323b0",
    "\u0378",
    "\ufffd",
    "<|endoftext|>",
    "\r\n",
    "\n\n",
    "  ",
    "'s",
    "'LL",
]
