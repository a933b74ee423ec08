// SPDX-License-Identifier: Apache-2.0
// Products of many rows with levels by the matrix unit. Weights become two digits of 8 bits with their signs, as
// activations are: x = 2^DIGIT high + low. The unit adds up the products of digits of all inputs, exactly, and what
// they add up to is rounded once: the bits are those of quantized.h.
#pragma once
#include "quantized.h"
#include "tiles.h"

// Fewer rows take less time without the unit: taking weights apart is most of it.
enum { LEAST_TILE_ROWS = 24 };

// The digits of 64 inputs of a group of weights, [panel][high, low][word of four inputs][output].
struct LevelDigits {
    alignas(64) uint32_t words[2][2][TILE][LANES];

    explicit LevelDigits(const uint32_t (&plain)[QUARTER_WORDS][GROUP]) {
        for (int lane = 0; lane < GROUP; lane += NATIVE_LANES)
            for (int sixteen = 0; sixteen < 4; sixteen++)
                for (int i = 0; i < 4; i++) {
                    const uint32_t* from = plain[sixteen * SIXTEEN_WORDS + i] + lane;
                    NativeWords made[2];
                    const NativeWords first = load_native(from), second = load_native(from + 4 * GROUP);
                    split_digits((NativeIntegers)first, (NativeIntegers)second, made);
                    for (int part = 0; part < 2; part++)
                        memcpy(words[lane / LANES][part][sixteen * 4 + i] + lane % LANES, made + part, NATIVE_BYTES);
                }
    }
};

template <class Source>
static LevelDigits* level_digits(const LevelGroups& groups, Scratch& scratch) {
    const int count = groups.words / QUARTER_WORDS;
    LevelDigits* digits = scratch.take<LevelDigits>(count);
    for (int i = 0; i < count; i++) {
        alignas(64) uint32_t plain[QUARTER_WORDS][GROUP];
        unpack_words<Source>(groups, i * QUARTER_WORDS, (i + 1) * QUARTER_WORDS, plain[0]);
        new (digits + i) LevelDigits(plain);
    }
    return digits;
}

// Computes sums [TILE][LANES] of 16 rows with a panel. The numbers of tiles are part of the instructions; products of
// a high digit with a low one have two tiles, so that no step waits for the one before.
INLINE void tile_level_sums(const LevelDigits* digits, int count, int panel, const uint32_t* x, size_t stride,
                            int32_t (&made)[4][TILE][LANES]) {
    zero_sums();
    for (int i = 0; i < count; i++, x += QUARTER_WORDS) {
        const auto& weights = digits[i].words[panel];
        for (int row = 0; row < TILE; row++) {
            const uint32_t* ahead = x + 2 * QUARTER_WORDS + row * (stride / sizeof *x);
            __builtin_prefetch(ahead, 0, 3);
            __builtin_prefetch(ahead + LANES, 0, 3);
        }
        load_tile(4, x, stride);
        load_tile(6, weights[0], sizeof weights[0][0]);
        dot_byte_tiles(0, 4, 6);
        load_tile(7, weights[1], sizeof weights[1][0]);
        dot_byte_tiles(1, 4, 7);
        load_tile(5, x + QUARTER_WORDS / 2, stride);
        dot_byte_tiles(2, 5, 6);
        dot_byte_tiles(3, 5, 7);
    }
    store_tile(0, made[0], sizeof made[0][0]);
    store_tile(1, made[1], sizeof made[0][0]);
    store_tile(2, made[2], sizeof made[0][0]);
    store_tile(3, made[3], sizeof made[0][0]);
    __asm__ volatile("" ::: "memory");
}

// Multiplies a part's rows with the groups [first, end) of outputs of its matrix.
template <class Source>
static void multiply_level_tiles(const Part& part, int first, int end, const IntegerRows& all, Scratch& scratch,
                                 Finish finish) {
    TileScope scope;
    (void)scope;
    const Matrix& matrix = *part.matrix;
    const int quarters = matrix.words / QUARTER_WORDS;
    alignas(64) int32_t made[4][TILE][LANES];
    alignas(64) float sums[TILE][GROUP];
    finish.first = part.row;
    for (int group = first; group < end; group++) {
        const LevelDigits* digits = level_digits<Source>(level_groups<Source>(matrix, group), scratch);
        for (int row = 0; row < part.rows; row += TILE) {
            const IntegerRows own = all.from(part.row + row);
            const int count = std::min(part.rows - row, int(TILE));
            for (int panel = 0; panel < 2; panel++) {
                tile_level_sums(digits, quarters, panel, own.digits, matrix.words * sizeof *own.digits, made);
                for (int r = 0; r < count; r++)
                    for (int lane = 0; lane < LANES; lane += NATIVE_LANES) {
                        const auto sum = [&](int tile) { return load_native(made[tile][r] + lane); };
                        const NativeWords low = ((sum(1) + sum(2)) << DIGIT) + sum(3);
                        const Native rounded = to_float(doubles(sum(0)) * double(1 << (2 * DIGIT)) + doubles(low));
                        memcpy(sums[r] + panel * LANES + lane, &rounded, NATIVE_BYTES);
                    }
            }
            for (int r = 0; r < count; r++) {
                to_units(matrix, group * GROUP, own.units[r], sums[r]);
                finish(row + r, group * GROUP, sums[r]);
            }
        }
    }
}
