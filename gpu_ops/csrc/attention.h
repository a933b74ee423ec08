// SPDX-License-Identifier: Apache-2.0
// Paged attention. A query goes through the keys it sees in strips of STRIP positions aligned to the beginning of the
// text, with a running maximum (Milakov and Gimelshein, 2018; Dao et al., 2022). Whatever other queries are computed
// beside it, its own numbers go through the same operations in the same order; a strip or a key that it does not see
// adds exact zeros.
#pragma once
#include "linear.h"

enum { STRIP = 64 };
// Queries computed together: heads of a group times positions.
enum { QUERIES = 48 };
enum { PANELS = STRIP / LANES };
#if defined(__AVX512F__)
enum { SCORE_ROWS = 6, VALUE_ROWS = 6 };
#else
enum { SCORE_ROWS = 2, VALUE_ROWS = 2 };
#endif
// Below any score, and finite, so that differences of it are numbers.
constexpr float NOTHING = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;

// Where a layer's keys and values are, from one head on.
template <class T>
struct Keys {
    typedef typename T::Cell Cell;
    Keys(const Tile& tile, int layer, int head)
        : pool(static_cast<Cell*>(tile.pool)), dim(tile.head_dim), shift(__builtin_ctz(tile.block_size)),
          head_size(size_t(tile.block_size) * dim), to_value(head_size * tile.kv_heads),
          block_size(2 * to_value * tile.layers), place(2 * to_value * layer + head_size * head) {}

    // The key of a position; its value is `to_value` further on, the same of the next head `head_size`.
    Cell* at(const int32_t* blocks, int position) const {
        size_t slot = position & ((1 << shift) - 1);
        return pool + block_size * blocks[position >> shift] + place + slot * dim;
    }

    Cell* pool;
    size_t dim;
    int shift;
    size_t head_size, to_value, block_size, place;
};

