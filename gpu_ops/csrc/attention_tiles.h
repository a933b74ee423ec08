// SPDX-License-Identifier: Apache-2.0
// Attention's products by the matrix unit: 16 queries with 16 keys, or with 16 numbers of the values of 16 positions,
// at once. A query takes the same steps for any others in its tile, so tiles are always computed whole: rows behind
// the last query are read, and written, but never used.
#pragma once
#include "strip_products.h"
#include "tiles.h"

// Words of a strip's weights, and of those of a run of 16 positions.
enum { STRIP_WORDS = STRIP / BFloat16::PER_WORD, RUN_WORDS = LANES / BFloat16::PER_WORD, RUNS = STRIP / LANES };

// Multiplies 16 queries with two panels of keys. The numbers of tiles are part of the instructions.
#define DOT_KEYS(queries, one, other)       \
    load_tile(4, queries, stride);          \
    load_tile(5, first + at, LINE);         \
    dot_tiles(one, 4, 5);                   \
    load_tile(5, second + at, LINE);        \
    dot_tiles(other, 4, 5)

// Scores [2 * TILE][STRIP] of up to 32 queries [2 * TILE][words] with panels of 16 keys, [words][16] each. `words` is a
// multiple of TILE; both: there are more than TILE queries.
static void score_tiles(const uint32_t* queries, size_t words, bool both, const uint32_t* const* panels,
                        float* scores) {
    enum { LINE = LANES * sizeof *queries };
    const size_t stride = words * sizeof *queries;
    for (int panel = 0; panel < PANELS; panel += 2) {
        const uint32_t *first = panels[panel], *second = panels[panel + 1];
        zero_sums();
        for (size_t word = 0; word < words; word += TILE) {
            const size_t at = word * LANES;
            DOT_KEYS(queries + word, 0, 1);
            if (!both) continue;
            DOT_KEYS(queries + TILE * words + word, 2, 3);
        }
        float* to = scores + panel * LANES;
        store_tile(0, to, STRIP * sizeof *scores);
        store_tile(1, to + LANES, STRIP * sizeof *scores);
        if (!both) continue;
        store_tile(2, to + TILE * STRIP, STRIP * sizeof *scores);
        store_tile(3, to + TILE * STRIP + LANES, STRIP * sizeof *scores);
    }
    __asm__ volatile("" ::: "memory");
}
#undef DOT_KEYS

// Multiplies the weights of 16 queries with two panels of values, or with one.
#define DOT_VALUES(weights, one, other)       \
    load_tile(6, weights, LINE);              \
    load_tile(7, values, row);                \
    dot_tiles(one, 6, 7);                     \
    if (wide) {                               \
        load_tile(7, values + LANES, row);    \
        dot_tiles(other, 6, 7);               \
    }

// Adds to sums [2 * TILE][width] of up to 32 queries 16 numbers of a strip's values, runs of [RUN_WORDS][dim], from a
// column on, or 32 if `wide`, by their weights [2 * TILE][STRIP_WORDS].
INLINE void add_columns(const uint32_t* weights, bool both, const uint32_t* const* runs, size_t dim, size_t column,
                        bool wide, float* sums, size_t width) {
    enum { LINE = STRIP_WORDS * sizeof *weights };
    const size_t row = dim * sizeof **runs, stride = width * sizeof *sums;
    float *to = sums + column, *second = to + TILE * width;
    load_tile(0, to, stride);
    if (wide) load_tile(1, to + LANES, stride);
    if (both) load_tile(2, second, stride);
    if (both && wide) load_tile(3, second + LANES, stride);
    for (int run = 0; run < RUNS; run++, weights += RUN_WORDS) {
        const uint32_t* values = runs[run] + column;
        DOT_VALUES(weights, 0, 1);
        if (!both) continue;
        DOT_VALUES(weights + TILE * STRIP_WORDS, 2, 3);
    }
    store_tile(0, to, stride);
    if (wide) store_tile(1, to + LANES, stride);
    if (both) store_tile(2, second, stride);
    if (both && wide) store_tile(3, second + LANES, stride);
}
#undef DOT_VALUES

