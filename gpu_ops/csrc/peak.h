// SPDX-License-Identifier: Apache-2.0
// The most that a processor can do, by the instructions that the products use: what their speed is compared with.
#pragma once
#include "products.h"

#if defined(__aarch64__)
enum { CHAINS = 16 };  // the largest processors begin four in a cycle, and each takes four
#else
enum { CHAINS = ROWS_OF_2 > 2 ? 2 * ROWS_OF_2 : 10 };
#endif

// Does `rounds` times CHAINS multiply-adds of vectors, none of which waits for another of its round; returns the number
// of multiply-adds of numbers.
template <class T>
static int64_t multiply_adds(int64_t rounds) {
    volatile int32_t zero = 0;
    const NativeWords one = NativeWords{} + int32_t(zero), two = NativeWords{} + int32_t(zero);
    // With an index that is not a constant in any of the loops, sums would be written to memory in each round.
    Native total[CHAINS];
#pragma GCC unroll 32
    for (int i = 0; i < CHAINS; i++) total[i] = Native{} + float(i);
    for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 32
        for (int i = 0; i < CHAINS; i++) total[i] = T::dot(total[i], one, two);
    float sum = 0;
#pragma GCC unroll 32
    for (int i = 0; i < CHAINS; i++) sum += total[i][0];
    volatile float kept = sum;
    (void)kept;
    return rounds * CHAINS * NATIVE_LANES * (T::PER_WORD / T::STEPS);
}
#if defined(PONTIL_TILES)
template <>
int64_t multiply_adds<BFloat16>(int64_t rounds) {
    TileScope scope;
    (void)scope;
    // The number of a tile is part of the instruction, so it cannot be a loop's variable.
    zero_tile(0);
    zero_tile(1);
    zero_tile(2);
    zero_tile(3);
    zero_tile(4);
    zero_tile(5);
    zero_tile(6);
    zero_tile(7);
    for (int64_t round = 0; round < rounds; round++) {
        dot_tiles(0, 4, 6);
        dot_tiles(1, 4, 7);
        dot_tiles(2, 5, 6);
        dot_tiles(3, 5, 7);
    }
    return rounds * 4 * TILE * TILE * TILE * BFloat16::PER_WORD;
}
#endif

// Reads `count` words, each once.
static void read_words(const uint32_t* from, size_t count) {
    NativeWords mixed[4] = {};
    for (size_t i = 0; i + 4 * NATIVE_LANES <= count; i += 4 * NATIVE_LANES) {
        __builtin_prefetch(from + i + 1024);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) mixed[k] ^= load_native(from + i + k * NATIVE_LANES);
    }
    volatile int32_t kept = (mixed[0] ^ mixed[1] ^ mixed[2] ^ mixed[3])[0];
    (void)kept;
}
