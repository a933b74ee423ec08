// SPDX-License-Identifier: Apache-2.0
// Products with weights of less than 16 bits. Levels are scaled to whole numbers of 13 bits, activations are rounded to
// whole numbers of 14 bits, and the products of 64 inputs are summed exactly; such sums are added in float32, in order.
// So a row's sum is the same however many rows there are, and on any processor. A matrix unit adds up all inputs before
// anything is rounded (level_tiles.h), so that with one these sums are added exactly too: as low halves and high ones.
#pragma once
#include <type_traits>

#include "integer_rows.h"
#include "linear.h"

// Words of activations whose products with weights fit 32 bits: 64 times 2^12 times 2^13.
enum { EXACT_WORDS = 32 };

// A source of panels of weights: one word of it makes WORDS words of levels, each 256 times too large.
struct Nibbles {
    enum { WORDS = 4 };
    explicit Nibbles(const int8_t*) {}
    INLINE NativeIntegers unpack(NativeIntegers packed, int word) {
        return (word < 2 ? packed << (8 - 4 * word) : packed >> (4 * word - 8)) & 0x0f00;
    }
};
struct Bytes {
    enum { WORDS = 2 };
    explicit Bytes(const int8_t*) {}
    INLINE NativeIntegers unpack(NativeIntegers packed, int word) {
        return word ? packed & int16_t(0xff00) : packed << 8;
    }
};
// Nibbles are places in a table. The lower byte of a level has none, and stays 0.
struct TableNibbles {
    enum { WORDS = 4 };
    explicit TableNibbles(const int8_t* table) : table(table) {}
    NativeIntegers unpack(NativeIntegers packed, int word) const {
        return table.at(Nibbles::unpack(packed, word) | 0x80);
    }
    ByteTable table;
};
// Floats of 8 bits: a sign, four bits of exponent e and three of mantissa m, for (8 + m) 2^(e - 10). What is
// unpacked is (8 + m) 2^(e - 5), rounded to a whole number of 15 bits; so are floats without an exponent, which have
// no leading one: to 0. What would be NaN is read as 480.
struct Eighths {
    enum { WORDS = 2 };
    explicit Eighths(const int8_t*) : mantissas(MANTISSAS), powers(POWERS) {}
    NativeIntegers unpack(NativeIntegers packed, int word) const {
        const NativeIntegers x = Bytes::unpack(packed, word), exponent = (x >> 12) & 7, sign = x >> 15;
        // The lowest bit of the exponent goes with the mantissa: what is left is a power of four.
        const NativeIntegers mantissa = mantissas.at((x & 0x0f00) | 0x80);
        const NativeIntegers size = multiply_high(mantissa, powers.at(exponent | (exponent << 8) | 0x0800));
        return (size ^ sign) - sign;
    }
    // Four times (8 + m), or twice that; and the two bytes of a power of four, the higher ones behind the lower ones.
    static constexpr int8_t MANTISSAS[16] = {32, 36, 40, 44, 48, 52, 56, 60, 64, 72, 80, 88, 96, 104, 112, 120};
    static constexpr int8_t POWERS[16] = {1, 4, 16, 64, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4, 16, 64};
    ByteTable mantissas, powers;
};
// The scale and the offset of a group of inputs, for each weight of a vector.
struct Scaling {
    Scaling() = default;
    explicit Scaling(const uint32_t* from) {
        const NativeWords pair = load_native(from), low = NativeWords{} + 0xffff;
        scale = (NativeIntegers)((pair << 16) | (pair & low));
        offset = (NativeIntegers)(((pair >> 16) & low) | (pair & ~low));
    }
    NativeWords apply(NativeIntegers levels) const { return (NativeWords)(multiply_high(levels, scale) + offset); }
    NativeIntegers scale, offset;
};

// Groups of outputs, stored one after the other.
struct LevelGroups {
    const uint32_t *data, *scales;
    size_t data_size, scales_size;  // of one group
    int words, scale_words;
    const int8_t* table;
};

