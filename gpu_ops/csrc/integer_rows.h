// SPDX-License-Identifier: Apache-2.0
// Rows of activations as whole numbers, and what products with blocks of weights take of them.
#pragma once
#include "context.h"
#include "integers.h"
#include "numbers.h"

// Whole numbers are x = 2^DIGIT high + low, both of 8 bits with their signs. Sums of 32 are counted in SUM_UNIT, so
// that they have 16 bits. Sixteen numbers are eight words of pairs.
constexpr int DIGIT = 7, SUM_BITS = 3, SUM_UNIT = 1 << SUM_BITS, SIXTEEN_WORDS = 8, SUMS_WORDS = 32;
// Words of 64 numbers: half of them of high digits, and half of low ones.
constexpr int QUARTER_WORDS = 32;

// Rows of activations as whole numbers: pairs [rows][words], and the unit of each row. For blocks `digits`
// [rows][words] has of 64 numbers sixteen words of high digits, then sixteen of low ones; a word's bytes are of the
// numbers 2i, 2i + 8, 2i + 1 and 2i + 9 of a sixteen. `biases` [rows][words / 8] are sums of sixteen, times -32; `sums`
// [rows][words / 32] pairs of those of 32.
struct IntegerRows {
    IntegerRows from(int row) const {
        const size_t cells = size_t(row) * words;
        return {x + cells, units + row, digits + cells, biases + cells / SIXTEEN_WORDS, sums + cells / SUMS_WORDS,
                words};
    }
    uint32_t* x;
    float* units;
    uint32_t *digits, *biases, *sums;
    int words;
};

INLINE NativeWords all_words(const uint32_t* from, size_t at) { return NativeWords{} + int32_t(from[at]); }

// Takes pairs of numbers of 13 bits and a sign apart: their high digits, and their low ones. Bytes are those of a pair
// of `first` and one of `second`, in turn.
INLINE void split_digits(NativeIntegers first, NativeIntegers second, NativeWords (&made)[2]) {
    const NativeIntegers high[2] = {(first + int16_t(1 << (DIGIT - 1))) >> DIGIT,
                                    (second + int16_t(1 << (DIGIT - 1))) >> DIGIT};
    made[0] = ((NativeWords)high[0] & 0xff00ff) | (((NativeWords)high[1] & 0xff00ff) << 8);
    made[1] = ((NativeWords)(first - (high[0] << DIGIT)) & 0xff00ff) |
              (((NativeWords)(second - (high[1] << DIGIT)) & 0xff00ff) << 8);
}

typedef int16_t EightIntegers __attribute__((vector_size(16)));
typedef int32_t FourWords __attribute__((vector_size(16)));

// Makes the digits of sixteen numbers, the low ones behind the high ones of 64, and returns their sum.
INLINE int32_t take_sixteen(const uint32_t* from, uint32_t* digits) {
    EightIntegers x[2];
    memcpy(x, from, sizeof x);
    const EightIntegers high[2] = {(x[0] + (1 << (DIGIT - 1))) >> DIGIT, (x[1] + (1 << (DIGIT - 1))) >> DIGIT};
    const EightIntegers low[2] = {x[0] - (high[0] << DIGIT), x[1] - (high[1] << DIGIT)};
    const FourWords bytes = FourWords{} + 0xff00ff;
    const FourWords made[2] = {((FourWords)high[0] & bytes) | (((FourWords)high[1] & bytes) << 8),
                               ((FourWords)low[0] & bytes) | (((FourWords)low[1] & bytes) << 8)};
    memcpy(digits, made, sizeof made[0]), memcpy(digits + QUARTER_WORDS / 2, made + 1, sizeof made[1]);
    const FourWords pairs[2] = {(FourWords)x[0], (FourWords)x[1]};
    const FourWords four = (pairs[0] << 16 >> 16) + (pairs[0] >> 16) + (pairs[1] << 16 >> 16) + (pairs[1] >> 16);
    return four[0] + four[1] + four[2] + four[3];
}

INLINE void take_digits(const IntegerRows& all, int row) {
    const IntegerRows own = all.from(row);
    for (int word = 0; word < own.words / SUMS_WORDS; word++) {
        uint32_t both[2];
        for (int half = 0; half < 2; half++) {
            int32_t sum = SUM_UNIT / 2;
            for (int i = 4 * word + 2 * half, end = i + 2; i < end; i++) {
                uint32_t* digits = own.digits + i / 4 * QUARTER_WORDS + i % 4 * 4;
                const int32_t one = take_sixteen(own.x + i * SIXTEEN_WORDS, digits);
                own.biases[i] = uint32_t(-32 * one), sum += one;
            }
            both[half] = uint32_t(sum >> SUM_BITS);
        }
        own.sums[word] = (both[0] & 0xffff) | (both[1] << 16);
    }
}
