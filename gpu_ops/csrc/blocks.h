// SPDX-License-Identifier: Apache-2.0
// Products with weights in blocks of 256 inputs, in which groups of inputs have whole scales: a weight is step * scale
// * level, less least * minimum in some forms. Scales times levels times activations are summed exactly, and each such
// sum, times its step, is added in float32, in order. So a row's sum is the same however many rows there are, and
// however they are computed.
#pragma once
#include "integer_rows.h"
#include "linear.h"

enum { BLOCK_WORDS = 128, SIXTEENS = BLOCK_WORDS / SIXTEEN_WORDS };
INLINE NativeWords in_bytes(uint32_t byte) { return NativeWords{} + int32_t(byte * 0x01010101u); }
INLINE NativeWords block_word(const uint32_t* block, int word) { return load_native(block + word * GROUP); }
// The float16 in the high half of each lane; those that are not finite are packed as zeros.
INLINE Native from_half(NativeWords x) {
    const Native magnitude = (Native)((x >> 3) & 0x0fffe000) * 0x1p112f;
    return (Native)((NativeWords)magnitude | (x & int32_t(0x80000000)));
}

// The forms of blocks: where in a block, for one vector of outputs, its scales and levels are. SHARED sixteens of
// inputs have one scale. Scales times levels times activations of QUARTERS quarters of a block sum to less than 2^31:
// an activation, which was bfloat16, is at most 8160. Levels are BIAS too large; there are MINIMA for pairs of groups
// of 32.
//
// Levels of 4 bits; a scale and a minimum of 6 bits for 32 inputs, and float16 steps of both: Q4_K.
struct Fours {
    enum { SCALE_WORDS = 4, WORDS = 36, QUARTER_WORDS = 8, SHARED = 2, QUARTERS = 4, BIAS = 0, MINIMA = 4 };
    explicit Fours(const uint32_t* block) {
        const NativeWords steps = block_word(block, 0), low = block_word(block, 1), below = block_word(block, 2);
        const NativeWords high = block_word(block, 3), two = in_bytes(0x30), four = in_bytes(0x0f);
        const NativeWords all[2] = {low & in_bytes(0x3f), (high & four) | ((low >> 2) & two)};
        const NativeWords least_of[2] = {below & in_bytes(0x3f), ((high >> 4) & four) | ((below >> 2) & two)};
        step = from_half(steps << 16), least = from_half(steps) * -float(SUM_UNIT);
#pragma GCC unroll 8
        for (int group = 0; group < 8; group++) scales[group] = (all[group / 4] >> (group % 4 * 8)) & 0x3f;
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; pair++) {
            const NativeWords bytes = pair % 2 ? least_of[pair / 2] >> 16 : least_of[pair / 2];
            minima[pair] = (bytes & 0x3f) | ((bytes & 0x3f00) << 8);
        }
    }
    INLINE NativeWords levels(const uint32_t* quarter, int sixteen, int i) {
        const NativeWords packed = block_word(quarter, SCALE_WORDS + sixteen / 2 * 4 + i);
        return (sixteen % 2 ? packed >> 4 : packed) & in_bytes(0x0f);
    }
    NativeWords scales[8], minima[4];
    Native step, least;
};

// Levels of 6 bits, 32 too large; a scale of 8 bits with its sign for 16 inputs, and a float32 step: Q6_K.
struct Sixes {
    enum { SCALE_WORDS = 5, WORDS = 53, QUARTER_WORDS = 12, SHARED = 1, QUARTERS = 1, BIAS = 32, MINIMA = 0 };
    explicit Sixes(const uint32_t* block) : step((Native)block_word(block, 0)), least{} {
#pragma GCC unroll 16
        for (int sixteen = 0; sixteen < SIXTEENS; sixteen++)
            scales[sixteen] = (block_word(block, 1 + sixteen / 4) << (24 - sixteen % 4 * 8)) >> 24;
    }
    INLINE NativeWords levels(const uint32_t* quarter, int sixteen, int i) {
        const NativeWords low = block_word(quarter, SCALE_WORDS + sixteen / 2 * 4 + i);
        const NativeWords high = block_word(quarter, SCALE_WORDS + 8 + i);
        const NativeWords two = sixteen < 2 ? high << (4 - 2 * sixteen) : high >> (2 * sixteen - 4);
        return ((sixteen % 2 ? low >> 4 : low) & in_bytes(0x0f)) | (two & in_bytes(0x30));
    }
    NativeWords scales[SIXTEENS], minima[1];
    Native step, least;
};