// Very few rows take several groups at once, so that steps need not wait for each other.
enum { VERY_FEW_ROWS = (ROWS_AT_ONCE + 2) / 3, GROUPS_AT_ONCE = 2, SUM_CELLS = GROUPS_AT_ONCE * ROWS_AT_ONCE * GROUP };

#if defined(PONTIL_TILES)
// Sums in memory: low halves, then high ones.
enum { ADDS_EXACTLY = 1 };
constexpr int32_t HALF_BITS = 16, HALF = (1 << HALF_BITS) - 1;
typedef double NativeDoubles __attribute__((vector_size(2 * NATIVE_BYTES)));
INLINE Native to_float(NativeDoubles exact) { return __builtin_convertvector(exact, Native); }
INLINE NativeDoubles doubles(NativeWords x) { return __builtin_convertvector(x, NativeDoubles); }
#else
enum { ADDS_EXACTLY = 0 };
#endif

// Adds exact sums of R rows to those before, or stores them if they are the first.
template <int R, int Q>
INLINE void add_exact(const NativeWords (&part)[R][Q], bool first, float* to, size_t stride) {
    // The sums stay in memory: registers are full, and the compiler would keep a second copy beside them.
    __asm__ volatile("" ::: "memory");
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int q = 0; q < Q; q++) {
            float* total = to + r * stride + q * NATIVE_LANES;
#if defined(PONTIL_TILES)
            NativeWords low = part[r][q] & HALF, high = part[r][q] >> HALF_BITS;
            if (!first) low += load_native(total), high += load_native(total + SUM_CELLS);
            memcpy(total, &low, NATIVE_BYTES), memcpy(total + SUM_CELLS, &high, NATIVE_BYTES);
#else
            Native sum = __builtin_convertvector(part[r][q], Native);
            if (!first) sum += (Native)load_native(total);
            memcpy(total, &sum, NATIVE_BYTES);
#endif
        }
}

// Rounds 32 sums to float32, if they are not.
INLINE void round_sums(float* sums) {
#if defined(PONTIL_TILES)
    for (int lane = 0; lane < GROUP; lane += NATIVE_LANES) {
        const NativeWords low = load_native(sums + lane), high = load_native(sums + SUM_CELLS + lane);
        const Native rounded = to_float(doubles(high) * double(1 << HALF_BITS) + doubles(low));
        memcpy(sums + lane, &rounded, NATIVE_BYTES);
    }
#else
    (void)sums;
#endif
}

// Computes sums [R][panels of `G` groups][16] of R rows x [R][words], with the stride `stride`. For other rows it keeps
// the weights of a group, if KEEP, in `plain` [words][GROUP].
template <class Source, int R, int G, bool KEEP>
static void level_product(const LevelGroups& groups, const uint32_t* x, size_t stride, float* sums, uint32_t* plain) {
    enum { PANEL_COUNT = 2 * G, P = panels_at_once<R, PANEL_COUNT>(), Q = P * NATIVES };
    const int run = groups.scale_words < EXACT_WORDS ? groups.scale_words : EXACT_WORDS;
    const Source source(groups.table);
    for (int panel = 0; panel < PANEL_COUNT; panel += P) {
        const uint32_t *data[Q], *scales[Q];
        for (int q = 0; q < Q; q++) {
            const int p = panel + q / NATIVES, place = p % 2 * LANES + q % NATIVES * NATIVE_LANES;
            data[q] = groups.data + p / 2 * groups.data_size + place;
            scales[q] = groups.scales + p / 2 * groups.scales_size + place;
        }
        for (int first = 0; first < groups.words; first += EXACT_WORDS) {
            const int end = first + EXACT_WORDS < groups.words ? first + EXACT_WORDS : groups.words;
            NativeWords part[R][Q];
            clear(part);
            for (int start = first; start < end; start += run) {
                Scaling scaling[Q];
                const size_t at = size_t(start / groups.scale_words) * GROUP;
#pragma GCC unroll 16
                for (int q = 0; q < Q; q++) {
                    scaling[q] = Scaling(scales[q] + at);
                    // Prefetch the groups that are computed next.
                    if (q % NATIVES == 0) __builtin_prefetch(scales[q] + at + G * groups.scales_size, 0, 2);
                }
                for (int word = start; word < start + run; word += Source::WORDS) {
                    NativeIntegers packed[Q];
                    const size_t at = size_t(word / Source::WORDS) * GROUP;
#pragma GCC unroll 16
                    for (int q = 0; q < Q; q++) {
                        packed[q] = (NativeIntegers)load_native(data[q] + at);
                        if (q % NATIVES == 0) __builtin_prefetch(data[q] + at + G * groups.data_size, 0, 2);
                    }
#pragma GCC unroll 4
                    for (int i = 0; i < Source::WORDS; i++)
                        accumulate<Int16>(part, x + word + i, stride, 1, [&](int, int, int q) {
                            const NativeWords one = scaling[q].apply(source.unpack(packed[q], i));
                            if (KEEP) {
                                const int place = panel * LANES + q * NATIVE_LANES;
                                memcpy(plain + size_t(word + i) * GROUP + place, &one, NATIVE_BYTES);
                            }
                            return one;
                        });
                }
            }
            add_exact(part, first == 0, sums + panel * LANES, PANEL_COUNT * LANES);
        }
    }
}

