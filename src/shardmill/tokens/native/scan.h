/* Where words begin: the patterns as bit operations on blocks of 64 bytes. Included by kernel.h, once for each code
 * path; docs/engine.md derives the rules. pattern.c has the same rules one character at a time.
 *
 * The same bit of each mask stands for the same byte, and all bytes of a character are alike. `x << 1 | last_x` are the
 * places behind an x. Adding a bit to a run of bits carries to the place behind the run. */

/* What the characters that begin in one block say of the next. */
typedef struct {
    u64 lo, hi, a, b;
    u32 before, behind;
} Carry;

#if defined(LOOKUP)
/* Characters of two bytes that part no words: all with the same lead at once. Returns their lead bytes. */
static inline __attribute__((always_inline)) u64 two_bytes(const Engine *e, const u8 *p, u64 leads, int kind, Block *b,
                                                           Carry *later)
{
    u64 two = leads & lookup(e->whole_leads, p, PLAIN).lo;
    for (u64 left = two; left;) {
        u8 lead = p[__builtin_ctzll(left)];
        u64 same = equal(p, lead), second = same << 1;
        Planes planes = lookup(e->two_bytes[lead & 31], p, kind);
        u64 lo = planes.lo & second, hi = planes.hi & second;
        b->lo |= lo | lo >> 1;
        b->hi |= hi | hi >> 1;
        b->space2 |= (lo & hi) >> 1;
        if (kind != PLAIN) {
            u64 sub_a = planes.a & second, sub_b = planes.b & second;
            b->a |= sub_a | sub_a >> 1;
            b->b |= sub_b | sub_b >> 1;
        }
        left &= ~same;
    }
    if (UNLIKELY(two >> 63)) { /* its second byte is in the next block */
        u8 plane = e->two_bytes[p[63] & 31][p[64] & 63];
        b->lo |= (u64)(plane & 1) << 63;
        b->hi |= (u64)(plane >> 1 & 1) << 63;
        b->a |= (u64)(plane >> 2 & 1) << 63;
        b->b |= (u64)(plane >> 3 & 1) << 63;
        b->space2 |= (u64)(plane == SPACES) << 63;
        later->lo |= plane & 1;
        later->hi |= plane >> 1 & 1;
        later->a |= plane >> 2 & 1;
        later->b |= plane >> 3 & 1;
    }
    return two;
}
#endif

/* A character of several bytes that begins in a block gives all its bytes its class. */
static inline __attribute__((always_inline)) Carry classify_long(const Engine *e, const u8 *p, int first,
                                                                         Carry in, Block *block, int kind)
{
    Block b = *block;
    Carry later = {0, 0, 0, 0, in.before, in.behind}; /* the character before, and where it ends */
    u64 left = b.many & ~b.inner;
    b.lo |= in.lo;
    b.hi |= in.hi;
    b.a |= in.a;
    b.b |= in.b;
#if defined(LOOKUP)
    left ^= two_bytes(e, p, left, kind, &b, &later);
#endif
    for (; left; left &= left - 1) {
        u32 i = (u32)__builtin_ctzll(left), size, point, c, next;
        memcpy(&next, p + i, 4);
        u8 lead = (u8)next;
        if (LIKELY(lead >= 0xE0 && lead < 0xF0)) {
            point = (lead & 15u) << 12 | (next >> 8 & 63) << 6 | (next >> 16 & 63);
            size = 3;
        } else if (lead < 0xE0) {
            point = (lead & 31u) << 6 | (next >> 8 & 63);
            size = 2;
        } else {
            point = (lead & 7u) << 18 | (next >> 8 & 63) << 12 | (next >> 16 & 63) << 6 | (next >> 24 & 63);
            size = 4;
        }
        c = point < CODE_POINTS ? e->plane[point] : 0;
        u64 bytes = (1ull << size) - 1, here = bytes << i, there = bytes >> 1 >> (63 - i);
        b.lo |= here & -(u64)(c & 1);
        b.hi |= here & -(u64)(c >> 1 & 1);
        later.lo |= there & -(u64)(c & 1);
        later.hi |= there & -(u64)(c >> 1 & 1);
        if (kind != PLAIN) {
            b.a |= here & -(u64)(c >> 2 & 1);
            b.b |= here & -(u64)(c >> 3 & 1);
            later.a |= there & -(u64)(c >> 2 & 1);
            later.b |= there & -(u64)(c >> 3 & 1);
        }
        if (UNLIKELY(c == SPACES))
            *(size == 2 ? &b.space2 : &b.space3) |= 1ull << i;
        if (LIKELY(!(first && i == 0) && !e->whole_leads[lead & 63])) { /* half of these borders part words: no branch */
            u8 last = p[(ptrdiff_t)i - 1];
            u32 before = last < 0x80 ? last : later.before;
            u64 known = (u64)(last < 0x80) | (u64)(later.behind == i);
            b.apart |= (known & (u64)!may_merge(e, before, point, last, p + i)) << i;
        }
        later.before = point;
        later.behind = i + size;
    }
    *block = b;
    later.behind -= 64;
    return later;
}