// The exact sum of COUNT sixteens of inputs, whose levels are in four vectors each, with one row.
template <int COUNT>
INLINE NativeWords dot_levels(const NativeWords (&levels)[COUNT][4], const uint32_t* x) {
    NativeWords sum{};
#if defined(__AVX512VNNI__)
#pragma GCC unroll 8
    for (int i = 0; i < 4 * COUNT; i++)
        sum = (NativeWords)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)levels[i / 4][i % 4],
                                               _mm512_set1_epi32(int32_t(x[i])));
    NativeWords low{};
#pragma GCC unroll 8
    for (int i = 0; i < 4 * COUNT; i++)
        low = (NativeWords)_mm512_dpbusd_epi32((__m512i)low, (__m512i)levels[i / 4][i % 4],
                                               _mm512_set1_epi32(int32_t(x[QUARTER_WORDS / 2 + i])));
    sum = (sum << DIGIT) + low;
#elif defined(PONTIL_DIGITS)
    // At most 8 products of a level of 4 bits with a digit, or 4 of one of 6 bits, in 16 bits.
    NativeIntegers high{}, low{};
#pragma GCC unroll 8
    for (int i = 0; i < 4 * COUNT; i++) {
        high += multiply_bytes(levels[i / 4][i % 4], NativeWords{} + int32_t(x[i]));
        low += multiply_bytes(levels[i / 4][i % 4], NativeWords{} + int32_t(x[QUARTER_WORDS / 2 + i]));
    }
    sum = Int16::dot(Int16::dot(sum, (NativeWords)high, NativeWords{} + ((1 << DIGIT) * 0x10001)),
                     (NativeWords)low, NativeWords{} + 0x10001);
#else
#pragma GCC unroll 8
    for (int i = 0; i < 4 * COUNT; i++) {
        const uint32_t* from = x + i / 4 * SIXTEEN_WORDS + i % 4;
        sum = Int16::dot(sum, levels[i / 4][i % 4] & 0xff00ff, NativeWords{} + int32_t(from[0]));
        sum = Int16::dot(sum, (levels[i / 4][i % 4] >> 8) & 0xff00ff, NativeWords{} + int32_t(from[4]));
    }
#endif
    return sum;
}

// What dot_levels multiplies with, and the words from one sixteen to the next.
#if defined(PONTIL_DIGITS)
enum { SIXTEEN_STEP = 4 };
#else
enum { SIXTEEN_STEP = SIXTEEN_WORDS };
#endif
INLINE const uint32_t* multiplied(const IntegerRows& rows) {
#if defined(PONTIL_DIGITS)
    return rows.digits;
#else
    return rows.x;
#endif
}

// Adds exact sums of R rows.
template <int R, int Q>
INLINE void add_floats(const NativeWords (&exact)[R][Q], Native (&part)[R][Q]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) part[r][q] += __builtin_convertvector(exact[r][q], Native);
}
// Adds R rows' sums of a block, in steps, and those of minima, which there may be, to the sums [R][GROUP] before.
template <bool MINIMA, int R, int Q>
INLINE void add_block(const Native (&part)[R][Q], const Native (&step)[Q], const NativeWords (&minima)[R][Q],
                      const Native (&least)[Q], bool first, float* sums) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) {
            Native value = part[r][q] * step[q];
            if (MINIMA) value += __builtin_convertvector(minima[r][q], Native) * least[q];
            float* to = sums + r * GROUP + q * NATIVE_LANES;
            if (!first) value += (Native)load_native(to);
            memcpy(to, &value, NATIVE_BYTES);
        }
}