// If there are more rows than fit one pass, so many of them keep the weights that they unpack for the others. If none
// do, weights are unpacked before: with few registers that takes less time, except for bytes, which arrive slowly.
template <class Source>
constexpr int keeping_rows() {
    return SUMS_STAY ? int(UNPACKED_ROWS) : Source::WORDS > 2 ? 0 : ROWS_AT_ONCE < 3 ? int(ROWS_AT_ONCE) : 3;
}

// Computes sums [R][GROUP] of R rows x [R][words] with the unpacked weights [words][GROUP].
template <int R>
static void unpacked_product(const uint32_t* weights, int words, const uint32_t* x, size_t stride, float* sums) {
    enum { IN_REGISTERS = SUMS_STAY && !ADDS_EXACTLY, P = SUMS_STAY ? 2 : panels_at_once<R, 2>(), Q = P * NATIVES };
    for (int panel = 0; panel < 2; panel += P) {
        Native total[R][Q];
        if (IN_REGISTERS) clear(total);
        for (int first = 0; first < words; first += EXACT_WORDS) {
            const int count = EXACT_WORDS < words - first ? EXACT_WORDS : words - first;
            const uint32_t* from = weights + size_t(first) * GROUP + panel * LANES;
            NativeWords part[R][Q];
            clear(part);
            accumulate<Int16>(part, x + first, stride, count, [&](int word, int, int q) {
                return load_native(from + word * GROUP + q * NATIVE_LANES);
            });
            if constexpr (IN_REGISTERS) {
#pragma GCC unroll 16
                for (int r = 0; r < R; r++)
#pragma GCC unroll 16
                    for (int q = 0; q < Q; q++) total[r][q] += __builtin_convertvector(part[r][q], Native);
            } else {
                add_exact(part, first == 0, sums + panel * LANES, GROUP);
            }
        }
        if (IN_REGISTERS) store(total, sums + panel * LANES, GROUP);
    }
}

typedef void (*LevelProduct)(const LevelGroups&, const uint32_t*, size_t, float*, uint32_t*);

template <class Source, int G, int R, bool KEEP>
static LevelProduct level_product_of(int rows) {
    if constexpr (R == 1)
        return level_product<Source, 1, G, KEEP>;
    else
        return rows == R ? level_product<Source, R, G, KEEP> : level_product_of<Source, G, R - 1, KEEP>(rows);
}

typedef void (*UnpackedProduct)(const uint32_t*, int, const uint32_t*, size_t, float*);