/* Every third (or second) number of a run begins a word. *group is how many the open one has at the end of the block. */
static inline u64 groups(u64 number, u64 runs, const Block *b, u64 last_number, u32 digits, u32 *group)
{
    u64 begins = 0;
    u32 open = *group;
    if (UNLIKELY(number & b->many)) { /* characters, not bytes, are counted */
        for (u64 left = number & ~b->inner; left; left &= left - 1) {
            u32 i = (u32)__builtin_ctzll(left);
            u64 goes_on = (number << 1 | last_number) >> i & 1;
            open = goes_on && open < digits ? open + 1 : 1;
            if (open == 1)
                begins |= 1ull << i;
        }
    } else {
        begins = runs;
        if (open && number & 1) {
            u64 rest = (2ull << (digits - open)) - 1; /* so many more, and the one that begins the next */
            if ((number & rest) == rest)
                begins |= 1ull << (digits - open);
        }
        u64 far = number & number << 1 & number << 2;
        far &= digits == 3 ? number << 3 : ~0ull;
        for (u64 more = begins << digits & far; UNLIKELY(more); more = more << digits & far)
            begins |= more;
        open = (u32)__builtin_clzll(begins | 1) + 1;
    }
    *group = number >> 63 ? open : 0;
    return begins;
}

/* The places behind others that begin a word and stand alone in it: an addition carries over the inner bytes of a long
 * character. `carry` is what the last block left, and becomes what this one does. */
static inline u64 behind_one(u64 others, u64 inner, u64 *carry)
{
    u64 behind = others << 1 | *carry, sum;
    *carry = (u64)__builtin_add_overflow(behind & inner, inner, &sum) | others >> 63;
    return (behind | sum) & ~inner;
}

/* Newlines, and slashes among them, that belong to the others before them; *behind is the place behind each such run. */
static inline u64 tails(u64 newline, u64 slash, u64 behind_other, u64 *carry, u64 *behind)
{
    u64 ends = newline | slash, seeds = (newline & behind_other) | (ends & *carry), sum;
    u64 full = (u64)__builtin_add_overflow(ends, seeds, &sum);
    *behind = (sum | *carry) & ~ends;
    *carry = full;
    return ends & ((ends ^ sum) | seeds);
}

/* Finds the words that begin from `from` on, where one does. Where no merge can cross, words are parted too. Returns
 * where a place is that the bits do not tell, and then nothing of its block is in `found`; or NOWHERE. */