// Prefetches so many words of Q vectors.
template <int Q>
INLINE void prefetch_words(const uint32_t* from, int count) {
#pragma GCC unroll 16
    for (int word = 0; word < count; word++)
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) __builtin_prefetch(from + word * GROUP + q * NATIVE_LANES, 0, 2);
}

// The scales of a block for Q vectors of outputs, so that loops over its quarters stay loops.
template <class F, int Q>
struct BlockScales {
    explicit BlockScales(const uint32_t* block) {
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) {
            const F form(block + q * NATIVE_LANES);
#pragma GCC unroll 16
            for (int i = 0; i < SIXTEENS / F::SHARED; i++) scales[i][q] = form.scales[i];
#pragma GCC unroll 16
            for (int i = 0; i < F::MINIMA; i++) minima[i][q] = form.minima[i];
            step[q] = form.step, least[q] = form.least;
        }
    }
    NativeWords scales[SIXTEENS / F::SHARED][Q], minima[F::MINIMA + 1][Q];
    Native step[Q], least[Q];
};

// Sums of R rows with a quarter of a block, added to the exact ones before. `ahead` is prefetched.
template <class F, int R, int Q>
INLINE void add_digits(const uint32_t* here, const uint32_t* ahead, const NativeWords (*scales)[Q], const uint32_t* x,
                       const uint32_t* biases, int words, NativeWords (&exact)[R][Q]) {
#pragma GCC unroll 4
    for (int sixteen = 0; sixteen < 4; sixteen += F::SHARED) {
        NativeWords levels[Q][F::SHARED][4];
        enum { PREFETCHED = F::QUARTER_WORDS / 4 };
        prefetch_words<Q>(ahead + sixteen * PREFETCHED * GROUP, F::SHARED * PREFETCHED);
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++)
#pragma GCC unroll 8
            for (int i = 0; i < 4 * F::SHARED; i++)
                levels[q][i / 4][i % 4] = F::levels(here + q * NATIVE_LANES, sixteen + i / 4, i % 4);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int q = 0; q < Q; q++) {
                NativeWords sum = dot_levels<F::SHARED>(levels[q], x + size_t(r) * words + sixteen * SIXTEEN_STEP);
                if (F::BIAS > 0) sum += all_words(biases, size_t(r) * (words / SIXTEEN_WORDS) + sixteen);
                exact[r][q] += sum * scales[sixteen / F::SHARED][q];
            }
    }
}
// Computes sums [R][GROUP] of R rows with a group of weights, Q vectors of outputs and a block of inputs at a time.
template <class F, int R>
static void block_product(const uint32_t* data, const IntegerRows& rows, float* sums) {
    enum { Q = R <= 2 && NATIVES == 1 ? 2 : 1 };
    const int words = rows.words;
    // The next group is prefetched; a line of which that was done, by another vector, is loaded anyway.
    const size_t distance = size_t(words) / BLOCK_WORDS * F::WORDS * GROUP;
    for (int start = 0; start < words; start += BLOCK_WORDS, data += F::WORDS * GROUP)
        for (int lane = 0; lane < GROUP; lane += Q * NATIVE_LANES) {
            const uint32_t* ahead = data + lane + (lane % LANES ? 0 : distance);
            prefetch_words<Q>(ahead, F::SCALE_WORDS);
            const BlockScales<F, Q> block(data + lane);
            NativeWords exact[R][Q];
            Native part[R][Q];
            clear(part);
#pragma GCC unroll 1
            for (int quarter = 0; quarter < 4; quarter++) {
                if (quarter % F::QUARTERS == 0) clear(exact);
                const int at = start + quarter * (BLOCK_WORDS / 4), words_before = quarter * F::QUARTER_WORDS;
                add_digits<F>(data + lane + words_before * GROUP, ahead + (F::SCALE_WORDS + words_before) * GROUP,
                              block.scales + 4 * quarter / F::SHARED, multiplied(rows) + at,
                              rows.biases + at / SIXTEEN_WORDS, words, exact);
                if ((quarter + 1) % F::QUARTERS == 0) add_floats(exact, part);
            }
            clear(exact);
            accumulate<Int16>(exact, rows.sums + start / SUMS_WORDS, words / SUMS_WORDS, F::MINIMA,
                              [&](int word, int, int q) { return block.minima[word][q]; });
            add_block<(F::MINIMA > 0)>(part, block.step, exact, block.least, start == 0, sums + lane);
        }
}