template <int R = UNPACKED_ROWS>
static UnpackedProduct unpacked_product_of(int rows) {
    if constexpr (R == 1)
        return unpacked_product<1>;
    else
        return rows == R ? unpacked_product<R> : unpacked_product_of<R - 1>(rows);
}

// Unpacks the words [from, end) of a group of weights to plain [words][GROUP].
template <class Source>
static void unpack_words(const LevelGroups& groups, int from, int end, uint32_t* plain) {
    enum { Q = 2 * NATIVES };
    const int run = groups.scale_words < EXACT_WORDS ? groups.scale_words : EXACT_WORDS;
    const Source source(groups.table);
    const uint32_t* data = groups.data + size_t(from / Source::WORDS) * GROUP;
    const size_t ahead = groups.data_size;
    for (int first = from; first < end; first += run) {
        Scaling scaling[Q];
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++)
            scaling[q] = Scaling(groups.scales + size_t(first / groups.scale_words) * GROUP + q * NATIVE_LANES);
        for (int word = 0; word < run; word += Source::WORDS, data += GROUP, plain += Source::WORDS * GROUP) {
#pragma GCC unroll 4
            for (int q = 0; q < Q; q++) {
                if (q % NATIVES == 0) __builtin_prefetch(data + ahead + q * NATIVE_LANES, 0, 2);
                const NativeIntegers packed = (NativeIntegers)load_native(data + q * NATIVE_LANES);
#pragma GCC unroll 4
                for (int i = 0; i < Source::WORDS; i++) {
                    const NativeWords one = scaling[q].apply(source.unpack(packed, i));
                    memcpy(plain + i * GROUP + q * NATIVE_LANES, &one, NATIVE_BYTES);
                }
            }
        }
    }
}

// Brings sums of 32 outputs into units.
INLINE void to_units(const Matrix& matrix, int output, float unit, float* sums) {
    for (int lane = 0; lane < GROUP; lane += NATIVE_LANES) {
        const Native weight = (Native)load_native(matrix.units + output + lane);
        const Native scaled = (Native)load_native(sums + lane) * weight * all_lanes(unit);
        memcpy(sums + lane, &scaled, NATIVE_BYTES);
    }
}

template <class Source>
static LevelGroups level_groups(const Matrix& matrix, int group) {
    const size_t size = size_t(matrix.words) / Source::WORDS * GROUP;
    const size_t scales = size_t(matrix.words / matrix.scale_words) * GROUP;
    return {matrix.data + group * size, matrix.scales + group * scales, size, scales, matrix.words, matrix.scale_words,
            matrix.table};
}

// Multiplies rows with `count` groups of weights, one or for very few rows several.
template <class Source>
static void multiply_level_groups(const Matrix& matrix, int group, int count, const IntegerRows& all, int rows,
                                  Scratch& scratch, const Finish& finish) {
    const size_t stride = matrix.words;
    const LevelGroups groups = level_groups<Source>(matrix, group);
    const bool many = rows > ROWS_AT_ONCE;
    const int most = many ? int(UNPACKED_ROWS) : int(ROWS_AT_ONCE);
    uint32_t* weights = many ? scratch.take<uint32_t>(stride * GROUP) : nullptr;
    alignas(64) float sums[SUM_CELLS * (1 + ADDS_EXACTLY)];
    constexpr int KEEPING = keeping_rows<Source>();
    if (many && !KEEPING) unpack_words<Source>(groups, 0, matrix.words, weights);
    for (int row = 0; row < rows;) {
        const bool keeps = many && KEEPING && row == 0;
        const int some = std::min(next_rows(rows - row, most), keeps ? KEEPING : most);
        const uint32_t* x = all.x + row * stride;
        if (keeps)
            level_product_of<Source, 1, KEEPING ? KEEPING : 1, true>(some)(groups, x, stride, sums, weights);
        else if (many)
            unpacked_product_of(some)(weights, matrix.words, x, stride, sums);
        else if (count > 1)
            level_product_of<Source, GROUPS_AT_ONCE, VERY_FEW_ROWS, false>(some)(groups, x, stride, sums, nullptr);
        else
            level_product_of<Source, 1, ROWS_AT_ONCE, false>(some)(groups, x, stride, sums, nullptr);
        for (int i = 0; i < some * count; i++) {
            const int output = (group + i % count) * GROUP, which = row + i / count;
            round_sums(sums + i * GROUP);
            to_units(matrix, output, all.units[which], sums + i * GROUP);
            finish(which, output, sums + i * GROUP);
        }
        row += some;
    }
}

