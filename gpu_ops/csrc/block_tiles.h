// SPDX-License-Identifier: Apache-2.0
// Products of many rows with weights in blocks by the matrix unit, which multiplies 16 rows of 64 bytes with 16 outputs
// at once. Scales times levels become two digits of 8 bits with their signs, as activations are: x = 2^DIGIT high +
// low. The sums of products of digits are exact, and so is what they add up to: the bits are those of blocks.h.
#pragma once
#include "blocks.h"
#include "tiles.h"

// A block's digits as the unit reads them, [quarter][panel][high, low][word of four inputs][output], pairs of minima,
// and the steps.
template <class F>
struct TileBlock {
    alignas(64) uint32_t digits[4][2][2][TILE][LANES];
    alignas(64) uint32_t minima[F::MINIMA + 1][GROUP];
    alignas(64) uint32_t steps[2][GROUP];

    void unpack(const uint32_t* data) {
        for (int lane = 0; lane < GROUP; lane += NATIVE_LANES) {
            const F form(data + lane);
            const auto put = [&](uint32_t* to, auto one) { memcpy(to, &one, NATIVE_BYTES); };
#pragma GCC unroll 1
            for (int sixteen = 0; sixteen < SIXTEENS; sixteen++) {
                const NativeWords scale = form.scales[sixteen / F::SHARED];
                const NativeIntegers both = (NativeIntegers)((scale & 0xffff) | (scale << 16));
                const uint32_t* quarter = data + sixteen / 4 * F::QUARTER_WORDS * GROUP + lane;
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    const NativeWords bytes = F::levels(quarter, sixteen % 4, i);
                    const auto product = [&](NativeWords levels) {
                        return ((NativeIntegers)(levels & 0xff00ff) - int16_t(F::BIAS)) * both;
                    };
                    NativeWords made[2];
                    split_digits(product(bytes), product(bytes >> 8), made);
                    for (int part = 0; part < 2; part++)
                        put(digits[sixteen / 4][lane / LANES][part][sixteen % 4 * 4 + i] + lane % LANES, made[part]);
                }
            }
            for (int pair = 0; pair < F::MINIMA; pair++) put(minima[pair] + lane, form.minima[pair]);
            put(steps[0] + lane, form.step), put(steps[1] + lane, form.least);
        }
    }
};

// The sums of a quarter with one digit of 16 rows: by high and by low digits of weights, of both panels. The numbers of
// tiles are part of the instructions.
#define DOT_DIGITS(x, quarter, stride, high, low, high_of_second, low_of_second) \
    load_tile(6, x, stride);                                                      \
    load_tile(7, quarter[0][0], LANES * sizeof *x);                               \
    dot_byte_tiles(high, 6, 7);                                                   \
    load_tile(7, quarter[0][1], LANES * sizeof *x);                               \
    dot_byte_tiles(low, 6, 7);                                                    \
    load_tile(7, quarter[1][0], LANES * sizeof *x);                               \
    dot_byte_tiles(high_of_second, 6, 7);                                         \
    load_tile(7, quarter[1][1], LANES * sizeof *x);                               \
    dot_byte_tiles(low_of_second, 6, 7)

// Adds the exact sums of 16 rows to `part`, after each run of quarters whose sums fit a word.
template <class F>
static void add_tiles(const TileBlock<F>& block, const uint32_t* x, size_t stride, float (&part)[TILE][GROUP]) {
    alignas(64) int32_t made[6][TILE][LANES];
    for (int run = 0; run < 4; run += F::QUARTERS) {
        zero_sums();
        zero_tile(4);
        zero_tile(5);
        for (int quarter = run; quarter < run + F::QUARTERS; quarter++) {
            const uint32_t* digits = x + quarter * QUARTER_WORDS;
            DOT_DIGITS(digits, block.digits[quarter], stride, 0, 1, 3, 4);
            digits += QUARTER_WORDS / 2;
            DOT_DIGITS(digits, block.digits[quarter], stride, 1, 2, 4, 5);
        }
        store_tile(0, made[0], sizeof made[0][0]);
        store_tile(1, made[1], sizeof made[0][0]);
        store_tile(2, made[2], sizeof made[0][0]);
        store_tile(3, made[3], sizeof made[0][0]);
        store_tile(4, made[4], sizeof made[0][0]);
        store_tile(5, made[5], sizeof made[0][0]);
        __asm__ volatile("" ::: "memory");
        for (int row = 0; row < TILE; row++)
#pragma GCC unroll 8
            for (int lane = 0; lane < GROUP; lane += NATIVE_LANES) {
                const auto sum = [&](int digit) {
                    return load_native(made[lane / LANES * 3 + digit][row] + lane % LANES);
                };
                const NativeWords exact = (((sum(0) << DIGIT) + sum(1)) << DIGIT) + sum(2);
                Native total = __builtin_convertvector(exact, Native);
                if (run) total += (Native)load_native(part[row] + lane);
                memcpy(part[row] + lane, &total, NATIVE_BYTES);
            }
    }
}

// Adds to sums [rows][GROUP] of up to 16 rows their products with a block, which has the inputs from word `start` on.
template <class F>
static void tile_block_product(const TileBlock<F>& block, int start, const IntegerRows& rows, int count, float* sums) {
    enum { Q = 2 * NATIVES };
    alignas(64) float part[TILE][GROUP];
    add_tiles<F>(block, rows.digits + start, size_t(rows.words) * sizeof *rows.digits, part);
    Native units[2][Q];
    for (int i = 0; i < 2 * Q; i++)
        units[i / Q][i % Q] = (Native)load_native(block.steps[i / Q] + i % Q * NATIVE_LANES);
    for (int row = 0; row < count; row++, sums += GROUP) {
        Native own[1][Q];
        NativeWords minima[1][Q];
        for (int q = 0; q < Q; q++) own[0][q] = (Native)load_native(part[row] + q * NATIVE_LANES);
        clear(minima);
        accumulate<Int16>(minima, rows.from(row).sums + start / SUMS_WORDS, 0, F::MINIMA, [&](int word, int, int q) {
            return load_native(block.minima[word] + q * NATIVE_LANES);
        });
        add_block<(F::MINIMA > 0)>(own, units[0], minima, units[1], start == 0, sums);
    }
}

// Computes the sums [rows][GROUP] of many rows with a group of weights. Rows are read in sixteens: see ROWS_BEHIND.
template <class F>
static float* tile_block_sums(const Matrix& matrix, int group, const IntegerRows& rows, int count, Scratch& scratch) {
    const size_t block_size = size_t(F::WORDS) * GROUP, size = size_t(matrix.words) / BLOCK_WORDS * block_size;
    const uint32_t* data = matrix.data + group * size;
    auto& block = *scratch.take<TileBlock<F>>(2 + size_t(count) * GROUP * sizeof(float) / sizeof(TileBlock<F>));
    float* sums = reinterpret_cast<float*>(&block + 1);
    for (int start = 0; start < matrix.words; start += BLOCK_WORDS, data += block_size) {
        block.unpack(data);
        prefetch_words<2>(data + block_size, F::WORDS);
        for (int row = 0; row < count; row += TILE) {
            prefetch_rows<TILE>(rows.digits + start, rows.words, row + TILE, count);
            tile_block_product<F>(block, start, rows.from(row), std::min(count - row, int(TILE)), sums + row * GROUP);
        }
    }
    return sums;
}