// Steps of a transposition: of each quarter the first (second) two words, or pairs of words, of a and b in turn; and of
// both the first (second) two quarters, or every second one.
INLINE Words low_words(Words a, Words b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
INLINE Words high_words(Words a, Words b) {
    return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
INLINE Words low_pairs(Words a, Words b) {
    return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
INLINE Words high_pairs(Words a, Words b) {
    return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
INLINE Words low_halves(Words a, Words b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
}
INLINE Words high_halves(Words a, Words b) {
    return __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}
INLINE Words even_quarters(Words a, Words b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
INLINE Words odd_quarters(Words a, Words b) {
    return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

// 16 rows of `words` words to [word][16], with a stride of STRIP words: keys as packed weights are.
INLINE void transpose(const uint32_t* const* rows, int words, uint32_t* to) {
    int word = 0;
    for (; word + LANES <= words; word += LANES) {
        Words x[LANES], y[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) x[i] = load_words(rows[i] + word);
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i += 2) y[i] = low_words(x[i], x[i + 1]), y[i + 1] = high_words(x[i], x[i + 1]);
#pragma GCC unroll 4
        for (int i = 0; i < LANES; i += 4)
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) {
                x[i + 2 * j] = low_pairs(y[i + j], y[i + j + 2]);
                x[i + 2 * j + 1] = high_pairs(y[i + j], y[i + j + 2]);
            }
        // Quarter p of x[4 q + c] holds the word 4 p + c of rows 4 q to 4 q + 3.
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            Words low_rows = low_halves(x[c], x[4 + c]), low_rest = low_halves(x[8 + c], x[12 + c]);
            Words high_rows = high_halves(x[c], x[4 + c]), high_rest = high_halves(x[8 + c], x[12 + c]);
            uint32_t* out = to + size_t(word + c) * STRIP;
            store_words(out, even_quarters(low_rows, low_rest));
            store_words(out + 4 * STRIP, odd_quarters(low_rows, low_rest));
            store_words(out + 8 * STRIP, even_quarters(high_rows, high_rest));
            store_words(out + 12 * STRIP, odd_quarters(high_rows, high_rest));
        }
    }
    for (; word < words; word++)
        for (int i = 0; i < LANES; i++) to[size_t(word) * STRIP + i] = rows[i][word];
}

// sums [R][stride], N vectors of each from `column` on: times the row's correction, then the weighted values added.
template <class T, int R, int N>
static void add_values(const float* weights, const typename T::Cell* const* values, int count, int column,
                       size_t stride, const float* correction, float* sums) {
    Floats x[R][N];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) x[r][n] = load(sums + r * stride + column + n * LANES) * splat(correction[r]);
    for (int key = 0; key < count; key++) {
        const typename T::Cell* row = values[key] + column;
        Floats v[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) v[n] = T::load_cells(row + n * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            Floats weight = splat(weights[r * STRIP + key]);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) x[r][n] = multiply_add(weight, v[n], x[r][n]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) store(sums + r * stride + column + n * LANES, x[r][n]);
}

template <class T>
using AddValues = void (*)(const float*, const typename T::Cell* const*, int, int, size_t, const float*, float*);

template <class T, int N, int R = VALUE_ROWS>
static AddValues<T> add_values_of(int rows) {
    if constexpr (R == 1)
        return add_values<T, 1, N>;
    else
        return rows == R ? add_values<T, R, N> : add_values_of<T, N, R - 1>(rows);
}
template <class T>
static AddValues<T> add_values_of(int rows, int vectors) {
    switch (vectors) {
        case 1: return add_values_of<T, 1>(rows);
        case 2: return add_values_of<T, 2>(rows);
        case 3: return add_values_of<T, 3>(rows);
        default: return add_values_of<T, 4>(rows);
    }
}

// The queries of neighbouring positions to some heads of keys, one after the other: query q of a head is query head
// q % group of position start + q / group.
template <class T>
struct QueryTile {
    typedef typename T::Cell Cell;
    // What is known of a head's queries after some strips.
    struct Head {
        float highest[QUERIES], total[QUERIES];
    };

    Keys<T> keys;
    const int32_t* blocks;
    int start, positions, heads, group, window;
    float scale;

    int dim, words;                          // of a head
    uint32_t* panels;                        // [words][PANELS][16]
    const Cell* here[STRIP];                 // the keys of this strip
    const Cell* next[STRIP];                 // those that will be read after them; null where there are none
    alignas(64) float scores[QUERIES][STRIP];
    float correction[QUERIES];
    Head* known;                             // [heads]
    float* sums;                             // [heads][queries][dim]

    int queries() const { return positions * group; }
    int first_seen(int position) const { return window && position >= window ? position - window + 1 : 0; }
    int first_strip() const { return first_seen(start) / STRIP * STRIP; }
    int last() const { return start + positions - 1; }

    // queries [head][q][words]. `then` is what will be attended after this, or null. Head after head in each strip, as
    // the pool has them: short runs of memory arrive slowly.
    void attend(const uint32_t* query, const QueryTile* then) {
        for (int head = 0; head < heads; head++)
            for (int q = 0; q < queries(); q++) known[head].highest[q] = NOTHING, known[head].total[q] = 0;
        memset(sums, 0, sizeof(float) * heads * queries() * dim);
        locate(here, first_strip(), 0);
        for (int strip = first_strip(); strip <= last(); strip += STRIP) {
            int count = last() + 1 - strip < STRIP ? last() + 1 - strip : int(STRIP);
            for (int head = 0; head < heads; head++) {
                if (head + 1 < heads)
                    locate(next, strip, head + 1);
                else if (strip + STRIP <= last() || !then)
                    locate(next, strip + STRIP, 0);
                else
                    then->locate(next, then->first_strip(), 0);
                score(query + size_t(head) * queries() * words, count);
                for (int q = 0; q < queries(); q++) weigh(known[head], q, strip);
                add(sums + size_t(head) * queries() * dim, count);
                memcpy(here, next, sizeof here);
            }
        }
    }

    void locate(const Cell** rows, int first, int head) const {
        for (int i = 0; i < STRIP; i++)
            rows[i] = first + i <= last() ? keys.at(blocks, first + i) + head * keys.head_size : nullptr;
    }

    void score(const uint32_t* query, int count) {
        for (int first = 0; first < count; first += LANES) {
            const uint32_t* rows[LANES];
            for (int i = 0; i < LANES; i++) {
                int key = first + i < count ? first + i : count - 1;
                rows[i] = reinterpret_cast<const uint32_t*>(here[key]);
                if (next[first + i]) fetch(next[first + i]);
            }
            transpose(rows, words, panels + first);
        }
        for (int q = 0; q < queries(); q += SCORE_ROWS) {
            int some = queries() - q < SCORE_ROWS ? queries() - q : int(SCORE_ROWS);
            product_of<T, PANELS, 0, SCORE_ROWS>(some)(query + size_t(q) * words, words, panels, words, nullptr,
                                                       scores[q]);
        }
    }
    // What is read next is on its way while this is computed.
    void fetch(const Cell* cells) const {
        for (size_t byte = 0; byte < dim * sizeof(Cell); byte += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(cells) + byte, 0, 3);
    }

    // Scores to weights, in place.
    void weigh(Head& head, int q, int strip) {
        int position = start + q / group;
        int low = first_seen(position) - strip, high = position - strip;  // seen: low to high
        Floats best = splat(head.highest[q]), x[STRIP / LANES];
        bool seen[STRIP / LANES];
        for (int n = 0; n < STRIP / LANES; n++) {
            seen[n] = n * LANES <= high && n * LANES + LANES > low;
            if (!seen[n]) continue;
            Words lane = Words{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + n * LANES;
            x[n] = load(scores[q] + n * LANES) * splat(scale * LOG2_E);
            x[n] = ((lane >= low) & (lane <= high)) ? x[n] : splat(NOTHING);
            best = max(best, x[n]);
        }
        float top = highest(best);
        Floats share{};
        for (int n = 0; n < STRIP / LANES; n++) {
            Floats weight{};
            if (seen[n]) {
                weight = x[n] > splat(NOTHING) ? exp2(x[n] - splat(top)) : Floats{};
                share += weight;
            }
            store(scores[q] + n * LANES, weight);
        }
        Floats change = exp2(splat(head.highest[q] - top));
        correction[q] = head.highest[q] > NOTHING ? change[0] : 0.0f;
        head.total[q] = head.total[q] * correction[q] + sum(share);
        head.highest[q] = top;
    }

    void add(float* to, int count) {
        const Cell* values[STRIP];
        for (int key = 0; key < count; key++) {
            values[key] = here[key] + keys.to_value;
            if (next[key]) fetch(next[key] + keys.to_value);
        }
        for (int column = 0; column < dim; column += 4 * LANES) {
            int vectors = dim - column < 4 * LANES ? (dim - column) / LANES : 4;
            for (int q = 0; q < queries(); q += VALUE_ROWS) {
                int some = queries() - q < VALUE_ROWS ? queries() - q : int(VALUE_ROWS);
                add_values_of<T>(some, vectors)(scores[q], values, count, column, dim, correction + q,
                                                to + size_t(q) * dim);
            }
        }
    }

    // To `result`, of which a position's first head is at position * stride.
    void finish(Cell* result, size_t stride) const {
        const float* from = sums;
        for (int head = 0; head < heads; head++)
            for (int q = 0; q < queries(); q++, from += dim) {
                Floats inverse = splat(1.0f / known[head].total[q]);
                Cell* to = result + (q / group) * stride + (head * group + q % group) * dim;
                for (int i = 0; i < dim; i += LANES) T::store_cells(to + i, load(from + i) * inverse);
            }
    }
};