static inline __attribute__((always_inline)) u32 scan(const Engine *e, const u8 *p, u32 from, u32 span, Found *found,
                                                          const int kind)
{
    const Shape shape = e->shape;
    const u32 blocks = (span - from + 63) / 64;
    u16 *positions = found->positions;
    Block now = {0}, next = {0};
    Carry carry = {0, 0, 0, 0, 0, ~0u};
    u64 last_letter = 0, last_number = 0, last_other = 0, last_space = 0, last_plain = 0, last_blank = 0;
    u64 last_odd = 0, last_han = 0, last_soft = 0, last_punctuation = 0; /* of some patterns only */
    u64 alone = 0, in_tail = 0, in_lower = 0, in_ascii = 0, in_contraction = 0, also = 1, not_here = 0;
    u32 count = found->count, group = 0, open = 0; /* open: 1 + the index of a begin that a newline later on takes back */
    found->whole = count;
    positions[count] = (u16)from;
    p += from;
    classify(e, p, &now, kind);
    if (now.many)
        carry = classify_long(e, p, 1, carry, &now, kind);
    for (u32 k = 0; k < blocks; k++, now = next) {
        const u8 *block = p + 64 * k;
        next.space2 = next.space3 = next.apart = 0;
        classify(e, block + 64, &next, kind);
        if (UNLIKELY(next.many))
            carry = classify_long(e, block + 64, 0, carry, &next, kind);
        u64 letter = now.lo & ~now.hi, number = now.hi & ~now.lo, space = now.lo & now.hi, other = ~(now.lo | now.hi);
        u64 newline = now.newline, plain = space & ~newline, later = next.lo & next.hi;
        u64 behind_blank = now.blank << 1 | last_blank, begins = 0, tail = 0, behind_tail = 0;

        if (kind == CASED) {
            /* Marks are letters. But behind others, unless behind one that begins a word, they are others. */
            u64 mark = letter & now.a & now.b, was_in_tail = in_tail;
            tail = tails(newline, now.slash, other << 1 | last_other, &in_tail, &behind_tail);
            while (UNLIKELY(mark & (other << 1 | last_other))) {
                u64 now_other = other & ~tail, behind = now_other << 1 | last_other, carried = alone;
                u64 one = behind_one(now_other & ~behind & ~behind_blank, now.inner, &carried);
                u64 first = mark & behind & ~one;
                first &= -first;
                if (!first)
                    break;
                u64 run = mark & ~(mark + first);
                mark ^= run;
                letter ^= run;
                other |= run;
                in_tail = was_in_tail;
                tail = tails(newline, now.slash, other << 1 | last_other, &in_tail, &behind_tail);
            }
            other &= ~tail;

            /* Contractions end a word of letters: they are hidden, and begin what is behind them. */
            u64 hidden = in_contraction, forced = also;
            in_contraction = also = 0;
            if (shape.contractions == SUFFIX)
                for (u64 quotes = now.quote & (letter << 1 | last_letter) & ~forced; UNLIKELY(quotes);
                     quotes &= quotes - 1) {
                    u32 i = (u32)__builtin_ctzll(quotes), size = contraction(&shape, block + i);
                    if (!size || forced >> i & 1)
                        continue;
                    hidden |= ((1ull << size) - 1) << i;
                    in_contraction = ((1ull << size) - 1) >> 1 >> (63 - i);
                    if (i + size < 64)
                        forced |= 1ull << (i + size);
                    else
                        also = 1ull << (i + size - 64);
                }
            letter |= hidden;
            other &= ~hidden;

            /* An upper begins a word behind a lower, caseless ones between them or not. */
            u64 cased = letter & ~hidden, upper = cased & now.a & ~now.b, soft = cased & ~upper, sum;
            u64 full = (u64)__builtin_add_overflow(soft, (soft & now.b & ~now.a) | (soft & in_lower), &sum);
            u64 turns = (sum | in_lower) & ~soft & upper;
            in_lower = full;
            /* Behind caseless ones alone it does where no letter follows the uppers. */
            for (u64 left = upper & (soft << 1 | last_soft) & ~turns; UNLIKELY(left); left &= left - 1) {
                u32 i = (u32)__builtin_ctzll(left);
                u64 rest = ~upper >> i, next_letter = next.lo & ~next.hi, next_rest = ~(next_letter & next.a & ~next.b);
                if (!rest && !next_rest)
                    return from + 64 * k + i;
                u64 goes_on = rest ? cased >> i >> __builtin_ctzll(rest) : next_letter >> __builtin_ctzll(next_rest);
                turns |= (~goes_on & 1) << i;
            }
            last_soft = soft >> 63;
            begins = turns | forced;
        }

        u64 odd = 0, border = 0, tailing = other << 1 | last_other, ends = space, ends_later = later;
        if (kind == DEEPSEEK) {
            /* To the pattern, the text ends where Han and kana begin, and where they end. */
            u64 han = now.b, behind_han = han << 1 | last_han;
            odd = other & now.a;
            other &= ~odd;
            tailing = (other << 1 | last_other) & ~behind_han;
            border = han ^ behind_han;
            begins = border | (odd & ~(odd << 1 | last_odd));
            ends |= han;
            ends_later |= next.b;
            last_han = han >> 63;
            u64 unclear = odd & ~now.inner & (han | odd << 1 | last_odd); /* of many, the last may belong to letters */
            if (UNLIKELY(unclear))
                return from + 64 * k + (u32)__builtin_ctzll(unclear);
        }
        if (shape.numbers_first) { /* to the pattern, the text ends before a number */
            ends |= number;
            ends_later |= next.hi & ~next.lo;
        }

        /* Others: a run begins a word, or goes on with the blank before it. */
        u64 behind_other = other << 1 | last_other;
        u64 others = other & (border | ~(behind_other | behind_blank));

        /* Letters take one character before them: a blank; or any space but a newline, and an other that itself begins a
         * word. In DeepSeek's pattern, an odd one, or ASCII punctuation that begins a word, which takes ASCII only. */
        u64 taken = behind_blank;
        if (kind == DEEPSEEK) {
            u64 ascii = letter & ~now.many, sum;
            u64 seeds = ((others & ~now.many) << 1 | last_punctuation) & ascii;
            u64 full = (u64)__builtin_add_overflow(ascii, seeds | (ascii & in_ascii), &sum);
            begins |= (sum | in_ascii) & ~ascii & letter;
            in_ascii = full;
            last_punctuation = (others & ~now.many) >> 63;
            taken = plain << 1 | last_plain | odd << 1 | last_odd | seeds;
        } else if (shape.any_prefix) {
            taken = plain << 1 | last_plain | behind_one(others, now.inner, &alone);
        }
        begins |= others | (letter & ~(letter << 1 | last_letter) & ~taken);

        /* Numbers. */
        u64 numbers = number & ~(number << 1 | last_number);
        if (shape.digits == 1)
            numbers = number & ~now.inner;
        else if (shape.digits > 1 && number)
            numbers = groups(number, numbers, &now, last_number, shape.digits, &group);
        else if (shape.digits == 0)
            numbers &= ~behind_blank;
        else
            group = 0;
        begins |= numbers;

        /* Space: a run begins a word, and so does its last character when something follows. */
        u64 runs = space & ~(space << 1 | last_space);
        u64 last = plain & ~now.many & ~(ends >> 1 | ends_later << 63);
        if (UNLIKELY(now.space2 | now.space3))
            last |= (now.space2 & ~(ends >> 2 | ends_later << 62)) | (now.space3 & ~(ends >> 3 | ends_later << 61));
        u64 maybe = 0;
        u32 gone = 0;
        if (newline | in_tail | behind_tail | open | (last_space & ~last_plain)) {
            if (kind != CASED)
                tail = tails(newline, 0, tailing, &in_tail, &behind_tail);
            runs = (runs & ~tail) | behind_tail;
            /* Plain space behind a newline begins a word, unless one more newline follows it. */
            maybe = plain & ~(plain << 1 | last_plain) & ~runs;
            u64 ended = plain & (newline >> 1 | next.newline << 63);
            if (UNLIKELY(open && (~plain | ended))) { /* the one left open by the block before: does a newline end it? */
                u64 end = ~plain & -~plain;
                if (end ? end & newline : 1)
                    gone = open;
                open = 0;
            }
            for (; UNLIKELY(ended); ended &= ended - 1) {
                u64 before = ~plain & ((ended & -ended) - 1);
                maybe &= ~(before ? 2ull << (63 - __builtin_clzll(before)) : 1);
            }
        }
        begins |= runs | last | maybe;

        last_letter = letter >> 63;
        last_number = number >> 63;
        last_other = other >> 63;
        last_space = space >> 63;
        last_plain = plain >> 63;
        last_blank = now.blank >> 63;
        last_odd = odd >> 63;

        /* An apostrophe that begins a word may make a word of the next letters. */
        if (kind != CASED) {
            u64 quotes = now.quote & (begins | (k == 0)) & (letter >> 1 | (next.lo & ~next.hi) << 63);
            begins = (begins & ~not_here) | also;
            also = not_here = 0;
            for (; kind == PLAIN && UNLIKELY(quotes); quotes &= quotes - 1) {
                u32 i = (u32)__builtin_ctzll(quotes), size = contraction(&shape, block + i);
                if (!size)
                    continue;
                begins &= ~(2ull << i);
                not_here |= i == 63;
                if (i + size < 64)
                    begins |= 1ull << (i + size);
                else
                    also |= 1ull << (i + size - 64);
            }
        }
        if (UNLIKELY(gone)) { /* it was the last begin, but places where words are parted may stand behind it */
            memmove(positions + gone - 1, positions + gone, (count - gone) * sizeof *positions);
            count--;
        }
        if (found->parted)
            note_parted(found->parted, from + 64 * k, now.apart & ~begins);
        u64 sure = begins;
        if (UNLIKELY(maybe && plain >> 63 && later & ~next.newline & 1)) {
            u64 begin = 1ull << (63 - __builtin_clzll(plain & ~(plain << 1)));
            if (maybe & begin) {
                open = 1 + count + (u32)ones((begins | now.apart) & (begin - 1));
                sure ^= begin;
            }
        }
        if (sure) /* the places before the last of them */
            found->whole = count + (u32)ones((begins | now.apart) & (~0ull >> __builtin_clzll(sure))) - 1;
        count += store_places(e, begins | now.apart, from + 64 * k, positions + count);
        found->count = count;
    }
    return NOWHERE;
}

static __attribute__((noinline)) u32 scan_plain(const Engine *e, const u8 *p, u32 from, u32 span, Found *found)
{
    return scan(e, p, from, span, found, PLAIN);
}

static __attribute__((noinline)) u32 scan_cased(const Engine *e, const u8 *p, u32 from, u32 span, Found *found)
{
    return scan(e, p, from, span, found, CASED);
}

static __attribute__((noinline)) u32 scan_deepseek(const Engine *e, const u8 *p, u32 from, u32 span, Found *found)
{
    return scan(e, p, from, span, found, DEEPSEEK);
}