// A block for many rows, as whole numbers of 16 bits: pairs [128][GROUP], pairs of minima, the step and the least.
template <class F>
struct PlainBlock {
    enum { WORDS = BLOCK_WORDS + F::MINIMA + 2 };
    alignas(64) uint32_t words[WORDS][GROUP];

    void unpack(const uint32_t* data) {
        for (int lane = 0; lane < GROUP; lane += NATIVE_LANES) {
            const F form(data + lane);
            const auto put = [&](int word, auto one) { memcpy(words[word] + lane, &one, NATIVE_BYTES); };
#pragma GCC unroll 1
            for (int sixteen = 0; sixteen < SIXTEENS; sixteen++) {
                const NativeWords scale = form.scales[sixteen / F::SHARED];
                const NativeIntegers both = (NativeIntegers)((scale & 0xffff) | (scale << 16));
                const uint32_t* quarter = data + sixteen / 4 * F::QUARTER_WORDS * GROUP + lane;
#pragma GCC unroll 8
                for (int i = 0; i < SIXTEEN_WORDS; i++) {
                    const NativeWords bytes = F::levels(quarter, sixteen % 4, i % 4);
                    const NativeIntegers level = (NativeIntegers)((i < 4 ? bytes : bytes >> 8) & 0xff00ff);
                    put(sixteen * SIXTEEN_WORDS + i, (level - int16_t(F::BIAS)) * both);
                }
            }
            for (int pair = 0; pair < F::MINIMA; pair++) put(BLOCK_WORDS + pair, form.minima[pair]);
            put(BLOCK_WORDS + F::MINIMA, form.step), put(BLOCK_WORDS + F::MINIMA + 1, form.least);
        }
    }
};

// Adds to sums [R][GROUP] of R rows their products with a block, which has the inputs from word `start` on, and
// prefetches a line of `ahead` for each word.
template <class F, int R>
static void plain_product(const PlainBlock<F>& block, const uint32_t* ahead, int start, const IntegerRows& rows,
                          float* sums) {
    enum { P = SUMS_STAY ? 2 : panels_at_once<R, 2>(), Q = P * NATIVES, RUN = F::QUARTERS * BLOCK_WORDS / 4 };
    const size_t words = rows.words;
    for (int lane = 0; lane < GROUP; lane += P * LANES) {
        NativeWords exact[R][Q], minima[R][Q];
        Native part[R][Q], units[2][Q];
        clear(minima);
        const auto word_of = [&](int word, int q) { return load_native(block.words[word] + lane + q * NATIVE_LANES); };
        accumulate<Int16>(minima, rows.sums + start / SUMS_WORDS, words / SUMS_WORDS, F::MINIMA,
                          [&](int word, int, int q) { return word_of(BLOCK_WORDS + word, q); });
        clear(part);
        for (int run = 0; run < BLOCK_WORDS; run += RUN) {
            const uint32_t *from = block.words[run] + lane, *lines = ahead + run * LANES;
            clear(exact);
            accumulate<Int16>(exact, rows.x + start + run, words, RUN, [&](int word, int, int q) {
                if (q == 0) __builtin_prefetch(lines + word * LANES, 0, 2);
                return load_native(from + word * GROUP + q * NATIVE_LANES);
            });
            add_floats(exact, part);
        }
        for (int i = 0; i < 2 * Q; i++)
            units[i / Q][i % Q] = (Native)word_of(BLOCK_WORDS + F::MINIMA + i / Q, i % Q);
        add_block<(F::MINIMA > 0)>(part, units[0], minima, units[1], start == 0, sums + lane);
    }
}