// Brings two pieces of values behind one another, [RUN_WORDS][dim], with zeros behind the `count` valid positions:
// cells that were never written may hold NaN.
static const uint32_t* gather_run(const uint32_t* const* pieces, size_t dim, int count, uint32_t* to) {
    enum { WORDS = PIECE / BFloat16::PER_WORD };
    for (int word = 0; word < RUN_WORDS; word++) {
        const uint32_t* from = pieces[word / WORDS] + word % WORDS * dim;
        const int left = count - word * BFloat16::PER_WORD;
        const Words there = splat(left > 1 ? 0xffffffff : left > 0 ? 0x0000ffff : 0);
        for (size_t i = 0; i < dim; i += LANES) store_words(to + word * dim + i, load_words(from + i) & there);
    }
    return to;
}

// Keys of a number of words that tiles do not divide, with zeros behind them.
static const uint32_t* pad_panel(const uint32_t* panel, size_t words, size_t padded_words, uint32_t* to) {
    memcpy(to, panel, words * LANES * sizeof *to);
    memset(to + words * LANES, 0, (padded_words - words) * LANES * sizeof *to);
    return to;
}

// Prefetches the beginning of what is read next, from where the processor goes on by itself: for all of its lines the
// unit would wait, since it multiplies faster than they come.
INLINE void expect_run(const uint32_t* run) {
    __builtin_prefetch(run, 0, 2);
    __builtin_prefetch(run + LANES, 0, 2);
}

// As VectorProducts, of bfloat16.
struct TileProducts {
    enum { ROWS = TILE, PART = 2 * TILE };
    static int query_words(int words) { return padded(words, TILE); }
    // Rows whose distance divides a page would wait for each other.
    static int sum_words(int dim) { return dim + LANES; }
    static size_t scratch_words(int words, int dim) {
        return STRIP_WORDS * dim + (words % TILE ? PANELS * LANES * query_words(words) : 0);
    }

    void take(const KeyPanels& keys, uint32_t* scratch) {
        words = query_words(keys.words);
        for (int p = 0; p < PANELS; p++) {
            panels[p] = keys.panels[p];
            expect_run(keys.ahead[p]);
            if (words != keys.words) panels[p] = pad_panel(panels[p], keys.words, words, scratch + p * words * LANES);
        }
        if (words != keys.words) scratch += PANELS * words * LANES;
        gathered = scratch;
    }
    void take(const Values& values) {
        dim = values.dim;
        for (int run = 0; run < RUNS; run++) {
            const uint32_t* const* pieces = values.pieces + 2 * run;
            const int valid = values.count - run * LANES;
            const bool whole = valid >= LANES && pieces[1] == pieces[0] + RUN_WORDS / 2 * dim;
            expect_run(values.ahead[2 * run]);
            runs[run] = whole ? pieces[0] : gather_run(pieces, dim, valid, gathered + run * RUN_WORDS * dim);
        }
    }
    void score(const uint32_t* queries, int count, float* scores) const {
        score_tiles(queries, words, count > TILE, panels, scores);
    }
    void add(const uint32_t* weights, int count, const float* correction, float* sums) const {
        const int width = sum_words(dim);
        for (int q = 0; q < count; q++)
            if (correction[q] != 1.0f)
                for (int i = 0; i < dim; i += LANES)
                    store(sums + q * width + i, load(sums + q * width + i) * correction[q]);
        __asm__ volatile("" ::: "memory");
        int column = 0;
        for (; column + 2 * LANES <= dim; column += 2 * LANES)
            add_columns(weights, count > TILE, runs, dim, column, true, sums, width);
        if (column < dim) add_columns(weights, count > TILE, runs, dim, column, false, sums, width);
        __asm__ volatile("" ::: "memory");
    }

    int words, dim;
    const uint32_t *panels[PANELS], *runs[RUNS];
    uint32_t* gathered;
};

template <class T>
using StripProducts = std::conditional_t<std::is_same_v<T, BFloat16>, TileProducts, VectorProducts<T>>;
