// SPDX-License-Identifier: Apache-2.0
// Products by the matrix unit (AMX) of a processor that has one: 16 rows by 16 outputs by 16 words at once. A row takes
// the same steps for any other rows in its tile, so tiles are always computed whole; missing rows are read from the
// memory behind the last one, and their results are never used.
#pragma once
#include "linear.h"

enum { TILE = 16 };

#if defined(PONTIL_EMULATED_TILES)
// The same in plain C++, so that all code except the instructions themselves is tested on any machine.
static thread_local uint32_t emulated[8][TILE][TILE];
static thread_local bool emulated_halves;
INLINE bool may_use_tiles() { return true; }
INLINE void zero_tile(int tile) { memset(emulated[tile], 0, sizeof emulated[tile]); }
INLINE void load_tile(int tile, const void* from, size_t stride) {
    const int rows = emulated_halves && tile == 7 ? TILE / 2 : TILE, bytes = emulated_halves && tile == 6 ? 32 : 64;
    zero_tile(tile);
    for (int i = 0; i < rows; i++) memcpy(emulated[tile][i], static_cast<const char*>(from) + i * stride, bytes);
}
INLINE void store_tile(int tile, void* to, size_t stride) {
    for (int i = 0; i < TILE; i++) memcpy(static_cast<char*>(to) + i * stride, emulated[tile][i], 64);
}
INLINE void dot_tiles(int sums, int rows, int weights) {
    for (int row = 0; row < TILE; row++) {
        Floats total;
        memcpy(&total, emulated[sums][row], sizeof total);
        for (int word = 0; word < TILE; word++)
            total = BFloat16::dot(total, load_words(emulated[weights][word]), splat(emulated[rows][row][word]));
        memcpy(emulated[sums][row], &total, sizeof total);
    }
}
INLINE void dot_byte_tiles(int sums, int rows, int weights) {
    const auto byte = [](uint32_t word, int i) { return int32_t(int8_t(word >> (8 * i))); };
    for (int row = 0; row < TILE; row++)
        for (int lane = 0; lane < TILE; lane++)
            for (int word = 0; word < TILE; word++)
                for (int i = 0; i < 4; i++)
                    emulated[sums][row][lane] += uint32_t(byte(emulated[rows][row][word], i) *
                                                          byte(emulated[weights][word][lane], i));
}
struct TileScope {
    explicit TileScope(bool halves = false, int = TILE) { emulated_halves = halves; }
    ~TileScope() { emulated_halves = false; }
};
#else
#include <sys/syscall.h>
#include <unistd.h>

// Linux gives a process the large registers only on request (arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA).
INLINE bool may_use_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
#define zero_tile(tile) _tile_zero(tile)
#define load_tile(tile, from, stride) _tile_loadd(tile, from, stride)
#define store_tile(tile, to, stride) _tile_stored(tile, to, stride)
#define dot_tiles(sums, rows, weights) _tile_dpbf16ps(sums, rows, weights)
#define dot_byte_tiles(sums, rows, weights) _tile_dpbssd(sums, rows, weights)

// Configures eight tiles of 16 rows of 64 bytes on this thread, for the lifetime of the object. With `halves` the last
// two are for products with 8 words: rows of 32 bytes in tile 6, and 8 rows in tile 7; weights or keys are in tiles 5
// and 7 then, and the others have only `rows`.
struct TileScope {
    explicit TileScope(bool halves = false, int rows = TILE) {
        struct {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } config;
        if (halves) {
            for (int tile : {0, 1, 2, 3, 4, 6}) config.rows[tile] = uint8_t(rows);
            config.bytes[6] = 32, config.rows[7] = TILE / 2;
        }
        _tile_loadconfig(&config);
    }
    ~TileScope() { _tile_release(); }
};
#endif

// Begins sums in the first four tiles. The compiler does not know that tiles are loaded from memory.
INLINE void zero_sums() {
    __asm__ volatile("" ::: "memory");
    zero_tile(0);
    zero_tile(1);
    zero_tile(2);
    zero_tile(3);
}

// sums [2 * TILE][GROUP] of up to 2 * TILE rows with one group of weights; both: there are more than TILE rows. For
// each chunk of 16 words that is read, one of the next group is prefetched, up to `lines` cache lines. An `odd` group
// has one panel, whose sums are in the first half of each GROUP.
INLINE void tile_product(const uint32_t* x, size_t words, const uint32_t* weights, bool both, bool odd,
                         const uint32_t* ahead, int lines, float* sums) {
    const size_t row_bytes = words * 4, sum_bytes = GROUP * 4, width = odd ? LANES : GROUP, weight_bytes = width * 4;
    zero_sums();
    for (size_t word = 0; word < words; word += TILE) {
        for (int line = 0; line < lines; line++)
            __builtin_prefetch(ahead + (word / TILE * lines + line) * (64 / sizeof *ahead), 0, 2);
        load_tile(6, weights + word * width, weight_bytes);
        if (!odd) load_tile(7, weights + word * width + LANES, weight_bytes);
        load_tile(4, x + word, row_bytes);
        dot_tiles(0, 4, 6);
        if (!odd) dot_tiles(1, 4, 7);
        if (!both) continue;
        load_tile(5, x + TILE * words + word, row_bytes);
        dot_tiles(2, 5, 6);
        if (!odd) dot_tiles(3, 5, 7);
    }
    store_tile(0, sums, sum_bytes);
    store_tile(1, sums + LANES, sum_bytes);
    if (!both) return;
    store_tile(2, sums + TILE * GROUP, sum_bytes);
    store_tile(3, sums + TILE * GROUP + LANES, sum_bytes);
}

// Multiplies rows with a group of weights, and prefetches `next`, unless it is null.
static void multiply_tiles(const Matrix& matrix, int group, const uint32_t* next, const uint32_t* x, int rows,
                           const Finish& finish) {
    const size_t words = matrix.words;
    const uint32_t* weights = matrix.data + group * words * GROUP;
    const bool odd = is_odd(matrix, group);
    alignas(64) float sums[2 * TILE * GROUP];
    for (int row = 0; row < rows; row += 2 * TILE) {
        const int count = rows - row < 2 * TILE ? rows - row : 2 * TILE;
        const int lines = row || !next ? 0 : odd ? TILE : 2 * TILE;
        tile_product(x + row * words, words, weights, count > TILE, odd, next, lines, sums);
        for (int r = 0; r < count; r++) finish(row + r, group * GROUP, sums + r * GROUP);
    }
}