typedef void (*BlockProduct)(const uint32_t*, const IntegerRows&, float*);

// So few rows that levels are taken as they are.
enum { BLOCK_ROWS = ROWS_AT_ONCE < 8 ? int(ROWS_AT_ONCE) : 8 };
// Rows of unpacked blocks at once: so few that a block's sums stay in registers too where there are 32.
enum { PLAIN_ROWS = SUMS_STAY ? 6 : int(ROWS_AT_ONCE) };

template <class F, int R = BLOCK_ROWS>
static BlockProduct block_product_of(int rows) {
    if constexpr (R == 1)
        return block_product<F, 1>;
    else
        return rows == R ? block_product<F, R> : block_product_of<F, R - 1>(rows);
}
template <class F>
using PlainProduct = void (*)(const PlainBlock<F>&, const uint32_t*, int, const IntegerRows&, float*);
template <class F, int R = PLAIN_ROWS>
static PlainProduct<F> plain_product_of(int rows) {
    if constexpr (R == 1)
        return plain_product<F, 1>;
    else
        return rows == R ? plain_product<F, R> : plain_product_of<F, R - 1>(rows);
}

// So many rows share what is unpacked of a block. Together they may be larger than a core's caches, so that what a
// block takes of the next rows is prefetched while those before are multiplied.
enum { ROWS_TOGETHER = 256 };

// Prefetches up to AT_ONCE rows behind the `done` ones of `count`, or the first ones with the next block when all are
// done. `x` has the first row's words for this block.
template <int AT_ONCE>
INLINE void prefetch_rows(const uint32_t* x, size_t words, int done, int count) {
    const int first = done < count ? done : 0, end = std::min(first + AT_ONCE, count);
    const uint32_t* from = x + (done < count ? 0 : BLOCK_WORDS);
    for (int row = first; row < end; row++)
#pragma GCC unroll 8
        for (int line = 0; line < BLOCK_WORDS; line += LANES) __builtin_prefetch(from + row * words + line, 0, 3);
}

// Computes the sums [rows][GROUP] of rows with a group of weights. Few rows take levels as they are; for many, each
// block is unpacked before.
template <class F>
static float* block_sums(const Matrix& matrix, int group, const IntegerRows& rows, int count, Scratch& scratch) {
    const size_t block_size = size_t(F::WORDS) * GROUP, size = size_t(matrix.words) / BLOCK_WORDS * block_size;
    const uint32_t* data = matrix.data + group * size;
    auto& plain = *scratch.take<PlainBlock<F>>(1 + size_t(count) * GROUP * sizeof(float) / sizeof(PlainBlock<F>) + 1);
    float* sums = reinterpret_cast<float*>(&plain + 1);
    if (count <= BLOCK_ROWS) {
        block_product_of<F>(count)(data, rows, sums);
        return sums;
    }
    for (int start = 0; start < matrix.words; start += BLOCK_WORDS, data += block_size) {
        plain.unpack(data);
        // The first rows prefetch the same block of the next group; for the others it is what they load anyway.
        for (int row = 0; row < count;) {
            const int some = next_rows(count - row, PLAIN_ROWS);
            prefetch_rows<PLAIN_ROWS>(rows.x + start, rows.words, row + some, count);
            plain_product_of<F>(some)(plain, row ? plain.words[0] : data + size, start, rows.from(row),
                                      sums + row * GROUP);
            row += some;
        }
    }
    return sums;
}