// Rounds a row's activations to whole numbers of 13 bits and a sign, and returns their unit: a power of two, so that
// bfloat16 numbers from 1/32 of the highest on are exact. A number that is not finite makes the unit NaN.
template <class T>
static float take_integers(const typename T::Active* from, int words, uint32_t* to) {
    const int cells = 2 * words;
    Words most{};
    for (int cell = 0; cell < cells; cell += LANES) most = max(most, (Words)T::load_active(from + cell) & 0x7fffffff);
    int32_t highest = 1 << 23;
    for (int lane = 0; lane < LANES; lane++) highest = most[lane] > highest ? most[lane] : highest;
    const int exponent = highest >> 23;  // with a bias of 127
    const bool finite = exponent < 255;
    // Of numbers below 2^-100 nothing would be left of sums.
    const int unit = (exponent > 27 ? exponent : 27) - 12;
    const Floats inverse = (Floats)(Words{} + (finite ? (254 - unit) << 23 : 0));
    for (int cell = 0; cell < cells; cell += LANES) {
        // Adding 1.5 * 2^23 rounds to whole numbers, which are then in the low bits.
        const Words rounded = (Words)(T::load_active(from + cell) * inverse + 12582912.0f);
        const Halves integers = __builtin_convertvector(rounded, Halves);
        memcpy(to + cell / 2, &integers, sizeof integers);
    }
    const int32_t bits = finite ? unit << 23 : 0x7fc00000;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

// Of all rows; with `digits` also what products with blocks take.
template <class T>
static IntegerRows take_integer_rows(Context& context, const uint32_t* x, int rows, int words, bool digits) {
    const size_t size = size_t(rows) * words, parts = digits ? size : 0;
    const size_t behind = digits ? size_t(ROWS_BEHIND) * words : 0;
    uint32_t* integers =
        context.integers.take<uint32_t>(size + parts + parts / SIXTEEN_WORDS + parts / SUMS_WORDS + behind);
    float* units = context.units.take<float>(rows);
    const auto* from = reinterpret_cast<const typename T::Active*>(x);
    IntegerRows all{integers, units, integers + size, integers + size + parts, nullptr, words};
    all.sums = all.biases + parts / SIXTEEN_WORDS;
    context.threads.share(rows, [&](int first, int end, int) {
        for (int row = first; row < end; row++) {
            uint32_t* made = integers + size_t(row) * words;
            units[row] = take_integers<T>(from + size_t(row) * words * 2, words, made);
            if (digits) take_digits(all, row);
        }
    });
    return all;
}

// Multiplies a part's rows with the groups [first, end) of outputs of its matrix.
template <class Source>
static void multiply_level_part(Context& context, const Part& part, int first, int end, const IntegerRows& all,
                                Scratch& scratch, Finish finish) {
    const Matrix& matrix = *part.matrix;
    const int most = context.rows_in_cache(matrix.words * sizeof *all.x);
    for (int start = part.row, last = part.row + part.rows; start < last; start += most) {
        const IntegerRows some = all.from(start);
        finish.first = start;
        const int unit = part.rows <= VERY_FEW_ROWS ? GROUPS_AT_ONCE : 1;
        for (int group = first; group < end; group += unit)
            multiply_level_groups<Source>(matrix, group, end - group < unit ? 1 : unit, some,
                                          std::min(most, last - start), scratch, finish);
    }
}
